package execute

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

// table is where pieces are stored, or refused.
type table struct {
	mu     sync.Mutex
	pieces []postgres.OutputPiece
	err    error
	stored chan struct{} // told of every try
}

func (s *table) store(_ context.Context, pieces []postgres.OutputPiece) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.pieces = append(s.pieces, pieces...)
	}
	select {
	case s.stored <- struct{}{}:
	default:
	}
	return s.err
}

func (s *table) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func TestOutputIsStoredInPieces(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &table{stored: make(chan struct{}, 1)}
	o := newOutput(s.store, cancel)
	var wg sync.WaitGroup
	wg.Go(func() { o.follow(ctx, nil) })
	o.take(ctx, "stdout", 0, []byte("a"))
	o.take(ctx, "stderr", 10, []byte("x"))
	o.take(ctx, "stdout", 1, []byte("b"))
	<-s.stored // nobody asked for it
	s.fail(errors.New("the database is away"))
	o.take(ctx, "stdout", 2, []byte("c"))
	<-s.stored
	s.fail(nil)
	<-s.stored // tried again without more output
	o.take(ctx, "stdout", 3, []byte("d"))
	cancel(nil)
	wg.Wait()
	rest, err := o.rest()
	if err != nil {
		t.Fatal(err)
	}
	want := []postgres.OutputPiece{
		{Stream: "stdout", Start: 0, Data: []byte("ab")},
		{Stream: "stderr", Start: 10, Data: []byte("x")},
		{Stream: "stdout", Start: 2, Data: []byte("c")},
		{Stream: "stdout", Start: 3, Data: []byte("d")},
	}
	if diff := cmp.Diff(want, append(s.pieces, rest...)); diff != "" {
		t.Error(diff)
	}
}

// While the database takes nothing a bounded part is held; then the request ends
// and nothing behind what is stored is taken any more.
func TestOutputThatCannotBeStored(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		takes int // of 100 KiB, until the request ends
	}{
		"the database is away": {err: errors.New("away"), takes: 11},
		"the lease is lost":    {err: postgres.ErrLeaseLost, takes: 3},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			s := &table{err: c.err}
			o := newOutput(s.store, cancel)
			block := []byte(strings.Repeat("x", 100<<10))
			takes := 0
			for ; ctx.Err() == nil && takes < 50; takes++ {
				o.take(ctx, "stdout", int64(takes*len(block)), block)
			}
			rest, err := o.rest()
			if takes != c.takes || !errors.Is(context.Cause(ctx), c.err) || !errors.Is(err, c.err) || len(rest) != 0 {
				t.Fatalf("after %d takes: cause %v, error %v, %d pieces left", takes, context.Cause(ctx), err, len(rest))
			}
			o.take(ctx, "stdout", 0, block)
			if rest, _ := o.rest(); len(rest) != 0 {
				t.Error("output is taken after what was lost")
			}
		})
	}
}

func TestOutcome(t *testing.T) {
	code := 137
	for name, c := range map[string]struct {
		result sandbox.Result
		want   postgres.ExecutionOutcome
	}{
		"a signal reads as an end": {
			result: sandbox.Result{State: harness.ExecutionFailed, Signal: "SIGKILL", Reason: sandbox.ReasonSignal, StdoutBytes: 3, StdoutTail: []byte("abc")},
			want:   postgres.ExecutionOutcome{State: harness.ExecutionFailed, ExitCode: &code, Reason: "ended by SIGKILL", StdoutBytes: 3, StdoutTail: []byte("abc")},
		},
		"lost output is told": {
			result: sandbox.Result{State: harness.ExecutionOutOfMemory, Signal: "SIGKILL", Reason: sandbox.ReasonMemory, Message: "too much", Incomplete: true},
			want:   postgres.ExecutionOutcome{State: harness.ExecutionOutOfMemory, Reason: "too much; a part of its output was lost", Lost: "too much"},
		},
		"a sandbox that is gone takes no more": {
			result: sandbox.Result{State: harness.ExecutionSandboxGone, Reason: sandbox.ReasonSandboxGone},
			want:   postgres.ExecutionOutcome{State: harness.ExecutionSandboxGone, EndSandbox: "SANDBOX_GONE", Lost: "SANDBOX_GONE"},
		},
		"nor one that cannot be asked": {
			result: sandbox.Result{State: harness.ExecutionUnknown, Reason: sandbox.ReasonUnproved},
			want:   postgres.ExecutionOutcome{State: harness.ExecutionUnknown, EndSandbox: "UNPROVED", Lost: "UNPROVED"},
		},
		"a sandbox without a shell is told of": {
			result: sandbox.Result{State: harness.ExecutionFailed, Reason: sandbox.ReasonNoProgram, Message: "no bash"},
			want:   postgres.ExecutionOutcome{State: harness.ExecutionFailed, Reason: "no bash", Unusable: "no bash"},
		},
		"a command that is refused says nothing of its sandbox": {
			result: sandbox.Result{State: harness.ExecutionFailed, Reason: sandbox.ReasonNotStarted, Message: "NUL"},
			want:   postgres.ExecutionOutcome{State: harness.ExecutionFailed, Reason: "NUL"},
		},
		"nor one that ends": {
			result: sandbox.Result{State: harness.ExecutionFailed, Reason: sandbox.ReasonSandboxEnding, Message: "not started"},
			want:   postgres.ExecutionOutcome{State: harness.ExecutionFailed, Reason: "not started", EndSandbox: "SANDBOX_ENDING"},
		},
	} {
		if diff := cmp.Diff(c.want, outcome(c.result, nil)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestBackoff(t *testing.T) {
	var got []string
	for attempts := range 8 {
		got = append(got, fmt.Sprint(backoff(attempts)))
	}
	if want := "1s 1s 2s 4s 8s 16s 30s 30s"; strings.Join(got, " ") != want {
		t.Errorf("backoff %v, want %s", got, want)
	}
}
