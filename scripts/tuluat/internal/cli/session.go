package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

var sessionStates = []harness.SessionState{
	harness.SessionPending, harness.SessionRunning, harness.SessionAwaitingApproval, harness.SessionAwaitingExecution, harness.SessionIdle,
	harness.SessionCompleted, harness.SessionBlocked, harness.SessionFailed, harness.SessionCancelled,
}

func newSession(sys System) *cobra.Command {
	return group(&cobra.Command{Use: "session", Aliases: []string{"sessions"}, Short: "Start, see and end conversations"},
		newSessionList(sys), newSessionShow(sys), newSessionStart(sys), newSessionSend(sys), newSessionMessages(sys), newSessionTimeline(sys), newSessionCancel(sys),
		newSessionPause(sys), newSessionReply(sys), newSessionResume(sys))
}

func newSessionList(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var filter api.SessionFilter
	var f format
	var limit int
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List sessions, the newest first", Args: cobra.NoArgs}
	f.flag(cmd)
	limitFlag(cmd, &limit, 50)
	stateFlag(cmd, &filter.States, sessionStates...)
	m.agentFlag(cmd, &filter.Agent)
	cmd.Flags().StringVar(&filter.Channel, "channel", "", "only those over this channel: WHATSAPP, TELEGRAM, WEBHOOK or API")
	before(cmd, func() error {
		if filter.Channel = strings.ToUpper(filter.Channel); filter.Channel != "" && !harness.Channel(filter.Channel).Known() {
			return errors.New("--channel must be WHATSAPP, TELEGRAM, WEBHOOK or API")
		}
		return nil
	})
	cmd.Flags().StringVar(&filter.User, "user", "", "only those of this person on the channel")
	timeFlag(cmd, &filter.Since, "since", "only those begun since then")
	timeFlag(cmd, &filter.Until, "until", "only those begun before then")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		l, err := m.client.Sessions(ctx, filter, limit)
		if err != nil {
			return err
		}
		return printList(sys, f, "sessions", l, sessionColumns)
	})
	return cmd
}

// agentFlag is which agent's records a list shows.
func (m *manager) agentFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "agent", "", "only those of this agent")
	_ = cmd.RegisterFlagCompletionFunc("agent", m.objects(api.Agents)) // the flag is there
}

func (m *manager) sessions(states ...harness.SessionState) cobra.CompletionFunc {
	return m.names(func(ctx context.Context) ([]string, error) {
		l, err := m.client.Sessions(ctx, api.SessionFilter{States: strung(states)}, completions)
		return completing(l, err, func(s view.Session) string { return fmt.Sprintf("%s\t%s %s", s.ID, s.Agent, s.State) })
	})
}

func newSessionShow(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{Use: "show ID", Short: "Show one session", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.sessions())}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		item, err := m.client.Session(ctx, harness.SessionID(args[0]))
		if err != nil {
			return &aboutError{"session " + args[0], err}
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		s := item.View
		if err := facts(sys.Stdout, "ID", string(s.ID), "Agent", string(s.Agent), "State", string(s.State), "Reason", s.Reason, "Taken over", heldBy(s), "Node", s.CurrentNode, "Channel", string(s.Channel),
			"Account", s.Account, "Chat", s.Chat, "Messages", fmt.Sprint(s.Messages), "Steps", fmt.Sprint(s.Steps), "Tokens", fmt.Sprint(s.Spent.Tokens), "Cost", s.Spent.Cost, "Created", when(s.CreatedAt), "Updated", when(s.UpdatedAt),
			"Ended", whenever(s.EndedAt), "Trace", s.TraceID, "Temporal", temporalText(s.Temporal), "Workflow", run(s), "Origin", string(s.Origin), "Visit", string(s.Visit), "Input", string(s.Input)); err != nil {
			return err
		}
		if s.Workflow == "" {
			return nil
		}
		return m.visits(ctx, s.ID)
	})
	return cmd
}

// run says which workflow a session is a run of, if it is one.
func run(s view.Session) string {
	if s.Workflow == "" {
		return ""
	}
	return fmt.Sprintf("%s, revision %d", s.Workflow, s.WorkflowRevision)
}

// visits shows what a run has done.
func (m *manager) visits(ctx context.Context, id harness.SessionID) error {
	l, err := m.client.Timeline(ctx, id, 0)
	if err != nil {
		return &aboutError{"session " + string(id), err}
	}
	visits := api.List[view.Entry]{}
	for _, item := range l.Items {
		if item.View.Visit != nil {
			visits.Items = append(visits.Items, item)
		}
	}
	fmt.Fprintln(m.sys.Stdout)
	return printList(m.sys, asTable, "visits", visits, []column[view.Entry]{
		{"NODE", func(e view.Entry) string { return e.Visit.Node }},
		{"VISIT", func(e view.Entry) string { return fmt.Sprint(e.Visit.Number) }},
		{"STATE", func(e view.Entry) string { return words(string(e.Visit.State)) }},
		{"ATTEMPTS", func(e view.Entry) string { return fmt.Sprint(e.Visit.Attempts) }},
		{"BEGAN", func(e view.Entry) string { return when(e.Visit.CreatedAt) }},
		{"ENDED", func(e view.Entry) string { return whenever(e.Visit.EndedAt) }},
		{"WHAT", func(e view.Entry) string { return short(visitText(*e.Visit), 80) }},
	})
}

// visitText is why a visit failed, else what it came to, else what it was asked.
func visitText(v view.Visit) string {
	switch {
	case v.Reason != "":
		return v.Reason
	case len(v.Output) > 0:
		return string(v.Output)
	}
	return v.Input
}

func newSessionStart(sys System) *cobra.Command {
	m := &manager{sys: sys}
	t := talking{m: m}
	var chat, workflow, input string
	var link temporalFlags
	cmd := &cobra.Command{
		Use: "start {AGENT TEXT... | --workflow NAME}", Short: "Say something to an agent in a new session, or start a run of a workflow",
		Args: func(cmd *cobra.Command, args []string) error {
			if workflow != "" {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.MinimumNArgs(2)(cmd, args)
		},
		Example:           "  tuluat session start python-coder 'What is 2^100?' --wait\n  tuluat session start --workflow release --input '{\"text\": \"hi\"}'",
		ValidArgsFunction: first(m.objects(api.Agents)),
	}
	cmd.Flags().StringVar(&chat, "chat", "", "a name for the conversation: with one that is open, it goes on there")
	link.flags(cmd)
	cmd.Flags().StringVar(&workflow, "workflow", "", "start a run of this workflow")
	cmd.Flags().StringVar(&input, "input", "", "with --workflow: the run's input, a JSON object")
	t.flags(cmd)
	cmd.MarkFlagsMutuallyExclusive("workflow", "chat")
	cmd.MarkFlagsMutuallyExclusive("workflow", "wait")
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		if input != "" && (workflow == "" || !json.Valid([]byte(input))) {
			return &usageError{"--input is a JSON object, and goes with --workflow"}
		}
		if workflow != "" {
			item, err := m.client.StartRun(ctx, workflow, json.RawMessage(input), link.given())
			if err != nil {
				return &aboutError{"workflow " + workflow, err}
			}
			if t.f != asTable {
				return t.f.write(sys.Stdout, item)
			}
			fmt.Fprintf(sys.Stdout, "run %s of workflow %s is started\n", visible(string(item.View.Session)), visible(workflow))
			return nil
		}
		return t.run(ctx, "agent "+args[0], func() (api.Item[api.Accepted], error) {
			return m.client.Start(ctx, args[0], strings.Join(args[1:], " "), chat, link.given())
		})
	})
	return cmd
}

func newSessionSend(sys System) *cobra.Command {
	m := &manager{sys: sys}
	t := talking{m: m}
	cmd := &cobra.Command{
		Use: "send ID TEXT...", Short: "Say something in a session of channel API", Args: cobra.MinimumNArgs(2), ValidArgsFunction: first(m.sessions(harness.SessionIdle)),
	}
	t.flags(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		return t.run(ctx, "session "+args[0], func() (api.Item[api.Accepted], error) {
			return m.client.Say(ctx, harness.SessionID(args[0]), strings.Join(args[1:], " "))
		})
	})
	return cmd
}

// talking says one thing and may wait for the answer.
type talking struct {
	m    *manager
	f    format
	wait bool
	time time.Duration
}

func (t *talking) flags(cmd *cobra.Command) {
	t.f.flag(cmd)
	cmd.Flags().BoolVar(&t.wait, "wait", false, "wait for the answer and print it; what the agent runs goes to stderr")
	cmd.Flags().DurationVar(&t.time, "timeout", 120*time.Second, "with --wait: how long")
}

// errAnswered ends the following of a session.
var errAnswered = errors.New("the answer has come")

func (t *talking) run(ctx context.Context, what string, say func() (api.Item[api.Accepted], error)) error {
	sys := t.m.sys
	item, err := say()
	if err != nil {
		return &aboutError{what, err}
	}
	if !t.wait {
		if t.f != asTable {
			return t.f.write(sys.Stdout, item)
		}
		fmt.Fprintf(sys.Stdout, "message %s is taken in session %s\n", visible(string(item.View.Message)), visible(string(item.View.Session)))
		return nil
	}
	waiting, cancel := context.WithTimeoutCause(ctx, t.time, errLate)
	defer cancel()
	ours := false // the turn of our message runs
	s := newScreen(sys.Stdout, sys.Stderr, false)
	var answer sse.Event
	err = t.m.client.Follow(waiting, item.View.Session, "", func(e sse.Event) error {
		switch {
		case e.Name == "turn":
			ours = e.Message == item.View.Message
		case e.Name == "reply" && e.InReplyTo == item.View.Message:
			answer = e
			return errAnswered
		case ours:
			s.show(e)
		}
		return nil
	}, t.m.lost())
	switch {
	case errors.Is(err, errAnswered):
	case ctx.Err() == nil && errors.Is(context.Cause(waiting), errLate):
		return &timeoutError{after: t.time, why: "see `tuluat session messages " + string(item.View.Session) + " -f`"}
	case err == nil:
		return fmt.Errorf("session %s has ended without an answer: see `tuluat session timeline %s`", item.View.Session, item.View.Session)
	default:
		return err
	}
	if t.f != asTable {
		return t.f.write(sys.Stdout, answer.Data)
	}
	s.answer(answer.Text)
	s.offer(answer.Choices)
	return nil
}

// lost tells once per loss that a connection is tried again.
func (m *manager) lost() func(error) {
	var told time.Time
	return func(err error) {
		if time.Since(told) > 10*time.Second {
			fmt.Fprintf(m.sys.Stderr, "The connection is lost and tried again: %s\n", flatten(err.Error()))
		}
		told = time.Now()
	}
}

func newSessionCancel(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var c consent
	cmd := &cobra.Command{
		Use: "cancel ID...", Short: "End sessions and what they wait for", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: m.sessions(harness.SessionPending, harness.SessionRunning, harness.SessionAwaitingApproval, harness.SessionAwaitingExecution, harness.SessionIdle, harness.SessionBlocked, harness.SessionFailed),
	}
	c.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		if err := c.given(ctx, sys, fmt.Sprintf("Cancel session %s at %s? What runs there is ended.", strings.Join(args, ", "), m.client.URL())); err != nil {
			return err
		}
		return m.each(ctx, "session", args, func(id string) (string, error) {
			item, err := m.client.Cancel(ctx, harness.SessionID(id))
			return strings.ToLower(string(item.View.State)), err
		})
	})
	return cmd
}

// each does something to every one and prints what it became. The failure of one
// does not spare the others.
func (m *manager) each(ctx context.Context, noun string, ids []string, do func(id string) (string, error)) error {
	var failed []error
	for _, id := range ids {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		became, err := do(id)
		if err != nil {
			failed = append(failed, &aboutError{noun + " " + id, err})
			continue
		}
		fmt.Fprintf(m.sys.Stdout, "%s/%s %s\n", noun, visible(id), visible(became))
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}
