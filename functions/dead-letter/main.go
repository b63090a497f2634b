// Command dead-letter keeps what the broker gave up on, with its cause, and
// marks the work that it announced.
package main

import (
	"context"

	"tuluat.ai/harness/functions/dead-letter/internal/letter"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
)

func main() { function.Main("dead-letter", build) }

// build wires the function. It does no network I/O. It hears every type there
// is: it is the sink of every Trigger and source.
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
	keeper := letter.New(letter.Options{Store: store, Log: env.Log, Metrics: env.Metrics})
	heard := map[event.Type]function.EventFunc{}
	for _, t := range append(event.Types(), event.Ping, event.ResourceAdd, event.ResourceUpdate, event.ResourceDelete) {
		heard[t] = keeper.Keep
	}
	return &function.Function{Events: heard}, nil
}
