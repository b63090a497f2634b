package main

import (
	"time"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret/source"
)

// The two sides of this image.
const (
	servePublic = "public"
	serveEvents = "events"
)

type config struct {
	serve         string
	databaseURL   harness.Secret
	databaseConns int32
	brokerURL     string // public side only
	streamTime    time.Duration
	allowPrivate  bool
	secrets       source.Options
}

// streamTime ends a stream before the platform's own ten minutes do, so that a
// client sees a clean end.
const streamTime = 590 * time.Second

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		serve:         c.OneOf("SERVE", "", servePublic, serveEvents),
		databaseURL:   harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		databaseConns: int32(c.Int("DATABASE_MAX_CONNS", 4, 1)),
		streamTime:    c.Duration("STREAM_TIME", streamTime),
		allowPrivate:  c.OneOf("CALLBACK_ALLOW_PRIVATE", "false", "true", "false") == "true",
		secrets:       source.Read(c, getenv),
	}
	if cfg.serve == servePublic {
		cfg.brokerURL = c.Required("BROKER_URL", "where events are posted")
	}
	return cfg, c.Err()
}
