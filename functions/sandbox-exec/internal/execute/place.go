package execute

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/trace"
)

// maxPlacements bounds how often one request asks for a place: sandboxes that
// must be removed first, or that end under it.
const maxPlacements = 10

// retryEnd is when an execution that needs another sandbox's place looks again
// after that could not be removed.
const retryEnd = 5 * time.Second

// place finds a sandbox under the agent's cap and returns it with the execution
// committed to it as RUNNING; made says that it was started for it. A nil sandbox
// means that this request is over: the execution waits, failed or is to be tried
// again, and that is committed.
func (x *Executor) place(ctx context.Context, claim *postgres.ExecutionClaim, in *delivery) (sb *sandbox.Sandbox, made bool, err error) {
	if err := x.checkOwn(ctx, claim, in); err != nil {
		return nil, false, err
	}
	for range maxPlacements {
		p, err := x.Store.AcquireSandbox(ctx, claim)
		if errors.Is(err, postgres.ErrNothingDue) {
			return nil, false, x.wakeOthers(ctx, claim)
		}
		if err != nil {
			return nil, false, err
		}
		switch p.Kind {
		case postgres.PlaceWait:
			return nil, false, nil
		case postgres.PlaceRun:
			claim.Sandbox = p.Sandbox
			sb := placed(*p.Sandbox, p.Sandbox.UID)
			if err := x.bring(ctx, claim, sb, in); err != nil && !errors.Is(err, sandbox.ErrGone) { // if it is gone, run finds that out
				return nil, false, err
			}
			return &sb, false, nil
		case postgres.PlaceEvict, postgres.PlaceReplace:
			if err := x.end(ctx, *p.Sandbox, p.Sandbox.Reason, ""); err != nil {
				x.Log.Warn("sandbox not removed; the sweep does it", "sandbox", string(p.Sandbox.ID), "err", err)
				return nil, false, x.release(ctx, claim, retryEnd, false, nil)
			}
		default:
			sb, over, err := x.start(ctx, claim, *p.Sandbox, in)
			if err != nil || over || sb != nil {
				return sb, sb != nil, err
			}
		}
	}
	return nil, false, x.release(ctx, claim, retryEnd, false, nil)
}

// checkOwn looks whether the session's sandbox still exists, and brings it what
// it lacks, before a command is committed to it: once committed, a sandbox that
// is gone means that nobody can say what became of the command.
func (x *Executor) checkOwn(ctx context.Context, claim *postgres.ExecutionClaim, in *delivery) error {
	own := claim.Sandbox
	claim.Sandbox = nil
	if own == nil {
		return nil
	}
	sb := placed(*own, own.UID)
	condition, err := x.Driver.Inspect(ctx, sb)
	if err != nil {
		return err
	}
	if condition.Exists {
		if err := x.bring(ctx, claim, sb, in); !errors.Is(err, sandbox.ErrGone) {
			return err
		}
	}
	return x.end(ctx, *own, postgres.SandboxLost, "")
}

// start brings up a sandbox whose row is CREATING and commits the execution to
// it. Neither a sandbox nor over means: ask for a place again.
func (x *Executor) start(ctx context.Context, claim *postgres.ExecutionClaim, r postgres.SandboxRecord, in *delivery) (sb *sandbox.Sandbox, over bool, err error) {
	made := placed(r, "")
	volume, err := x.planVolume(ctx, made)
	if err != nil {
		return nil, false, err
	}
	starting, end := trace.Start(ctx, "sandbox start", "tuluat.sandbox", string(made.ID))
	uid, err := x.Driver.Start(starting, made)
	end(err)
	if errors.Is(context.Cause(ctx), postgres.ErrLeaseLost) {
		return nil, true, postgres.ErrLeaseLost // the new holder starts it by name; it is not ours to remove
	}
	if err != nil {
		return nil, true, x.notStarted(ctx, claim, r, err)
	}
	made.UID = uid
	x.volumeMade(ctx, made, volume)
	if err := x.bring(ctx, claim, made, in); errors.Is(err, sandbox.ErrGone) {
		return nil, true, x.notStarted(ctx, claim, r, sandbox.Fail(harness.Unavailable, sandbox.ReasonEnded, "the sandbox disappeared right after its start", err))
	} else if err != nil {
		return nil, true, err
	}
	commit, cancel := commitContext(ctx)
	defer cancel()
	began, err := x.Store.BeginExecution(commit, claim, r.ID, uid)
	if errors.Is(err, postgres.ErrNothingDue) {
		return nil, true, x.wakeOthers(ctx, claim)
	}
	if err != nil || !began {
		return nil, false, err
	}
	r.UID, r.State = uid, harness.SandboxReady
	claim.Sandbox = &r
	return &made, false, nil
}

// planVolume writes the row of the volume that the start of sb makes, and returns
// its name; "": it makes none.
func (x *Executor) planVolume(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	keeper, ok := x.Driver.(sandbox.Keeper)
	if !ok {
		return "", nil
	}
	name := keeper.VolumeOf(sb)
	if name == "" {
		return "", nil
	}
	return name, x.Store.PlanVolume(ctx, name, sb.Agent, sb.Session)
}

// volumeMade writes that it is there. A failure is left to the sweep, which sees it.
func (x *Executor) volumeMade(ctx context.Context, sb sandbox.Sandbox, name string) {
	if name == "" {
		return
	}
	if err := x.Store.VolumeMade(ctx, name, sb.Agent, sb.Session); err != nil {
		x.Log.Warn("the row of a volume does not say that it was made; the sweep sees to it", "session", string(sb.Session), "agent", string(sb.Agent), "err", err)
	}
}

// notStarted deals with a sandbox that did not come up: it is removed whole, and
// the execution tries another later or, when that cannot help, fails with the
// reason. Nothing was started in either case.
func (x *Executor) notStarted(ctx context.Context, claim *postgres.ExecutionClaim, r postgres.SandboxRecord, cause error) error {
	reason := sandbox.ReasonOf(cause)
	if reason == "" {
		reason = sandbox.ReasonStartFailed
	}
	x.Log.Warn("sandbox not started", "sandbox", string(r.ID), "execution", string(claim.ID), "session", string(claim.Session), "agent", string(claim.Agent), "attempt", claim.Attempts, "err", cause)
	if err := x.end(ctx, r, string(reason), harness.MessageOf(cause)); err != nil {
		x.Log.Warn("sandbox not removed; the sweep does it", "sandbox", string(r.ID), "err", err)
	}
	kind := harness.KindOf(cause)
	if (kind == harness.Unavailable || kind == harness.Exhausted) && claim.Attempts < maxStarts {
		return x.release(ctx, claim, backoff(claim.Attempts), false, nil)
	}
	return x.finish(ctx, claim, postgres.ExecutionOutcome{
		State: harness.ExecutionFailed, Reason: "no sandbox could be had: " + harness.MessageOf(cause) + "; nothing was started",
	})
}

// end removes a sandbox for reason, records that it is gone, and wakes whoever
// waited for its place. message says why it could not be used; empty when it
// could. An error leaves it TERMINATING for the sweep.
func (x *Executor) end(ctx context.Context, r postgres.SandboxRecord, reason, message string) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), endTime, errors.New("removal of a sandbox"))
	defer cancel()
	if r.State != harness.SandboxTerminating {
		if err := x.Store.EndSandbox(ctx, r.ID, r.Agent, reason, message); err != nil {
			return err
		}
	}
	if err := x.Driver.Terminate(ctx, placed(r, r.UID)); err != nil {
		return err
	}
	events, err := x.Store.SandboxGone(ctx, r.ID, r.Agent, reason)
	if err != nil {
		return err
	}
	x.Publish(ctx, append(events, changed(r, harness.SandboxGone))...)
	x.Log.Info("sandbox ended", "sandbox", string(r.ID), "session", string(r.Session), "agent", string(r.Agent), "reason", reason)
	return nil
}

// wakeOthers is for an execution that was ended while it stood in line: those
// behind it may move.
func (x *Executor) wakeOthers(ctx context.Context, claim *postgres.ExecutionClaim) error {
	ctx, cancel := commitContext(ctx)
	defer cancel()
	events, err := x.Store.WakeExecutions(ctx, claim.Agent)
	if err != nil {
		return err
	}
	x.Publish(ctx, events...)
	return nil
}

// changed says that a sandbox is READY or GONE now. It has no outbox row: it
// freshens a status, which the sweep does anyway.
func changed(r postgres.SandboxRecord, state harness.SandboxState) event.Event {
	return event.Event{
		ID: fmt.Sprintf("sandbox.changed:%s:%s", r.ID, state), Type: event.SandboxChanged, Session: r.Session, Agent: r.Agent,
		Payload: event.Payload{Session: r.Session, Sandbox: r.ID},
	}
}

// placed is the sandbox of a row as drivers know it.
func placed(r postgres.SandboxRecord, uid string) sandbox.Sandbox {
	return sandbox.Sandbox{ID: r.ID, Name: r.Name, UID: uid, Agent: r.Agent, Session: r.Session, Spec: r.Spec, ExpiresAt: r.ExpiresAt}
}
