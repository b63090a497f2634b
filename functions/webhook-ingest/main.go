// Command webhook-ingest connects agents to any system that can POST JSON. One
// image serves two sides: the public one takes signed messages and streams
// conversations, the events one sends the replies.
package main

import (
	"context"
	"net/http"
	"time"

	"tuluat.ai/harness/functions/webhook-ingest/internal/webhook"
	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret/source"
)

func main() { function.Main("webhook-ingest", build) }

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
	secrets, err := source.Open(cfg.secrets, time.Now)
	if err != nil {
		return nil, err
	}
	checks := channel.NewChecks(channel.ChecksOptions{Channel: harness.ChannelWebhook, Store: store, Secrets: secrets, Log: env.Log, Now: time.Now})
	options := webhook.Options{
		Checks: checks, Store: store, Secrets: secrets, Log: env.Log, Now: time.Now, Metrics: env.Metrics, Drain: ctx.Done(),
		StreamTime: cfg.streamTime, Owner: env.Owner(), AllowPrivate: cfg.allowPrivate,
	}
	if cfg.serve == serveEvents {
		sender, closeSender := webhook.NewSender(options)
		env.OnExit(closeSender)
		return &function.Function{Events: map[event.Type]function.EventFunc{
			event.MessageReply: sender.Reply, event.AgentStatusChanged: checks.AgentStatusChanged,
		}}, nil
	}
	publisher, err := function.NewPublisher(cfg.brokerURL, env.Log, time.Now)
	if err != nil {
		return nil, err
	}
	env.OnExit(publisher.Close)
	return &function.Function{Routes: map[string]http.Handler(webhook.Routes(options, publisher))}, nil
}
