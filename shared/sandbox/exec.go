package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

const (
	// proofSlack is how long after a command's own deadline, and the runner's
	// five seconds of grace, an unreachable sandbox is asked before the outcome
	// is UNKNOWN.
	proofSlack = 20 * time.Second

	askBound   = 3 * time.Second  // for one short question to a sandbox
	closeBound = 20 * time.Second // for the rest of the output and the books, once the command has ended
	fetchBytes = queueBytes / 2   // of output read again in one call: each costs an exec, and none may overflow the queue

	maxArgument = 128<<10 - 1 // the kernel's limit of one argument, its NUL not counted
	maxCommand  = 1 << 20     // of all arguments and variables; the kernel allows a little more
)

var (
	validID  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	validEnv = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Exec runs one command, or attaches to it when the runner knows its id, and
// returns what became of it. The command is started at most once however often
// Exec is called with its id. sink takes its output; it may be nil.
//
// The error is nil when the Result is final. Otherwise it is ErrBusy (nothing
// was started), ErrStillRunning (call again), or an Invalid for a Request that
// no command can have.
func Exec(ctx context.Context, d Driver, sb Sandbox, req Request, sink Sink) (Result, error) {
	if !validID.MatchString(string(req.ID)) || req.Nonce == "" {
		return Result{}, harness.Errorf(harness.Invalid, "an execution needs an id and a nonce")
	}
	if res, ok := refuse(req); ok {
		return res, nil
	}
	if req.MaxOutput <= 0 {
		req.MaxOutput = DefaultMaxOutput
	}
	if sink == nil {
		sink = func(string, int64, []byte) {}
	}
	e := &execution{
		driver: d, sandbox: sb, req: req, sink: sink,
		got:      map[string]int64{stdout: req.StdoutOffset, stderr: req.StderrOffset},
		started:  req.StdoutOffset > 0 || req.StderrOffset > 0,
		deadline: time.Now().Add(req.Timeout + proofSlack),
	}
	return e.run(ctx)
}

// Cancel ends the command with this id, and returns when it has ended. An id
// that never ran never will. ErrGone when the sandbox is.
func Cancel(ctx context.Context, d Driver, sb Sandbox, id harness.ExecutionID, nonce string) error {
	e := &execution{driver: d, sandbox: sb, req: Request{ID: id, Nonce: nonce}, sink: func(string, int64, []byte) {}, got: map[string]int64{}}
	st, proved, err := e.call(ctx, "cancel", "--id", string(id))
	if proved && st.State.Final() {
		return nil
	}
	if errors.Is(err, ErrGone) {
		return err
	}
	return harness.Wrap(harness.Unavailable, err, "the command could not be proved ended")
}

// refuse answers commands that cannot be started anywhere.
func refuse(req Request) (Result, bool) {
	total := 0
	bad := len(req.Command) == 0
	long := false
	for _, arg := range req.Command {
		total += len(arg) + 1
		bad = bad || strings.ContainsRune(arg, 0)
		long = long || len(arg) > maxArgument
	}
	for name, value := range req.Env {
		total += len(name) + len(value) + 2
		bad = bad || !validEnv.MatchString(name) || strings.ContainsRune(value, 0)
		long = long || len(name)+1+len(value) > maxArgument
	}
	switch {
	case bad:
		return Result{
			State: harness.ExecutionFailed, Reason: ReasonNotStarted,
			Message: "the command or a variable of its environment is empty or holds a character that cannot be passed on",
		}, true
	case long || total > maxCommand:
		return Result{
			State: harness.ExecutionFailed, Reason: ReasonTooLong,
			Message: "the command is longer than a command line may be: write it to a file in parts and run that",
		}, true
	}
	return Result{}, false
}

// execution is one call of Exec.
type execution struct {
	driver   Driver
	sandbox  Sandbox
	req      Request
	sink     Sink
	got      map[string]int64 // per stream, what the sink has: the next offset wanted
	started  bool             // proved
	before   Condition
	deadline time.Time // for proof
}

func (e *execution) run(ctx context.Context) (Result, error) {
	// One that is gone is found by the first call as well, so the books are read
	// only for what they count.
	if b, ok := e.driver.(Bookkeeper); !ok || !b.CountsOnlyTheEnd() {
		var err error
		if e.before, err = e.inspect(ctx); err == nil && !e.before.Exists {
			return e.gone(ctx), nil
		}
	}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		st, proved, err := e.call(ctx, "run", e.runArgs()...)
		ending := proved && st.State == trailer.Unknown // asked to run it, the runner would not
		if !(proved && st.State != trailer.Running) && !errors.Is(err, ErrGone) {
			// The stream is no proof. The runner may still know.
			st, proved, err = e.ask(ctx)
		}
		switch {
		case proved && st.State.Final():
			return e.conclude(ctx, st), nil
		case proved && st.State == trailer.Busy:
			return Result{}, ErrBusy
		case ending:
			return Result{
				State: harness.ExecutionFailed, Reason: ReasonSandboxEnding,
				Message: "the sandbox was at the end of its life; the command was not started",
			}, nil
		case errors.Is(err, ErrGone):
			return e.gone(ctx), nil
		case ctx.Err() != nil:
			return Result{}, ErrStillRunning
		case !proved && time.Now().After(e.deadline):
			return Result{
				State: harness.ExecutionUnknown, Reason: ReasonUnproved, Started: e.started,
				Message: "the sandbox does not answer; nobody can say whether the command ended",
			}, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (e *execution) runArgs() []string {
	return []string{
		"--id", string(e.req.ID),
		"--timeout", e.req.Timeout.String(),
		"--max-output", strconv.FormatInt(e.req.MaxOutput, 10),
		"--stdout-offset", strconv.FormatInt(e.got[stdout], 10),
		"--stderr-offset", strconv.FormatInt(e.got[stderr], 10),
	}
}

// input is what the runner's clients read from stdin: what no process list,
// audit log or URL may hold.
func (e *execution) input(op string) []byte {
	in := struct {
		Nonce   string            `json:"nonce"`
		Command []string          `json:"command,omitempty"`
		Env     map[string]string `json:"env,omitempty"`
	}{Nonce: e.req.Nonce}
	if op == "run" {
		in.Command, in.Env = e.req.Command, e.req.Env
	}
	text, err := json.Marshal(in)
	if err != nil { // strings always marshal
		panic(err)
	}
	return text
}

// call runs one of the runner's clients, passes output to the sink, and returns
// the last status with a valid seal. The driver's call runs beside the sink's,
// so that neither waits for the other; both have ended when call returns.
func (e *execution) call(ctx context.Context, op string, args ...string) (st trailer.Status, proved bool, err error) {
	queue := newQueue(e.got)
	filter := &lineFilter{
		emit: func(b []byte) { queue.push(stderr, b) },
		open: func(sealed []byte) bool {
			s, err := trailer.Open(sealed, e.req.Nonce)
			if err != nil || s.ID != string(e.req.ID) {
				return false
			}
			st, proved = s, true
			return true
		},
	}
	ended := make(chan error, 1)
	go func() {
		in := bytes.NewReader(e.input(op))
		err := e.driver.Stream(ctx, e.sandbox, append([]string{op}, args...), in, queue.writer(stdout), filter)
		filter.flush()
		queue.close()
		ended <- err
	}()
	for chunk, ok := queue.next(); ok; chunk, ok = queue.next() {
		e.sink(chunk.stream, e.got[chunk.stream], chunk.data)
		e.got[chunk.stream] += int64(len(chunk.data))
	}
	err = <-ended
	e.started = e.started || proved && st.Started
	return st, proved, err
}

// ask asks how the command stands, also when the caller's time is over.
func (e *execution) ask(ctx context.Context) (trailer.Status, bool, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), askBound, errors.New("status of a command"))
	defer cancel()
	return e.call(ctx, "status", "--id", string(e.req.ID))
}

func (e *execution) inspect(ctx context.Context) (Condition, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), askBound, errors.New("inspection of a sandbox"))
	defer cancel()
	return e.driver.Inspect(ctx, e.sandbox)
}

// conclude fetches what output is missing, reads the sandbox's books once, and
// classifies.
func (e *execution) conclude(ctx context.Context, st trailer.Status) Result {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeBound, errors.New("end of a command"))
	defer cancel()
	complete := e.fetch(ctx, stdout, st.StdoutStored)
	complete = e.fetch(ctx, stderr, st.StderrStored) && complete
	after := e.before
	if booksMatter(st) {
		if now, err := e.inspect(ctx); err == nil { // else the seal is proof enough; only what the platform alone knows is lost
			after = now
		}
	}
	res := classify(st, e.before, after)
	res.Incomplete = !complete
	return res
}

// fetch reads a stream again from where the sink is to what the sandbox keeps.
func (e *execution) fetch(ctx context.Context, stream string, stored int64) bool {
	for failures := 0; e.got[stream] < stored && failures < 3 && ctx.Err() == nil; {
		was := e.got[stream]
		_, _, err := e.call(ctx, "output", "--id", string(e.req.ID), "--stream", stream,
			"--offset", strconv.FormatInt(was, 10), "--limit", strconv.FormatInt(min(fetchBytes, stored-was), 10))
		if errors.Is(err, ErrGone) {
			break
		}
		if e.got[stream] == was {
			failures++
		}
	}
	return e.got[stream] >= stored
}

// gone says what can be said when the sandbox has disappeared.
func (e *execution) gone(ctx context.Context) Result {
	after, err := e.inspect(ctx)
	if err != nil {
		after = e.before
	}
	return classifyGone(e.started, e.before, after)
}
