package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

const recentRecords = 10 // that a description shows

func newDescribe(sys System) *cobra.Command {
	return verb("describe", "Show one agent or workflow and how it does", func(kind api.Kind) *cobra.Command {
		m := &manager{sys: sys}
		cmd := kindCommand(kind, " NAME", "Show one %s and how it does")
		cmd.Args = cobra.ExactArgs(1)
		cmd.ValidArgsFunction = first(m.objects(kind))
		cmd.RunE = m.run(func(ctx context.Context, args []string) error {
			item, err := m.client.Object(ctx, kind, args[0])
			if err != nil {
				return &aboutError{kind.Noun + " " + args[0], err}
			}
			d := &description{m: m, o: item.View}
			if kind == api.Agents {
				d.halted = m.halted(ctx, args[0])
			}
			if err := d.object(kind); err != nil || kind != api.Agents {
				return err
			}
			return d.around(ctx)
		})
		return cmd
	})
}

// description prints one object.
type description struct {
	m      *manager
	o      api.Object
	halted string // why nothing is done for it
}

func (d *description) object(kind api.Kind) error {
	o, w := d.o, d.m.sys.Stdout
	var spec struct {
		Description string `json:"description"`
		Model       struct {
			Provider string `json:"provider"`
			Name     string `json:"name"`
		} `json:"model"`
	}
	if err := json.Unmarshal(o.Spec, &spec); err != nil {
		return fmt.Errorf("the spec cannot be read: %w", err)
	}
	phase := string(o.Status.Phase)
	if phase != "" && standing(o) == "" {
		phase += " (an older text; nobody has looked at the newest yet)"
	}
	pairs := []string{
		"Name", o.Metadata.Name, "Kind", o.Kind, "Namespace", o.Metadata.Namespace, "Created", when(o.Metadata.CreationTimestamp), "Description", short(spec.Description, 200),
		"Labels", joined(o.Metadata.Labels), "Phase", phase, "Stopped", d.halted, "Active sessions", strconv.Itoa(o.Status.ActiveSessions),
	}
	if kind == api.Agents {
		pairs = append(pairs, "Active sandboxes", strconv.Itoa(o.Status.ActiveSandboxes), "Last execution", lastExecution(o),
			"Model", strings.Trim(spec.Model.Provider+" "+spec.Model.Name, " "))
		for _, name := range blocks {
			if there, on := feature(o, name); there {
				pairs = append(pairs, "Feature "+name, map[bool]string{true: "on", false: "off"}[on])
			}
		}
	}
	if err := facts(w, pairs...); err != nil {
		return err
	}
	for _, c := range o.Status.Conditions {
		fmt.Fprintf(w, "\n%s is %s since %s (%s)\n", visible(c.Type), visible(c.Status), when(c.LastTransitionTime), visible(c.Reason))
		if c.Message != "" {
			for line := range strings.SplitSeq(visible(c.Message), "\n") {
				fmt.Fprintln(w, "  "+line)
			}
		}
	}
	return nil
}

// around prints what an agent has been doing, as far as the caller may see it.
func (d *description) around(ctx context.Context) error {
	w, c, name := d.m.sys.Stdout, d.m.client, harness.AgentName(d.o.Metadata.Name)
	sandboxes, err := c.AgentSandboxes(ctx, name, recentRecords)
	if shown(d, "Sandboxes", sandboxes, err) {
		if err := table(w, sandboxColumns, views(sandboxes)); err != nil {
			return err
		}
	}
	sessions, err := c.Sessions(ctx, api.SessionFilter{Agent: string(name)}, recentRecords)
	if shown(d, "Sessions", sessions, err) {
		if err := table(w, sessionColumns, views(sessions)); err != nil {
			return err
		}
	}
	logs, err := c.Logs(ctx, api.LogFilter{Agent: string(name), Levels: []string{"WARN", "ERROR"}}, recentRecords)
	if shown(d, "Warnings and errors", logs, err) {
		for _, item := range logs.Items {
			printLog(w, item.View)
		}
	}
	return ctx.Err()
}

// shown prints the heading of a list, or why it is not there.
func shown[T any](d *description, heading string, l api.List[T], err error) bool {
	w := d.m.sys.Stdout
	switch {
	case err != nil:
		fmt.Fprintf(w, "\n%s: not shown: %s\n", heading, flatten(err.Error()))
	case len(l.Items) == 0:
		fmt.Fprintf(w, "\n%s: none\n", heading)
	default:
		fmt.Fprintf(w, "\n%s, the newest first:\n", heading)
		return true
	}
	return false
}

func views[T any](l api.List[T]) []T {
	rows := make([]T, len(l.Items))
	for i, item := range l.Items {
		rows[i] = item.View
	}
	return rows
}

func joined(labels map[string]string) string {
	var all []string
	for _, name := range sortedKeys(labels) {
		all = append(all, name+"="+labels[name])
	}
	return strings.Join(all, ", ")
}

var sandboxColumns = []column[view.Sandbox]{
	{"ID", func(s view.Sandbox) string { return string(s.ID) }},
	{"AGENT", func(s view.Sandbox) string { return string(s.Agent) }},
	{"STATE", func(s view.Sandbox) string { return string(s.State) }},
	{"SESSION", func(s view.Sandbox) string { return string(s.Session) }},
	{"CREATED", func(s view.Sandbox) string { return when(s.CreatedAt) }},
	{"EXPIRES", func(s view.Sandbox) string { return when(s.ExpiresAt) }},
	{"REASON", func(s view.Sandbox) string { return short(strings.TrimSpace(s.Reason+" "+s.Message), 80) }},
}

var sessionColumns = []column[view.Session]{
	{"ID", func(s view.Session) string { return string(s.ID) }},
	{"AGENT", func(s view.Session) string { return string(s.Agent) }},
	{"STATE", func(s view.Session) string { return string(s.State) }},
	{"CHANNEL", func(s view.Session) string { return string(s.Channel) }},
	{"CHAT", func(s view.Session) string { return short(s.Chat, 32) }},
	{"MESSAGES", func(s view.Session) string { return strconv.FormatInt(s.Messages, 10) }},
	{"STEPS", func(s view.Session) string { return strconv.FormatInt(s.Steps, 10) }},
	{"UPDATED", func(s view.Session) string { return when(s.UpdatedAt) }},
	{"REASON", func(s view.Session) string { return short(s.Reason, 60) }},
}
