package main

import (
	"net/url"

	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
	"tuluat.ai/harness/shared/secret/source"
)

// The sides of this image.
const (
	servePublic = "public"
	serveEvents = "events"
	servePoll   = "poll"
)

type config struct {
	serve         string
	databaseURL   harness.Secret
	databaseConns int32
	brokerURL     string
	apiURL        string
	secrets       source.Options
	fallback      map[channel.Role][]harness.Secret
	objects       archive.Options // events side
	mediaBytes    int64           // of one file; events side
}

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		serve:         c.OneOf("SERVE", "", servePublic, serveEvents, servePoll),
		databaseURL:   harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		databaseConns: int32(c.Int("DATABASE_MAX_CONNS", 4, 1)),
		brokerURL:     c.Required("BROKER_URL", "where events are posted"),
		apiURL:        c.Text("TELEGRAM_API_URL", "https://api.telegram.org"),
		secrets:       source.Read(c, getenv),
		fallback: map[channel.Role][]harness.Secret{
			channel.RoleBotToken:      secret.Split(getenv("TELEGRAM_BOT_TOKEN")),
			channel.RoleWebhookSecret: secret.Split(getenv("TELEGRAM_WEBHOOK_SECRET")),
		},
	}
	if u, err := url.Parse(cfg.apiURL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		c.Problem("TELEGRAM_API_URL", "must be an absolute URL, http or https")
	}
	if cfg.serve == serveEvents {
		cfg.objects = archive.Read(c)
		cfg.mediaBytes = int64(c.Int("MEDIA_MAX_BYTES", 25<<20, 1))
	}
	return cfg, c.Err()
}
