// Command sandbox-exec runs the commands that agents ask for: it finds or starts
// a sandbox under the agent's cap, hands the command to it at most once, stores
// what it prints and how it ends, and wakes whoever is next.
package main

import (
	"context"
	"time"

	"tuluat.ai/harness/functions/sandbox-exec/internal/execute"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox/driver"
)

func main() { function.Main("sandbox-exec", build) }

// build wires the function. It does no network I/O.
func build(ctx context.Context, env function.Env) (*function.Function, error) {
	cfg, err := parseConfig(env.Getenv)
	if err != nil {
		return nil, err
	}
	store, err := postgres.Open(cfg.databaseURL, postgres.Options{MaxConns: cfg.databaseConns, KeepPlans: true})
	if err != nil {
		return nil, err
	}
	env.OnExit(store.Close)
	publisher, err := function.NewPublisher(cfg.brokerURL, env.Log, time.Now)
	if err != nil {
		return nil, err
	}
	env.OnExit(publisher.Close)
	sandboxes, err := driver.New(cfg.sandbox, env.Log)
	if err != nil {
		return nil, err
	}
	objects, err := openArchive(cfg.archive, env)
	if err != nil {
		return nil, err
	}
	x := execute.New(execute.Options{
		Store: store, Driver: sandboxes, Objects: objects, Publish: publisher.Publish, Log: env.Log,
		Lease:  postgres.Lease{Owner: env.Owner(), For: cfg.lease},
		Budget: cfg.budget, MaxOutput: int64(cfg.maxOutput), Stop: ctx.Done(),
	})
	return &function.Function{Events: map[event.Type]function.EventFunc{event.ExecutionRequested: x.ExecutionRequested}}, nil
}
