package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/dev/handover"
	"tuluat.ai/harness/scripts/internal/devcluster"
	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/postgres/schema"
)

// run returns when ctx has ended and everything it started has too.
func run(ctx context.Context, h handover.Handover) (err error) {
	logFile, err := os.OpenFile(filepath.Join(h.Logs(), "platform.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, logFile.Close()) }()
	c := &console{out: os.Stderr}
	log := slog.New(c.handler(slog.NewTextHandler(logFile, nil)))

	// What a person wrote is checked before anything is started.
	set, err := manifest.Read(filepath.Join(h.Root, "config", "functions"), filepath.Join(h.Root, "eventing"))
	if err != nil {
		return err
	}
	model, err := chooseModel(os.Getenv)
	if err != nil {
		return err
	}
	boxes, err := openSandboxes(h, log)
	if err != nil {
		return err
	}
	dsn, err := prepareDatabase(ctx, h.Postgres)
	if err != nil {
		return err
	}
	if err := schema.Migrate(ctx, dsn, log); err != nil {
		return fmt.Errorf("the database's schema: %w", err)
	}
	if err := allowRoles(ctx, h.Postgres, set); err != nil {
		return err
	}
	store, err := openStorage(h.State, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close()) }()
	stand, err := serveModel(&model, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stand.close()) }()

	s := &secrets{folder: h.Secrets(), fixed: model.secrets(dsn.Reveal())}
	hooks := &hooks{folder: h.Agents, secrets: s}
	if _, err := hooks.scan(); err != nil {
		return err
	}
	databases, err := asRoles(dsn, set)
	if err != nil {
		return err
	}
	cluster, err := devcluster.New(devcluster.Options{
		Manifest:  set,
		Binary:    func(importPath string) string { return filepath.Join(h.Bin(), path.Base(importPath)) },
		Secret:    s.read,
		ConfigMap: func(name string) (string, bool) { return h.Agents, name == "agents" },
		Env: func(service *manifest.Service) map[string]string {
			env := environment(service, boxes, hooks)
			env["DATABASE_URL"] = databases[service.Function()]
			return env
		},
		AgentsDir: h.Agents, LogDir: h.Logs(), Log: log, OnError: c.functionError, Gateway: h.Address,
	})
	if err != nil {
		return err
	}
	return serve(ctx, h, cluster, hooks, boxes, model, c, log)
}

// serve runs the cluster, says ready, and cleans up behind it.
func serve(ctx context.Context, h handover.Handover, cluster *devcluster.Cluster, hooks *hooks, boxes *sandboxes, model model, c *console, log *slog.Logger) error {
	if err := writeDevFile(h, cluster.GatewayURL(), hooks.agents()); err != nil {
		cluster.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() {
		hooks.watch(ctx, log, func() {
			cluster.Renew("webhook-ingest")
			cluster.Renew("webhook-ingest-events")
			if err := writeDevFile(h, cluster.GatewayURL(), hooks.agents()); err != nil {
				log.Error("the CLI does not learn of the new agents", "err", err)
			}
		})
	})
	beside.Go(func() {
		// Agents are known before anyone is told to talk to one; what was left
		// undone last time is taken up at once, not at the next minute.
		if err := cluster.Tick(ctx, "agents"); err != nil && ctx.Err() == nil {
			log.Error("the agents could not be read", "err", err)
		}
		if ctx.Err() != nil {
			return
		}
		c.ready(cluster.GatewayURL(), model, h)
		if err := cluster.Tick(ctx, "reaper"); err != nil && ctx.Err() == nil {
			log.Warn("the first sweep failed", "err", err)
		}
	})
	err := cluster.Run(ctx)
	cancel()
	beside.Wait()
	return errors.Join(err, boxes.end())
}

// environment is what a function needs on one machine beside its YAML.
func environment(service *manifest.Service, boxes *sandboxes, hooks *hooks) map[string]string {
	switch service.Function() {
	case "sandbox-exec", "reaper-cron":
		return boxes.environment()
	case "webhook-ingest":
		env := hooks.environment()
		env["CALLBACK_ALLOW_PRIVATE"] = "true" // callbacks on this machine are the rule here
		return env
	}
	return map[string]string{}
}

// writeDevFile tells the CLI where the system is and how to reach its agents.
// It is written whole or not at all.
func writeDevFile(h handover.Handover, url string, webhooks map[string]webhook) error {
	text, err := json.MarshalIndent(map[string]any{"url": url, "agentsDir": h.Agents, "webhooks": webhooks}, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(h.State, "dev.json")
	if err := os.WriteFile(file+".new", append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// loopback is an HTTP server on a free port of 127.0.0.1.
type loopback struct {
	url    string
	server *http.Server
	done   chan error
}

func serveLoopback(h http.Handler, log *slog.Logger) (*loopback, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &loopback{
		url: "http://" + listener.Addr().String(), done: make(chan error, 1),
		server: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)},
	}
	go func() { l.done <- l.server.Serve(listener) }() // ends at close
	return l, nil
}

func (l *loopback) close() error {
	err := l.server.Close()
	if served := <-l.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
