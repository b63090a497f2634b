// Command whatsapp-ingest connects agents to WhatsApp by the Business Cloud API.
// One image serves two sides: the public one takes the provider's webhooks, the
// events one sends replies, shows typing and fetches files.
package main

import (
	"context"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret/source"
)

func main() { function.Main("whatsapp-ingest", build) }

func build(ctx context.Context, env function.Env) (*function.Function, error) {
	cfg, err := parseConfig(env.Getenv)
	if err != nil {
		return nil, err
	}
	secrets, err := source.Open(cfg.secrets, time.Now)
	if err != nil {
		return nil, err
	}
	store, err := postgres.Open(cfg.databaseURL, postgres.Options{MaxConns: cfg.databaseConns, KeepPlans: true})
	if err != nil {
		return nil, err
	}
	env.OnExit(store.Close)
	events, err := function.NewPublisher(cfg.brokerURL, env.Log, time.Now)
	if err != nil {
		return nil, err
	}
	env.OnExit(events.Close)
	checks := channel.NewChecks(channel.ChecksOptions{Channel: harness.ChannelWhatsApp, Store: store, Secrets: secrets, Log: env.Log, Now: time.Now})
	s := &side{
		env: env, cfg: cfg, store: store, events: events, drain: ctx.Done(), checks: checks,
		accounts: channel.NewAccounts(channel.AccountsOptions{
			Channel: harness.ChannelWhatsApp, Store: store, Secrets: secrets, Fallback: cfg.fallback, Checks: checks, Log: env.Log, Now: time.Now,
		}),
	}
	if cfg.serve == servePublic {
		return s.public(), nil
	}
	return s.hear()
}
