// Package reap is the sweep: one pass at a time over everything that is due,
// stuck, expired or leaked. A pass is a list of independent items, each bounded
// in rows and time; one that fails stops no other. Every item selects by state,
// so a pass that was missed, doubled or killed half-way needs no repair: the
// next one finds what is left. Nothing holds a transaction over a network call.
package reap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

// Store is what the sweep reads and writes.
type Store interface {
	ClaimSweep(ctx context.Context, lease postgres.Lease) (postgres.SweepClaim, error)
	ExtendSweep(ctx context.Context, c postgres.SweepClaim, lease postgres.Lease) error
	ReportSweep(ctx context.Context, c postgres.SweepClaim, took time.Duration, findings map[string]postgres.Finding, full bool) error
	ReleaseSweep(ctx context.Context, c postgres.SweepClaim) error
	NextDue(ctx context.Context, within time.Duration) (time.Duration, bool, error)

	SessionsUnheard(ctx context.Context, limit int) ([]postgres.Unheard, error)
	TakeUnheard(ctx context.Context, limit int) ([]postgres.Unheard, error)
	ExecutionsDue(ctx context.Context, limit int) ([]event.Event, error)
	RepliesDue(ctx context.Context, limit int) ([]event.Event, error)
	MediaDue(ctx context.Context, limit int) ([]event.Event, error)
	ApprovalsDue(ctx context.Context, limit int) ([]harness.ApprovalID, error)
	ApprovalTimer(ctx context.Context, id harness.ApprovalID) ([]event.Event, error)
	SignalsDue(ctx context.Context, limit int) ([]event.Event, error)
	KeepAnnouncing(ctx context.Context, events []event.Event) error

	SandboxesToEnd(ctx context.Context, limit int) ([]postgres.SandboxRecord, error)
	LiveSandboxes(ctx context.Context) ([]postgres.SandboxRecord, error)
	SandboxGone(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason string) ([]event.Event, error)
	EndedSessions(ctx context.Context, ids []harness.SessionID) ([]harness.SessionID, error)
	EndOrphans(ctx context.Context, lease postgres.Lease, limit int) ([]event.Event, error)

	ScheduleTriggers(ctx context.Context, after harness.WorkflowName, place, limit int) ([]postgres.ScheduleTrigger, error)
	StartRun(ctx context.Context, r postgres.NewRun) (id harness.SessionID, started bool, events []event.Event, err error)
	ScheduleChecked(ctx context.Context, t postgres.ScheduleTrigger, at time.Time) error

	StatusDirty(ctx context.Context, every time.Duration, limit int) ([]harness.AgentName, error)

	CompleteIdle(ctx context.Context, limit int) (int, error)
	FoldFigures(ctx context.Context, limit int) (int, error)
	CreateLogPartitions(ctx context.Context, days int) (int, error)
	DeleteOldInbox(ctx context.Context, keep time.Duration, limit int) (int, error)
	DeleteOldNotices(ctx context.Context, keep time.Duration, limit int) (int, error)
	DeleteOldDrafts(ctx context.Context, keep time.Duration, limit int) (int, error)
	DeleteOldReports(ctx context.Context, keep time.Duration, limit int) (int, error)
	DeleteMootAnnouncements(ctx context.Context, limit int) (int, error)

	archiveStore
	forgetStore
	ledgerStore
}

// Driver is what the sweep does to sandboxes.
type Driver interface {
	Terminate(ctx context.Context, sb sandbox.Sandbox) error
	List(ctx context.Context) ([]sandbox.Found, error)
}

// Poster sends one event to one address.
type Poster interface {
	Post(ctx context.Context, target string, e event.Event) error
	Broker() string
}

// Options are what a Reaper needs.
type Options struct {
	Store   Store
	Driver  Driver
	Objects Objects // nil: no bucket, nothing is archived or dropped
	Poster  Poster
	Direct  map[Sink][]string // subscribers, for what the broker does not deliver
	Batch   int               // rows an item takes at a time

	PartEntries int // log entries of one object; 0: part.MaxEntries

	Stay    time.Duration // how long a request stays for short timers; 0: one pass
	Owner   string        // in leases
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Now     func() time.Time
	Stop    <-chan struct{} // closed when the process drains
}

// Sink is what a subscriber hears: a type of event, of one channel or of all.
type Sink struct {
	Type    event.Type
	Channel harness.Channel // empty: every one
}

// Reaper is the function.
type Reaper struct {
	Options
	metrics *metrics
}

// New returns a Reaper.
func New(o Options) *Reaper { return &Reaper{Options: o, metrics: newMetrics(o.Metrics, o.Now)} }

const (
	leaseTime = 30 * time.Second // of the sweep; extended while a pass runs
	passTime  = 8 * time.Second  // after which no item has a further turn
	turnTime  = time.Second      // of an item, after which it begins nothing more in that turn
	closeTime = 5 * time.Second  // for the last statement of a request that is over
)

// Ping runs one pass, then stays for timers that fall due soon. A pass that runs
// elsewhere is a success here.
func (r *Reaper) Ping(ctx context.Context, _ event.Event) error {
	began := r.Now()
	lease := postgres.Lease{Owner: r.Owner, For: leaseTime}
	claim, err := r.Store.ClaimSweep(ctx, lease)
	if errors.Is(err, postgres.ErrNothingDue) {
		return nil
	}
	if err != nil {
		return err
	}
	r.metrics.claimed(claim.Age)
	err = postgres.Keep(ctx, leaseTime, func(ctx context.Context) error { return r.Store.ExtendSweep(ctx, claim, lease) }, func(ctx context.Context) error {
		if err := r.pass(ctx, claim); err != nil {
			return err
		}
		return r.stay(ctx, began.Add(r.Stay))
	})
	closing, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeTime, errors.New("release of the sweep"))
	defer cancel()
	err = errors.Join(err, r.Store.ReleaseSweep(closing, claim))
	if errors.Is(err, postgres.ErrLeaseLost) {
		return nil // somebody else sweeps
	}
	return err
}

// item is one thing that a pass sweeps.
type item struct {
	name string
	run  func(ctx context.Context, box *box) error
}

// items is every item, in the order of a pass: what people wait for first.
func (r *Reaper) items() []item {
	return slices.Concat([]item{{"schedules", r.startScheduled}}, r.timers(), []item{
		{"sandboxes", r.endSandboxes},
		{"leaks", r.findLeaks},
		{"orphans", r.endOrphans},
	}, r.keeping(), []item{
		{"forget", r.forget},
		{"conversations", r.completeIdle},
		{"agent_status", r.freshenStatuses},
		{"figures", r.foldFigures},
		{"log_partitions", r.createPartitions},
		{"old_inbox", r.deleteInbox},
		{"old_notices", r.deleteNotices},
		{"old_drafts", r.deleteDrafts},
		{"old_reports", r.deleteReports},
		{"old_objects", r.deleteObjects},
		{"webhooks", r.findWebhooks},
	}, r.archiving(), r.bucketItems())
}

// timers are the items that also run between passes.
func (r *Reaper) timers() []item {
	return []item{
		{"sessions", r.wakeSessions},
		{"announcements", r.repeatAnnouncements},
		{"executions", r.wakeExecutions},
		{"replies", r.wakeReplies},
		{"media", r.wakeMedia},
		{"approvals", r.timeApprovals},
		{"signals", r.wakeSignals},
	}
}

// pass runs every item once and reports what they found.
func (r *Reaper) pass(ctx context.Context, claim postgres.SweepClaim) error {
	began := r.Now()
	findings, times, full := r.run(ctx, r.items())
	if errors.Is(context.Cause(ctx), postgres.ErrLeaseLost) {
		return postgres.ErrLeaseLost
	}
	closing, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeTime, errors.New("report of the sweep"))
	defer cancel()
	if err := r.Store.ReportSweep(closing, claim, r.Now().Sub(began), findings, full); err != nil {
		return err
	}
	if full {
		r.metrics.completed()
	}
	r.Log.Info("pass over", "full", full, "took", r.Now().Sub(began).Round(time.Millisecond).String(), "findings", findings, "times", texts(times))
	return nil
}

// run gives each item a turn, one after the other, and those that had more to do
// than their turn was long further ones, in the same order, while the pass has
// time: no item waits for another's backlog. full is false when one failed or was
// not begun because the process drains.
func (r *Reaper) run(ctx context.Context, items []item) (findings map[string]postgres.Finding, times map[string]time.Duration, full bool) {
	findings, times, full = map[string]postgres.Finding{}, map[string]time.Duration{}, true
	boxes := make([]*box, len(items))
	end := r.Now().Add(passTime)
	for first, more := true, true; more; first = false {
		more = false
		for i, it := range items {
			if r.stopped() || ctx.Err() != nil {
				full = full && !first
				break
			}
			if first {
				boxes[i] = &box{ctx: ctx, reaper: r}
			} else if !boxes[i].more || !r.Now().Before(end) {
				continue
			}
			began := r.Now()
			full = r.turn(it, boxes[i]) && full
			times[it.name] += r.Now().Sub(began)
			more = more || boxes[i].more
		}
		more = more && !r.stopped() && ctx.Err() == nil && r.Now().Before(end)
	}
	for i, it := range items {
		if boxes[i] != nil {
			findings[it.name] = boxes[i].finding()
			r.metrics.item(it.name, findings[it.name])
		}
	}
	return findings, times, full
}

// turn runs an item once; false when it failed. It has no further turn then.
func (r *Reaper) turn(it item, b *box) bool {
	b.begin(r.Now().Add(turnTime))
	err := guard(func() error { return it.run(b.ctx, b) })
	if err == nil {
		return true
	}
	b.fail(err)
	r.Log.Error("item failed; the others go on", "item", it.name, "kind", string(harness.KindOf(err)), "err", err)
	return false
}

// texts are times as a log says them, without those that were none.
func texts(times map[string]time.Duration) map[string]string {
	said := map[string]string{}
	for name, took := range times {
		if took >= time.Millisecond {
			said[name] = took.Round(time.Millisecond).String()
		}
	}
	return said
}

func (r *Reaper) stopped() bool {
	select {
	case <-r.Stop:
		return true
	default:
		return false
	}
}

// guard turns a panic of do into an error: one item's fault is not the others'.
func guard(do func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = harness.Wrap(harness.Internal, fmt.Errorf("panic: %v\n%s", reason, debug.Stack()), "internal error")
		}
	}()
	return do()
}
