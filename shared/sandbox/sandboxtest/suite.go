// Package sandboxtest is the suite every sandbox driver passes: what a command
// may count on, and the public bugs that must not happen here. B numbers are
// those of the bug log in the project's runtime research.
package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// Bench is what the suite runs on.
type Bench struct {
	Driver   sandbox.Driver
	Evidence Evidence

	// Client returns a command line that runs the runner with argv against a
	// sandbox from a process of its own, to be killed by the test.
	Client func(sb sandbox.Sandbox, argv ...string) []string

	// ShortLife is time enough for a sandbox to start and take a command; zero
	// means two seconds.
	ShortLife time.Duration
}

// Evidence is a folder of files that commands write to and the test looks at
// from outside, by another way than the one that is tested.
type Evidence interface {
	// Inside is the folder as commands of the sandbox see it.
	Inside() string
	// Read returns the file's text, "" when there is none. An error fails the test.
	Read(t *testing.T, sb sandbox.Sandbox, name string) string
	// Write makes an empty file.
	Write(t *testing.T, sb sandbox.Sandbox, name string)
}

var sequence atomic.Int64

// Spec is a small sandbox for tests.
func Spec() harness.SandboxSpec {
	spec := harness.DefaultSandbox()
	spec.MemoryBytes, spec.VolumeBytes = 64<<20, 32<<20
	return spec
}

// New describes a sandbox that nothing else uses.
func New(spec harness.SandboxSpec) sandbox.Sandbox {
	now := time.Now()
	return sandbox.Sandbox{
		ID: harness.NewSandboxID(now), Name: fmt.Sprintf("t-%d-%d", now.UnixNano(), sequence.Add(1)),
		Agent: "suite", Session: harness.NewSessionID(now), Spec: spec, ExpiresAt: now.Add(5 * time.Minute),
	}
}

// Started returns a sandbox that takes commands and is removed after the test.
func Started(t *testing.T, d sandbox.Driver, spec harness.SandboxSpec) sandbox.Sandbox {
	t.Helper()
	sb := New(spec)
	uid, err := d.Start(t.Context(), sb)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	sb.UID = uid
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.Terminate(ctx, sb); err != nil {
			t.Errorf("terminate: %v", err)
		}
	})
	return sb
}

// Command is a request that runs a shell text.
func Command(text string) sandbox.Request {
	return sandbox.Request{
		ID: harness.NewExecutionID(time.Now()), Nonce: fmt.Sprint("nonce-", sequence.Add(1)),
		Command: []string{"sh", "-c", text}, Timeout: 60 * time.Second,
	}
}

// Output is what a sink got. It fails the test when bytes come out of order.
type Output struct {
	t          *testing.T
	mu         sync.Mutex
	base       map[string]int64
	all        map[string]*bytes.Buffer
	arrived    chan struct{}
	arrivedOne sync.Once
}

// NewOutput returns an Output for streams read from the request's offsets.
func NewOutput(t *testing.T, req sandbox.Request) *Output {
	return &Output{
		t: t, base: map[string]int64{"stdout": req.StdoutOffset, "stderr": req.StderrOffset},
		all: map[string]*bytes.Buffer{"stdout": {}, "stderr": {}}, arrived: make(chan struct{}),
	}
}

// Sink takes output.
func (o *Output) Sink(stream string, offset int64, data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if want := o.base[stream] + int64(o.all[stream].Len()); offset != want {
		o.t.Errorf("%s: got bytes of offset %d, want %d", stream, offset, want)
	}
	o.all[stream].Write(data)
	o.arrivedOne.Do(func() { close(o.arrived) })
}

// String returns what arrived of a stream.
func (o *Output) String(stream string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[stream].String()
}

// Exec runs one command to its final result.
func Exec(t *testing.T, d sandbox.Driver, sb sandbox.Sandbox, req sandbox.Request) (sandbox.Result, *Output) {
	t.Helper()
	out := NewOutput(t, req)
	res, err := sandbox.Exec(t.Context(), d, sb, req, out.Sink)
	if err != nil {
		t.Fatalf("exec %q: %v", req.Command, err)
	}
	return res, out
}

// Usable fails the test unless the sandbox runs a command as if nothing had
// happened.
func Usable(t *testing.T, d sandbox.Driver, sb sandbox.Sandbox) {
	t.Helper()
	res, out := Exec(t, d, sb, Command("echo still here"))
	if res.State != harness.ExecutionCompleted || out.String("stdout") != "still here\n" {
		t.Fatalf("the next command: %+v, stdout %q", res, out.String("stdout"))
	}
}

// Run runs the suite. bench is called once per case.
func Run(t *testing.T, bench func(t *testing.T) Bench) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Bench)
	}{
		{"StartIsIdempotent", startIsIdempotent},
		{"TerminateProvesAbsence", terminateProvesAbsence},
		{"AnotherIdentityIsGone", anotherIdentity},
		{"EndsItselfAtTTL", endsItself},
		{"ExitCodesAndSignals", exitCodes},
		{"CannotBeStarted", cannotBeStarted},
		{"StateStaysBetweenCommands", stateStays},
		{"Environment", environment},
		{"B06ByteExact", byteExact},
		{"TruncationCountsAndTails", truncation},
		{"UTF8SplitAnywhere", utf8Split},
		{"SlowSinkLosesNothing", slowSink},
		{"SameIDThreeTimesAtOnce", sameID},
		{"OffsetsAndSavedResult", offsets},
		{"WrongNonceIsNotBelieved", wrongNonce},
		{"B02AttachAfterTheCallerLeft", attach},
		{"B04ClientKilled", clientKilled},
		{"B03TimeoutEndsTheWholeGroup", timeoutGroup},
		{"B18B19TimeoutKeepsTheSandbox", timeoutUsable},
		{"Cancel", cancelCommand},
		{"Busy", busy},
		{"B12OutOfMemory", outOfMemory},
		{"SandboxGoneMidCommand", goneMidCommand},
		{"KeepBackground", keepBackground},
		{"FilesIn", filesIn},
		{"FilesOut", filesOut},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, bench(t))
		})
	}
}

func startIsIdempotent(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			uid, err := b.Driver.Start(t.Context(), sb)
			if err != nil || uid != sb.UID {
				t.Errorf("start again: uid %q, %v; want %q", uid, err, sb.UID)
			}
		})
	}
	all.Wait()
	other := sb
	other.ID = harness.NewSandboxID(time.Now())
	if _, err := b.Driver.Start(t.Context(), other); harness.KindOf(err) != harness.Conflict || sandbox.ReasonOf(err) != sandbox.ReasonTaken {
		t.Errorf("another sandbox of the same name: %v", err)
	}
	found, err := b.Driver.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range found {
		if f.Name == sb.Name {
			n++
			if f.UID != sb.UID || time.Since(f.CreatedAt) > time.Minute || f.CreatedAt.After(time.Now()) {
				t.Errorf("listed as %+v", f)
			}
		}
	}
	if n != 1 {
		t.Errorf("listed %d times", n)
	}
	Usable(t, b.Driver, sb)
}

func terminateProvesAbsence(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	Usable(t, b.Driver, sb)
	if cond, err := b.Driver.Inspect(t.Context(), sb); err != nil || !cond.Exists {
		t.Errorf("before: %+v, %v", cond, err)
	}
	for range 2 {
		if err := b.Driver.Terminate(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
	}
	if cond, err := b.Driver.Inspect(t.Context(), sb); err != nil || cond.Exists {
		t.Errorf("after: %+v, %v", cond, err)
	}
	found, err := b.Driver.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Name == sb.Name {
			t.Errorf("still listed: %+v", f)
		}
	}
	res, _ := Exec(t, b.Driver, sb, Command("true"))
	if res.State != harness.ExecutionUnknown || res.Reason != sandbox.ReasonSandboxGone || res.Started {
		t.Errorf("a command for a sandbox that is gone: %+v", res)
	}
}

func anotherIdentity(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	other := sb
	other.UID += "x"
	var sink bytes.Buffer
	if err := b.Driver.Stream(t.Context(), other, []string{"ping"}, nil, &sink, &sink); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("stream to another identity: %v", err)
	}
	if err := b.Driver.Terminate(t.Context(), other); err != nil {
		t.Errorf("terminate another identity: %v", err)
	}
	Usable(t, b.Driver, sb)
}

func endsItself(t *testing.T, b Bench) {
	sb := New(Spec())
	life := b.ShortLife
	if life == 0 {
		life = 2 * time.Second
	}
	sb.ExpiresAt = time.Now().Add(life)
	var err error
	if sb.UID, err = b.Driver.Start(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Driver.Terminate(context.Background(), sb); err != nil {
			t.Error(err)
		}
	})
	begun := time.Now()
	res, _ := Exec(t, b.Driver, sb, Command("sleep 600"))
	if res.State != harness.ExecutionSandboxGone || !res.Started || time.Since(begun) > 15*time.Second {
		t.Errorf("a command over the sandbox's end: %+v after %v", res, time.Since(begun))
	}
	if _, err := b.Driver.Start(t.Context(), sb); err == nil {
		t.Error("a sandbox that has ended was started again under its name")
	}
}

func exitCodes(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		text string
		want sandbox.Result
	}{
		{"exit 0", sandbox.Result{State: harness.ExecutionCompleted, ExitCode: code(0)}},
		{"exit 1", sandbox.Result{State: harness.ExecutionFailed, ExitCode: code(1)}},
		{"exit 255", sandbox.Result{State: harness.ExecutionFailed, ExitCode: code(255)}},
		{"no-such-program", sandbox.Result{State: harness.ExecutionFailed, ExitCode: code(127)}},
		{"kill -SEGV $$", sandbox.Result{State: harness.ExecutionFailed, Signal: "SIGSEGV", Reason: sandbox.ReasonSignal}},
		{"kill -KILL $$", sandbox.Result{State: harness.ExecutionFailed, Signal: "SIGKILL", Reason: sandbox.ReasonSignal}},
		{"exit 137", sandbox.Result{State: harness.ExecutionFailed, ExitCode: code(137)}},
	} {
		res, _ := Exec(t, b.Driver, sb, Command(c.text))
		c.want.Started = true
		got := sandbox.Result{State: res.State, ExitCode: res.ExitCode, Signal: res.Signal, Reason: res.Reason, Started: res.Started}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.text, diff)
		}
	}
}

func cannotBeStarted(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	for _, c := range []struct {
		name   string
		argv   []string
		reason sandbox.Reason
	}{
		{"no such program", []string{"/no/such/program"}, sandbox.ReasonNoProgram},
		{"a folder", []string{"/usr"}, sandbox.ReasonNoProgram},
		{"nothing", nil, sandbox.ReasonNotStarted},
		{"NUL", []string{"echo", "a\x00b"}, sandbox.ReasonNotStarted},
		{"too long", []string{"echo", strings.Repeat("x", 128<<10)}, sandbox.ReasonTooLong},
	} {
		req := Command("")
		req.Command = c.argv
		res, _ := Exec(t, b.Driver, sb, req)
		if res.State != harness.ExecutionFailed || res.Started || res.Reason != c.reason || res.Message == "" || res.ExitCode != nil {
			t.Errorf("%s: %+v", c.name, res)
		}
	}
	// The longest that may be is not refused.
	req := Command("")
	req.Command = []string{"printf", "%s", strings.Repeat("x", 128<<10-1)}
	if res, out := Exec(t, b.Driver, sb, req); res.State != harness.ExecutionCompleted || len(out.String("stdout")) != 128<<10-1 {
		t.Errorf("the longest argument: %+v, %d bytes", res, len(out.String("stdout")))
	}
	Usable(t, b.Driver, sb)
}

func stateStays(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	Exec(t, b.Driver, sb, Command("echo kept > file; printf '#!/bin/sh\necho ran' > /tmp/x; chmod +x /tmp/x; cp /tmp/x /workspace/x"))
	_, out := Exec(t, b.Driver, sb, Command("pwd; cat file; /tmp/x; /workspace/x"))
	if got := out.String("stdout"); got != "/workspace\nkept\nran\nran\n" {
		t.Errorf("got %q", got)
	}
}

func environment(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	req := Command(`echo "$HOME|$ADDED|$CI"; touch "$HOME/x" "$TMPDIR/x" && mkdir -p "$XDG_CACHE_HOME" "$PIP_CACHE_DIR" "$NPM_CONFIG_CACHE" "$GOCACHE" "$GOPATH" && echo ok; cat; echo end of stdin`)
	req.Env = map[string]string{"ADDED": "a b\n'c", "CI": "2"}
	res, out := Exec(t, b.Driver, sb, req)
	if want := "/workspace|a b\n'c|2\nok\nend of stdin\n"; out.String("stdout") != want {
		t.Errorf("got %q, want %q (%+v, %s)", out.String("stdout"), want, res, out.String("stderr"))
	}
}

func byteExact(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	for _, n := range []int{0, 1, 10, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20} {
		res, out := Exec(t, b.Driver, sb, Command(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; head -c %[1]d /dev/zero | tr '\\0' y >&2", n)))
		if res.State != harness.ExecutionCompleted || res.StdoutBytes != int64(n) || res.StderrBytes != int64(n) || res.Incomplete {
			t.Errorf("%d bytes: %+v", n, res)
		}
		if out.String("stdout") != strings.Repeat("x", n) || out.String("stderr") != strings.Repeat("y", n) {
			t.Errorf("%d bytes: got %d and %d", n, len(out.String("stdout")), len(out.String("stderr")))
		}
	}
}

func truncation(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	req := Command("seq 1 100000; printf 'the end'; seq 1 100 >&2")
	req.MaxOutput = 1000
	res, out := Exec(t, b.Driver, sb, req)
	const total = 588895 + 7
	if res.StdoutBytes != total || res.StderrBytes != 292 || res.Incomplete {
		t.Errorf("counts: %d, %d, %+v", res.StdoutBytes, res.StderrBytes, res.Incomplete)
	}
	if got := out.String("stdout"); len(got) != 1000 || !strings.HasPrefix(got, "1\n2\n3\n") {
		t.Errorf("head: %d bytes", len(got))
	}
	if tail := string(res.StdoutTail); len(tail) != sandbox.TailBytes || !strings.HasSuffix(tail, "99999\n100000\nthe end") {
		t.Errorf("tail: %d bytes, ends %q", len(tail), tail[max(0, len(tail)-20):])
	}
	if len(out.String("stderr")) != 292 || res.StderrTail != nil {
		t.Errorf("stderr was not truncated: %d bytes, tail of %d", len(out.String("stderr")), len(res.StderrTail))
	}
}

func utf8Split(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	// Three-byte characters never divide a power of two, so every buffer on the
	// way splits some.
	const n = 100_000
	res, out := Exec(t, b.Driver, sb, Command(fmt.Sprintf(`yes '€' | head -n %d | tr -d '\n'`, n)))
	got := out.String("stdout")
	if res.StdoutBytes != 3*n || got != strings.Repeat("€", n) || !utf8.ValidString(got) {
		t.Errorf("%d bytes, valid %v", len(got), utf8.ValidString(got))
	}
	// Split in time as well: one byte, a pause, the others.
	_, out = Exec(t, b.Driver, sb, Command(`printf '\342'; sleep 0.2; printf '\202'; sleep 0.2; printf '\254'`))
	if out.String("stdout") != "€" {
		t.Errorf("got %q", out.String("stdout"))
	}
}

func slowSink(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	req := Command("seq 1 1500000") // 10 MiB: more than waits for a sink
	req.MaxOutput = 16 << 20
	out := NewOutput(t, req)
	first := true
	res, err := sandbox.Exec(t.Context(), b.Driver, sb, req, func(stream string, offset int64, data []byte) {
		if first {
			first = false
			time.Sleep(3 * time.Second) // a sink that hangs, while the command must go on
		}
		out.Sink(stream, offset, data)
	})
	if err != nil || res.State != harness.ExecutionCompleted || res.Incomplete {
		t.Fatalf("%+v, %v", res, err)
	}
	got := out.String("stdout")
	if int64(len(got)) != res.StdoutBytes || !strings.HasSuffix(got, "\n1499999\n1500000\n") {
		t.Errorf("%d of %d bytes", len(got), res.StdoutBytes)
	}
	if res.Duration > 2500*time.Millisecond {
		t.Errorf("the sink held the command: %v", res.Duration)
	}
}
