// Command management-api is the REST API of everything that operators do: what
// is running, what ran, switch, edit, run, decide. The console is its pages.
package main

import (
	"context"
	"net/http"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/functions/management-api/internal/console"
	"tuluat.ai/harness/functions/management-api/internal/figures"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
)

func main() { function.Main("management-api", build) }

// build wires the function. It does no network I/O.
func build(ctx context.Context, env function.Env) (*function.Function, error) {
	cfg, err := parseConfig(env.Getenv)
	if err != nil {
		return nil, err
	}
	store, err := postgres.Open(cfg.databaseURL, postgres.Options{MaxConns: 2})
	if err != nil {
		return nil, err
	}
	env.OnExit(store.Close)
	publisher, err := function.NewPublisher(cfg.brokerURL, env.Log, time.Now)
	if err != nil {
		return nil, err
	}
	env.OnExit(publisher.Close)
	resources, callers, err := open(cfg, env)
	if err != nil {
		return nil, err
	}
	objects, err := openArchive(cfg.archive, env)
	if err != nil {
		return nil, err
	}
	counted := figures.New(store.Figures, env.Log, time.Now)
	env.Metrics.MustRegister(counted)
	handler := api.New(api.Options{
		Store: store, Objects: objects, Resources: resources, Access: callers, Limits: cfg.rate, Publish: publisher.Publish,
		Log: env.Log, Now: time.Now, Drain: ctx.Done(), StreamTime: cfg.streamTime, OpenDocs: cfg.openDocs, Temporal: cfg.temporal, Metrics: counted.Handler(),
	})
	pages, err := openConsole(ctx, cfg, env, handler)
	if err != nil {
		return nil, err
	}
	return &function.Function{Routes: map[string]http.Handler{"/": console.Front(handler), console.Prefix: pages}}, nil
}
