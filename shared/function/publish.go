package function

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// Publisher posts events to a broker. An event only wakes, and its outbox row
// is committed before: one attempt with a short deadline, and a failure is
// logged and left to the sweep.
type Publisher struct {
	url    string
	log    *slog.Logger
	client *http.Client
	now    func() time.Time
}

// publishTime bounds one event.
const publishTime = 2 * time.Second

// NewPublisher posts to the broker at rawURL, an absolute http or https URL.
func NewPublisher(rawURL string, log *slog.Logger, now func() time.Time) (*Publisher, error) {
	if u, err := url.Parse(rawURL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, harness.Errorf(harness.Invalid, "the broker's URL must be absolute, http or https")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	return &Publisher{url: rawURL, log: log, client: &http.Client{Transport: transport}, now: now}, nil
}

// Close frees idle connections.
func (p *Publisher) Close() { p.client.CloseIdleConnections() }

// Publish posts each event once.
func (p *Publisher) Publish(ctx context.Context, events ...event.Event) {
	p.PublishWithin(ctx, publishTime, events...)
}

// atOnce is how many events of one call are on their way at the same time.
const atOnce = 16

// PublishWithin posts each event once, several at a time, and returns after
// within at the latest. Once the broker has failed to take one, those that have
// not been tried are left to the sweep too.
func (p *Publisher) PublishWithin(ctx context.Context, within time.Duration, events ...event.Event) {
	if len(events) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), within, fmt.Errorf("publish deadline of %s: %w", within, context.DeadlineExceeded))
	defer cancel()
	if len(events) == 1 {
		p.try(ctx, events[0], 1)
		return
	}
	var next atomic.Int64
	var failed atomic.Bool
	var posting sync.WaitGroup
	for range min(atOnce, len(events)) {
		posting.Go(func() {
			for !failed.Load() {
				n := int(next.Add(1)) - 1
				if n >= len(events) {
					return
				}
				if !p.try(ctx, events[n], len(events)) {
					failed.Store(true)
				}
			}
		})
	}
	posting.Wait()
}

// try posts one event of several.
func (p *Publisher) try(ctx context.Context, e event.Event, several int) bool {
	err := p.post(ctx, p.url, e)
	if err != nil {
		p.log.Warn("event not published; the sweep repeats it and those behind it", "event", e.ID, "type", string(e.Type), "session", string(e.Session), "events", several, "err", err)
	}
	return err == nil
}

// Broker returns the URL events are published to.
func (p *Publisher) Broker() string { return p.url }

// Post sends e to target and returns an error unless the answer is 2xx.
func (p *Publisher) Post(ctx context.Context, target string, e event.Event) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), publishTime, fmt.Errorf("publish deadline of %s: %w", publishTime, context.DeadlineExceeded))
	defer cancel()
	return p.post(ctx, target, e)
}

func (p *Publisher) post(ctx context.Context, target string, e event.Event) error {
	ce, err := event.Encode(e, p.now())
	if err != nil {
		return err
	}
	request, err := newRequest(ctx, target, ce)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return harness.Wrap(harness.Unavailable, err, "the broker does not answer")
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)); err != nil {
		return harness.Wrap(harness.Unavailable, err, "the broker's answer broke off")
	}
	if response.StatusCode/100 != 2 {
		return harness.Errorf(harness.Unavailable, "the broker answered %d", response.StatusCode)
	}
	return nil
}

// newRequest writes ce in binary mode (CloudEvents HTTP binding 3.1).
func newRequest(ctx context.Context, target string, ce cloudevents.Event) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(ce.Data()))
	if err != nil {
		return nil, err
	}
	h := request.Header
	h.Set("Content-Type", ce.DataContentType())
	h.Set("Ce-Specversion", ce.SpecVersion())
	h.Set("Ce-Id", ce.ID())
	h.Set("Ce-Source", ce.Source())
	h.Set("Ce-Type", ce.Type())
	h.Set("Ce-Time", ce.Time().UTC().Format(time.RFC3339Nano))
	for name, value := range ce.Extensions() {
		h.Set("Ce-"+name, fmt.Sprint(value))
	}
	return request, nil
}
