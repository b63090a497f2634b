package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

func newSandbox(sys System) *cobra.Command {
	return group(&cobra.Command{Use: "sandbox", Aliases: []string{"sandboxes"}, Short: "See sandboxes, run commands in them, end them"},
		newSandboxList(sys), newSandboxShow(sys), newSandboxExec(sys), newSandboxKill(sys))
}

func newSandboxList(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var filter api.SandboxFilter
	var f format
	var limit int
	var all bool
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List sandboxes, the newest first", Args: cobra.NoArgs}
	f.flag(cmd)
	limitFlag(cmd, &limit, 50)
	stateFlag(cmd, &filter.States, harness.SandboxCreating, harness.SandboxReady, harness.SandboxTerminating, harness.SandboxGone)
	cmd.Flags().BoolVar(&all, "all", false, "also those that are gone")
	m.agentFlag(cmd, &filter.Agent)
	cmd.Flags().StringVar(&filter.Session, "session", "", "only those of this session")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		if len(filter.States) == 0 && !all {
			filter.States = strung([]harness.SandboxState{harness.SandboxCreating, harness.SandboxReady, harness.SandboxTerminating})
		}
		l, err := m.client.Sandboxes(ctx, filter, limit)
		if err != nil {
			return err
		}
		return printList(sys, f, "sandboxes", l, sandboxColumns)
	})
	return cmd
}

func (m *manager) boxes() cobra.CompletionFunc {
	return m.names(func(ctx context.Context) ([]string, error) {
		l, err := m.client.Sandboxes(ctx, api.SandboxFilter{States: []string{string(harness.SandboxReady)}}, completions)
		return completing(l, err, func(s view.Sandbox) string { return fmt.Sprintf("%s\t%s", s.ID, s.Agent) })
	})
}

func newSandboxShow(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{Use: "show ID", Short: "Show one sandbox", Args: cobra.ExactArgs(1), ValidArgsFunction: first(m.boxes())}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		item, err := m.client.Sandbox(ctx, harness.SandboxID(args[0]))
		if err != nil {
			return &aboutError{"sandbox " + args[0], err}
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		s := item.View
		return facts(sys.Stdout, "ID", string(s.ID), "Name", s.Name, "Agent", string(s.Agent), "Session", string(s.Session), "State", string(s.State), "Reason", s.Reason, "Message", s.Message,
			"Image", s.Spec.Image, "CPU", fmt.Sprintf("%dm", s.Spec.CPUMillis), "Memory", fmt.Sprintf("%d MiB", s.Spec.MemoryBytes>>20), "Egress", string(s.Spec.Egress),
			"Created", when(s.CreatedAt), "Last activity", when(s.LastActivityAt), "Expires", when(s.ExpiresAt), "Ended", whenever(s.EndedAt))
	})
	return cmd
}

func newSandboxKill(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var c consent
	cmd := &cobra.Command{Use: "kill ID...", Short: "End sandboxes: what runs there is ended, its files go", Args: cobra.MinimumNArgs(1), ValidArgsFunction: m.boxes()}
	c.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		if err := c.given(ctx, sys, fmt.Sprintf("End sandbox %s at %s? What runs there is ended, and its files go.", strings.Join(args, ", "), m.client.URL())); err != nil {
			return err
		}
		return m.each(ctx, "sandbox", args, func(id string) (string, error) {
			return "is being ended", m.client.Terminate(ctx, harness.SandboxID(id))
		})
	})
	return cmd
}

func newSandboxExec(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var detach bool
	cmd := &cobra.Command{
		Use: "exec ID -- COMMAND [ARG...]", Short: "Run a command in a sandbox",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || len(commandOf(args)) == 0 {
				return errors.New("name a sandbox and a command")
			}
			return nil
		},
		Long: `Run a command in a sandbox and print what it prints while it runs. The exit code is
the command's. One argument is a text for the sandbox's shell; several are one
command with its arguments. Ctrl-C leaves; the command goes on.`,
		Example:           "  tuluat sandbox exec sbx_… -- ls -la /workspace\n  tuluat sandbox exec sbx_… 'ps aux | head'",
		ValidArgsFunction: first(m.boxes()),
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVar(&detach, "detach", false, "do not wait for it")
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		item, err := m.client.Run(ctx, harness.SandboxID(args[0]), commandText(commandOf(args)))
		if err != nil {
			return &aboutError{"sandbox " + args[0], err}
		}
		id := item.View.ID
		if detach {
			_, err := fmt.Fprintln(sys.Stdout, visible(string(id)))
			return err
		}
		p := newPrinting(m, id)
		x, err := p.follow(ctx)
		if err != nil {
			fmt.Fprintf(sys.Stderr, "The command may go on: see `tuluat execution output %s -f`.\n", visible(string(id)))
			return err
		}
		return ended(sys, x)
	})
	return cmd
}

// commandOf is what follows the sandbox's name and, if it is there, a --.
func commandOf(args []string) []string {
	if args[1] == "--" {
		return args[2:]
	}
	return args[1:]
}

// commandText is a command for a shell: several words keep their borders.
func commandText(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.ContainsFunc(a, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@%+,", r))
		}) {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// ended turns how a command ended into how ours does: with its exit code, where
// it has one.
func ended(sys System, x view.Execution) error {
	switch {
	case x.State == harness.ExecutionCompleted:
		return nil
	case x.State == harness.ExecutionFailed && x.ExitCode != nil && *x.ExitCode > 0:
		return &toldError{*x.ExitCode}
	}
	text := words(string(x.State))
	if x.Reason != "" {
		text += ": " + x.Reason
	}
	return fmt.Errorf("execution %s: %s", x.ID, text)
}
