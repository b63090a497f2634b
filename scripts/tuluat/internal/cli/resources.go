package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
)

// kindCommand makes the command of a verb for one kind of resource.
func kindCommand(kind api.Kind, use, short string) *cobra.Command {
	return &cobra.Command{Use: kind.Noun + use, Aliases: []string{kind.Noun + "s", strings.ToLower(kind.Name), strings.ToLower(kind.Name) + "s"}, Short: fmt.Sprintf(short, kind.Noun)}
}

func verb(use, short string, each func(api.Kind) *cobra.Command) *cobra.Command {
	return group(&cobra.Command{Use: use, Short: short}, each(api.Agents), each(api.Workflows))
}

func newGet(sys System) *cobra.Command {
	return verb("get", "Show agents or workflows", func(kind api.Kind) *cobra.Command {
		m := &manager{sys: sys}
		var f format
		var phases []string
		var limit int
		cmd := kindCommand(kind, " [NAME...]", "Show %ss, or those named")
		cmd.Example = "  tuluat get " + kind.Noun + "\n  tuluat get " + kind.Noun + " NAME -o yaml\n  tuluat get " + kind.Noun + " --status INVALID,DEGRADED"
		f.flag(cmd)
		stateFlag(cmd, &phases, harness.AgentReady, harness.AgentDegraded, harness.AgentInvalid)
		limitFlag(cmd, &limit, 0)
		cmd.ValidArgsFunction = m.objects(kind)
		cmd.RunE = m.run(func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				l, err := m.client.Objects(ctx, kind, phases, limit)
				if err != nil {
					return err
				}
				return printList(sys, f, kind.Noun+"s", l, objectColumns(kind))
			}
			var l api.List[api.Object]
			for _, name := range args {
				item, err := m.client.Object(ctx, kind, name)
				if err != nil {
					return &aboutError{kind.Noun + " " + name, err}
				}
				l.Items = append(l.Items, item)
			}
			if len(args) == 1 && f != asTable {
				return f.write(sys.Stdout, l.Items[0])
			}
			return printList(sys, f, kind.Noun+"s", l, objectColumns(kind))
		})
		return cmd
	})
}

func (m *manager) objects(kind api.Kind) cobra.CompletionFunc {
	return m.names(func(ctx context.Context) ([]string, error) {
		l, err := m.client.Objects(ctx, kind, nil, completions)
		return completing(l, err, func(o api.Object) string { return o.Metadata.Name + "\t" + string(o.Status.Phase) })
	})
}

func objectColumns(kind api.Kind) []column[api.Object] {
	columns := []column[api.Object]{
		{"NAME", func(o api.Object) string { return o.Metadata.Name }},
		{"PHASE", func(o api.Object) string { return string(o.Status.Phase) }},
		{"SESSIONS", func(o api.Object) string { return strconv.Itoa(o.Status.ActiveSessions) }},
	}
	if kind == api.Agents {
		columns = append(columns,
			column[api.Object]{"SANDBOXES", func(o api.Object) string { return strconv.Itoa(o.Status.ActiveSandboxes) }},
			column[api.Object]{"LAST EXECUTION", lastExecution},
			column[api.Object]{"FEATURES", func(o api.Object) string { return strings.Join(enabled(o), ",") }},
		)
	}
	return append(columns, column[api.Object]{"WHY", func(o api.Object) string { return short(strings.Join(troubles(o), "; "), 80) }})
}

func lastExecution(o api.Object) string {
	if o.Status.LastExecutionAt == nil {
		return ""
	}
	return fmt.Sprintf("%s %s", when(*o.Status.LastExecutionAt), o.Status.LastExecutionStatus)
}

// blocks are the features that can be switched.
var blocks = []string{"guardrails", "mcpServers", "a2a", "harness", "skills"}

// enabled lists the blocks that are on: those that are there and do not say
// otherwise.
func enabled(o api.Object) []string {
	var on []string
	for _, name := range blocks {
		if there, is := feature(o, name); there && is {
			on = append(on, name)
		}
	}
	return on
}

func feature(o api.Object, name string) (there, on bool) {
	var spec map[string]json.RawMessage
	var b struct {
		Enabled *bool `json:"enabled"`
	}
	if json.Unmarshal(o.Spec, &spec) != nil || spec[name] == nil || json.Unmarshal(spec[name], &b) != nil {
		return false, false
	}
	return true, b.Enabled == nil || *b.Enabled
}

// troubles says what is not as it should be.
func troubles(o api.Object) []string {
	var all []string
	for _, c := range o.Status.Conditions {
		if c.Type != "Ready" && c.Status != "True" {
			all = append(all, fmt.Sprintf("%s: %s", c.Reason, c.Message))
		}
	}
	return all
}

// aboutError says what an error is about.
type aboutError struct {
	what string
	err  error
}

func (e *aboutError) Error() string { return e.what + ": " + e.err.Error() }

func (e *aboutError) Unwrap() error { return e.err }

func newDelete(sys System) *cobra.Command {
	return verb("delete", "Delete agents or workflows", func(kind api.Kind) *cobra.Command {
		m := &manager{sys: sys}
		var c consent
		var absent bool
		cmd := kindCommand(kind, " NAME...", "Delete %ss")
		cmd.Args = cobra.MinimumNArgs(1)
		c.flag(cmd)
		cmd.Flags().BoolVar(&absent, "ignore-not-found", false, "one that does not exist is no error")
		cmd.ValidArgsFunction = m.objects(kind)
		cmd.RunE = m.run(func(ctx context.Context, args []string) error {
			// All are looked at before the first is deleted, and only what was seen is deleted.
			versions := map[string]string{}
			for _, name := range args {
				item, err := m.client.Object(ctx, kind, name)
				if p, ok := errors.AsType[*api.Problem](err); ok && p.Status == http.StatusNotFound && absent {
					continue
				}
				if err != nil {
					return &aboutError{kind.Noun + " " + name, err}
				}
				versions[name] = item.View.Version()
			}
			if len(versions) == 0 {
				return nil
			}
			if err := c.given(ctx, sys, fmt.Sprintf("Delete %s %s at %s?", kind.Noun, strings.Join(args, ", "), m.client.URL())); err != nil {
				return err
			}
			for _, name := range args {
				version, ok := versions[name]
				if !ok {
					continue
				}
				delete(versions, name)
				if err := m.client.Delete(ctx, kind, name, version); err != nil {
					return &aboutError{kind.Noun + " " + name, err}
				}
				fmt.Fprintf(sys.Stdout, "%s/%s deleted\n", kind.Noun, visible(name))
			}
			return nil
		})
		return cmd
	})
}

func newAgent(sys System) *cobra.Command {
	return group(&cobra.Command{Use: "agent", Short: "Switch what an agent has on or off, or stop it"}, newSwitch(sys, true), newSwitch(sys, false), newAgentStop(sys), newAgentResume(sys), newAgentUsage(sys))
}

// newSwitch makes enable and disable.
func newSwitch(sys System, on bool) *cobra.Command {
	m := &manager{sys: sys}
	use, become := "disable", "off"
	if on {
		use, become = "enable", "on"
	}
	w := waiting{sys: sys}
	cmd := &cobra.Command{
		Use:   use + " NAME FEATURE...",
		Short: "Switch blocks of an agent " + become + ", and change nothing else of it",
		Long: "Switch blocks of an agent " + become + ", and change nothing else of it.\n\nFeatures: " + strings.Join(blocks, ", ") +
			". A block that the agent does not have cannot be\nswitched on: write it into the agent's YAML and apply that.",
		Example: "  tuluat agent " + use + " python-coder guardrails",
		Args:    cobra.MinimumNArgs(2),
	}
	w.flags(cmd, "wait until the agent is ready with it")
	before(cmd, func() error { return unknownBlock(cmd.Flags().Args()) })
	names := m.objects(api.Agents)
	cmd.ValidArgsFunction = func(c *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return names(c, args, begin)
		}
		return slices.DeleteFunc(slices.Clone(blocks), func(b string) bool { return slices.Contains(args, b) }), cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		features := map[string]bool{}
		for _, name := range args[1:] {
			features[name] = on
		}
		before, err := m.client.Object(ctx, api.Agents, args[0])
		if err != nil {
			return &aboutError{"agent " + args[0], err}
		}
		after, err := m.client.SetFeatures(ctx, args[0], features)
		if err != nil {
			return &aboutError{"agent " + args[0], err}
		}
		done := use + "d"
		one := applied{kind: api.Agents, name: args[0], old: &before.View, wrote: time.Now()}
		if before.View.Version() == after.View.Version() {
			done, one.old = "already "+done, nil
		}
		fmt.Fprintf(sys.Stdout, "agent/%s %s %s\n", visible(args[0]), strings.Join(args[1:], ", "), done)
		return w.until(ctx, m.client, []applied{one})
	})
	return cmd
}

func unknownBlock(args []string) error {
	for _, name := range args[min(1, len(args)):] {
		if !slices.Contains(blocks, name) {
			return fmt.Errorf("%q is no feature: use %s", name, strings.Join(blocks, ", "))
		}
	}
	return nil
}

// waiting is --wait and --timeout.
type waiting struct {
	sys  System
	wait bool
	time time.Duration
}

func (w *waiting) flags(cmd *cobra.Command, usage string) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, usage)
	cmd.Flags().DurationVar(&w.time, "timeout", 120*time.Second, "with --wait: how long")
}
