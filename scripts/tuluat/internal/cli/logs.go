package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

func newLogs(sys System) *cobra.Command {
	m := &manager{sys: sys}
	l := &logging{m: m, seen: map[int64]time.Time{}}
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
	seen   map[int64]time.Time // when entries are of that were shown and may come again
	newest time.Time           // of them
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
	for _, item := range list.Items {
		if err := l.show(item); err != nil {
			return err
		}
	}
	// Entries older than those shown are not asked for: the limit has left them out.
	if n := len(list.Items); n > 0 && (list.More || l.filter.Since.IsZero()) {
		l.filter.Since = list.Items[0].View.CreatedAt
	}
	l.filter.Mark = list.Mark
	return l.m.client.FollowLogs(ctx, l.filter, l.show, l.m.lost())
}

// comesAgain is how far behind the newest entry one may be that comes again: a
// server goes back ten minutes for what became visible late.
const comesAgain = 15 * time.Minute

// show prints an entry, unless it was.
func (l *logging) show(item api.Item[view.LogEntry]) error {
	w, e := l.m.sys.Stdout, item.View
	if _, shown := l.seen[e.ID]; shown {
		return nil
	}
	l.seen[e.ID] = e.CreatedAt
	if e.CreatedAt.After(l.newest) {
		l.newest = e.CreatedAt
	}
	if len(l.seen)%1000 == 0 {
		maps.DeleteFunc(l.seen, func(_ int64, at time.Time) bool { return at.Before(l.newest.Add(-comesAgain)) })
	}
	if l.format == asTable {
		printLog(w, e)
		return nil
	}
	text, err := json.Marshal(item)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, escapeJSON(string(text))+"\n")
	return err
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
