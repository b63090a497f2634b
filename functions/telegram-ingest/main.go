// Command telegram-ingest connects agents to Telegram. One image serves three
// sides: the public one takes updates by webhook, the poll one asks for them,
// the events one sends replies, shows typing and fetches files.
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

func main() { function.Main("telegram-ingest", build) }

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
	checks := channel.NewChecks(channel.ChecksOptions{Channel: harness.ChannelTelegram, Store: store, Secrets: secrets, Log: env.Log, Now: time.Now})
	s := &side{
		env: env, cfg: cfg, store: store, events: events, drain: ctx.Done(), checks: checks,
		accounts: channel.NewAccounts(channel.AccountsOptions{
			Channel: harness.ChannelTelegram, Store: store, Secrets: secrets, Fallback: cfg.fallback, Checks: checks, Log: env.Log, Now: time.Now,
		}),
	}
	switch cfg.serve {
	case servePublic:
		return s.public(), nil
	case servePoll:
		return s.poll(ctx), nil
	default:
		return s.hear()
	}
}
