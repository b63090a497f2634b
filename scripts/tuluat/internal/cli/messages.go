package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

func newSessionMessages(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	var limit int
	var follow bool
	var after string
	cmd := &cobra.Command{
		Use: "messages ID", Short: "Show what was said in a session, and with -f what comes", Args: cobra.ExactArgs(1),
		Long: `Show what was said in a session, the oldest first. With -f it goes on: what the
agent runs is shown while it runs, and on a terminal the end of an answer while it
is written, until the session has ended. A connection that is lost is opened again where it was.

-f -o json prints every event of the session as a line of JSON; its id is what
--after takes, to go on behind it another time.`,
		ValidArgsFunction: first(m.sessions()),
	}
	f.flag(cmd)
	limitFlag(cmd, &limit, 0)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes")
	cmd.Flags().StringVar(&after, "after", "", "with -f -o json: only what comes behind the event with this id")
	before(cmd, func() error {
		switch {
		case follow && f == asYAML:
			return errors.New("-f prints text or -o json")
		case after != "" && (!follow || f != asJSON):
			return errors.New("--after needs -f -o json")
		case follow && limit != 0:
			return errors.New("--limit has no meaning with -f")
		}
		return nil
	})
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		id := harness.SessionID(args[0])
		if follow && f == asJSON {
			return about("session "+args[0], m.client.Follow(ctx, id, after, func(e sse.Event) error {
				if e.Name == "draft" { // no event of the session
					return nil
				}
				return printEvent(sys.Stdout, e)
			}, m.lost()))
		}
		l, err := m.client.Messages(ctx, id, limit)
		if err != nil {
			return &aboutError{"session " + args[0], err}
		}
		if f != asTable {
			return printList(sys, f, "messages", l, nil)
		}
		session, err := m.client.Session(ctx, id)
		if err != nil {
			return &aboutError{"session " + args[0], err}
		}
		agent := string(session.View.Agent)
		for _, item := range l.Items {
			printMessage(sys.Stdout, agent, item.View)
		}
		more(sys, l.More)
		if !follow {
			return nil
		}
		return about("session "+args[0], m.goOn(ctx, id, agent, l))
	})
	return cmd
}

func about(what string, err error) error {
	if err == nil {
		return nil
	}
	return &aboutError{what, err}
}

// goOn shows what happens behind the messages that were shown: of the stream,
// which begins with the session, turns that were answered there are left out.
func (m *manager) goOn(ctx context.Context, id harness.SessionID, agent string, shown api.List[view.Message]) error {
	known, answered := map[harness.MessageID]bool{}, map[harness.MessageID]bool{}
	for _, item := range shown.Items {
		known[item.View.ID], answered[item.View.InReplyTo] = true, true
	}
	w := m.sys.Stdout
	s := newScreen(w, w, terminal(w))
	past := false // the turn was answered before we came
	return m.client.Follow(ctx, id, "", func(e sse.Event) error {
		if e.Name != "draft" {
			s.erase()
		}
		switch e.Name {
		case "draft":
			s.show(e)
		case "turn":
			past = answered[e.Message]
			if !known[e.Message] {
				heading(w, e.At, e.ChannelUserID, "")
				paragraph(w, e.Text)
			}
		case "reply":
			if !known[e.Message] {
				heading(w, e.At, agent, "")
				paragraph(w, e.Text)
				s.offer(e.Choices)
			}
		case "end":
			fmt.Fprintf(m.sys.Stderr, "The session has ended: %s.\n", words(visible(e.State)))
		default:
			if !past {
				s.show(e)
			}
		}
		return nil
	}, m.lost())
}

func heading(w io.Writer, at time.Time, who, what string) {
	text := when(at) + "  " + flatten(who)
	if what != "" {
		text += "  (" + flatten(what) + ")"
	}
	fmt.Fprintln(w, text)
}

func paragraph(w io.Writer, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(visible(text), "\n"), "\n") {
		fmt.Fprintln(w, indent+line)
	}
}

func printMessage(w io.Writer, agent string, m view.Message) {
	who, what := m.ChannelUserID, ""
	if m.Direction == harness.Outbound {
		if who = agent; m.Author != "" {
			who = m.Author + ", for " + agent
		}
		var parts []string
		for _, p := range m.Parts {
			text := words(string(p.State))
			if p.Reason != "" {
				text += ": " + p.Reason
			}
			parts = append(parts, text)
		}
		what = strings.Join(parts, ", ")
	} else if m.State != harness.MessageDone {
		what = words(string(m.State))
	}
	heading(w, m.CreatedAt, who, what)
	paragraph(w, m.Text)
	for _, a := range m.Attachments {
		fmt.Fprintf(w, "%s[%s, %d bytes, %s]\n", indent, flatten(a.FileName), a.SizeBytes, words(flatten(a.State)))
	}
}

// printEvent prints an event as a line of JSON: its data, name and id.
func printEvent(w io.Writer, e sse.Event) error {
	line := struct {
		ID   string          `json:"id,omitempty"`
		Name string          `json:"event"`
		Data json.RawMessage `json:"data,omitempty"`
	}{e.ID, e.Name, e.Data}
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, escapeJSON(string(text))+"\n")
	return err
}

func newSessionTimeline(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	var limit int
	cmd := &cobra.Command{
		Use: "timeline ID", Short: "Show everything that happened in a session", Args: cobra.ExactArgs(1),
		Long:              "Show everything that happened in a session, the oldest first: messages, what the\nmodel answered and asked for, commands, approvals, what guardrails did not let pass,\nand of a workflow run the visits of its nodes. -o json has all of it in full.",
		ValidArgsFunction: first(m.sessions()),
	}
	f.flag(cmd)
	limitFlag(cmd, &limit, 0)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		l, err := m.client.Timeline(ctx, harness.SessionID(args[0]), limit)
		if err != nil {
			return &aboutError{"session " + args[0], err}
		}
		return printList(sys, f, "events", l, []column[view.Entry]{
			{"TIME", func(e view.Entry) string { return when(e.At) }},
			{"KIND", func(e view.Entry) string { return words(string(e.Kind)) }},
			{"STATE", func(e view.Entry) string { return words(entryState(e)) }},
			{"ID", func(e view.Entry) string { return e.ID }},
			{"WHAT", func(e view.Entry) string { return short(entryText(e), 100) }},
		})
	})
	return cmd
}

func entryState(e view.Entry) string {
	switch {
	case e.Message != nil:
		return string(e.Message.Direction)
	case e.ToolCall != nil:
		return string(e.ToolCall.State)
	case e.Execution != nil:
		return string(e.Execution.State)
	case e.Approval != nil:
		return string(e.Approval.State)
	case e.Visit != nil:
		return string(e.Visit.State)
	case e.Guardrail != nil:
		return string(e.Guardrail.Verdict)
	}
	return ""
}

func entryText(e view.Entry) string {
	switch {
	case e.Message != nil:
		return e.Message.Text
	case e.Guardrail != nil:
		g := e.Guardrail
		return fmt.Sprintf("%s on %s: %s (%s)", g.Guardrail, words(string(g.Stage)), g.Reason, g.Action)
	case e.Step != nil:
		text := fmt.Sprintf("%s, %d tokens in, %d out", e.Step.Model, e.Step.InputTokens, e.Step.OutputTokens)
		for _, a := range e.Step.ModelAttempts {
			if a.Reason != "" && a.Purpose == harness.AttemptAnswer {
				text += fmt.Sprintf(", after %s of %s", words(a.Reason), a.Model)
			}
		}
		if e.Step.Text != "" {
			text += ": " + e.Step.Text
		}
		return text
	case e.ToolCall != nil:
		return commandLine(e.ToolCall.Name, e.ToolCall.Arguments)
	case e.Execution != nil:
		text := "$ " + e.Execution.Command
		if e.Execution.ExitCode != nil {
			text = fmt.Sprintf("exit %d: %s", *e.Execution.ExitCode, text)
		}
		return text
	case e.Approval != nil:
		return e.Approval.Title
	case e.Visit != nil:
		return fmt.Sprintf("%s, visit %d: %s", e.Visit.Node, e.Visit.Number, visitText(*e.Visit))
	}
	return ""
}
