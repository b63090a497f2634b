package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness/view"
)

func newDeadLetter(sys System) *cobra.Command {
	return group(&cobra.Command{Use: "deadletter", Aliases: []string{"deadletters"}, Short: "See events that the broker gave up on, and send them again"},
		newDeadLetterList(sys), newDeadLetterShow(sys), newReplay(sys), newDiscard(sys))
}

func newDeadLetterList(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var filter api.DeadLetterFilter
	var f format
	var limit int
	var all bool
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List open dead letters, the newest first", Args: cobra.NoArgs}
	f.flag(cmd)
	limitFlag(cmd, &limit, 50)
	stateFlag(cmd, &filter.States, "OPEN", "MOOT", "REPLAYED", "DISCARDED")
	cmd.Flags().BoolVar(&all, "all", false, "also those that are done with")
	cmd.Flags().StringVar(&filter.Type, "type", "", "only of this type of event")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		if len(filter.States) == 0 && !all {
			filter.States = []string{"OPEN"}
		}
		l, err := m.client.DeadLetters(ctx, filter, limit)
		if err != nil {
			return err
		}
		return printList(sys, f, "dead letters", l, []column[view.DeadLetter]{
			{"ID", func(d view.DeadLetter) string { return strconv.FormatInt(d.ID, 10) }},
			{"TYPE", func(d view.DeadLetter) string { return d.Type }},
			{"STATE", func(d view.DeadLetter) string { return d.State }},
			{"SESSION", func(d view.DeadLetter) string { return string(d.Session) }},
			{"RECEIVED", func(d view.DeadLetter) string { return when(d.ReceivedAt) }},
			{"TIMES", func(d view.DeadLetter) string { return strconv.Itoa(d.Times) }},
			{"WHY", func(d view.DeadLetter) string { return short(whyDead(d), 80) }},
		})
	})
	return cmd
}

func whyDead(d view.DeadLetter) string {
	text := d.Destination
	if d.StatusCode != 0 {
		text += fmt.Sprintf(" answered %d", d.StatusCode)
	}
	if d.Cause != "" {
		text += ": " + d.Cause
	}
	return text
}

func (m *manager) letters() cobra.CompletionFunc {
	return m.names(func(ctx context.Context) ([]string, error) {
		l, err := m.client.DeadLetters(ctx, api.DeadLetterFilter{States: []string{"OPEN"}}, completions)
		return completing(l, err, func(d view.DeadLetter) string { return fmt.Sprintf("%d\t%s", d.ID, d.Type) })
	})
}

func newDeadLetterShow(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{Use: "show ID", Short: "Show one dead letter", Args: numbers(cobra.ExactArgs(1)), ValidArgsFunction: first(m.letters())}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		item, err := m.client.DeadLetter(ctx, args[0])
		if err != nil {
			return &aboutError{"dead letter " + args[0], err}
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		d := item.View
		if err := facts(sys.Stdout, "ID", strconv.FormatInt(d.ID, 10), "Event", d.Event, "Type", d.Type, "Session", string(d.Session), "State", d.State, "Given up", fmt.Sprintf("%d times", d.Times),
			"Received", when(d.ReceivedAt), "Updated", when(d.UpdatedAt), "Why", whyDead(d)); err != nil {
			return err
		}
		var payload strings.Builder
		if err := format(asJSON).write(&payload, d.Payload); err != nil {
			return err
		}
		block(sys.Stdout, "Payload", payload.String())
		return nil
	})
	return cmd
}

// numbers also checks that arguments are ids of dead letters.
func numbers(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := args(cmd, given); err != nil {
			return err
		}
		for _, id := range given {
			if n, err := strconv.ParseInt(id, 10, 64); err != nil || n <= 0 {
				return fmt.Errorf("%q is no id of a dead letter: they are numbers", id)
			}
		}
		return nil
	}
}

func newReplay(sys System) *cobra.Command {
	m := &manager{sys: sys}
	cmd := &cobra.Command{
		Use: "replay ID...", Short: "Send events again", Args: numbers(cobra.MinimumNArgs(1)), ValidArgsFunction: m.letters(),
		Long: "Send events again. An event keeps its identity: what was done meanwhile is not done twice.",
	}
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		return m.each(ctx, "deadletter", args, func(id string) (string, error) {
			item, err := m.client.Replay(ctx, id)
			return words(item.View.State), err
		})
	})
	return cmd
}

func newDiscard(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var c consent
	cmd := &cobra.Command{Use: "discard ID...", Short: "Put dead letters aside without sending them", Args: numbers(cobra.MinimumNArgs(1)), ValidArgsFunction: m.letters()}
	c.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		if err := c.given(ctx, sys, fmt.Sprintf("Discard dead letter %s at %s?", strings.Join(args, ", "), m.client.URL())); err != nil {
			return err
		}
		return m.each(ctx, "deadletter", args, func(id string) (string, error) {
			item, err := m.client.Discard(ctx, id)
			return words(item.View.State), err
		})
	})
	return cmd
}

func newChannel(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	var limit int
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List accounts on channels and how they do", Args: cobra.NoArgs}
	f.flag(list)
	limitFlag(list, &limit, 0)
	list.RunE = m.run(func(ctx context.Context, _ []string) error {
		l, err := m.client.Channels(ctx, limit)
		if err != nil {
			return err
		}
		return printList(sys, f, "channels", l, []column[view.ChannelAccount]{
			{"CHANNEL", func(c view.ChannelAccount) string { return string(c.Channel) }},
			{"ACCOUNT", func(c view.ChannelAccount) string { return c.Account }},
			{"AGENT", func(c view.ChannelAccount) string { return string(c.Agent) }},
			{"LAST IN", func(c view.ChannelAccount) string { return whenever(c.LastInboundAt) }},
			{"LAST OUT", func(c view.ChannelAccount) string { return whenever(c.LastOutboundAt) }},
			{"WAITING", func(c view.ChannelAccount) string { return strconv.FormatInt(c.Waiting, 10) }},
			{"FAILED", func(c view.ChannelAccount) string { return strconv.FormatInt(c.Failed, 10) }},
			{"UNKNOWN", func(c view.ChannelAccount) string { return strconv.FormatInt(c.Unknown, 10) }},
			{"SECRETS", secretsOf},
		})
	})
	return group(&cobra.Command{Use: "channel", Aliases: []string{"channels"}, Short: "See how channels do"}, list)
}

// secretsOf names the secrets that cannot be used.
func secretsOf(c view.ChannelAccount) string {
	var bad []string
	for _, s := range c.Secrets {
		if s.State != "AVAILABLE" {
			bad = append(bad, fmt.Sprintf("%s/%s is %s", s.Name, s.Key, words(s.State)))
		}
	}
	return strings.Join(bad, ", ")
}

func newAudit(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var filter api.AuditFilter
	var f format
	var limit int
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List writes, the newest first", Args: cobra.NoArgs,
		Long: "List writes through the management API, the newest first. One whose state is unknown\nwas about to be done when the API was cut off from what it wrote. -o json also has what\nwas there before and after.",
	}
	f.flag(list)
	limitFlag(list, &limit, 50)
	list.Flags().StringVar(&filter.Actor, "actor", "", "only of this caller")
	list.Flags().StringVar(&filter.Object, "object", "", "only of this name or id")
	timeFlag(list, &filter.Since, "since", "only since then")
	list.RunE = m.run(func(ctx context.Context, _ []string) error {
		l, err := m.client.Audit(ctx, filter, limit)
		if err != nil {
			return err
		}
		return printList(sys, f, "writes", l, []column[view.AuditEntry]{
			{"TIME", func(a view.AuditEntry) string { return when(a.CreatedAt) }},
			{"ACTOR", func(a view.AuditEntry) string { return short(a.Actor, 60) }},
			{"ACTION", func(a view.AuditEntry) string { return a.Action }},
			{"OBJECT", func(a view.AuditEntry) string { return short(a.Object, 60) }},
			{"STATE", auditState},
			{"REQUEST", func(a view.AuditEntry) string { return a.RequestID }},
		})
	})
	return group(&cobra.Command{Use: "audit", Short: "See who changed what"}, list)
}

func auditState(a view.AuditEntry) string {
	text := words(string(a.State))
	if a.Reason != "" {
		text += ": " + short(a.Reason, 60)
	}
	return text
}

var errNoTerminal = errors.New("no token: pass one with --token-file FILE, in TULUAT_TOKEN, or on standard input")
