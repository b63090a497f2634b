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
	seen   map[int64]time.Time // entries that were shown, and when they are from
}

// overlap is how far back a look reaches behind the newest entry: an entry may
// become visible after a newer one.
const overlap = 15 * time.Second

func (l *logging) run(ctx context.Context) error {
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
	l.seen = map[int64]time.Time{}
	if err := l.show(list.Items); err != nil {
		return err
	}
	// Entries older than those shown are not asked for: the limit has left them out.
	from := l.filter.Since
	if n := len(list.Items); n > 0 && (list.More || from.IsZero()) {
		from = list.Items[0].View.CreatedAt
	}
	return l.goOn(ctx, from)
}

// goOn looks again and again for what is new, until ctx ends or the API cannot
// be asked for two minutes.
func (l *logging) goOn(ctx context.Context, from time.Time) error {
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
		f := l.filter
		f.Since = from
		if newest := l.newest(); !newest.IsZero() && newest.Add(-overlap).After(from) {
			f.Since = newest.Add(-overlap)
		}
		list, err := l.m.client.Logs(ctx, f, 0)
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
		for id, at := range l.seen {
			if at.Before(f.Since) {
				delete(l.seen, id)
			}
		}
	}
}

func (l *logging) newest() time.Time {
	var newest time.Time
	for _, at := range l.seen {
		if at.After(newest) {
			newest = at
		}
	}
	return newest
}

// show prints what was not shown before.
func (l *logging) show(items []api.Item[view.LogEntry]) error {
	w := l.m.sys.Stdout
	for _, item := range items {
		if _, known := l.seen[item.View.ID]; known {
			continue
		}
		l.seen[item.View.ID] = item.View.CreatedAt
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
