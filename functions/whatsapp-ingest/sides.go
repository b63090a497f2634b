package main

import (
	"net/http"
	"time"

	"tuluat.ai/harness/functions/whatsapp-ingest/internal/whatsapp"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// side is what both sides of the image are made of.
type side struct {
	env      function.Env
	cfg      config
	store    *postgres.Store
	events   *function.Publisher
	accounts *channel.Accounts
	checks   *channel.Checks
	drain    <-chan struct{}
}

const webhookPath = "/api/v1/channels/whatsapp/webhook"

// public takes webhooks, and the handshake that registers their address.
func (s *side) public() *function.Function {
	return &function.Function{Routes: map[string]http.Handler{
		"GET " + webhookPath: whatsapp.NewHandshake(s.accounts, s.env.Log),
		"POST " + webhookPath: channel.NewWebhook(channel.WebhookOptions{
			Channel: harness.ChannelWhatsApp, Adapter: whatsapp.NewAdapter(s.accounts, time.Now), Desk: channel.NewDesk(harness.ChannelWhatsApp, channel.Decider{Store: s.store}, s.env.Log),
			Events: s.events, Log: s.env.Log, Metrics: s.env.Metrics, MaxBody: maxBody,
		}),
	}}
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
	graph := whatsapp.NewGraph(whatsapp.GraphOptions{
		BaseURL: s.cfg.apiURL, Version: s.cfg.apiVersion, Objects: objects, Log: s.env.Log, MaxMedia: s.cfg.mediaBytes,
	})
	s.env.OnExit(graph.Close)
	return &function.Function{Events: channel.Events(channel.EventsOptions{
		Channel: harness.ChannelWhatsApp, Store: s.store, Accounts: s.accounts, Checks: s.checks, Objects: objects, MaxMedia: s.cfg.mediaBytes,
		Transport: graph, Presence: graph, Downloader: graph,
		Events: s.events, Owner: s.env.Owner(), Log: s.env.Log, Metrics: s.env.Metrics, Drain: s.drain,
	})}, nil
}
