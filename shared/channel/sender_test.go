package channel

import (
	gocmp "cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func TestBackoff(t *testing.T) {
	for n, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second, 10: 512 * time.Second, 11: 10 * time.Minute, 5000: 10 * time.Minute} {
		if got := Backoff(n); got != want {
			t.Errorf("Backoff(%d) = %s, want %s", n, got, want)
		}
	}
}

// replies is one session's reply in memory: what a Sender does to it, in order.
type replies struct {
	claim *postgres.ReplyClaim
	did   []string
	lost  bool
}

func (r *replies) ClaimReply(context.Context, harness.SessionID, postgres.ReplyLease) (*postgres.ReplyClaim, error) {
	if r.claim == nil {
		return nil, postgres.ErrNothingDue
	}
	return r.claim, nil
}

func (r *replies) SplitReply(_ context.Context, c *postgres.ReplyClaim, parts []string) error {
	r.did = append(r.did, fmt.Sprint("split ", len(parts)))
	c.Text = parts[0]
	return nil
}

func (r *replies) BeginSend(context.Context, *postgres.ReplyClaim) error {
	r.did = append(r.did, "begin")
	if r.lost {
		return postgres.ErrLeaseLost
	}
	return nil
}

func (r *replies) ExtendReply(context.Context, *postgres.ReplyClaim, postgres.Lease) error {
	return nil
}

func (r *replies) MarkReply(_ context.Context, _ *postgres.ReplyClaim, o postgres.ReplyOutcome, next *postgres.ReplyLease) (*postgres.ReplyClaim, error) {
	r.did = append(r.did, fmt.Sprintf("mark %s final=%t retry=%s next=%t %s", o.State, o.Final, o.Retry, next != nil, o.Reason))
	return nil, postgres.ErrNothingDue
}

func (r *replies) Of(context.Context, string, harness.AgentName, harness.ChannelSpec) (*Account, error) {
	return &Account{}, nil
}

// wire sends what it is told to have sent.
type wire struct {
	outcome postgres.ReplyOutcome
	did     *[]string
}

func (w wire) Split(text string) []string { return strings.Fields(text) }

func (w wire) Send(ctx context.Context, _ *Account, c *postgres.ReplyClaim, begin func(context.Context) error) (postgres.ReplyOutcome, error) {
	if err := begin(ctx); err != nil {
		return postgres.ReplyOutcome{}, err
	}
	*w.did = append(*w.did, "send "+c.Text)
	return w.outcome, nil
}

func (w wire) Settle(context.Context, *Account, *postgres.ReplyClaim) postgres.ReplyOutcome {
	*w.did = append(*w.did, "settle")
	return postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true}
}

func TestASenderBeginsSendsAndMarks(t *testing.T) {
	sent := postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: "p"}
	plain := postgres.ReplyOutcome{State: harness.ReplyPlanned, Format: harness.FormatPlain, Reason: "refused"}
	for name, c := range map[string]struct {
		change  func(*postgres.ReplyClaim)
		outcome postgres.ReplyOutcome
		lost    bool
		drain   bool
		want    []string
	}{
		"one part":         {outcome: sent, want: []string{"begin", "send hello", "mark SENT final=false retry=0s next=true "}},
		"while it drains":  {outcome: sent, drain: true, want: []string{"begin", "send hello", "mark SENT final=false retry=0s next=false "}},
		"several parts":    {change: func(c *postgres.ReplyClaim) { c.Text = "a b" }, outcome: sent, want: []string{"split 2", "begin", "send a", "mark SENT final=false retry=0s next=true "}},
		"a lease was lost": {lost: true, want: []string{"begin"}},
		"nothing to say":   {change: func(c *postgres.ReplyClaim) { c.Text = " " }, want: []string{"mark FAILED final=false retry=0s next=true there is nothing to send"}},
		"account gone":     {change: func(c *postgres.ReplyClaim) { c.Spec = nil }, want: []string{"mark FAILED final=false retry=0s next=true the agent has this account no more"}},
		"chat blocked": {
			change: func(c *postgres.ReplyClaim) { c.Blocked = "kicked" },
			want:   []string{"mark FAILED final=false retry=0s next=true the chat takes nothing from us until the person writes again: kicked"},
		},
		"may have been sent": {change: func(c *postgres.ReplyClaim) { c.State = harness.ReplyUnknown }, want: []string{"settle", "mark UNKNOWN final=true retry=0s next=true "}},
		"another form":       {outcome: plain, want: []string{"begin", "send hello", "mark PLANNED final=false retry=0s next=true refused"}},
		"passing failure": {
			change: func(c *postgres.ReplyClaim) { c.Attempts = 3 }, outcome: Again(harness.ReplyPlanned, "busy"),
			want: []string{"begin", "send hello", "mark PLANNED final=false retry=4s next=true busy"},
		},
		"the last attempt": {
			change: func(c *postgres.ReplyClaim) { c.Attempts = maxAttempts }, outcome: Again(harness.ReplyPlanned, "busy"),
			want: []string{"begin", "send hello", "mark FAILED final=false retry=0s next=true given up after 20 attempts: busy"},
		},
		"a file": {
			change: func(c *postgres.ReplyClaim) { c.Kind, c.Text = harness.ReplyFile, "" }, outcome: sent,
			want: []string{"begin", "send ", "mark SENT final=false retry=0s next=true "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &postgres.ReplyClaim{ID: "rpl_1", Attempts: 1, State: harness.ReplyPlanned, Kind: harness.ReplyText, Text: "hello", Spec: &harness.ChannelSpec{}}
			if c.change != nil {
				c.change(claim)
			}
			store := &replies{claim: claim, lost: c.lost}
			drain := make(chan struct{})
			if c.drain {
				close(drain)
			}
			s := NewSender(SenderOptions{
				Channel: harness.ChannelTelegram, Store: store, Accounts: store, Transport: wire{c.outcome, &store.did},
				Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Drain: drain,
			})
			if err := s.Reply(t.Context(), event.Event{Session: "ses_1", Channel: harness.ChannelTelegram}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, store.did); diff != "" {
				t.Errorf("-want +did:\n%s", diff)
			}
		})
	}
	store := &replies{}
	s := NewSender(SenderOptions{Channel: harness.ChannelTelegram, Store: store, Accounts: store, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err := s.Reply(t.Context(), event.Event{Session: "ses_1", Channel: harness.ChannelWhatsApp}); harness.KindOf(err) != harness.Invalid {
		t.Errorf("another channel's event: %v", err)
	}
}

// heard is one message whose turn ends after some looks.
type heard struct {
	replies
	looks, done int
	state       harness.MessageState // while the turn is not over; empty: RUNNING
}

func (h *heard) Received(context.Context, harness.MessageID) (*postgres.Received, error) {
	h.looks++
	m := &postgres.Received{State: gocmp.Or(h.state, harness.MessageRunning), Spec: &harness.ChannelSpec{}}
	if h.looks > h.done {
		m.State = harness.MessageDone
	}
	return m, nil
}

type signs struct {
	first, more int
	longest     time.Duration
}

func (s *signs) Show(_ context.Context, _ *Account, _ *postgres.Received, first bool) error {
	if first {
		s.first++
	} else {
		s.more++
	}
	return nil
}

func (s *signs) Every() time.Duration   { return time.Millisecond }
func (s *signs) Longest() time.Duration { return s.longest }

func TestSignsAreShownWhileATurnRuns(t *testing.T) {
	run := func(done int, longest time.Duration) *signs {
		t.Helper()
		h, s := &heard{done: done}, &signs{longest: longest}
		a := NewAcks(AcksOptions{Channel: harness.ChannelTelegram, Store: h, Accounts: h, Presence: s, Log: slog.New(slog.DiscardHandler)})
		if err := a.Received(t.Context(), event.Event{Channel: harness.ChannelTelegram, Payload: event.Payload{Message: "msg_1"}}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := run(3, time.Minute); s.first != 1 || s.more != 2 {
		t.Errorf("%+v", s)
	}
	if s := run(0, time.Minute); s.first != 1 || s.more != 0 {
		t.Errorf("a turn that is over already: %+v", s)
	}
	if s := run(1<<30, 20*time.Millisecond); s.first != 1 || s.more == 0 {
		t.Errorf("a turn without an end: %+v", s)
	}
}

// Signs never take the room that replies need.
func TestFewRequestsStayForATurn(t *testing.T) {
	h, s := &heard{done: 1 << 30}, &signs{longest: time.Hour}
	drain := make(chan struct{})
	a := NewAcks(AcksOptions{Channel: harness.ChannelTelegram, Store: h, Accounts: h, Presence: s, Log: slog.New(slog.DiscardHandler), Drain: drain})
	for i := range staying {
		if !a.stays(harness.SessionID(fmt.Sprint(i))) {
			t.Fatalf("request %d may not stay", i)
		}
	}
	message := event.Event{Channel: harness.ChannelTelegram, Payload: event.Payload{Message: "msg_1"}}
	if err := a.Received(t.Context(), message); err != nil || s.first != 1 || s.more != 0 {
		t.Errorf("%+v %v", s, err)
	}
	a.leaves("0")
	if !a.stays("ses") || a.stays("ses") {
		t.Error("two requests stay for one conversation, or none may where there is room")
	}
	a.leaves("ses")
	h.state = harness.MessagePending // behind another turn
	if err := a.Received(t.Context(), message); err != nil || s.first != 2 || s.more != 1 {
		t.Errorf("a message that waits for its turn: %+v %v", s, err)
	}
}

// flaky fails its first mark as a deadlock (40P01) or a broken connection does.
type flaky struct {
	replies
	marks int
}

func (f *flaky) MarkReply(ctx context.Context, c *postgres.ReplyClaim, o postgres.ReplyOutcome, next *postgres.ReplyLease) (*postgres.ReplyClaim, error) {
	if f.marks++; f.marks == 1 {
		return nil, harness.Errorf(harness.Unavailable, "the database cannot do it now")
	}
	return f.replies.MarkReply(ctx, c, o, next)
}

// The provider's 200 is in hand: one failed statement must not make the reply
// UNKNOWN for good (Telegram) and hold the parts behind it for a lease.
func TestAMarkThatFailsOnceIsMadeAgain(t *testing.T) {
	store := &flaky{}
	store.claim = &postgres.ReplyClaim{ID: "rpl_1", Attempts: 1, State: harness.ReplyPlanned, Kind: harness.ReplyText, Text: "hello", Spec: &harness.ChannelSpec{}}
	s := NewSender(SenderOptions{
		Channel: harness.ChannelTelegram, Store: store, Accounts: store, Transport: wire{postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: "p"}, &store.did},
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	err := s.Reply(t.Context(), event.Event{Session: "ses_1", Channel: harness.ChannelTelegram})
	if err != nil || store.marks < 2 {
		t.Errorf("the outcome SENT is lost: %d marks, %v, did %q", store.marks, err, store.did)
	}
}
