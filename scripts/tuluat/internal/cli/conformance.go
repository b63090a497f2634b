package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/internal/checkout"
)

// newConformance hands everything to a program of the checkout, which it builds
// first: that program reads the functions' database, and the CLI stays small.
func newConformance(sys System) *cobra.Command {
	return &cobra.Command{
		Use:                "conformance channels [--cases DIR] [--target URL] [--mutate]",
		Short:              "Run cases against the functions and print what differs (in a checkout of the repository)",
		DisableFlagParsing: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] != "channels" && args[0] != "help" && !strings.HasPrefix(args[0], "-") {
				return cobra.NoArgs(cmd, args)
			}
			return nil
		},
		RunE: running(func(cmd *cobra.Command, args []string) (err error) {
			root, err := checkout.Root()
			if err != nil {
				return err
			}
			folder, err := os.MkdirTemp("", "tuluat-conformance-")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
			program := filepath.Join(folder, "conformance")
			build := exec.CommandContext(cmd.Context(), "go", "build", "-buildvcs=false", "-o", program, "./scripts/conformance")
			build.Dir, build.Stdout, build.Stderr = root, sys.Stderr, sys.Stderr
			if err := build.Run(); err != nil {
				return fmt.Errorf("the conformance program cannot be built: %w", err)
			}
			run := exec.CommandContext(cmd.Context(), program, args...)
			run.Stdin, run.Stdout, run.Stderr = sys.Stdin, sys.Stdout, sys.Stderr
			run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
			run.WaitDelay = time.Minute // it stops what it has started
			err = run.Run()
			if ended, ok := errors.AsType[*exec.ExitError](err); ok {
				return &toldError{code: ended.ExitCode()}
			}
			return err
		}),
	}
}

// toldError is the failure of a program that has said itself what is wrong.
type toldError struct{ code int }

func (e *toldError) Error() string { return fmt.Sprintf("exit code %d", e.code) }
