package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/shared/harness/view"
)

// newUsage makes the command that shows what models were asked.
func newUsage(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	var since time.Time
	var agent string
	cmd := &cobra.Command{
		Use: "usage", Short: "Show what agents have asked models, by day, agent and model", Args: cobra.NoArgs,
		Long: "Show what agents have asked models, by day, agent and model: how often, how often\nin vain, the tokens, those of them that the provider had kept, and the cost.\n" +
			"A cost is that of the questions whose price the platform knows; + says that there are others.",
		Example: "  tuluat usage --agent python-coder --since 7d",
	}
	f.flag(cmd)
	cmd.Flags().StringVar(&agent, "agent", "", "only this agent")
	timeFlag(cmd, &since, "since", "the first day")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		l, err := m.client.ModelUsage(ctx, agent, since)
		if err != nil {
			return err
		}
		return printList(sys, f, "questions to models", l, []column[view.ModelUsage]{
			{"DAY", func(u view.ModelUsage) string { return u.Day }},
			{"AGENT", func(u view.ModelUsage) string { return string(u.Agent) }},
			{"MODEL", func(u view.ModelUsage) string { return string(u.Provider) + "/" + u.Model }},
			{"ASKED", func(u view.ModelUsage) string { return fmt.Sprint(u.Asked) }},
			{"IN VAIN", func(u view.ModelUsage) string { return fmt.Sprint(u.Unanswered) }},
			{"IN", func(u view.ModelUsage) string { return fmt.Sprint(u.InputTokens) }},
			{"CACHED", func(u view.ModelUsage) string { return fmt.Sprint(u.CacheReadTokens) }},
			{"OUT", func(u view.ModelUsage) string { return fmt.Sprint(u.OutputTokens) }},
			{"COST", costOf},
		})
	})
	return cmd
}

func costOf(u view.ModelUsage) string {
	switch {
	case u.Unpriced == 0:
		return u.Cost
	case u.Cost == "":
		return "unknown"
	}
	return u.Cost + "+"
}
