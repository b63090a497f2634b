package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/scripts/tuluat/internal/login"
)

// manager is what the commands over the management API have in common.
type manager struct {
	sys    System
	login  *login.Login
	client *api.Client
}

// run makes the RunE of a command that speaks to the API.
func (m *manager) run(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return running(func(cmd *cobra.Command, args []string) error {
		if err := m.connect(); err != nil {
			return err
		}
		defer m.client.Close()
		if err := run(cmd.Context(), args); err != nil {
			return &managedError{err, m.login}
		}
		return nil
	})
}

func (m *manager) connect() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if m.login, err = login.Find(m.sys.Getenv, dir); err != nil {
		return err
	}
	m.client, err = dial(m.login)
	return err
}

func dial(l *login.Login) (*api.Client, error) {
	return api.New(api.Options{URL: l.URL, Token: l.Secret, CA: l.CAFile, PlainHTTP: l.PlainHTTP, UserAgent: "tuluat/" + version()})
}

// managedError is an error of a command over the management API.
type managedError struct {
	err error
	at  *login.Login
}

func (e *managedError) Error() string { return e.err.Error() }

func (e *managedError) Unwrap() error { return e.err }

// usageError is a mistake in the arguments that only shows while a command runs.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// limitFlag is how many records a list shows.
func limitFlag(cmd *cobra.Command, limit *int, normal int) {
	cmd.Flags().IntVar(limit, "limit", normal, "how many to show at most; 0: all")
	before(cmd, func() error {
		if *limit < 0 {
			return errors.New("--limit must be 0 or more")
		}
		return nil
	})
}

// stateFlag is which states a list shows.
func stateFlag[S ~string](cmd *cobra.Command, into *[]string, states ...S) {
	cmd.Flags().StringSliceVar(into, "status", nil, "only those in one of these states: "+strings.Join(strung(states), ", "))
	before(cmd, func() error { return oneOf("--status", *into, states) })
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(strung(states), cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

func strung[S ~string](states []S) []string {
	all := make([]string, len(states))
	for i, s := range states {
		all[i] = string(s)
	}
	return all
}

// oneOf checks words and spells them as the API does: pending-approval becomes
// PENDING_APPROVAL.
func oneOf[S ~string](flag string, given []string, known []S) error {
	for i, s := range given {
		given[i] = strings.ToUpper(strings.ReplaceAll(strings.TrimSpace(s), "-", "_"))
		if !slices.Contains(known, S(given[i])) {
			return fmt.Errorf("%s %q is none of %s", flag, s, strings.Join(strung(known), ", "))
		}
	}
	return nil
}

// timeFlag is a moment: a time, or how long ago.
func timeFlag(cmd *cobra.Command, into *time.Time, name, usage string) {
	var text string
	cmd.Flags().StringVar(&text, name, "", usage+": 90s, 10m, 2h, 7d ago, or a time like 2026-01-02T15:04:05Z")
	before(cmd, func() (err error) {
		if text != "" {
			*into, err = readMoment(text, time.Now())
		}
		if err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
		return nil
	})
}

func readMoment(text string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is neither like 10m or 7d nor a time like 2026-01-02T15:04:05Z", text)
}

// consent is asked before something that cannot be taken back.
type consent struct{ yes bool }

func (c *consent) flag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask; needed where nobody can be asked")
}

// given asks on a terminal. Elsewhere it must have been given with --yes.
func (c *consent) given(ctx context.Context, sys System, question string) error {
	if c.yes {
		return nil
	}
	if !terminal(sys.Stdin) || !terminal(sys.Stderr) {
		return &usageError{question + " Nobody can be asked here: say so with --yes."}
	}
	fmt.Fprint(sys.Stderr, visible(question)+" [y/N] ")
	answers := make(chan string, 1)
	go func() { // a terminal cannot be read with a deadline; the process ends soon after
		line, _ := bufio.NewReader(sys.Stdin).ReadString('\n') // no line is no consent
		answers <- line
	}()
	select {
	case line := <-answers:
		if a := strings.ToLower(strings.TrimSpace(line)); a == "y" || a == "yes" {
			return nil
		}
		return errors.New("nothing was done")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// names completes names that the API knows: quickly or not at all.
func (m *manager) names(list func(context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if err := m.connect(); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer m.client.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 2*time.Second)
		defer cancel()
		all, err := list(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all = slices.DeleteFunc(all, func(name string) bool {
			plain, _, _ := strings.Cut(name, "\t")
			return slices.Contains(args, plain) || !strings.HasPrefix(plain, begin)
		})
		for i, name := range all {
			all[i] = completion(name)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// completion keeps a name and its description on one line of the shell's.
func completion(name string) string {
	plain, about, described := strings.Cut(name, "\t")
	if described {
		return flatten(plain) + "\t" + short(about, 60)
	}
	return flatten(plain)
}

// first completes only the first argument.
func first(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begin)
	}
}

// completing lists what a list of the API has, each by a name.
func completing[T any](l api.List[T], err error, name func(T) string) ([]string, error) {
	var all []string
	for _, item := range l.Items {
		all = append(all, name(item.View))
	}
	return all, err
}

const completions = 100
