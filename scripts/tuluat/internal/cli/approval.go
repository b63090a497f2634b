package cli

import (
	"context"
	"encoding/json"
	"fmt"
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
	var all bool
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List what waits for an answer, the newest first", Args: cobra.NoArgs}
	f.flag(cmd)
	limitFlag(cmd, &limit, 50)
	stateFlag(cmd, &filter.States, harness.ApprovalPending, harness.ApprovalApproved, harness.ApprovalRejected, harness.ApprovalExpired, harness.ApprovalCancelled)
	cmd.Flags().BoolVar(&all, "all", false, "also what is decided")
	m.agentFlag(cmd, &filter.Agent)
	cmd.Flags().StringVar(&filter.Session, "session", "", "only those of this session")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
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
			{"STATE", func(a view.Approval) string { return string(a.State) }},
			{"REQUESTED", func(a view.Approval) string { return when(a.RequestedAt) }},
			{"EXPIRES", func(a view.Approval) string { return whenever(a.ExpiresAt) }},
			{"BY", func(a view.Approval) string { return short(a.DecidedBy, 30) }},
			{"WHAT", func(a view.Approval) string { return short(a.Title, 80) }},
		})
	})
	return cmd
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
	cmd := &cobra.Command{Use: "show ID", Short: "Show what exactly is asked", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.pending())}
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
	err := facts(w, "ID", string(a.ID), "Agent", string(a.Agent), "Session", string(a.Session), "Node", a.CurrentNode, "Asked", when(a.RequestedAt), "Expires", whenever(a.ExpiresAt),
		"State", string(a.State), "Decided by", a.DecidedBy, "Over", a.DecidedVia, "Decided", whenever(a.DecidedAt), "Digest", a.Digest)
	if err != nil {
		return err
	}
	if a.Reason != "" {
		block(w, "Reason", a.Reason)
	}
	block(w, "What", a.Title)
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

// newDecision makes approve and reject.
func newDecision(sys System, approve bool) *cobra.Command {
	m := &manager{sys: sys}
	var c consent
	var f format
	var reason, digest string
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
	}
	cmd.Flags().StringVar(&digest, "digest", "", "only if this is the digest of what is asked (default: of what is shown)")
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		id := harness.ApprovalID(args[0])
		what := "approval " + args[0]
		item, err := m.client.Approval(ctx, id)
		if err != nil {
			return &aboutError{what, err}
		}
		if item.View.State != harness.ApprovalPending {
			return &conflictError{what + " is closed: " + decided(item.View)}
		}
		if approve {
			if err := m.question(sys.Stderr, item.View); err != nil {
				return err
			}
			if err := c.given(ctx, sys, "Approve this?"); err != nil {
				return err
			}
		}
		if digest == "" {
			digest = item.View.Digest
		}
		if item, err = m.client.Decide(ctx, id, approve, reason, digest); err != nil {
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
