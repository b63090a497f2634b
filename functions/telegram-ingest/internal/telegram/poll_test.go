package telegram

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// pollStore is the rows of polls in memory, fenced as the real ones are.
type pollStore struct {
	mu       sync.Mutex
	next     map[string]int64
	owner    map[string]int64 // token of who holds it; 0: nobody
	tokens   int64
	released int
	claims   int // tried
	lost     int // leases that turned out to be somebody else's
	stored   []postgres.Inbound
	fail     []error // of the next calls to Accept
	refuse   string  // text that cannot be stored
	changed  chan struct{}
}

func newPollStore() *pollStore {
	return &pollStore{next: map[string]int64{}, owner: map[string]int64{}, changed: make(chan struct{}, 1000)}
}

func (s *pollStore) ClaimPoll(_ context.Context, _ harness.Channel, account string, _ postgres.Lease) (postgres.PollClaim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims++
	if s.owner[account] != 0 {
		return postgres.PollClaim{}, postgres.ErrNothingDue
	}
	s.tokens++
	s.owner[account] = s.tokens
	return postgres.PollClaim{Token: s.tokens, Next: s.next[account]}, nil
}

func (s *pollStore) ExtendPoll(_ context.Context, _ harness.Channel, account string, c postgres.PollClaim, _ postgres.Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner[account] != c.Token {
		s.lost++
		return postgres.ErrLeaseLost
	}
	return nil
}

func (s *pollStore) ReleasePoll(ctx context.Context, _ harness.Channel, account string, c postgres.PollClaim) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil || s.owner[account] != c.Token {
		return postgres.ErrLeaseLost
	}
	s.owner[account] = 0
	s.released++
	return nil
}

func (s *pollStore) Accept(_ context.Context, _ harness.Channel, in postgres.Inbound, _ string) ([]postgres.Accepted, []event.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.changed <- struct{}{} }()
	if len(s.fail) > 0 {
		err := s.fail[0]
		s.fail = s.fail[1:]
		return nil, nil, err
	}
	if s.owner[in.Offset.Account] != in.Offset.Token {
		return nil, nil, postgres.ErrLeaseLost
	}
	for _, a := range in.Arrivals {
		if s.refuse != "" && a.Message.Text == s.refuse {
			return nil, nil, harness.Errorf(harness.Invalid, "a value cannot be stored")
		}
	}
	s.next[in.Offset.Account] = in.Offset.Next
	s.stored = append(s.stored, in)
	var events []event.Event
	for _, a := range in.Arrivals {
		events = append(events, event.Event{ID: a.ProviderID})
	}
	return nil, events, nil
}

func (s *pollStore) texts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, in := range s.stored {
		for _, a := range in.Arrivals {
			all = append(all, a.Message.Text)
		}
		for _, n := range in.Notices {
			all = append(all, string(n.Kind))
		}
	}
	return strings.Join(all, " ")
}

// published counts the events.
type published struct {
	mu  sync.Mutex
	ids []string
}

func (p *published) PublishWithin(_ context.Context, _ time.Duration, events ...event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range events {
		p.ids = append(p.ids, e.ID)
	}
}

// changing are accounts that a test changes.
type changing struct {
	mu  sync.Mutex
	all map[string]*channel.Account
}

func (c *changing) All(context.Context) (map[string]*channel.Account, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.all), nil
}

func (c *changing) set(all map[string]*channel.Account) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = all
}

func pollAccount(name string) *channel.Account {
	a := testAccount()
	a.Name, a.Spec.Transport = name, harness.TransportPoll
	return a
}

type pollWorld struct {
	*wire
	store  *pollStore
	events *published
	bots   *changing
	poller *Poller
}

// idle is the answer of a long poll without updates.
const idle = `200 {"ok":true,"result":[]}`

func updates(texts ...string) string {
	return `200 {"ok":true,"result":[` + strings.Join(texts, ",") + `]}`
}

func textUpdate(id int, text string) string {
	return fmt.Sprintf(`{"update_id":%d,"message":{"message_id":%d,"date":1788000000,%s,%s,"text":%q}}`, id, id, ada, private, text)
}

// poll runs a poller whose seconds are milliseconds, over answers in order.
func poll(t *testing.T, s *pollStore, script ...string) *pollWorld {
	t.Helper()
	w := &pollWorld{wire: newWire(t, append(script, idle)...), store: s, events: &published{}, bots: &changing{}}
	w.bots.set(map[string]*channel.Account{testBot: pollAccount(testBot), "by_webhook_bot": testAccount()})
	w.poller = StartPoller(context.Background(), PollerOptions{
		Accounts: w.bots, Store: s, Events: w.events, Client: w.client, Owner: "test", Log: w.log, unit: time.Millisecond,
	})
	t.Cleanup(w.poller.Close)
	return w
}

// until waits for what tests come to, asked anew whenever the store or time moves.
func (w *pollWorld) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !holds() {
		select {
		case <-w.store.changed:
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatalf("never %s; stored %q, %d calls, logs %s", what, w.store.texts(), len(w.taken()), w.logs.String())
		}
	}
}

func (w *pollWorld) offsets() []int64 {
	var all []int64
	for _, c := range w.taken() {
		all = append(all, object(c.parameters).int("offset"))
	}
	return all
}

func TestPollStoresAndGoesOn(t *testing.T) {
	s := newPollStore()
	s.next[testBot] = 40
	w := poll(t, s, updates(textUpdate(41, "one"), `{"update_id":42,"message":{"chat":[]}}`, textUpdate(43, "two")), updates(textUpdate(44, "three")))
	w.until(t, "asked behind the last", func() bool { return slices.Contains(w.offsets(), 45) })
	if got := s.texts(); got != "one two MALFORMED three" {
		t.Errorf("stored %q", got)
	}
	if got := w.offsets()[:3]; !slices.Equal(got, []int64{40, 44, 45}) {
		t.Errorf("offsets %v", got)
	}
	first := w.taken()[0].parameters
	if first["timeout"] != json.Number("25") || first["limit"] != json.Number("100") || len(object(first).list("allowed_updates")) != len(AllowedUpdates()) {
		t.Errorf("asked with %v", first)
	}
	w.poller.Close()
	if s.owner[testBot] != 0 || s.released != 1 {
		t.Error("the lease was not given back")
	}
	if !slices.Equal(w.events.ids, []string{"41", "43", "44"}) {
		t.Errorf("published %v", w.events.ids)
	}
}

// After a week of silence Telegram counts on from anywhere, also from below.
func TestPollFollowsTheCount(t *testing.T) {
	s := newPollStore()
	s.next[testBot] = 1000
	w := poll(t, s, updates(textUpdate(5, "one"), textUpdate(6, "two")))
	w.until(t, "asked behind them", func() bool { return slices.Contains(w.offsets(), 7) })
	if got := s.texts(); got != "one two" {
		t.Errorf("stored %q", got)
	}
}

// What cannot be stored now is asked for again; the offset stays.
func TestPollWaitsForTheStore(t *testing.T) {
	s := newPollStore()
	s.fail = []error{harness.Errorf(harness.Unavailable, "down"), harness.Errorf(harness.Unavailable, "down")}
	one := updates(textUpdate(7, "one"))
	w := poll(t, s, one, one, one)
	w.until(t, "stored", func() bool { return s.texts() == "one" })
	w.until(t, "asked behind it", func() bool { return slices.Contains(w.offsets(), 8) })
	if got := w.offsets()[:4]; !slices.Equal(got, []int64{0, 0, 0, 8}) {
		t.Errorf("offsets %v", got)
	}
	if n := strings.Count(w.logs.String(), "cannot be stored"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// What can never be stored stops nothing behind it.
func TestPollPassesWhatTheStoreRefuses(t *testing.T) {
	s := newPollStore()
	s.refuse = "poison"
	w := poll(t, s, updates(textUpdate(1, "one"), textUpdate(2, "poison"), textUpdate(3, "two")))
	w.until(t, "asked behind them", func() bool { return slices.Contains(w.offsets(), 4) })
	if got := s.texts(); got != "one MALFORMED two" {
		t.Errorf("stored %q", got)
	}
}

// Whatever Telegram refuses, the poller says what to do, once, and goes on.
func TestPollGoesOnAfterRefusals(t *testing.T) {
	for name, c := range map[string]struct{ answer, says string }{
		"conflict":     {`409 {"ok":false,"error_code":409}`, "tuluat telegram delete-webhook"},
		"flood":        {`429 {"ok":false,"error_code":429,"parameters":{"retry_after":3}}`, "asks to wait"},
		"token":        {`401 {"ok":false,"error_code":401}`, "@BotFather"},
		"gateway":      {`502 <html>`, "no updates"},
		"cut":          {`CUT`, "does not answer"},
		"odd":          {`200 {"ok":true,"result":{"a":1}}`, "cannot be read"},
		"no update_id": {updates(`"x"`), "update_id"},
	} {
		s := newPollStore()
		w := poll(t, s, c.answer, c.answer, updates(textUpdate(1, "after")))
		w.until(t, name+" is over", func() bool { return strings.HasSuffix(s.texts(), "after") })
		w.poller.Close()
		if n := strings.Count(w.logs.String(), c.says); n != 1 {
			t.Errorf("%s: said %d times: %s", name, n, w.logs.String())
		}
	}
}

// The lease decides: who lost it stores nothing and waits for its turn.
func TestPollLosesItsLease(t *testing.T) {
	s := newPollStore()
	s.tokens, s.owner[testBot] = 1, 1 // somebody else
	w := poll(t, s, updates(textUpdate(1, "one")))
	locked := func(holds func() bool) func() bool {
		return func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return holds()
		}
	}
	own := func(token int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.owner[testBot] = token
	}
	w.until(t, "tried again", locked(func() bool { return s.claims >= 3 }))
	if calls := w.taken(); len(calls) != 0 {
		t.Errorf("asked without the lease: %+v", calls)
	}
	own(0)
	w.until(t, "stored", func() bool { return s.texts() == "one" })
	own(99) // taken over
	w.until(t, "noticed", locked(func() bool { return s.lost > 0 && s.claims >= 6 }))
	calls := len(w.taken())
	own(0)
	w.until(t, "went on", func() bool { return len(w.taken()) > calls })
	if offsets := w.offsets(); offsets[len(offsets)-1] != 2 {
		t.Errorf("went on at %v", offsets)
	}
}

// Bots come and go, and what is wrong with one stops no other.
func TestPollFollowsTheAccounts(t *testing.T) {
	s := newPollStore()
	w := poll(t, s, idle)
	broken := pollAccount("broken_bot")
	broken.Keys = nil
	w.bots.set(map[string]*channel.Account{testBot: pollAccount(testBot), "broken_bot": broken, "second_bot": pollAccount("second_bot")})
	w.until(t, "both are claimed, and somebody is told of the bot without a token", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.owner["second_bot"] != 0 && s.owner[testBot] != 0 && strings.Contains(w.logs.String(), "broken_bot")
	})
	w.bots.set(map[string]*channel.Account{"second_bot": pollAccount("second_bot")})
	w.until(t, "the first is given back", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.owner[testBot] == 0 && s.owner["broken_bot"] == 0
	})
	calls := len(w.taken())
	w.until(t, "the second goes on", func() bool { return len(w.taken()) > calls+2 })
	w.poller.Close()
	if s.owner["second_bot"] != 0 {
		t.Error("a lease was not given back")
	}
}
