package main

import (
	"net/url"
	"regexp"

	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
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
	brokerURL     string
	apiURL        string
	apiVersion    string
	secrets       source.Options
	fallback      map[channel.Role][]harness.Secret
	objects       archive.Options // events side
	mediaBytes    int64           // of one file; events side
}

// maxBody is the provider's limit of 3 MB and a little more.
const maxBody = 4 << 20

var version = regexp.MustCompile(`^v[0-9]+\.[0-9]+$`)

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		serve:         c.OneOf("SERVE", "", servePublic, serveEvents),
		databaseURL:   harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		databaseConns: int32(c.Int("DATABASE_MAX_CONNS", 4, 1)),
		brokerURL:     c.Required("BROKER_URL", "where events are posted"),
		apiURL:        c.Text("WHATSAPP_API_URL", "https://graph.facebook.com"),
		apiVersion:    c.Text("WHATSAPP_API_VERSION", "v25.0"),
		secrets:       source.Read(c, getenv),
		fallback: map[channel.Role][]harness.Secret{
			channel.RoleVerifyToken: secret.Split(getenv("WHATSAPP_VERIFY_TOKEN")),
			channel.RoleAppSecret:   secret.Split(getenv("WHATSAPP_APP_SECRET")),
			channel.RoleAccessToken: secret.Split(getenv("WHATSAPP_ACCESS_TOKEN")),
		},
	}
	if u, err := url.Parse(cfg.apiURL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		c.Problem("WHATSAPP_API_URL", "must be an absolute URL, http or https")
	}
	if !version.MatchString(cfg.apiVersion) {
		c.Problem("WHATSAPP_API_VERSION", "must be a Graph API version such as v25.0")
	}
	if cfg.serve == serveEvents {
		cfg.objects = archive.Read(c)
		cfg.mediaBytes = int64(c.Int("MEDIA_MAX_BYTES", 25<<20, 1))
	}
	return cfg, c.Err()
}
