// Package cli is the command line: what it reads, prints and exits with.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/devstate"
	"tuluat.ai/harness/scripts/tuluat/internal/hook"
)

// System is what a command sees of the world.
type System struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Name           string // what the program was called; kubectl-tuluat: kubectl runs it
}

// Main runs one command and returns its exit code: 0 done, 1 error, 2 usage,
// 3 not found, 4 not in time, 5 not allowed, 6 somebody else was first,
// 130 interrupted.
func Main(ctx context.Context, args []string, sys System) int {
	root := newRoot(sys)
	root.SetArgs(args)
	root.SetIn(sys.Stdin)
	root.SetOut(sys.Stdout)
	root.SetErr(sys.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	ran := &runError{}
	if !errors.As(err, &ran) { // cobra's own: flags, arguments, unknown commands
		fmt.Fprintf(sys.Stderr, "tuluat: %s\nSee %s --help.\n", visible(err.Error()), cmd.CommandPath())
		return exitUsage
	}
	if ctx.Err() != nil || errors.Is(ran.err, context.Canceled) {
		return exitInterrupt
	}
	if told, ok := errors.AsType[*toldError](ran.err); ok {
		return told.code
	}
	fmt.Fprintln(sys.Stderr, "tuluat:", visible(explain(ran.err)))
	return exitCode(ran.err)
}

// runError is an error of a command that ran: the rest is usage.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }

func (e *runError) Unwrap() error { return e.err }

func running(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := run(cmd, args); err != nil {
			return &runError{err}
		}
		return nil
	}
}

func newRoot(sys System) *cobra.Command {
	root := &cobra.Command{
		Use:   "tuluat",
		Short: "Talk to agents that act, and manage them",
		Long: `Talk to agents that act, and manage them.

Talking goes over an agent's channels, managing over the management API: of the
system that runs here, or of the one that ` + "`tuluat login`" + ` was told.

Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 not in time, 5 not allowed,
6 somebody else was first (a conflict, or a stale version), 130 interrupted.

Environment:
  TULUAT_HOME              state folder of the running system (default: the nearest
                           .tuluat in this folder or above it)
  TULUAT_URL               where a system listens that does not run here
  TULUAT_TOKEN             to manage it: a token, or
  TULUAT_TOKEN_FILE        a file with one, read for every request
  TULUAT_CA_FILE           certificates to trust there beside the system's
  TULUAT_CONFIG            where a login is kept (default: tuluat/config.json in the
                           user's configuration folder)
  KUBECONFIG               with TULUAT_URL and no token: whose user's token is taken
  TULUAT_WEBHOOK_SECRET    to talk: the secret of a hook of TULUAT_URL
  TELEGRAM_BOT_TOKEN       for telegram and doctor, where no state names a file; so are
  TELEGRAM_WEBHOOK_SECRET  these
  WHATSAPP_APP_SECRET
  WHATSAPP_ACCESS_TOKEN
  WHATSAPP_VERIFY_TOKEN
  TELEGRAM_API_URL         base URLs of the providers' APIs, where no state names them
  WHATSAPP_API_URL
  WHATSAPP_API_VERSION     for doctor (default: v25.0)
  USER                     who speaks, unless --user says so`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	if filepath.Base(sys.Name) == "kubectl-tuluat" { // as kubectl calls its plugins
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl tuluat"}
	}
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"talk", "Talk to agents:", []*cobra.Command{newChat(sys), newSend(sys)}},
		{"manage", "Manage agents and workflows:", []*cobra.Command{newGet(sys), newDescribe(sys), newApply(sys), newDelete(sys), newAgent(sys)}},
		{"operate", "See and decide what happens:", []*cobra.Command{
			newSession(sys), newApproval(sys), newLogs(sys), newSandbox(sys), newExecution(sys), newDeadLetter(sys), newChannel(sys), newAudit(sys), newForget(sys),
			newStop(sys), newResume(sys), newUsage(sys),
		}},
		{"connect", "Connect:", []*cobra.Command{newLogin(sys), newLogout(sys), newWhoAmI(sys), newVersion(sys)}},
		{"check", "Check channels:", []*cobra.Command{newDoctor(sys), newTelegram(sys), newFake(sys), newConformance(sys)}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.id
			root.AddCommand(cmd)
		}
	}
	return root
}

// group is a command that only holds others: alone it prints its help, and one
// it does not hold is a usage error.
func group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.DisableFlagsInUseLine = cobra.NoArgs, true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(subcommands...)
	return cmd
}

// target is what the commands that talk have in common.
type target struct {
	sys                  System
	user, chat           string
	hookName, url        string
	timeout              time.Duration
	state                *devstate.State
	client               *hook.Client
	agent, hook, baseURL string
}

func (t *target) flags(cmd *cobra.Command) {
	user := t.sys.Getenv("USER")
	if user == "" {
		user = "local"
	}
	cmd.Flags().StringVar(&t.user, "user", user, "who speaks")
	cmd.Flags().StringVar(&t.chat, "chat", "", "which chat (default: the user's own)")
	cmd.Flags().StringVar(&t.hookName, "hook", "", "which hook (default: the agent's)")
	cmd.Flags().StringVar(&t.url, "url", "", "where the system listens (default: the one that runs here)")
	cmd.Flags().DurationVar(&t.timeout, "timeout", 120*time.Second, "how long to wait for an answer")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if state, err := t.find(); err == nil && len(args) == 0 {
			return state.Agents(), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func (t *target) find() (*devstate.State, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	state, err := devstate.Find(t.sys.Getenv, dir)
	if errors.Is(err, devstate.ErrNone) && t.url != "" {
		return &devstate.State{}, nil
	}
	return state, err
}

// resolve finds the system, the agent's hook and its secret.
func (t *target) resolve(agent string) error {
	state, err := t.find()
	if err != nil {
		return err
	}
	name, secret, err := state.Hook(agent, t.hookName, t.sys.Getenv)
	if err != nil {
		return err
	}
	t.state, t.agent, t.hook, t.baseURL = state, agent, name, state.URL
	if t.url != "" {
		t.baseURL = t.url
	}
	if t.chat == "" {
		t.chat = t.user
	}
	t.client, err = hook.New(t.baseURL, name, secret, time.Now)
	return err
}

// located adds to an error of the connection what it was about.
func (t *target) located(err error) error {
	if err == nil {
		return nil
	}
	return &locatedError{err: err, url: t.baseURL, hook: t.hook, hooks: t.state.Hooks()}
}
