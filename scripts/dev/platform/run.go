package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	temporal := chooseTemporal(os.Getenv)
	set, err := manifest.Read(temporal.wiring(h.Root)...)
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

	databases, err := asRoles(dsn, set)
	if err != nil {
		return err
	}
	s := &secrets{folder: h.Secrets(), fixed: model.secrets(databases)}
	maps.Copy(s.fixed, temporal.values)
	found := &channels{folder: h.Agents, secrets: s}
	if _, err := found.scan(); err != nil {
		return err
	}
	management, err := openAPI(set, s)
	if err != nil {
		return err
	}
	messengers, err := serveMessengers(h.State, s, os.Getenv, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, messengers.close()) }()
	var lead *guide // known once the cluster knows its address
	cluster, err := devcluster.New(devcluster.Options{
		Manifest: set,
		Binary:   func(importPath string) string { return filepath.Join(h.Bin(), path.Base(importPath)) },
		Secret:   s.read,
		Env: func(service *manifest.Service) map[string]string {
			env := environment(service, boxes, found)
			maps.Copy(env, messengers.environment(service.Function()))
			maps.Copy(env, store.environment(service.Function()))
			maps.Copy(env, management.environment(service.Function()))
			maps.Copy(env, temporal.environment(set, service.Function()))
			return env
		},
		AgentsDir: h.Agents, LogDir: h.Logs(), Log: log, OnError: c.functionError, Gateway: h.Address,
		OnRequest: func(r *http.Request, status int) { lead.saw(r, status) },
	})
	if err != nil {
		return err
	}
	if lead, err = serveTour(set, found, messengers, management, cluster.GatewayURL(), log); err != nil {
		cluster.Close()
		return err
	}
	defer func() { err = errors.Join(err, lead.close()) }()
	system := &system{handover: h, cluster: cluster, channels: found, messengers: messengers, boxes: boxes, api: management, guide: lead}
	return system.serve(ctx, model, c, log)
}

// system is everything that runs.
type system struct {
	handover   handover.Handover
	cluster    *devcluster.Cluster
	channels   *channels
	messengers *messengers
	boxes      *sandboxes
	api        *api
	guide      *guide
}

// serve runs the cluster, says ready, and cleans up behind it.
func (s *system) serve(ctx context.Context, model model, c *console, log *slog.Logger) error {
	if err := s.announce(); err != nil {
		s.cluster.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() {
		s.channels.watch(ctx, log, func() {
			for _, function := range []string{"webhook-ingest", "whatsapp-ingest", "telegram-ingest"} {
				s.cluster.Renew(function)
				s.cluster.Renew(function + "-events")
			}
			if err := s.announce(); err != nil {
				log.Error("the CLI or a messenger does not learn of the new channels", "err", err)
			}
		})
	})
	beside.Go(func() {
		// Agents are known before anyone is told to talk to one; what was left
		// undone last time is taken up at once, not at the next minute.
		if err := s.cluster.Tick(ctx, "agents"); err != nil && ctx.Err() == nil {
			log.Error("the agents could not be read", "err", err)
		}
		if ctx.Err() != nil {
			return
		}
		c.ready(s, s.cluster.GatewayURL(), model)
		s.guide.show(s.handover.Browser, log)
		if err := s.cluster.Tick(ctx, "reaper"); err != nil && ctx.Err() == nil {
			log.Warn("the first sweep failed", "err", err)
		}
	})
	err := s.cluster.Run(ctx)
	cancel()
	beside.Wait()
	return errors.Join(err, s.boxes.end())
}

// environment is what a function needs on one machine beside its YAML.
func environment(service *manifest.Service, boxes *sandboxes, found *channels) map[string]string {
	function := service.Function()
	switch function {
	case "sandbox-exec", "reaper-cron":
		return boxes.environment()
	case "agent-status": // whose skills may be images of a registry on this machine
		return map[string]string{"SECRETS": "environment", "REMOTE_ALLOW_PRIVATE": "true"}
	case "agent-step":
		env := found.environment(function)
		env["SECRETS"], env["REMOTE_ALLOW_PRIVATE"] = "environment", "true" // servers on this machine are the rule here
		return env
	case "webhook-ingest", "whatsapp-ingest", "telegram-ingest":
		env := found.environment(function)
		env["SECRETS"] = "environment"
		if function == "webhook-ingest" {
			env["CALLBACK_ALLOW_PRIVATE"] = "true" // callbacks on this machine are the rule here
		}
		return env
	}
	return map[string]string{}
}

// announce tells the messengers which numbers and bots there are, and the CLI
// where the system is and how to reach its agents: a file that is written whole
// or not at all.
func (s *system) announce() error {
	all, url := s.channels.all(), s.cluster.GatewayURL()
	problem := s.messengers.register(url, all.others)
	known := map[string]any{
		"url": url, "agentsDir": s.handover.Agents, "webhooks": all.webhooks, "channels": all.others, "fakes": s.messengers.fakes, "apis": s.messengers.urls, "tour": s.guide.url(),
	}
	if s.api != nil {
		known["api"] = s.api.known(url)
	}
	text, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return errors.Join(problem, err)
	}
	file := filepath.Join(s.handover.State, "dev.json")
	if err := os.WriteFile(file+".new", append(text, '\n'), 0o600); err != nil {
		return errors.Join(problem, err)
	}
	return errors.Join(problem, os.Rename(file+".new", file))
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
