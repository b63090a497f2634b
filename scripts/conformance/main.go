// Command conformance runs cases against the functions: `tuluat conformance`
// builds it and hands its arguments over. It reads the functions' database, which
// the CLI does not.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/scripts/internal/conformance"
)

// errDifferent says that the table has told what is wrong.
var errDifferent = errors.New("not every case is as it should be")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// The exit codes are the CLI's.
const (
	exitError = 1
	exitUsage = 2
)

// ranError is an error of a command that ran: the rest is usage.
type ranError struct{ error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use: "conformance", Short: "Run cases against the functions", SilenceUsage: true, SilenceErrors: true,
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "tuluat conformance"},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(channels())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "tuluat:", err)
	if _, ok := errors.AsType[ranError](err); ok {
		return exitError
	}
	fmt.Fprintf(stderr, "See %s --help.\n", cmd.CommandPath())
	return exitUsage
}

func channels() *cobra.Command {
	var o conformance.Options
	var folder, only, output string
	var mutate bool
	cmd := &cobra.Command{
		Use:   "channels",
		Short: "Run the cases of the channels and print what differs",
		Long: `Run the cases of the channels and print what differs.

The functions are built from the checkout and started on a scratch database: of
the server that DATABASE_URL or TEST_DATABASE_URL names, else of a server of its
own. With --target, running functions are used and DATABASE_URL is their
database, which is emptied between cases (scripts/internal/conformance/README.md).`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&folder, "cases", "", "folder of the cases (default: those of the checkout)")
	cmd.Flags().StringVar(&only, "only", "", "run the cases whose names match, like 'wa-*'")
	cmd.Flags().StringVar(&o.Target, "target", "", "base URL of functions that run already")
	cmd.Flags().StringVar(&o.EventsURL, "events-url", "", "with --target: where message.reply events are posted")
	cmd.Flags().StringVar(&o.ProviderAddress, "provider-addr", "", "with --target: where the functions look for the providers, HOST:PORT to listen on")
	cmd.Flags().StringArrayVar(&o.LogFiles, "log", nil, "with --target: a file that the functions log to")
	cmd.Flags().BoolVar(&mutate, "mutate", false, "change every expectation: now every case must fail")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if output != "table" && output != "json" {
			return fmt.Errorf("-o is %q: use table or json", output)
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		defer func() {
			if err != nil {
				err = ranError{err}
			}
		}()
		if o.Root, err = checkout.Root(); err != nil && o.Target == "" {
			return err
		}
		if folder == "" {
			folder = filepath.Join(o.Root, "scripts", "internal", "conformance", "testdata", "channels")
		}
		if o.DatabaseURL = os.Getenv("DATABASE_URL"); o.DatabaseURL == "" && o.Target == "" {
			o.DatabaseURL = os.Getenv("TEST_DATABASE_URL")
		}
		o.Say = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
		report, err := conformance.Channels(cmd.Context(), o, folder, only, mutate)
		if err != nil {
			return err
		}
		write := report.WriteTable
		if output == "json" {
			write = report.WriteJSON
		}
		if err := write(cmd.OutOrStdout()); err != nil {
			return err
		}
		if !report.OK() {
			return errDifferent
		}
		return nil
	}
	return cmd
}
