// Package letter turns an event that a broker gave up on into a stored dead
// letter. The broker adds three extensions: who would not take the event, the
// status it answered, and the start of that answer in base64.
package letter

import (
	"context"
	"encoding/base64"
	"log/slog"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Store keeps dead letters.
type Store interface {
	PutDeadLetter(ctx context.Context, d postgres.DeadLetter) (postgres.DeadLetterState, error)
}

// Options are what a Keeper needs.
type Options struct {
	Store   Store
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Keeper is the function.
type Keeper struct {
	Options
	letters *prometheus.CounterVec
}

// New returns a Keeper.
func New(o Options) *Keeper {
	k := &Keeper{Options: o, letters: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tuluat_dead_letters_total", Help: "Deliveries that the broker gave up on, by event type and what is to be done.",
	}, []string{"type", "state"})}
	o.Metrics.MustRegister(k.letters)
	return k
}

// Keep stores e and marks its work. A repeat only counts.
func (k *Keeper) Keep(ctx context.Context, e event.Event) error {
	d := parse(e)
	state, err := k.Store.PutDeadLetter(ctx, d)
	if err != nil {
		return err
	}
	k.letters.WithLabelValues(string(e.Type), string(state)).Inc()
	level := slog.LevelWarn
	if state == postgres.DeadLetterMoot {
		level = slog.LevelInfo
	}
	k.Log.Log(ctx, level, "the broker gave up on an event", "event", e.ID, "type", string(e.Type), "session", string(e.Session),
		"destination", d.Destination, "status", d.StatusCode, "state", string(state))
	return nil
}

// parse reads the broker's extensions. Whatever they hold, the letter is kept:
// what cannot be read is left out.
func parse(e event.Event) postgres.DeadLetter {
	d := postgres.DeadLetter{Event: e, Destination: "unknown", Cause: cause(e.Extensions["knativeerrordata"])}
	if to := e.Extensions["knativeerrordest"]; to != "" {
		d.Destination = harness.CleanText(to)
	}
	if code, err := strconv.Atoi(e.Extensions["knativeerrorcode"]); err == nil && code >= 100 && code <= 999 {
		d.StatusCode = code
	}
	return d
}

// maxCause is what the broker keeps of an answer, in bytes of base64; another
// sender gets no more.
const maxCause = 1024

// cause decodes the start of an answer. The broker cuts the encoded text, so
// its end may be missing; what is not base64 at all is kept as it is.
func cause(data string) string {
	data = strings.TrimRight(data[:min(len(data), maxCause)], "=")
	if len(data)%4 == 1 { // a cut inside a byte
		data = data[:len(data)-1]
	}
	decoded, err := base64.RawStdEncoding.DecodeString(data)
	if err != nil {
		return harness.CleanText(data)
	}
	return harness.CleanText(string(decoded))
}
