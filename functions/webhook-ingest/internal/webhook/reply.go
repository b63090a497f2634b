package webhook

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Sender sends replies: it hears message.reply and works off the session's open
// parts in order. A part is claimed before it is sent, so that a second attempt
// knows of the first; what the first came to is asked of the receiver.
type Sender struct {
	store    replyStore
	callback *callback
	secret   func(harness.SecretRef) harness.Secret
	log      *slog.Logger
	now      func() time.Time
	drain    <-chan struct{}
	lease    postgres.Lease
	sent     *prometheus.CounterVec
}

type replyStore interface {
	ClaimReply(ctx context.Context, session harness.SessionID, lease postgres.Lease) (*postgres.ReplyClaim, error)
	MarkReply(ctx context.Context, c *postgres.ReplyClaim, o postgres.ReplyOutcome, next *postgres.Lease) (*postgres.ReplyClaim, error)
}

const (
	// replyLease outlasts an attempt: nothing is sent under a lease that another
	// may have taken over.
	replyLease  = 40 * time.Second
	attemptTime = 25 * time.Second // the question to the receiver and the POST
	maxAttempts = 20
	firstRetry  = time.Second
	lastRetry   = 10 * time.Minute
)

// NewSender returns the events side.
func NewSender(o Options) *Sender {
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tuluat_webhook_replies_total", Help: "Attempts to send a reply to a hook's callback, by the state they led to.",
	}, []string{"state"})
	o.Metrics.MustRegister(sent)
	return &Sender{
		store: o.Store, callback: newCallback(o.AllowPrivate, o.Now), secret: o.Secret, log: o.Log, now: o.Now, drain: o.Drain,
		lease: postgres.Lease{Owner: o.Owner, For: replyLease}, sent: sent,
	}
}

// Close frees idle connections.
func (s *Sender) Close() { s.callback.close() }

// Reply sends every part of the session that is due. Nothing to do, and another
// who does it, are success.
func (s *Sender) Reply(ctx context.Context, e event.Event) error {
	if e.Session == "" || e.Channel != harness.ChannelWebhook {
		return harness.Errorf(harness.Invalid, "message.reply must name a session of the channel WEBHOOK")
	}
	claim, err := s.store.ClaimReply(ctx, e.Session, s.lease)
	for err == nil {
		outcome := s.attempt(ctx, claim)
		s.sent.WithLabelValues(string(outcome.State)).Inc()
		claim, err = s.store.MarkReply(ctx, claim, outcome, s.next())
	}
	if errors.Is(err, postgres.ErrNothingDue) || errors.Is(err, postgres.ErrLeaseLost) {
		return nil
	}
	return err
}

// next is the lease for the part behind, nil when the process is to end: the
// sweep wakes somebody else for it.
func (s *Sender) next() *postgres.Lease {
	select {
	case <-s.drain:
		return nil
	default:
		return &s.lease
	}
}

// attempt settles or sends one part.
func (s *Sender) attempt(ctx context.Context, c *postgres.ReplyClaim) postgres.ReplyOutcome {
	ctx, cancel := context.WithTimeoutCause(ctx, attemptTime, errors.New("attempt deadline of "+attemptTime.String()))
	defer cancel()
	outcome := s.send(ctx, c)
	log := s.log.With("session", string(c.Session.ID), "agent", string(c.Session.Agent), "reply", string(c.ID), "attempt", c.Attempts)
	switch {
	case outcome.State == harness.ReplySent:
		log.Debug("reply sent")
	case outcome.State == harness.ReplyFailed:
		log.Warn("reply failed", "err", outcome.Reason)
	case c.Attempts >= maxAttempts:
		outcome = failed("given up after " + strconv.Itoa(maxAttempts) + " attempts: " + outcome.Reason)
		log.Warn("reply failed", "err", outcome.Reason)
	default:
		outcome.Retry = max(outcome.Retry, backoff(c.Attempts))
		log.Info("reply not sent; it is tried again", "retry", outcome.Retry.String(), "err", outcome.Reason)
	}
	return outcome
}

func (s *Sender) send(ctx context.Context, c *postgres.ReplyClaim) postgres.ReplyOutcome {
	if c.Spec == nil {
		return failed("the agent has this hook no more")
	}
	keys := secrets(s.secret(c.Spec.Secret))
	if len(keys) == 0 {
		return again(harness.ReplyPlanned, "the hook's secret is not set")
	}
	if c.State == harness.ReplyUnknown {
		if known, providerID := s.callback.has(ctx, c, keys[0]); known {
			return postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: providerID}
		}
	}
	return s.callback.post(ctx, c, keys[0])
}

func failed(reason string) postgres.ReplyOutcome {
	return postgres.ReplyOutcome{State: harness.ReplyFailed, Reason: reason}
}

func again(state harness.ReplyState, reason string) postgres.ReplyOutcome {
	return postgres.ReplyOutcome{State: state, Reason: reason}
}

// backoff is the wait after attempt n: 1 s, doubling, at most 10 min.
func backoff(n int) time.Duration {
	if n < 1 {
		n = 1
	}
	return time.Duration(math.Min(float64(firstRetry)*math.Pow(2, float64(n-1)), float64(lastRetry)))
}

// retryAfter reads a Retry-After of seconds or of a date, at most lastRetry.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	wait := time.Duration(0)
	if seconds, err := strconv.ParseInt(v, 10, 32); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(v); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, 0), lastRetry)
}
