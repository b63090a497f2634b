// Package webhook is the WEBHOOK channel: signed JSON in, a conversation's
// stream and signed replies out.
package webhook

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// Path is where hooks live; the platform routes it to the public side.
const Path = "/api/v1/channels/webhook/"

// Options is what both sides are made of.
type Options struct {
	Store        *postgres.Store
	Secrets      secret.Source
	Checks       *channel.Checks // told when a hook's secret is missing, or there again; nil: nobody is
	Log          *slog.Logger
	Now          func() time.Time
	Metrics      *prometheus.Registry
	Drain        <-chan struct{} // closed when the process is to end: streams end, senders stop after the part they send
	StreamTime   time.Duration   // longest life of a stream
	Owner        string          // of the replies' leases
	AllowPrivate bool            // callbacks may go to private, loopback and link-local addresses
}

// Routes returns the public side: POST a message, GET a stream.
func Routes(o Options, events *function.Publisher) map[string]http.Handler {
	found := newHooks(o)
	return map[string]http.Handler{
		Path + "{name}":        newIngest(o, found, events),
		Path + "{name}/stream": newStreams(o, found),
	}
}
