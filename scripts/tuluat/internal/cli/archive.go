package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

func newLogsExport(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var filter api.LogFilter
	cmd := &cobra.Command{
		Use: "export", Short: "Write log entries as JSON, one on each line, newest first", Args: cobra.NoArgs,
		Long:    "Write log entries as JSON, one on each line, newest first, also of what is in the\narchive. It ends with 1 when not all came: go on with --until the last entry.",
		Example: "  tuluat logs export --since 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z > january.ndjson",
	}
	cmd.Flags().StringVar(&filter.Agent, "agent", "", "only of this agent")
	cmd.Flags().StringVar(&filter.Session, "session", "", "only of this session")
	cmd.Flags().StringSliceVar(&filter.Levels, "level", nil, "only these: DEBUG, INFO, WARN, ERROR")
	cmd.Flags().StringVar(&filter.Text, "grep", "", "only those that contain this text")
	timeFlag(cmd, &filter.Since, "since", "only since then")
	timeFlag(cmd, &filter.Until, "until", "only before then")
	before(cmd, func() error {
		return oneOf("--level", filter.Levels, []harness.Level{harness.LevelDebug, harness.LevelInfo, harness.LevelWarn, harness.LevelError})
	})
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error { return m.client.Export(ctx, filter, sys.Stdout) })
	return cmd
}

func newLogsVerify(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{
		Use: "verify", Short: "Check that the archive has what it should, byte for byte", Args: cobra.NoArgs,
		Long: "Compare the bucket with what is known of it, both ways, and read every object\nagain. It ends with 1 when one is missing, changed or unknown.",
	}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		all := view.ArchiveCheck{Findings: []view.ArchiveFinding{}}
		err := m.client.CheckArchive(ctx, 50, func(c view.ArchiveCheck) error {
			all.Checked, all.Bytes, all.Findings = all.Checked+c.Checked, all.Bytes+c.Bytes, append(all.Findings, c.Findings...)
			if f == asTable {
				for _, finding := range c.Findings {
					fmt.Fprintf(sys.Stdout, "%-8s %s  %s\n", visible(string(finding.Problem)), visible(finding.Key), visible(finding.Detail))
				}
				if c.Next != "" {
					fmt.Fprintf(sys.Stderr, "%d objects, %d MiB\n", all.Checked, all.Bytes>>20)
				}
			}
			return nil
		})
		if err == nil && f != asTable {
			err = f.write(sys.Stdout, all)
		}
		if err != nil {
			return err
		}
		if n := len(all.Findings); n > 0 {
			return fmt.Errorf("%d of %d objects of the archive are not as they should be", n, all.Checked)
		}
		if f == asTable {
			fmt.Fprintf(sys.Stdout, "%d objects, %d bytes: all as they should be\n", all.Checked, all.Bytes)
		}
		return nil
	})
	return cmd
}

func newForget(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var channel, user string
	var f format
	var wait time.Duration
	var sure bool
	cmd := &cobra.Command{
		Use: "forget --channel CHANNEL --user ID --yes", Short: "Delete what is of one person", Args: cobra.NoArgs,
		Long: "Delete what is of one person: their conversations with all that came of them, also\nfiles and what is archived. Where others write too, what the person wrote is\n" +
			"emptied. It cannot be undone. The report says what went and what is left, and why.",
		Example: "  tuluat forget --channel WHATSAPP --user 4915112345678 --yes",
	}
	f.flag(cmd)
	cmd.Flags().StringVar(&channel, "channel", "", "where: WHATSAPP, TELEGRAM, WEBHOOK or API")
	cmd.Flags().StringVar(&user, "user", "", "who, as the channel names them")
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Minute, "how long to wait for the end of it; 0: not at all")
	cmd.Flags().BoolVar(&sure, "yes", false, "it is meant")
	before(cmd, func() error {
		channel = strings.ToUpper(channel)
		switch {
		case !harness.Channel(channel).Known():
			return errors.New("--channel must be WHATSAPP, TELEGRAM, WEBHOOK or API")
		case strings.TrimSpace(user) == "":
			return errors.New("--user is needed: the person, as the channel names them")
		case !sure:
			return errors.New("--yes is needed: it cannot be undone")
		}
		return nil
	})
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		item, err := m.client.Forget(ctx, harness.Channel(channel), user)
		for until := time.Now().Add(wait); err == nil && item.View.State != view.ForgetDone && time.Now().Before(until); {
			select {
			case <-time.After(min(2*time.Second, time.Until(until))):
				item, err = m.client.Forgotten(ctx, item.View.ID)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err != nil {
			return err
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		v := item.View
		fmt.Fprintf(sys.Stdout, "forget/%s %s\n", visible(v.ID), visible(string(v.State)))
		for _, what := range slices.Sorted(maps.Keys(v.Counts)) {
			fmt.Fprintf(sys.Stdout, "  %-24s %d\n", visible(what), v.Counts[what])
		}
		for _, left := range v.Left {
			fmt.Fprintf(sys.Stdout, "  left: %s\n", visible(left))
		}
		if v.State != view.ForgetDone && wait > 0 {
			return fmt.Errorf("it is not done after %s: %s", wait, visible(v.Reason))
		}
		return nil
	})
	return cmd
}
