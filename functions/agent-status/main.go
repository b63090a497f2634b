// Command agent-status makes the stored agents what their YAML says: it
// validates, writes revision snapshots and channel routes, and tells of changes.
package main

import (
	"context"
	"time"

	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
)

func main() { function.Main("agent-status", build) }

// build wires the function. It does no network I/O.
func build(_ context.Context, env function.Env) (*function.Function, error) {
	cfg, err := parseConfig(env.Getenv)
	if err != nil {
		return nil, err
	}
	store, err := postgres.Open(cfg.DatabaseURL, postgres.Options{MaxConns: 2})
	if err != nil {
		return nil, err
	}
	env.OnExit(store.Close)
	publisher, err := function.NewPublisher(cfg.BrokerURL, env.Log, time.Now)
	if err != nil {
		return nil, err
	}
	env.OnExit(publisher.Close)
	r := status.New(status.Options{
		Source: status.Folder{Path: cfg.AgentsDir, Limits: cfg.Limits}, Store: store,
		Publish: publisher.Publish, Log: env.Log, Metrics: env.Metrics,
	})
	return &function.Function{Events: map[event.Type]function.EventFunc{
		event.Ping:           r.Reconcile,
		event.ResourceAdd:    r.Reconcile,
		event.ResourceUpdate: r.Reconcile,
		event.ResourceDelete: r.Reconcile,
	}}, nil
}
