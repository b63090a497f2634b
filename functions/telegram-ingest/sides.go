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
	drain    <-chan struct{}
}

// maxBody is far more than an update has.
const maxBody = 2 << 20

// public takes updates by webhook.
func (s *side) public() *function.Function {
	return &function.Function{Routes: map[string]http.Handler{
		telegram.Path + "{bot}": channel.NewWebhook(channel.WebhookOptions{
			Channel: harness.ChannelTelegram, Adapter: telegram.NewAdapter(s.accounts), Desk: channel.NewDesk(harness.ChannelTelegram, s.store, s.env.Log),
			Events: s.events, Log: s.env.Log, Metrics: s.env.Metrics, MaxBody: maxBody,
		}),
	}}
}

// poll asks for the updates of bots that have no webhook.
func (s *side) poll(ctx context.Context) *function.Function {
	client := s.client()
	poller := telegram.StartPoller(ctx, telegram.PollerOptions{
		Accounts: s.accounts, Store: s.store, Events: s.events, Client: client, Owner: s.env.Owner(), Log: s.env.Log,
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
	sender := channel.NewSender(channel.SenderOptions{
		Channel: harness.ChannelTelegram, Store: s.store, Accounts: s.accounts, Transport: telegram.NewTransport(client, objects, s.env.Log),
		Owner: s.env.Owner(), Log: s.env.Log, Metrics: s.env.Metrics, Drain: s.drain,
	})
	acks := channel.NewAcks(channel.AcksOptions{
		Channel: harness.ChannelTelegram, Store: s.store, Accounts: s.accounts, Presence: telegram.NewPresence(client, s.env.Log), Log: s.env.Log, Drain: s.drain,
	})
	media := channel.NewMedia(channel.MediaOptions{
		Channel: harness.ChannelTelegram, Store: s.store, Objects: objects, Downloader: telegram.NewDownloader(client, s.cfg.mediaBytes), Accounts: s.accounts,
		Publish: s.events.Publish, Log: s.env.Log, Lease: postgres.Lease{Owner: s.env.Owner(), For: mediaLease}, MaxBytes: s.cfg.mediaBytes,
	})
	return &function.Function{Events: map[event.Type]function.EventFunc{
		event.MessageReply: sender.Reply, event.MessageReceived: acks.Received, event.MediaRequested: media.Requested,
	}}, nil
}

func (s *side) client() *telegram.Client {
	client := telegram.NewClient(s.cfg.apiURL)
	s.env.OnExit(client.Close)
	return client
}
