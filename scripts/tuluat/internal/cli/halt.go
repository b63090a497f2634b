package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// newAgentStop makes the kill switch of one agent.
func newAgentStop(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var reason string
	cmd := &cobra.Command{
		Use: "stop NAME", Short: "Stop an agent until it is resumed", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.objects(api.Agents)),
		Long:    "Stop an agent until it is resumed: no model is asked and no command begins, and\nthose that run are ended. Messages wait; whoever waits in a chat is told so.",
		Example: "  tuluat agent stop python-coder --reason 'it mails the wrong people'",
	}
	reasonFlag(cmd, &reason)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error { return m.halt(ctx, args[0], reason) })
	return cmd
}

func newAgentResume(sys System) *cobra.Command {
	m := &manager{sys: sys}
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Let an agent that was stopped go on with what waits", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.objects(api.Agents)),
	}
	cmd.RunE = m.run(func(ctx context.Context, args []string) error { return m.resume(ctx, args[0]) })
	return cmd
}

func newAgentUsage(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	var since time.Time
	cmd := &cobra.Command{
		Use: "usage NAME", Short: "Show what an agent has spent, day by day", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.objects(api.Agents)),
	}
	f.flag(cmd)
	timeFlag(cmd, &since, "since", "the first day")
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		l, err := m.client.Usage(ctx, args[0], since)
		if err != nil {
			return &aboutError{"agent " + args[0], err}
		}
		return printList(sys, f, "days", l, []column[view.Usage]{
			{"DAY", func(u view.Usage) string { return u.Day }},
			{"STEPS", func(u view.Usage) string { return fmt.Sprint(u.Spent.Steps) }},
			{"CALLS", func(u view.Usage) string { return fmt.Sprint(u.Spent.ToolCalls) }},
			{"TOKENS", func(u view.Usage) string { return fmt.Sprint(u.Spent.Tokens) }},
			{"COST", func(u view.Usage) string { return u.Spent.Cost }},
			{"SECONDS", func(u view.Usage) string { return fmt.Sprintf("%.1f", u.Spent.Seconds) }},
			{"OF COMMANDS", func(u view.Usage) string { return fmt.Sprintf("%.1f", u.Spent.ExecutionSeconds) }},
		})
	})
	return cmd
}

// newStop makes the kill switch of the whole install.
func newStop(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var reason string
	var all bool
	cmd := &cobra.Command{
		Use: "stop --all", Short: "Stop every agent until the install is resumed", Args: cobra.NoArgs,
		Long: "Stop every agent until the install is resumed, as `tuluat agent stop` stops one.", Example: "  tuluat stop --all --reason 'the model leaks'",
	}
	reasonFlag(cmd, &reason)
	allFlag(cmd, &all, "tuluat agent stop NAME stops one")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error { return m.halt(ctx, "", reason) })
	return cmd
}

func newResume(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var all bool
	cmd := &cobra.Command{Use: "resume --all", Short: "Let the install go on; agents that were stopped by name stay so", Args: cobra.NoArgs}
	allFlag(cmd, &all, "tuluat agent resume NAME resumes one")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error { return m.resume(ctx, "") })
	return cmd
}

func reasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why, for people who look at it later")
	before(cmd, func() error {
		if strings.TrimSpace(*reason) == "" {
			return errors.New("--reason is needed: say why, for whoever looks at it later")
		}
		return nil
	})
}

func allFlag(cmd *cobra.Command, all *bool, instead string) {
	cmd.Flags().BoolVar(all, "all", false, "the whole install is meant")
	before(cmd, func() error {
		if !*all {
			return fmt.Errorf("--all is needed: %s", instead)
		}
		return nil
	})
}

func (m *manager) halt(ctx context.Context, agent, reason string) error {
	item, err := m.client.Halt(ctx, agent, reason)
	if err != nil {
		return &aboutError{switched(agent), err}
	}
	fmt.Fprintf(m.sys.Stdout, "%s stopped since %s: %s\n", visible(switched(agent)), whenever(item.View.HaltedAt), visible(item.View.Reason))
	return nil
}

func (m *manager) resume(ctx context.Context, agent string) error {
	if err := m.client.Resume(ctx, agent); err != nil {
		return &aboutError{switched(agent), err}
	}
	fmt.Fprintf(m.sys.Stdout, "%s resumed\n", visible(switched(agent)))
	return nil
}

func switched(agent string) string {
	if agent == "" {
		return "install"
	}
	return "agent/" + agent
}

// halted says why an agent is stopped; empty when it is not, or nobody may know.
func (m *manager) halted(ctx context.Context, agent string) string {
	for _, name := range []string{"", agent} {
		item, err := m.client.Halted(ctx, name)
		if h := item.View; err == nil && h.Halted {
			return fmt.Sprintf("%s stopped by %s since %s: %s", switched(name), h.HaltedBy, whenever(h.HaltedAt), h.Reason)
		}
	}
	return ""
}

func newSessionPause(sys System) *cobra.Command {
	m := &manager{sys: sys}
	cmd := &cobra.Command{
		Use: "pause ID", Short: "Take a session over: its agent keeps out of it, and you answer", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.sessions()),
	}
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		return m.each(ctx, "session", args, func(id string) (string, error) {
			item, err := m.client.Pause(ctx, harness.SessionID(id))
			return "taken over by " + item.View.PausedBy, err
		})
	})
	return cmd
}

func newSessionResume(sys System) *cobra.Command {
	m := &manager{sys: sys}
	cmd := &cobra.Command{Use: "resume ID", Short: "Hand a session back to its agent", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.sessions())}
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		return m.each(ctx, "session", args, func(id string) (string, error) {
			_, err := m.client.Unpause(ctx, harness.SessionID(id))
			return "handed back", err
		})
	})
	return cmd
}

func newSessionReply(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{
		Use: "reply ID TEXT...", Short: "Answer in the agent's place in a session that you have paused", Args: cobra.MinimumNArgs(2), ValidArgsFunction: first(m.sessions()),
		Example: "  tuluat session pause ID && tuluat session reply ID 'Ann here: I look into it.' && tuluat session resume ID",
	}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		item, err := m.client.Reply(ctx, harness.SessionID(args[0]), strings.Join(args[1:], " "))
		if err != nil {
			return &aboutError{"session " + args[0], err}
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		fmt.Fprintf(sys.Stdout, "session/%s answered by %s\n", visible(args[0]), visible(item.View.Author))
		return nil
	})
	return cmd
}

// heldBy says who has a session instead of its agent.
func heldBy(s view.Session) string {
	if s.PausedAt == nil {
		return ""
	}
	return fmt.Sprintf("by %s since %s", s.PausedBy, when(*s.PausedAt))
}
