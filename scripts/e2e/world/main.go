// Command world is everything outside the product that `make e2e` needs, as one
// Pod: WhatsApp and Telegram as their vendors serve them, with the people behind
// them, a deterministic language model, an object store, and a relay by which
// the vendors' webhooks reach the cluster's ingress. No production image knows it.
//
//	:8081  the Graph API         and /_fake/, its people
//	:8082  the Bot API           and /_fake/, its people
//	:8083  the model, both wires
//	:8084  S3
//	:8085  control: /relay/, /relayed, /touch, /requests, /callbacks, /healthz
//
// Its accounts come as JSON in WORLD_ACCOUNTS.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("WORLD_ACCOUNTS"), log); err != nil {
		fmt.Fprintln(os.Stderr, "world:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, text string, log *slog.Logger) (err error) {
	accounts, err := readAccounts(text)
	if err != nil {
		return err
	}
	outside, err := newOutside(accounts, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outside.close()) }()

	failed := make(chan error, len(outside.servers))
	for port, handler := range outside.servers {
		server := &http.Server{
			Addr: net.JoinHostPort("", port), Handler: handler, ReadHeaderTimeout: 10 * time.Second,
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		}
		go func() { failed <- fmt.Errorf("port %s: %w", port, server.ListenAndServe()) }() // ends at Close
		defer func() { _ = server.Close() }()                                              // whoever still asks is gone with the test
	}
	log.Info("world is up", "numbers", len(accounts.Numbers), "bots", len(accounts.Bots))
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}
