package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

func newLogs(sys System) *cobra.Command {
	m := &manager{sys: sys}
	l := &logging{m: m, pause: 2 * time.Second}
	cmd := &cobra.Command{
		Use: "logs [AGENT]", Short: "Show what agents did, and with -f what they do", Args: cobra.MaximumNArgs(1),
		Long:              "Show what agents did, the oldest of the shown entries first. -f goes on with what comes.",
		Example:           "  tuluat logs python-coder -f --since 10m\n  tuluat logs --level ERROR --since 1d --grep timeout -o json",
		ValidArgsFunction: first(m.objects(api.Agents)),
	}
	l.format.flag(cmd)
	limitFlag(cmd, &l.limit, 200)
	cmd.Flags().BoolVarP(&l.follow, "follow", "f", false, "go on with what comes")
	cmd.Flags().StringSliceVar(&l.filter.Levels, "level", nil, "only these: DEBUG, INFO, WARN, ERROR")
	cmd.Flags().StringVar(&l.filter.Session, "session", "", "only of this session")
	cmd.Flags().StringVar(&l.filter.Text, "grep", "", "only those that contain this text")
	timeFlag(cmd, &l.filter.Since, "since", "only since then")
	timeFlag(cmd, &l.filter.Until, "until", "only before then")
	before(cmd, func() error {
		if l.follow && (l.format == asYAML || !l.filter.Until.IsZero()) {
			return errors.New("-f goes with neither --until nor -o yaml")
		}
		return oneOf("--level", l.filter.Levels, []harness.Level{harness.LevelDebug, harness.LevelInfo, harness.LevelWarn, harness.LevelError})
	})
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		if len(args) == 1 {
			l.filter.Agent = args[0]
		}
		return l.run(ctx)
	})
	cmd.AddCommand(newLogsExport(sys), newLogsVerify(sys))
	return cmd
}

// logging shows log entries.
type logging struct {
	m      *manager
	filter api.LogFilter
	format format
	limit  int
	follow bool
	pause  time.Duration
	seen   map[int64]bool // entries of the last look, which were shown
}

func (l *logging) run(ctx context.Context) error {
	l.filter.Follow = l.follow
	list, err := l.m.client.Logs(ctx, l.filter, l.limit)
	if err != nil {
		return err
	}
	slices.Reverse(list.Items)
	if !l.follow {
		if l.format != asTable {
			return printList(l.m.sys, l.format, "log entries", list, nil)
		}
		for _, item := range list.Items {
			printLog(l.m.sys.Stdout, item.View)
		}
		if len(list.Items) == 0 {
			fmt.Fprintln(l.m.sys.Stderr, "There are no log entries.")
		}
		more(l.m.sys, list.More)
		return nil
	}
	if err := l.show(list.Items); err != nil {
		return err
	}
	// Entries older than those shown are not asked for: the limit has left them out.
	if n := len(list.Items); n > 0 && (list.More || l.filter.Since.IsZero()) {
		l.filter.Since = list.Items[0].View.CreatedAt
	}
	l.filter.Mark = list.Mark
	return l.goOn(ctx)
}

// goOn looks again and again for what is new, until ctx ends or the API cannot
// be asked for two minutes. An entry may become visible after newer ones: a look
// reaches as far back as the mark of the one before says.
func (l *logging) goOn(ctx context.Context) error {
	ticker := time.NewTicker(l.pause)
	defer ticker.Stop()
	lost := l.m.lost()
	var failing time.Time
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		list, err := l.m.client.Logs(ctx, l.filter, 0)
		if err != nil {
			if ctx.Err() != nil || !api.Passing(err) {
				return err
			}
			if failing.IsZero() {
				failing = time.Now()
			}
			if time.Since(failing) > api.GiveUp {
				return err
			}
			lost(err)
			continue
		}
		failing = time.Time{}
		slices.Reverse(list.Items)
		if err := l.show(list.Items); err != nil {
			return err
		}
		l.filter.Mark = list.Mark
	}
}

// show prints what was not in the look before, which reached at least as far back.
func (l *logging) show(items []api.Item[view.LogEntry]) error {
	w, before := l.m.sys.Stdout, l.seen
	l.seen = make(map[int64]bool, len(items))
	for _, item := range items {
		l.seen[item.View.ID] = true
		if before[item.View.ID] {
			continue
		}
		if l.format == asTable {
			printLog(w, item.View)
			continue
		}
		text, err := json.Marshal(item)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, escapeJSON(string(text))+"\n"); err != nil {
			return err
		}
	}
	return nil
}

func printLog(w io.Writer, e view.LogEntry) {
	text := fmt.Sprintf("%s  %-5s  %s", when(e.CreatedAt), flatten(e.Level), flatten(string(e.Agent)))
	for _, part := range []string{string(e.Session), e.Node, e.GuardrailResult} {
		if part != "" {
			text += "  " + flatten(part)
		}
	}
	fmt.Fprintln(w, text+"  "+flatten(e.Message))
}
