package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

func newExecution(sys System) *cobra.Command {
	return group(&cobra.Command{Use: "execution", Aliases: []string{"executions"}, Short: "See commands and what they print"},
		newExecutionList(sys), newExecutionShow(sys), newExecutionOutput(sys))
}

func newExecutionList(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var filter api.ExecutionFilter
	var f format
	var limit int
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List commands, the newest first", Args: cobra.NoArgs}
	f.flag(cmd)
	limitFlag(cmd, &limit, 50)
	stateFlag(cmd, &filter.States, harness.ExecutionPending, harness.ExecutionRunning, harness.ExecutionCompleted, harness.ExecutionFailed, harness.ExecutionTimedOut,
		harness.ExecutionOutOfMemory, harness.ExecutionDiskLimit, harness.ExecutionSandboxGone, harness.ExecutionCancelled, harness.ExecutionUnknown)
	m.agentFlag(cmd, &filter.Agent)
	cmd.Flags().StringVar(&filter.Session, "session", "", "only those of this session")
	cmd.Flags().StringVar(&filter.Sandbox, "sandbox", "", "only those in this sandbox")
	timeFlag(cmd, &filter.Since, "since", "only those asked for since then")
	timeFlag(cmd, &filter.Until, "until", "only those asked for before then")
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		l, err := m.client.Executions(ctx, filter, limit)
		if err != nil {
			return err
		}
		return printList(sys, f, "executions", l, []column[view.Execution]{
			{"ID", func(x view.Execution) string { return string(x.ID) }},
			{"AGENT", func(x view.Execution) string { return string(x.Agent) }},
			{"STATE", func(x view.Execution) string { return string(x.State) }},
			{"EXIT", func(x view.Execution) string { return exitOf(x) }},
			{"CREATED", func(x view.Execution) string { return when(x.CreatedAt) }},
			{"TOOK", took},
			{"COMMAND", func(x view.Execution) string { return short(x.Command, 80) }},
		})
	})
	return cmd
}

func exitOf(x view.Execution) string {
	if x.ExitCode == nil {
		return ""
	}
	return strconv.Itoa(*x.ExitCode)
}

func took(x view.Execution) string {
	if x.StartedAt == nil || x.EndedAt == nil {
		return ""
	}
	return x.EndedAt.Sub(*x.StartedAt).Round(100 * time.Millisecond).String()
}

func newExecutionShow(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{Use: "show ID", Short: "Show one command and how it ended", Args: cobra.ExactArgs(1)}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		item, err := m.client.Execution(ctx, harness.ExecutionID(args[0]))
		if err != nil {
			return &aboutError{"execution " + args[0], err}
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		x := item.View
		if err := facts(sys.Stdout, "ID", string(x.ID), "Agent", string(x.Agent), "Session", string(x.Session), "Sandbox", string(x.Sandbox), "Asked for by", strings.TrimSpace(words(string(x.Cause))+" "+x.CauseID),
			"State", string(x.State), "Exit code", exitOf(x), "Reason", x.Reason, "Printed", fmt.Sprintf("%d bytes, %d to stderr", x.StdoutBytes, x.StderrBytes),
			"Created", when(x.CreatedAt), "Started", whenever(x.StartedAt), "Ended", whenever(x.EndedAt)); err != nil {
			return err
		}
		block(sys.Stdout, "Command", x.Command)
		return nil
	})
	return cmd
}

func newExecutionOutput(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var stream string
	var follow bool
	cmd := &cobra.Command{
		Use: "output ID", Short: "Print what a command printed", Args: cobra.ExactArgs(1),
		Long: "Print what a command printed: its stdout to stdout, its stderr to stderr. To a file or a\npipe it goes byte for byte; on a terminal what would move the cursor is shown as a mark.",
	}
	cmd.Flags().StringVar(&stream, "stream", "", "only stdout or only stderr")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the command has ended")
	before(cmd, func() error {
		if stream != "" && stream != "stdout" && stream != "stderr" {
			return errors.New("--stream must be stdout or stderr")
		}
		return nil
	})
	cmd.RunE = m.run(func(ctx context.Context, args []string) error {
		p := newPrinting(m, harness.ExecutionID(args[0]))
		p.streams = func(s string) bool { return stream == "" || s == stream }
		if follow {
			_, err := p.follow(ctx)
			return about("execution "+args[0], err)
		}
		_, err := p.once(ctx)
		return about("execution "+args[0], errors.Join(err, p.flush()))
	})
	return cmd
}
