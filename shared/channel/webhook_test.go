package channel

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

type adapter struct{ verify, parse error }

func (a adapter) Verify(context.Context, *http.Request, []byte) (Proof, error) {
	return Proof{}, a.verify
}

func (a adapter) Parse(body []byte, _ Proof) (postgres.Inbound, error) {
	return postgres.Inbound{Arrivals: []postgres.Arrival{{ProviderID: string(body)}}}, a.parse
}

type deafBroker struct{}

func (deafBroker) PublishWithin(context.Context, time.Duration, ...event.Event) {}

// Every answer is empty: a provider may run what it finds in one.
func TestWebhookAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		adapter adapter
		store   error
		body    string
		want    int
	}{
		"stored":          {body: "x", want: 200},
		"forged":          {adapter: adapter{verify: harness.Errorf(harness.Denied, "no")}, body: "x", want: 401},
		"not JSON":        {adapter: adapter{parse: harness.Errorf(harness.Invalid, "no")}, body: "x", want: 400},
		"database down":   {store: harness.Errorf(harness.Unavailable, "down"), body: "x", want: 503},
		"a fault of ours": {store: errors.New("bug"), body: "x", want: 503},
		"secrets away":    {adapter: adapter{verify: harness.Errorf(harness.Unavailable, "down")}, body: "x", want: 503},
		"too long":        {body: strings.Repeat("x", 101), want: 413},
	} {
		t.Run(name, func(t *testing.T) {
			store := storeFunc(func(postgres.Inbound) error { return c.store })
			h := NewWebhook(WebhookOptions{
				Channel: harness.ChannelTelegram, Adapter: c.adapter, Desk: NewDesk(harness.ChannelTelegram, store, slog.New(slog.DiscardHandler)), Events: deafBroker{},
				Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), MaxBody: 100,
			})
			for _, announced := range []bool{true, false} {
				r := httptest.NewRequest(http.MethodPost, "/", bytes.NewBufferString(c.body))
				if !announced {
					r.ContentLength = -1
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != c.want || w.Body.Len() != 0 || (w.Header().Get("Retry-After") != "") != (c.want == 503) {
					t.Errorf("%d %q %v, want %d", w.Code, w.Body, w.Header(), c.want)
				}
			}
		})
	}
}
