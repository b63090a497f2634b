package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

type adapter struct{ verify, parse error }

// guarded refuses by the header of a request.
type guarded struct{ adapter }

func (guarded) Admit(_ context.Context, r *http.Request) error {
	if r.Header.Get("Pass") == "" {
		return harness.Errorf(harness.Denied, "no")
	}
	return nil
}

// unread fails a test that reads it.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

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

// What a stranger sends is not read, and many long bodies at once do not fill
// the memory.
func TestStrangersCostLittle(t *testing.T) {
	inside, let := make(chan struct{}), make(chan struct{})
	store := storeFunc(func(postgres.Inbound) error {
		inside <- struct{}{}
		<-let
		return nil
	})
	h := NewWebhook(WebhookOptions{
		Channel: harness.ChannelTelegram, Adapter: guarded{}, Desk: NewDesk(harness.ChannelTelegram, store, slog.New(slog.DiscardHandler)), Events: deafBroker{},
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), MaxBody: largeBodies,
	})
	post := func(body io.Reader, length int64, pass string) int {
		r := httptest.NewRequest(http.MethodPost, "/", body)
		r.ContentLength = length
		r.Header.Set("Pass", pass)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	if got := post(unread{t}, -1, ""); got != http.StatusUnauthorized {
		t.Errorf("a stranger got %d", got)
	}
	var all sync.WaitGroup
	all.Go(func() {
		if got := post(bytes.NewReader(make([]byte, largeBodies)), -1, "x"); got != http.StatusOK {
			t.Errorf("the first long body got %d", got)
		}
	})
	<-inside
	if got := post(unread{t}, largeBodies, "x"); got != http.StatusServiceUnavailable {
		t.Errorf("one long body too many got %d", got)
	}
	all.Go(func() {
		if got := post(bytes.NewReader([]byte("short")), 5, "x"); got != http.StatusOK {
			t.Errorf("a short body beside it got %d", got)
		}
	})
	<-inside
	close(let)
	all.Wait()
}

func TestPairingCodesGoIntoNoRow(t *testing.T) {
	account := &Account{Spec: harness.ChannelSpec{Senders: harness.ChannelSenders{Policy: harness.SendersPairing}}, Keys: map[Role][]harness.Secret{RolePairingCode: {"new-code", "old-code"}}}
	in := func() postgres.Inbound {
		return postgres.Inbound{
			Arrivals: []postgres.Arrival{{
				Message:     harness.Message{Text: "it is old-code", Metadata: map[string]any{"quote": "new-code", "list": []any{map[string]any{"a": "x new-code"}}, "n": 7, "texts": []string{"old-code"}}},
				Attachments: []harness.Attachment{{FileName: "new-code.txt"}},
			}},
			Notices: []postgres.Notice{{Data: map[string]any{"text": "/start new-code"}}},
		}
	}
	scrubbed := in()
	Scrub(&scrubbed, map[string]*Account{"a": account})
	if text := fmt.Sprint(scrubbed); strings.Contains(text, "new-code") || strings.Contains(text, "old-code") || !strings.Contains(text, "it is [pairing code]") {
		t.Errorf("%s", text)
	}
	account.Spec.Senders.Policy = harness.SendersAllowlist
	left := in()
	Scrub(&left, map[string]*Account{"a": account})
	if diff := cmp.Diff(in(), left); diff != "" {
		t.Errorf("without pairing:\n%s", diff)
	}
}
