// Command deploy puts the product on the cluster of KUBECONFIG, or takes it away:
//
//	make deploy OVERLAY=config/overlays/kind
//	make undeploy OVERLAY=config/overlays/kind
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/scripts/internal/install"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("deploy", flag.ContinueOnError)
	var (
		overlay  = flags.String("overlay", "config/overlays/kind", "the folder of the kustomization")
		prefix   = flags.String("prefix", install.DefaultPrefix, "of the three namespaces")
		patience = flags.Duration("patience", 10*time.Minute, "how long each step may take to become ready")
		remove   = flags.Bool("remove", false, "take it away")
		purge    = flags.Bool("purge", false, "with -remove: its data too")
		samples  = flags.Bool("sample-secrets", false, "only make up the values that config/samples needs")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("deploy: %q is no flag", flags.Arg(0))
	}
	root, err := checkout.Root()
	if err != nil {
		return err
	}
	if *samples {
		return install.SampleSecrets(filepath.Join(root, "config", "samples"), os.Stderr)
	}
	if !filepath.IsAbs(*overlay) {
		*overlay = filepath.Join(root, *overlay)
	}
	o := install.Options{Overlay: *overlay, Root: root, Prefix: *prefix, Log: os.Stderr, Patience: *patience}
	if *remove {
		if err := install.Undeploy(ctx, o, *purge); err != nil {
			return fmt.Errorf("undeploy: %w", err)
		}
		return nil
	}
	if err := install.Deploy(ctx, o); err != nil {
		return fmt.Errorf("deploy: %w", err)
	}
	return nil
}
