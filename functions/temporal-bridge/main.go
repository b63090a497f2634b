// Command temporal-bridge tells Temporal workflows what became of the approvals
// of the sessions that name them.
package main

import (
	"context"

	"tuluat.ai/harness/functions/temporal-bridge/internal/signal"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
)

func main() { function.Main("temporal-bridge", build) }

// build wires the function. It does no network I/O.
func build(_ context.Context, env function.Env) (*function.Function, error) {
	cfg, err := parseConfig(env.Getenv)
	if err != nil {
		return nil, err
	}
	store, err := postgres.Open(cfg.DatabaseURL, postgres.Options{MaxConns: 1})
	if err != nil {
		return nil, err
	}
	env.OnExit(store.Close)
	o := signal.Options{Store: store, Namespace: cfg.Namespace, Owner: env.Owner(), Log: env.Log, Metrics: env.Metrics}
	if cfg.Temporal.Address != "" {
		temporal, err := signal.Connect(cfg.Temporal, env.Log)
		if err != nil {
			return nil, err
		}
		env.OnExit(temporal.Close)
		o.Temporal = temporal.WorkflowService()
	}
	return &function.Function{Events: map[event.Type]function.EventFunc{event.ApprovalDecided: signal.New(o).Decided}}, nil
}
