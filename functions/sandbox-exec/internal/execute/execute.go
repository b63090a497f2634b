// Package execute runs one command that somebody asked for: claim, find a
// sandbox under the agent's cap, commit, run, store, wake.
//
// A crash at any line leaves the execution leased; its lease runs out, the sweep
// announces it, and the next claim goes on where the rows say:
//
//	PENDING   nothing was started; a sandbox that is CREATING is started by name again
//	RUNNING   the command was committed to one sandbox, by uid: the runner there
//	          starts it if it never saw its id, else attaches or gives the saved
//	          outcome; if that sandbox is gone it is told as SANDBOX_GONE or UNKNOWN
//
// In no case is a command started a second time, or in another sandbox.
//
// A command that is to be cancelled is announced again. Whoever hears that tells
// the runner, also while another request waits for the command: the runner's word
// on its end is proof for both.
//
// Files of the conversation are brought in before the command is committed, and
// what it left in the folder out is kept before its end is: both are repeated
// after a crash, to the same effect.
package execute

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/trace"
)

// Store is what an Executor needs of *postgres.Store.
type Store interface {
	ClaimExecution(ctx context.Context, id harness.ExecutionID, lease postgres.Lease) (*postgres.ExecutionClaim, error)
	Cancelled(ctx context.Context, id harness.ExecutionID) (*postgres.ExecutionClaim, error)
	ExtendExecution(ctx context.Context, c *postgres.ExecutionClaim, lease postgres.Lease) error
	AcquireSandbox(ctx context.Context, c *postgres.ExecutionClaim) (postgres.Placement, error)
	BeginExecution(ctx context.Context, c *postgres.ExecutionClaim, id harness.SandboxID, uid string) (bool, error)
	StoreOutput(ctx context.Context, c *postgres.ExecutionClaim, pieces []postgres.OutputPiece) error
	ReleaseExecution(ctx context.Context, c *postgres.ExecutionClaim, after time.Duration, progress bool, output []postgres.OutputPiece) ([]event.Event, error)
	FinishExecution(ctx context.Context, c *postgres.ExecutionClaim, o postgres.ExecutionOutcome) ([]event.Event, error)
	WakeExecutions(ctx context.Context, agent harness.AgentName) ([]event.Event, error)
	EndSandbox(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason, message string) error
	SandboxGone(ctx context.Context, id harness.SandboxID, agent harness.AgentName, reason string) ([]event.Event, error)

	AwaitMedia(ctx context.Context, c *postgres.ExecutionClaim, wait postgres.MediaWait) (bool, []event.Event, error)
	LackingFiles(ctx context.Context, c *postgres.ExecutionClaim, id harness.SandboxID) ([]postgres.LackingFile, error)
	PlaceFile(ctx context.Context, id harness.SandboxID, file harness.AttachmentID) error
	StoreMadeFiles(ctx context.Context, c *postgres.ExecutionClaim, files []postgres.MadeFile) error

	PlanFiles(ctx context.Context, c *postgres.ExecutionClaim, keys []string) error
	PlanVolume(ctx context.Context, name string, agent harness.AgentName, session harness.SessionID) error
	VolumeMade(ctx context.Context, name string, agent harness.AgentName, session harness.SessionID) error

	LackingSkills(ctx context.Context, c *postgres.ExecutionClaim, id harness.SandboxID) ([]postgres.LackingSkill, error)
	SkillFiles(ctx context.Context, digest string) ([]harness.SkillFile, error)
	PlaceSkill(ctx context.Context, id harness.SandboxID, skill postgres.LackingSkill) error
}

// Objects is where the files of conversations are kept. *archive.Store is one.
type Objects interface {
	Put(ctx context.Context, key string, body io.Reader, size int64, mimeType string) error
	Get(ctx context.Context, key string) (io.ReadCloser, int64, error)
}

// Options are everything an Executor depends on.
type Options struct {
	Store     Store
	Driver    sandbox.Driver
	Objects   Objects // nil: no files come in or go out, and models are told so
	Publish   func(ctx context.Context, events ...event.Event)
	Log       *slog.Logger
	Lease     postgres.Lease
	Budget    time.Duration   // of one request; a command that takes longer is attached to by the next
	MaxOutput int64           // bytes stored of each stream
	Stop      <-chan struct{} // closed when the process is to end: commands go on, requests do not wait for them
}

// Executor runs commands.
type Executor struct {
	Options
	room chan struct{} // for files in memory
}

// New returns an Executor.
func New(o Options) *Executor { return &Executor{Options: o, room: make(chan struct{}, filesAtOnce)} }

const (
	maxAttempts = 10 // claims without progress before an execution is given up
	maxStarts   = 5  // of those, sandboxes that did not come up
	commitTime  = 10 * time.Second
	endTime     = 30 * time.Second // to remove a sandbox
)

// ExecutionRequested runs the execution that e names, or goes on with it.
func (x *Executor) ExecutionRequested(ctx context.Context, e event.Event) (failed error) {
	id := e.Payload.Execution
	if id == "" {
		return harness.Errorf(harness.Invalid, "event data names no execution")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, x.Budget, fmt.Errorf("request budget of %s", x.Budget))
	defer cancel()
	claim, err := x.Store.ClaimExecution(ctx, id, x.Lease)
	if errors.Is(err, postgres.ErrNothingDue) {
		return x.cancelOther(ctx, id)
	}
	if err != nil {
		return err
	}
	ctx, end := trace.Start(ctx, "exec", "tuluat.execution", string(claim.ID), "tuluat.session", string(claim.Session), "tuluat.agent", string(claim.Agent))
	defer func() { end(failed) }()
	err = postgres.Keep(ctx, x.Lease.For,
		func(ctx context.Context) error { return x.Store.ExtendExecution(ctx, claim, x.Lease) },
		func(ctx context.Context) error { return x.work(ctx, claim) })
	return x.settle(ctx, claim, err)
}

// work takes a claim as far as this request can.
func (x *Executor) work(ctx context.Context, claim *postgres.ExecutionClaim) error {
	if claim.Attempts > maxAttempts {
		return x.finish(ctx, claim, gaveUp(claim))
	}
	if claim.State == harness.ExecutionRunning {
		if claim.Sandbox.State == harness.SandboxGone {
			return x.finish(ctx, claim, claim.SandboxGone())
		}
		if claim.Cancelled {
			if err := x.cancel(ctx, claim); err != nil {
				return err
			}
		}
		return x.run(ctx, claim, placed(*claim.Sandbox, claim.UID), nil)
	}
	if waits, err := x.await(ctx, claim); err != nil || waits {
		return err
	}
	in := &delivery{why: map[harness.AttachmentID]string{}}
	sb, made, err := x.place(ctx, claim, in)
	if err != nil || sb == nil {
		return err
	}
	var telling sync.WaitGroup // the command does not wait for it
	if made {
		ready := changed(*claim.Sandbox, harness.SandboxReady)
		telling.Go(func() { x.Publish(ctx, ready) })
	}
	defer telling.Wait()
	return x.run(ctx, claim, *sb, in)
}

// cancelOther ends a command that another request waits for: that one gets the
// outcome and stores it.
func (x *Executor) cancelOther(ctx context.Context, id harness.ExecutionID) error {
	claim, err := x.Store.Cancelled(ctx, id)
	if harness.KindOf(err) == harness.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return x.cancel(ctx, claim)
}

// cancel ends a command in its sandbox. If that is gone, whoever waits for the
// command finds it so.
func (x *Executor) cancel(ctx context.Context, claim *postgres.ExecutionClaim) error {
	err := sandbox.Cancel(ctx, x.Driver, placed(*claim.Sandbox, claim.UID), claim.ID, claim.Nonce)
	if errors.Is(err, sandbox.ErrGone) {
		return nil
	}
	if err == nil {
		x.Log.Info("command cancelled", "execution", string(claim.ID), "session", string(claim.Session), "agent", string(claim.Agent))
	}
	return err
}

// settle gives the claim back when its work failed, so that a repeat of the
// event, or the sweep, finds it due.
func (x *Executor) settle(ctx context.Context, claim *postgres.ExecutionClaim, err error) error {
	if err == nil || errors.Is(err, postgres.ErrLeaseLost) || errors.Is(err, postgres.ErrNothingDue) {
		return nil // whoever has the execution now does the rest
	}
	ctx, cancel := commitContext(ctx)
	defer cancel()
	if _, failed := x.Store.ReleaseExecution(ctx, claim, 0, false, nil); failed != nil && !errors.Is(failed, postgres.ErrLeaseLost) {
		x.Log.Warn("execution not released; its lease runs out", "execution", string(claim.ID), "err", failed)
	}
	return fmt.Errorf("execution %s: %w", claim.ID, err)
}

// finish commits the outcome, wakes whoever is next, and removes a sandbox that
// takes no more commands.
func (x *Executor) finish(ctx context.Context, claim *postgres.ExecutionClaim, o postgres.ExecutionOutcome) error {
	trace.Note(ctx, "tuluat.state", string(o.State))
	commit, cancel := commitContext(ctx)
	defer cancel()
	events, err := x.Store.FinishExecution(commit, claim, o)
	if err != nil {
		return err
	}
	x.Publish(commit, events...)
	x.Log.Info("execution ended", "execution", string(claim.ID), "session", string(claim.Session), "agent", string(claim.Agent), "state", string(o.State))
	if o.EndSandbox == "" || claim.Sandbox == nil || claim.Sandbox.State == harness.SandboxGone {
		return nil
	}
	if err := x.end(ctx, *claim.Sandbox, o.EndSandbox, ""); err != nil {
		x.Log.Warn("sandbox not removed; the sweep does it", "sandbox", string(claim.Sandbox.ID), "err", err)
	}
	return nil
}

// release gives the claim back unfinished, to be looked at again after the given time.
func (x *Executor) release(ctx context.Context, claim *postgres.ExecutionClaim, after time.Duration, progress bool, output []postgres.OutputPiece) error {
	ctx, cancel := commitContext(ctx)
	defer cancel()
	events, err := x.Store.ReleaseExecution(ctx, claim, after, progress, output)
	if err != nil {
		return err
	}
	x.Publish(ctx, events...)
	return nil
}

// gaveUp is the outcome of an execution whose every claim came to nothing.
func gaveUp(claim *postgres.ExecutionClaim) postgres.ExecutionOutcome {
	if claim.State == harness.ExecutionPending {
		return postgres.ExecutionOutcome{
			State:  harness.ExecutionFailed,
			Reason: fmt.Sprintf("no sandbox could be had in %d attempts; nothing was started", maxAttempts),
		}
	}
	return postgres.ExecutionOutcome{
		State:       harness.ExecutionUnknown,
		Reason:      fmt.Sprintf("its outcome could not be had in %d attempts", maxAttempts),
		StdoutBytes: claim.StdoutStored, StderrBytes: claim.StderrStored, EndSandbox: postgres.SandboxUnproved, Lost: "its outcome could not be had",
	}
}

// backoff is how long a claim that failed for the attempts-th time waits.
func backoff(attempts int) time.Duration {
	return min(time.Second<<min(max(attempts-1, 0), 5), 30*time.Second)
}

// commitContext is for what must be written although the request's time is over.
func commitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), commitTime, errors.New("commit deadline"))
}
