package webhook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// ingest takes messages: POST Path{name}.
type ingest struct {
	hooks  *hooks
	desk   *channel.Desk
	events publisher
	log    *slog.Logger
	now    func() time.Time
	taken  *prometheus.CounterVec
}

type publisher interface {
	Publish(ctx context.Context, events ...event.Event)
}

// bodyTime is how long a body may take to arrive.
const bodyTime = 10 * time.Second

func newIngest(o Options, found *hooks, events publisher) *ingest {
	taken := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tuluat_webhook_messages_total", Help: "Messages POSTed to hooks, by HTTP status of the answer.",
	}, []string{"status"})
	o.Metrics.MustRegister(taken)
	return &ingest{hooks: found, desk: channel.NewDesk(harness.ChannelWebhook, channel.Decider{Store: o.Store}, o.Log), events: events, log: o.Log, now: o.Now, taken: taken}
}

func (i *ingest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accepted, err := i.take(w, r)
	if err != nil {
		i.taken.WithLabelValues(strconv.Itoa(writeError(w, i.log, r.PathValue("name"), err))).Inc()
		return
	}
	i.taken.WithLabelValues("202").Inc()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusAccepted)
	// The ids are ours and need no escaping. If the caller is gone it repeats,
	// and is told that it is a duplicate.
	_, _ = io.WriteString(w, `{"session":"`+string(accepted.Session)+`","message":"`+string(accepted.Message)+
		`","duplicate":`+strconv.FormatBool(accepted.Outcome == postgres.ArrivalDuplicate)+"}\n")
}

func (i *ingest) take(w http.ResponseWriter, r *http.Request) (postgres.Accepted, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return postgres.Accepted{}, refuse(http.StatusMethodNotAllowed, "POST a message here")
	}
	if r.ContentLength > maxBody {
		return postgres.Accepted{}, errTooLarge
	}
	name := r.PathValue("name")
	hook, err := i.hooks.find(r.Context(), name)
	if err != nil {
		return postgres.Accepted{}, err
	}
	stamp, err := readStamp(r.Header, i.now())
	if err != nil {
		return postgres.Accepted{}, err
	}
	body, err := readBody(w, r)
	if err != nil {
		return postgres.Accepted{}, err
	}
	key := r.Header.Get("Idempotency-Key")
	if !stamp.fits(hook.keys, messageContent(key, body)) {
		return postgres.Accepted{}, errSignature
	}
	arrival, err := parse(body, name, key, hook.fields)
	if err != nil {
		return postgres.Accepted{}, err
	}
	return i.keep(r.Context(), arrival, event.TraceParent(r.Header.Get("Traceparent")))
}

// keep commits the arrival, then announces it.
func (i *ingest) keep(ctx context.Context, arrival postgres.Arrival, traceparent string) (postgres.Accepted, error) {
	accepted, events, err := i.accept(ctx, arrival, traceparent)
	if err == nil && accepted.Outcome == postgres.ArrivalDuplicate && accepted.Message == "" {
		// The first was committed while our statement ran: the next one sees it.
		accepted, events, err = i.accept(ctx, arrival, traceparent)
	}
	if err != nil {
		return accepted, err
	}
	switch {
	case accepted.Outcome == postgres.ArrivalUnrouted:
		return accepted, errUnknownHook
	case accepted.Outcome == postgres.ArrivalDenied:
		return accepted, refuse(http.StatusForbidden, "the sender may not talk to this agent")
	case accepted.Outcome == postgres.ArrivalDecision:
	case accepted.Message == "":
		return accepted, refuse(http.StatusBadRequest, "the message holds something that cannot be stored")
	}
	i.events.Publish(ctx, events...)
	return accepted, nil
}

func (i *ingest) accept(ctx context.Context, arrival postgres.Arrival, traceparent string) (postgres.Accepted, []event.Event, error) {
	accepted, events, err := i.desk.Accept(ctx, postgres.Inbound{Arrivals: []postgres.Arrival{arrival}}, traceparent)
	if err != nil {
		return postgres.Accepted{}, nil, err
	}
	return accepted[0], events, nil
}

var (
	errTooLarge  = refuse(http.StatusRequestEntityTooLarge, "the body is over 1 MiB")
	errSignature = refuse(http.StatusUnauthorized, "the signature does not fit")
)

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// Not supported by a test's recorder, and then there is nothing slow to end.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	limited := http.MaxBytesReader(w, r.Body, maxBody)
	var body bytes.Buffer
	body.Grow(4 << 10) // what a caller announces is not reserved before it comes
	_, err := body.ReadFrom(limited)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, errTooLarge
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the body broke off")
	}
	return body.Bytes(), nil
}
