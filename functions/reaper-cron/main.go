// Command reaper-cron sweeps, once a minute, whatever is due, stuck, expired or
// leaked: rows are the queue, and this is who looks after what no event reached.
package main

import (
	"context"
	"time"

	"tuluat.ai/harness/functions/reaper-cron/internal/reap"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox/driver"
)

func main() { function.Main("reaper-cron", build) }

// build wires the function. It does no network I/O.
func build(ctx context.Context, env function.Env) (*function.Function, error) {
	cfg, err := parseConfig(env.Getenv)
	if err != nil {
		return nil, err
	}
	store, err := postgres.Open(cfg.DatabaseURL, postgres.Options{})
	if err != nil {
		return nil, err
	}
	env.OnExit(store.Close)
	publisher, err := function.NewPublisher(cfg.BrokerURL, env.Log, time.Now)
	if err != nil {
		return nil, err
	}
	env.OnExit(publisher.Close)
	sandboxes, err := driver.New(cfg.Sandbox, env.Log)
	if err != nil {
		return nil, err
	}
	var objects reap.Objects
	if cfg.Objects.Enabled() {
		bucket, err := archive.Open(cfg.Objects)
		if err != nil {
			return nil, err
		}
		env.OnExit(bucket.Close)
		objects = bucket
	}
	r := reap.New(reap.Options{
		Store: store, Objects: objects, Driver: sandboxes, Poster: publisher, Direct: cfg.Direct, Batch: cfg.Batch, Stay: cfg.Stay,
		Owner: env.Owner(), Log: env.Log, Metrics: env.Metrics, Now: time.Now, Stop: ctx.Done(),
	})
	return &function.Function{Events: map[event.Type]function.EventFunc{event.Ping: r.Ping}}, nil
}
