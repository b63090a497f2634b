// Command modelserver runs the deterministic model as a process of its own:
//
//	modelserver [-addr 127.0.0.1:0] [-key KEY] [-script FILE]
//
// It prints its address as the first line and serves until it is interrupted.
// GET /requests returns what it received, GET /faults how many of these broke each
// rule of the wires.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/internal/fake"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "modelserver:", err)
		os.Exit(1)
	}
}

func serve() error {
	addr := flag.String("addr", "127.0.0.1:0", "where to listen")
	script := flag.String("script", "", "a YAML script that goes before the conversation")
	options := fake.ModelOptions{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flag.StringVar(&options.Key, "key", "", "the only key accepted")
	flag.Parse()
	if *script != "" {
		var err error
		if options.Script, err = fake.LoadScript(*script); err != nil {
			return err
		}
	}
	model := fake.NewModel(options)
	mux := http.NewServeMux()
	mux.Handle("/", model)
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(model.Requests()) })
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(model.Faults()) })

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); err != http.ErrServerClosed {
		return err
	}
	return nil
}
