package main

import (
	"context"
	"net/http"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/console"
	"tuluat.ai/harness/shared/function"
)

// openConsole returns the pages over api. It reaches nobody: an issuer is asked when
// somebody wants to sign in by it.
func openConsole(ctx context.Context, cfg config, env function.Env, api http.Handler) (http.Handler, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: http.DefaultTransport.(*http.Transport).Clone()}
	env.OnExit(client.CloseIdleConnections)
	return console.New(console.Options{
		API: api, Keys: cfg.console.keys, OIDC: cfg.console.oidc, URL: cfg.console.url, Hooks: cfg.console.hooks, Entry: cfg.console.entry,
		Log: env.Log, Now: time.Now, Drain: ctx.Done(), Client: client,
	})
}
