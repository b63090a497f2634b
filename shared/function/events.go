package function

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/trace"
)

// EventFunc handles one event. nil means done, repeated, busy or irrelevant.
// ctx is not cancelled when the deliverer goes away, so that work is committed
// rather than cut; it ends at the function's own deadline, or when a drain is
// overdue, and then whoever holds a lease gives it back.
type EventFunc func(ctx context.Context, e event.Event) error

// eventDeadline ends an event's work. Knative ends a request at timeoutSeconds
// (300); no unit of work may need more than this.
const eventDeadline = 240 * time.Second

// handler serves health, events and the function's own routes. A panic in any
// of them is one log line and a 500, never the end of the process.
func (f *Function) handler(lifetime context.Context, log *slog.Logger, measured *requests) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	if len(f.Events) > 0 {
		mux.Handle("POST "+eventsPath, eventHandler{lifetime: lifetime, log: log, heard: f.Events})
	}
	for pattern, h := range f.Routes {
		mux.Handle(pattern, h)
	}
	measured.expect(f)
	return measured.around(recovering(log, mux))
}

// eventsPath is where a function hears.
const eventsPath = "/events"

func (f *Function) heard() []event.Type {
	var types []event.Type
	for t := range f.Events {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

type eventHandler struct {
	lifetime context.Context // of the process: it ends when a drain is overdue
	log      *slog.Logger
	heard    map[event.Type]EventFunc
}

// ServeHTTP answers a delivery by the delivery table and logs an error once.
// The body of every answer is empty: a broker takes a body for a reply event.
func (h eventHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e, err := read(w, r)
	if err != nil {
		h.log.Error("event refused", "err", err)
		w.WriteHeader(DeliveryStatus(err))
		return
	}
	log := h.log.With("event", e.ID, "type", string(e.Type), "session", string(e.Session), "agent", string(e.Agent))
	if id := trace.ID(r.Context()); id != "" {
		log = log.With("trace", id)
		trace.Note(r.Context(), "tuluat.event", e.ID, "tuluat.session", string(e.Session), "tuluat.agent", string(e.Agent), "tuluat.channel", string(e.Channel))
	}
	handle, ok := h.heard[e.Type]
	if !ok {
		log.Error("event refused", "err", "this function does not hear the type")
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	NameRequest(r.Context(), string(e.Type))
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(r.Context()), eventDeadline, fmt.Errorf("event deadline of %s", eventDeadline))
	defer cancel()
	defer context.AfterFunc(h.lifetime, cancel)()
	if err := handle(ctx, e); err != nil {
		log.Error("event failed", "kind", string(harness.KindOf(err)), "err", err)
		w.WriteHeader(DeliveryStatus(err))
		return
	}
	log.Debug("event handled")
	w.WriteHeader(http.StatusAccepted)
}

func read(w http.ResponseWriter, r *http.Request) (event.Event, error) {
	// Twice the data limit leaves room for a foreign source's data.
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	ce, err := cehttp.NewEventFromHTTPRequest(r)
	if err != nil {
		return event.Event{}, harness.Wrap(harness.Invalid, err, "not a CloudEvent")
	}
	return event.Decode(ce)
}

func recovering(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			reason := recover()
			if reason == nil {
				return
			}
			if err, ok := reason.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(reason)
			}
			log.Error("panic", "event", r.Header.Get("Ce-Id"), "path", r.URL.Path, "err", fmt.Sprint(reason), "stack", string(debug.Stack()))
			w.WriteHeader(http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}
