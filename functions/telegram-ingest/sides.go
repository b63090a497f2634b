package main

import (
	"context"
	"net/http"

	"tuluat.ai/harness/functions/telegram-ingest/internal/telegram"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// side is what every side of the image is made of.
type side struct {
	env      function.Env
	cfg      config
	store    *postgres.Store
	events   *function.Publisher
	accounts *channel.Accounts
	checks   *channel.Checks
	drain    <-chan struct{}
}

// maxBody is far more than an update has.
const maxBody = 2 << 20

// public takes updates by webhook.
func (s *side) public() *function.Function {
	return &function.Function{Routes: map[string]http.Handler{
		telegram.Path + "{bot}": channel.NewWebhook(channel.WebhookOptions{
			Channel: harness.ChannelTelegram, Adapter: telegram.NewAdapter(s.accounts), Desk: channel.NewDesk(harness.ChannelTelegram, channel.Decider{Store: s.store}, s.env.Log),
			Events: s.events, Log: s.env.Log, Metrics: s.env.Metrics, MaxBody: maxBody,
		}),
	}}
}

// poll asks for the updates of bots that have no webhook.
func (s *side) poll(ctx context.Context) *function.Function {
	client := s.client()
	poller := telegram.StartPoller(ctx, telegram.PollerOptions{
		Accounts: s.accounts, Store: deciding{s.store}, Events: s.events, Client: client, Owner: s.env.Owner(), Log: s.env.Log,
	})
	s.env.OnExit(poller.Close)
	return &function.Function{}
}

// hear sends replies, shows typing and fetches files.
func (s *side) hear() (*function.Function, error) {
	var objects channel.Objects // stays nil without a bucket
	if s.cfg.objects.Enabled() {
		bucket, err := archive.Open(s.cfg.objects)
		if err != nil {
			return nil, err
		}
		s.env.OnExit(bucket.Close)
		objects = bucket
	}
	client := s.client()
	transport := telegram.NewTransport(client, objects, s.env.Log)
	heard := channel.Events(channel.EventsOptions{
		Channel: harness.ChannelTelegram, Store: s.store, Accounts: s.accounts, Checks: s.checks, Objects: objects, MaxMedia: s.cfg.mediaBytes,
		Transport: transport, Drafter: transport, Presence: telegram.NewPresence(client, s.env.Log), Downloader: telegram.NewDownloader(client, s.cfg.mediaBytes),
		Events: s.events, Owner: s.env.Owner(), Log: s.env.Log, Metrics: s.env.Metrics, Drain: s.drain,
	})
	registered := &telegram.Registered{Client: client, Store: s.store, Accounts: s.accounts, Log: s.env.Log}
	check := heard[event.AgentStatusChanged]
	heard[event.AgentStatusChanged] = func(ctx context.Context, e event.Event) error {
		registered.Look(ctx)
		return check(ctx, e)
	}
	return &function.Function{Events: heard}, nil
}

func (s *side) client() *telegram.Client {
	client := telegram.NewClient(s.cfg.apiURL)
	s.env.OnExit(client.Close)
	return client
}

// deciding lets people decide by what a poller reads, too.
type deciding struct{ *postgres.Store }

// Accept takes decisions out of what came in.
func (d deciding) Accept(ctx context.Context, on harness.Channel, in postgres.Inbound, traceparent string) ([]postgres.Accepted, []event.Event, error) {
	return channel.Decider{Store: d.Store}.Accept(ctx, on, in, traceparent)
}
