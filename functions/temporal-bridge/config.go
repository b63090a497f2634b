package main

import (
	"net"

	"tuluat.ai/harness/functions/temporal-bridge/internal/signal"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

type config struct {
	DatabaseURL harness.Secret
	Namespace   string            // of sessions that name none
	Temporal    signal.Connection // without an address nothing is sent
}

// parseConfig reads what Temporal's own tools read, by the same names.
func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		DatabaseURL: harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		Namespace:   c.Text("TEMPORAL_NAMESPACE", "default"),
		Temporal: signal.Connection{
			Address:    c.Text("TEMPORAL_ADDRESS", ""),
			APIKey:     signal.Value{Text: c.Secret("TEMPORAL_API_KEY"), File: c.Text("TEMPORAL_API_KEY_PATH", "")},
			ClientCert: signal.Value{Text: c.Secret("TEMPORAL_TLS_CLIENT_CERT_DATA"), File: c.Text("TEMPORAL_TLS_CLIENT_CERT_PATH", "")},
			ClientKey:  signal.Value{Text: c.Secret("TEMPORAL_TLS_CLIENT_KEY_DATA"), File: c.Text("TEMPORAL_TLS_CLIENT_KEY_PATH", "")},
			ServerCA:   signal.Value{Text: c.Secret("TEMPORAL_TLS_SERVER_CA_CERT_DATA"), File: c.Text("TEMPORAL_TLS_SERVER_CA_CERT_PATH", "")},
			ServerName: c.Text("TEMPORAL_TLS_SERVER_NAME", ""),
		},
	}
	t := &cfg.Temporal
	tls := c.OneOf("TEMPORAL_TLS", "", "", "true", "false")
	t.TLS = tls == "true" || t.APIKey.Set() || t.ClientCert.Set() || t.ClientKey.Set() || t.ServerCA.Set() || t.ServerName != ""
	if tls == "false" && t.TLS {
		c.Problem("TEMPORAL_TLS", "is false, and there is an API key, a certificate or a server name: leave one of them out")
	}
	if _, port, err := net.SplitHostPort(t.Address); t.Address != "" && (err != nil || port == "") {
		c.Problem("TEMPORAL_ADDRESS", "is no host:port, such as temporal-frontend.temporal.svc.cluster.local:7233")
	}
	if t.ClientCert.Set() != t.ClientKey.Set() {
		c.Problem("TEMPORAL_TLS_CLIENT_CERT_DATA", "and TEMPORAL_TLS_CLIENT_KEY_DATA, or the files TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH, go together")
	}
	return cfg, c.Err()
}
