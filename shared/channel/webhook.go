package channel

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/trace"
)

// WebhookOptions are what a Webhook needs.
type WebhookOptions struct {
	Channel harness.Channel
	Adapter Adapter
	Desk    *Desk
	Events  Publisher
	Log     *slog.Logger
	Metrics prometheus.Registerer
	MaxBody int64 // bytes; the provider's own limit and a little more
}

// Publisher announces what is committed.
type Publisher interface {
	PublishWithin(ctx context.Context, within time.Duration, events ...event.Event)
}

const (
	bodyTime = 5 * time.Second        // for a body to arrive
	wakeTime = 400 * time.Millisecond // for all wakes of one request: providers measure the answer

	// Bodies that are longer than smallBody, as nearly none are, share
	// largeBodies: strangers must not fill the memory with them.
	smallBody   = 64 << 10
	largeBodies = 24 << 20
	largeTime   = 2 * time.Second // to wait for a share
)

// Webhook takes a provider's updates. Its answers are empty and fit what
// providers make of them (channels.md, section 14): 200 what is stored, used or
// not, for a repeat would not help; 401 what no secret of ours proves; 400 what
// broke on the way; 413 what is too long; 503 while nothing can be stored: here
// the repeat is wanted.
type Webhook struct {
	WebhookOptions
	large    *semaphore.Weighted
	requests *prometheus.CounterVec
	updates  *prometheus.CounterVec
}

// NewWebhook returns the handler of one provider's POSTs.
func NewWebhook(o WebhookOptions) *Webhook {
	w := &Webhook{
		WebhookOptions: o, large: semaphore.NewWeighted(max(largeBodies, o.MaxBody)),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tuluat_channel_requests_total", Help: "Requests of a channel's provider, by HTTP status of the answer.",
		}, []string{"channel", "status"}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tuluat_channel_updates_total", Help: "Updates of a channel's provider, by what became of them.",
		}, []string{"channel", "outcome"}),
	}
	o.Metrics.MustRegister(w.requests, w.updates)
	return w
}

func (h *Webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	if err := h.take(w, r); err != nil {
		status = h.refused(w, err)
	}
	h.requests.WithLabelValues(string(h.Channel), strconv.Itoa(status)).Inc()
	// Telegram runs what it finds in a body: there is none.
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
}

var errTooLarge = errors.New("the body is over the provider's limit")

func (h *Webhook) refused(w http.ResponseWriter, err error) int {
	switch kind := harness.KindOf(err); {
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge
	case kind == harness.Denied:
		h.Log.Warn("a request that no secret proves is refused", "channel", string(h.Channel), "err", err)
		return http.StatusUnauthorized
	case kind == harness.Invalid:
		h.Log.Warn("a request that cannot be read is refused", "channel", string(h.Channel), "err", err)
		return http.StatusBadRequest
	default:
		h.Log.Error("updates cannot be stored; the provider sends them again", "channel", string(h.Channel), "kind", string(kind), "err", err)
		w.Header().Set("Retry-After", "1")
		return http.StatusServiceUnavailable
	}
}

func (h *Webhook) take(w http.ResponseWriter, r *http.Request) error {
	if door, ok := h.Adapter.(Admitter); ok {
		if err := door.Admit(r.Context(), r); err != nil {
			return err
		}
	}
	leave, err := h.enter(r)
	if err != nil {
		return err
	}
	defer leave()
	body, err := h.read(w, r)
	if err != nil {
		return err
	}
	proof, err := h.Adapter.Verify(r.Context(), r, body)
	if err != nil {
		return err
	}
	in, err := h.Adapter.Parse(body, proof)
	if err != nil {
		return err
	}
	Scrub(&in, proof.Accounts)
	accepted, events, err := h.Desk.Accept(r.Context(), in, trace.Parent(r.Context()))
	h.Events.PublishWithin(r.Context(), wakeTime, events...)
	if err != nil {
		return err
	}
	h.count(in, accepted)
	return nil
}

// enter takes a share of the memory for a long body, or one that does not say how
// long it is.
func (h *Webhook) enter(r *http.Request) (leave func(), err error) {
	if r.ContentLength >= 0 && r.ContentLength <= smallBody {
		return func() {}, nil
	}
	share := h.MaxBody
	if r.ContentLength > 0 {
		share = min(share, r.ContentLength)
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), largeTime, errors.New("large bodies deadline of "+largeTime.String()))
	defer cancel()
	if err := h.large.Acquire(ctx, share); err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, "too many long bodies come at once")
	}
	return func() { h.large.Release(share) }, nil
}

func (h *Webhook) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > h.MaxBody {
		return nil, errTooLarge
	}
	// Not supported by a test's recorder, and then there is nothing slow to end.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	var body bytes.Buffer
	body.Grow(4 << 10) // what a caller announces is not reserved before it comes
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, h.MaxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, errTooLarge
	}
	if err != nil {
		return nil, harness.Errorf(harness.Invalid, "the body broke off")
	}
	return body.Bytes(), nil
}

func (h *Webhook) count(in postgres.Inbound, accepted []postgres.Accepted) {
	for i, a := range accepted {
		h.updates.WithLabelValues(string(h.Channel), string(a.Outcome)).Inc()
		if a.Outcome == postgres.ArrivalDenied {
			refused := in.Arrivals[i]
			h.Log.Warn("a sender is refused by the agent's sender policy; the message is kept as a notice", "channel", string(h.Channel),
				"account", refused.Account, "sender", refused.Message.ChannelUserID)
		}
	}
	for _, n := range in.Notices {
		h.updates.WithLabelValues(string(h.Channel), string(n.Kind)).Inc()
	}
	h.updates.WithLabelValues(string(h.Channel), "STATUS").Add(float64(len(in.Statuses)))
}
