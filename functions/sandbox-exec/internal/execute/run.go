package execute

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/trace"
)

// errStopping ends a request early because the process is to end.
var errStopping = errors.New("the process is to end")

// run hands the command to its sandbox, or attaches to it there, and stores
// what it prints until it ends or this request must. in is what became of the
// conversation's files, nil when another request brought them.
func (x *Executor) run(ctx context.Context, claim *postgres.ExecutionClaim, sb sandbox.Sandbox, in *delivery) error {
	waiting, cancel := context.WithCancelCause(ctx)
	out := newOutput(func(ctx context.Context, pieces []postgres.OutputPiece) error {
		ctx, cancel := commitContext(ctx)
		defer cancel()
		return x.Store.StoreOutput(ctx, claim, pieces)
	}, cancel)
	var following sync.WaitGroup
	following.Go(func() { out.follow(waiting, x.Stop) })
	traced, end := trace.Start(waiting, "command", "tuluat.sandbox", string(sb.ID))
	result, err := sandbox.Exec(traced, x.Driver, sb, request(claim, x.MaxOutput), func(stream string, offset int64, data []byte) {
		out.take(waiting, stream, offset, data)
	})
	end(err)
	cancel(nil)
	following.Wait()
	rest, failed := out.rest()
	switch {
	case errors.Is(context.Cause(ctx), postgres.ErrLeaseLost):
		return postgres.ErrLeaseLost
	case failed != nil:
		return failed // what is missing is read again from where the rows end
	case errors.Is(err, sandbox.ErrStillRunning):
		return x.release(ctx, claim, 0, true, rest)
	case errors.Is(err, sandbox.ErrBusy) && claim.Attempts < maxAttempts:
		return x.release(ctx, claim, backoff(claim.Attempts), false, rest)
	case errors.Is(err, sandbox.ErrBusy):
		return x.finish(ctx, claim, postgres.ExecutionOutcome{
			State: harness.ExecutionFailed, Reason: "the sandbox was busy with another command all the time; nothing was started",
		})
	case err != nil:
		return err
	}
	o := outcome(result, rest)
	notes, err := x.files(ctx, claim, sb, result, o.EndSandbox != "", in)
	switch {
	case errors.Is(context.Cause(ctx), postgres.ErrLeaseLost):
		return postgres.ErrLeaseLost
	case ctx.Err() != nil && err != nil: // another request has the time
		return x.release(ctx, claim, 0, false, rest)
	case err != nil:
		return err
	}
	o.Reason = strings.Join(append(words(o.Reason), notes...), "; ")
	return x.finish(ctx, claim, o)
}

// request is the command as the runner gets it: the same on every call. The
// agent's own environment is none of ours.
func request(claim *postgres.ExecutionClaim, maxOutput int64) sandbox.Request {
	shell := claim.Spec.Command
	if len(shell) == 0 {
		shell = harness.DefaultSandbox().Command
	}
	return sandbox.Request{
		ID: claim.ID, Nonce: claim.Nonce, Command: append(append([]string{}, shell...), claim.Command),
		Timeout: claim.Spec.Timeout(), MaxOutput: maxOutput, StdoutOffset: claim.StdoutStored, StderrOffset: claim.StderrStored,
	}
}

// outcome is a result in words and rows.
func outcome(r sandbox.Result, rest []postgres.OutputPiece) postgres.ExecutionOutcome {
	o := postgres.ExecutionOutcome{
		State: r.State, ExitCode: r.ExitCode, Output: rest,
		StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes, StdoutTail: r.StdoutTail, StderrTail: r.StderrTail,
	}
	var words []string
	if r.Message != "" {
		words = append(words, r.Message)
	}
	if r.Reason == sandbox.ReasonSignal {
		// A shell's way to tell a signal, so that it reads as an end, not as a start that failed.
		if number := unix.SignalNum(r.Signal); number > 0 {
			code := 128 + int(number)
			o.ExitCode = &code
		}
		words = append(words, "ended by "+r.Signal)
	}
	if r.Incomplete {
		words = append(words, "a part of its output was lost")
	}
	o.Reason = strings.Join(words, "; ")
	if r.Incomplete || r.State == harness.ExecutionSandboxGone || r.State == harness.ExecutionUnknown {
		o.Lost = cmp.Or(r.Message, string(r.Reason), "the sandbox could not be read")
	}
	if r.Reason == sandbox.ReasonNoProgram {
		o.Unusable = o.Reason // the shell: no command can be started there
	}
	switch {
	case r.State == harness.ExecutionSandboxGone, r.State == harness.ExecutionUnknown, r.Reason == sandbox.ReasonEvicted, r.Reason == sandbox.ReasonSandboxEnding:
		o.EndSandbox = string(r.Reason)
	}
	return o
}
