package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

func newApproval(sys System) *cobra.Command {
	return group(&cobra.Command{Use: "approval", Aliases: []string{"approvals"}, Short: "See and answer what agents ask humans"},
		newApprovalList(sys), newApprovalShow(sys), newDecision(sys, true), newDecision(sys, false))
}

func newApprovalList(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var filter api.ApprovalFilter
	var f format
	var limit int
	var all, watch bool
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List what waits for an answer, the newest first", Args: cobra.NoArgs}
	f.flag(cmd)
	limitFlag(cmd, &limit, 50)
	stateFlag(cmd, &filter.States, harness.ApprovalPending, harness.ApprovalApproved, harness.ApprovalRejected, harness.ApprovalExpired, harness.ApprovalCancelled)
	cmd.Flags().BoolVar(&all, "all", false, "also what is decided")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on with what is asked and decided from now on")
	m.agentFlag(cmd, &filter.Agent)
	cmd.Flags().StringVar(&filter.Session, "session", "", "only those of this session")
	cmd.MarkFlagsMutuallyExclusive("watch", "all")
	cmd.MarkFlagsMutuallyExclusive("watch", "session")
	cmd.MarkFlagsMutuallyExclusive("watch", "status")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		if watch {
			return m.watchApprovals(ctx, f, filter.Agent)
		}
		if len(filter.States) == 0 && !all {
			filter.States = []string{string(harness.ApprovalPending)}
		}
		l, err := m.client.Approvals(ctx, filter, limit)
		if err != nil {
			return err
		}
		return printList(sys, f, "approvals", l, []column[view.Approval]{
			{"ID", func(a view.Approval) string { return string(a.ID) }},
			{"AGENT", func(a view.Approval) string { return string(a.Agent) }},
			{"KIND", func(a view.Approval) string { return string(a.Kind) }},
			{"STATE", func(a view.Approval) string { return string(a.State) }},
			{"REQUESTED", func(a view.Approval) string { return when(a.RequestedAt) }},
			{"EXPIRES", func(a view.Approval) string { return whenever(a.ExpiresAt) }},
			{"BY", func(a view.Approval) string { return short(a.DecidedBy, 30) }},
			{"WHAT", func(a view.Approval) string { return short(a.Title, 80) }},
		})
	})
	return cmd
}

// watchApprovals prints a line for every approval that waits, is asked for or ends.
func (m *manager) watchApprovals(ctx context.Context, f format, agent string) error {
	err := m.client.FollowApprovals(ctx, agent, func(a view.Approval) error {
		if f != asTable {
			return f.write(m.sys.Stdout, a)
		}
		line := fmt.Sprintf("%s  %s  %s  %s  %s", when(a.RequestedAt), visible(string(a.ID)), visible(string(a.Agent)), visible(string(a.State)), short(a.Title, 80))
		if a.State == harness.ApprovalPending && a.ExpiresAt != nil {
			line += ", until " + when(*a.ExpiresAt)
		}
		if a.DecidedBy != "" {
			line += ", by " + short(a.DecidedBy, 80)
		}
		_, err := fmt.Fprintln(m.sys.Stdout, line)
		return err
	}, func(err error) {
		fmt.Fprintf(m.sys.Stderr, "The stream is lost and opened again: %s\n", visible(err.Error()))
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (m *manager) pending() cobra.CompletionFunc {
	return m.names(func(ctx context.Context) ([]string, error) {
		l, err := m.client.Approvals(ctx, api.ApprovalFilter{States: []string{string(harness.ApprovalPending)}}, completions)
		return completing(l, err, func(a view.Approval) string { return fmt.Sprintf("%s\t%s: %s", a.ID, a.Agent, a.Title) })
	})
}

func newApprovalShow(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{Use: "show ID", Aliases: []string{"get"}, Short: "Show what exactly is asked", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.pending())}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		item, err := m.client.Approval(ctx, harness.ApprovalID(args[0]))
		if err != nil {
			return &aboutError{"approval " + args[0], err}
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		return m.question(sys.Stdout, item.View)
	})
	return cmd
}

// question prints what is asked: all of it, since it is what will run.
func (m *manager) question(w interface{ Write([]byte) (int, error) }, a view.Approval) error {
	err := facts(w, "ID", string(a.ID), "Kind", string(a.Kind), "Agent", string(a.Agent), "Session", string(a.Session), "Node", a.CurrentNode, "Asked", when(a.RequestedAt), "Expires", whenever(a.ExpiresAt),
		"State", string(a.State), "Decided by", a.DecidedBy, "Over", a.DecidedVia, "Decided", whenever(a.DecidedAt), "Digest", a.Digest)
	if err != nil {
		return err
	}
	if a.Reason != "" {
		block(w, "Reason", a.Reason)
	}
	block(w, "What", a.Title)
	if command, ok := askedCommand(a.Input); ok { // as it is: each character of it decides
		block(w, "Command", harness.Visible(command))
	}
	if command, ok := askedCommand(a.AskedInput); ok {
		block(w, "Asked was", harness.Visible(command))
	}
	var input map[string]json.RawMessage
	if len(a.Input) > 0 {
		if err := json.Unmarshal(a.Input, &input); err != nil {
			return fmt.Errorf("what is asked is no JSON object: %w", err)
		}
	}
	for _, name := range sortedKeys(input) {
		var text *string // of null too, which is none
		if json.Unmarshal(input[name], &text) == nil && text != nil {
			block(w, flatten(name), *text)
			continue
		}
		var b strings.Builder
		if err := format(asJSON).write(&b, input[name]); err != nil {
			return err
		}
		block(w, flatten(name), b.String())
	}
	return nil
}

// askedCommand is the command of what an approval is about; false: it is none.
func askedCommand(input json.RawMessage) (string, bool) {
	var subject harness.ApprovalSubject
	if json.Unmarshal(input, &subject) != nil || subject.Tool != harness.ToolExecuteShell {
		return "", false
	}
	command, err := harness.ShellCommand(subject.Arguments)
	return command, err == nil
}

// askedOnce reports whether a is a turn's own question, which no decision can
// answer for later.
func askedOnce(a view.Approval) bool {
	return a.Kind == harness.ApprovalOfBudget || a.Kind == harness.ApprovalOfGuardrail
}

// newDecision makes approve and reject.
func newDecision(sys System, approve bool) *cobra.Command {
	m := &manager{sys: sys}
	var c consent
	var f format
	var reason, digest, scope, command string
	use, short := "reject", "Say no: what is asked does not run"
	if approve {
		use, short = "approve", "Let exactly what is asked run"
	}
	cmd := &cobra.Command{Use: use + " ID", Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.pending())}
	f.flag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why; the agent and the log are told")
	if approve {
		cmd.Long = "Let exactly what is asked run. It is shown first; on a terminal you are asked. If it\nchanges in between, the approval counts for nothing."
		c.flag(cmd)
		cmd.Flags().StringVar(&scope, "scope", "once", "once; session or always: exactly the same again needs no further approval there")
		cmd.Flags().StringVar(&command, "command", "", "run this instead of what is asked; the agent is told")
		_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"once", "session", "always"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	}
	cmd.Flags().StringVar(&digest, "digest", "", "only if this is the digest of what is asked (default: of what is shown)")
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		id := harness.ApprovalID(args[0])
		what := "approval " + args[0]
		d := api.Decision{Decision: "REJECT", Reason: reason}
		if approve {
			d.Decision = "APPROVE"
			d.Scope = harness.ApprovalScope(strings.ToUpper(scope))
			if !slices.Contains([]harness.ApprovalScope{harness.GrantOnce, harness.GrantSession, harness.GrantAlways}, d.Scope) {
				return &usageError{fmt.Sprintf("--scope must be once, session or always, not %q", scope)}
			}
			if d.Scope == harness.GrantOnce {
				d.Scope = ""
			}
			if command != "" {
				d.Arguments = map[string]string{"command": command}
			}
		}
		item, err := m.client.Approval(ctx, id)
		if err != nil {
			return &aboutError{what, err}
		}
		if item.View.State != harness.ApprovalPending {
			return &conflictError{what + " is closed: " + decided(item.View)}
		}
		if d.Scope != "" && askedOnce(item.View) {
			return &usageError{fmt.Sprintf("--scope must be once: %s is of this moment, and is asked anew each time", what)}
		}
		if approve {
			if err := m.question(sys.Stderr, item.View); err != nil {
				return err
			}
			if command != "" {
				if _, ok := askedCommand(item.View.Input); !ok {
					return &usageError{fmt.Sprintf("--command changes a command, and %s asks for none", what)}
				}
				block(sys.Stderr, "Runs instead", harness.Visible(command))
			}
			if err := c.given(ctx, sys, "Approve this?"); err != nil {
				return err
			}
		}
		if d.Digest = digest; digest == "" {
			d.Digest = item.View.Digest
		}
		if item, err = m.client.Decide(ctx, id, d); err != nil {
			return &aboutError{what, err}
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		_, err = fmt.Fprintf(sys.Stdout, "approval/%s %s\n", visible(args[0]), words(visible(string(item.View.State))))
		return err
	})
	return cmd
}

// conflictError says that somebody else was first.
type conflictError struct{ text string }

func (e *conflictError) Error() string { return e.text }

// decided says what became of an approval.
func decided(a view.Approval) string {
	text := fmt.Sprintf("%s is %s", a.ID, a.State)
	if a.DecidedBy != "" {
		text += " by " + a.DecidedBy
	}
	if a.DecidedVia != "" {
		text += " over " + a.DecidedVia
	}
	if a.DecidedAt != nil {
		text += " at " + a.DecidedAt.Local().Format(time.DateTime)
	}
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	if a.State == harness.ApprovalPending && a.Title != "" {
		text += ": " + a.Title
	}
	return text
}
