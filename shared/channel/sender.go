package channel

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/trace"
)

// SenderOptions are what a Sender needs.
type SenderOptions struct {
	Channel   harness.Channel
	Store     ReplyStore
	Accounts  AccountSource
	Transport Transport
	Begins    bool // the transport can ask its receiver what arrived: a claim is the beginning of a send
	Owner     string
	Log       *slog.Logger
	Metrics   prometheus.Registerer
	Drain     <-chan struct{} // closed when the process is to end: a sender stops after the part it sends
}

// ReplyStore is what a Sender reads and writes.
type ReplyStore interface {
	ClaimReply(ctx context.Context, session harness.SessionID, lease postgres.ReplyLease) (*postgres.ReplyClaim, error)
	SplitReply(ctx context.Context, c *postgres.ReplyClaim, parts []string) error
	BeginSend(ctx context.Context, c *postgres.ReplyClaim) error
	ExtendReply(ctx context.Context, c *postgres.ReplyClaim, lease postgres.Lease) error
	MarkReply(ctx context.Context, c *postgres.ReplyClaim, o postgres.ReplyOutcome, next *postgres.ReplyLease) (*postgres.ReplyClaim, error)
}

// AccountSource knows the secrets of an account.
type AccountSource interface {
	Of(ctx context.Context, name string, agent harness.AgentName, spec harness.ChannelSpec) (*Account, error)
}

// Sender sends replies: it hears message.reply and works off the session's open
// parts in order. A part is claimed before it is prepared, and BeginSend is
// committed right before it is sent: a process that ends before that has sent
// nothing, and one that ends after it leaves a part that only the provider's own
// evidence settles.
type Sender struct {
	SenderOptions
	lease postgres.ReplyLease
	sent  *prometheus.CounterVec
}

const (
	replyLease  = 40 * time.Second
	attemptTime = 25 * time.Second // of a text: nothing is sent under a lease that another may have taken over
	fileTime    = 3 * time.Minute  // of a file, whose lease is extended meanwhile
	maxAttempts = 20
	firstRetry  = time.Second
	lastRetry   = 10 * time.Minute
)

// NewSender returns the events side of a channel.
func NewSender(o SenderOptions) *Sender {
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tuluat_channel_replies_total", Help: "Attempts to send a part of a reply, by the state they led to.",
	}, []string{"channel", "state"})
	o.Metrics.MustRegister(sent)
	return &Sender{SenderOptions: o, lease: postgres.ReplyLease{Lease: postgres.Lease{Owner: o.Owner, For: replyLease}, Begins: o.Begins}, sent: sent}
}

// Reply sends every part of the session that is due. Nothing to do, and another
// who does it, are success.
func (s *Sender) Reply(ctx context.Context, e event.Event) error {
	if e.Session == "" || e.Channel != s.Channel {
		return harness.Errorf(harness.Invalid, "message.reply must name a session of the channel %s", s.Channel)
	}
	claim, err := s.Store.ClaimReply(ctx, e.Session, s.lease)
	for err == nil {
		var outcome postgres.ReplyOutcome
		sending, end := trace.Start(ctx, "send", "tuluat.reply", string(claim.ID), "tuluat.session", string(claim.Session.ID), "tuluat.agent", string(claim.Session.Agent), "tuluat.channel", string(s.Channel))
		outcome, err = s.attempt(sending, claim)
		trace.Note(sending, "tuluat.state", string(outcome.State))
		end(err)
		if err != nil {
			break // nothing was sent; the lease runs out, and the sweep wakes somebody
		}
		s.sent.WithLabelValues(string(s.Channel), string(outcome.State)).Inc()
		claim, err = s.mark(ctx, claim, outcome)
	}
	if errors.Is(err, postgres.ErrNothingDue) || errors.Is(err, postgres.ErrLeaseLost) {
		return nil
	}
	return err
}

const (
	markTime  = 10 * time.Second // for a mark, also once the request's own time is over
	markAgain = 500 * time.Millisecond
)

func (s *Sender) mark(ctx context.Context, c *postgres.ReplyClaim, o postgres.ReplyOutcome) (*postgres.ReplyClaim, error) {
	next := &s.lease
	select {
	case <-s.Drain: // the sweep wakes somebody else for the part behind
		next = nil
	default:
	}
	if ctx.Err() != nil {
		next = nil
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), markTime, errors.New("mark deadline of "+markTime.String()))
	defer cancel()
	for {
		claim, err := s.Store.MarkReply(ctx, c, o, next)
		if harness.KindOf(err) != harness.Unavailable {
			return claim, err
		}
		// What the provider said is known here and nowhere else. A mark that was
		// committed although its answer was lost loses its lease at the next try.
		again := time.NewTimer(markAgain)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return claim, err
		}
	}
}

// attempt settles or sends one part and says what to write down.
func (s *Sender) attempt(ctx context.Context, c *postgres.ReplyClaim) (postgres.ReplyOutcome, error) {
	outcome, err := s.send(ctx, c)
	if err != nil {
		return outcome, err
	}
	log := s.Log.With("session", string(c.Session.ID), "agent", string(c.Session.Agent), "reply", string(c.ID), "attempt", c.Attempts)
	switch {
	case outcome.State == harness.ReplySent:
		log.Debug("reply sent")
	case outcome.State == harness.ReplyFailed:
		log.Warn("reply failed", "code", outcome.Code, "err", outcome.Reason)
	case outcome.State == harness.ReplyUnknown && outcome.Final:
		log.Warn("nobody can say whether a reply arrived; it is not sent again", "code", outcome.Code, "err", outcome.Reason)
	case c.Attempts >= maxAttempts:
		outcome = Failed("given up after " + strconv.Itoa(maxAttempts) + " attempts: " + outcome.Reason)
		log.Warn("reply failed", "err", outcome.Reason)
	default:
		if outcome.Format == "" { // another form is tried at once
			outcome.Retry = max(outcome.Retry, Backoff(c.Attempts))
		}
		log.Info("reply not sent; it is tried again", "retry", outcome.Retry.String(), "code", outcome.Code, "err", outcome.Reason)
	}
	return outcome, nil
}

func (s *Sender) send(ctx context.Context, c *postgres.ReplyClaim) (postgres.ReplyOutcome, error) {
	if c.Spec == nil {
		return Failed("the agent has this account no more"), nil
	}
	account, err := s.Accounts.Of(ctx, c.Session.Account, c.Session.Agent, *c.Spec)
	if err != nil {
		return Again(harness.ReplyPlanned, harness.MessageOf(err)), nil
	}
	if c.State == harness.ReplyUnknown {
		ctx, cancel := context.WithTimeoutCause(ctx, attemptTime, errors.New("attempt deadline of "+attemptTime.String()))
		defer cancel()
		return s.Transport.Settle(ctx, account, c), nil
	}
	if c.Blocked != "" {
		return Failed("the chat takes nothing from us until the person writes again: " + c.Blocked), nil
	}
	if c.Kind != harness.ReplyFile {
		if empty, err := s.split(ctx, c); empty || err != nil {
			return Failed("there is nothing to send"), err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, attemptTime, errors.New("attempt deadline of "+attemptTime.String()))
		defer cancel()
		return s.Transport.Send(ctx, account, c, func(ctx context.Context) error { return s.begin(ctx, c) })
	}
	var outcome postgres.ReplyOutcome
	err = postgres.Keep(ctx, replyLease, func(ctx context.Context) error { return s.Store.ExtendReply(ctx, c, s.lease.Lease) }, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, fileTime, errors.New("file deadline of "+fileTime.String()))
		defer cancel()
		var err error
		outcome, err = s.Transport.Send(ctx, account, c, func(ctx context.Context) error { return s.begin(ctx, c) })
		return err
	})
	return outcome, err
}

// split makes as many parts of a text as its channel needs, before any is sent.
func (s *Sender) split(ctx context.Context, c *postgres.ReplyClaim) (empty bool, err error) {
	if c.Kind == harness.ReplyCard && c.Spec.Template != nil && (!c.WindowOpen || c.Format == harness.FormatTemplate) {
		return false, nil // a template only says that there is a card
	}
	parts := s.Transport.Split(c.Text)
	if len(parts) <= 1 {
		return len(parts) == 0, nil
	}
	return false, s.Store.SplitReply(ctx, c, parts)
}

func (s *Sender) begin(ctx context.Context, c *postgres.ReplyClaim) error {
	if s.Begins {
		return nil
	}
	return s.Store.BeginSend(ctx, c)
}

// Failed is the outcome of a part that will not arrive.
func Failed(reason string) postgres.ReplyOutcome {
	return postgres.ReplyOutcome{State: harness.ReplyFailed, Reason: reason}
}

// Again is the outcome of a part that is tried again: PLANNED, it was surely not
// sent, or UNKNOWN, it may have been.
func Again(state harness.ReplyState, reason string) postgres.ReplyOutcome {
	return postgres.ReplyOutcome{State: state, Reason: reason}
}

// Backoff is the wait after attempt n: 1 s, doubling, at most 10 min.
func Backoff(n int) time.Duration {
	return time.Duration(math.Min(float64(firstRetry)*math.Pow(2, float64(max(n, 1)-1)), float64(lastRetry)))
}
