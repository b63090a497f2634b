// Command agent-status makes the stored agents what their YAML says: it
// validates, writes revision snapshots and channel routes, tells of changes, and
// shows in the status of each resource how it stands.
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
	source, resources, err := open(cfg, env, store)
	if err != nil {
		return nil, err
	}
	r := status.New(status.Options{
		Source: source, Resources: resources, Store: store,
		Publish: publisher.Publish, Log: env.Log, Metrics: env.Metrics, Now: time.Now,
	})
	return &function.Function{Events: map[event.Type]function.EventFunc{
		event.Ping:           r.Reconcile,
		event.ResourceAdd:    r.Reconcile,
		event.ResourceUpdate: r.Reconcile,
		event.ResourceDelete: r.Reconcile,
		event.SessionChanged: r.Changed,
		event.SandboxChanged: r.Changed,
	}}, nil
}
