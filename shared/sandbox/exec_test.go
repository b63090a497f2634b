package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

// wire is a Driver whose transport misbehaves as told, over a runner that knows
// one command. It stands where the network is.
type wire struct {
	mu      sync.Mutex
	streams map[string][]func(w *wire, nonce string, args map[string]string, out, err io.Writer) error // per op, one per call; the last repeats
	calls   []string
	cond    []Condition // per Inspect; the last repeats
	condErr error
	stdout  string
	stderr  string
	status  trailer.Status
}

func (w *wire) Start(context.Context, Sandbox) (string, error) { return "", errors.ErrUnsupported }
func (w *wire) Terminate(context.Context, Sandbox) error       { return errors.ErrUnsupported }
func (w *wire) List(context.Context) ([]Found, error)          { return nil, errors.ErrUnsupported }

func (w *wire) Inspect(context.Context, Sandbox) (Condition, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.cond) == 0 {
		return Condition{Exists: true}, w.condErr
	}
	c := w.cond[0]
	if len(w.cond) > 1 {
		w.cond = w.cond[1:]
	}
	return c, w.condErr
}

func (w *wire) Stream(ctx context.Context, _ Sandbox, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var in struct{ Nonce string }
	if err := json.NewDecoder(stdin).Decode(&in); err != nil {
		return err
	}
	args := map[string]string{}
	for i := 1; i+1 < len(argv); i += 2 {
		args[strings.TrimPrefix(argv[i], "--")] = argv[i+1]
	}
	w.mu.Lock()
	w.calls = append(w.calls, argv[0])
	queue := w.streams[argv[0]]
	if len(queue) > 1 {
		w.streams[argv[0]] = queue[1:]
	}
	w.mu.Unlock()
	if len(queue) == 0 {
		return errors.New("no route")
	}
	return queue[0](w, in.Nonce, args, stdout, stderr)
}

func (w *wire) line(nonce string, st trailer.Status, out io.Writer) {
	sealed, err := trailer.Seal(st, nonce)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(out, "%s%s\n", trailer.Marker, sealed)
}

type reply = func(w *wire, nonce string, args map[string]string, out, err io.Writer) error

func offset(args map[string]string, name string) int {
	n, _ := strconv.Atoi(args[name])
	return n
}

// running prints the note that a command has begun.
func running(w *wire, nonce string, err io.Writer) {
	w.line(nonce, trailer.Status{ID: w.status.ID, State: trailer.Running, Started: true}, err)
}

var (
	whole reply = func(w *wire, nonce string, args map[string]string, out, err io.Writer) error {
		running(w, nonce, err)
		io.WriteString(out, w.stdout[offset(args, "stdout-offset"):])
		io.WriteString(err, w.stderr[offset(args, "stderr-offset"):])
		w.line(nonce, w.status, err)
		return nil
	}
	status reply = func(w *wire, nonce string, _ map[string]string, _, err io.Writer) error {
		w.line(nonce, w.status, err)
		return nil
	}
	stillRunning reply = func(w *wire, nonce string, _ map[string]string, _, err io.Writer) error {
		running(w, nonce, err)
		return nil
	}
	unseen reply = func(w *wire, nonce string, _ map[string]string, _, err io.Writer) error {
		w.line(nonce, trailer.Status{ID: w.status.ID, State: trailer.Unknown}, err)
		return nil
	}
	output reply = func(w *wire, nonce string, args map[string]string, out, err io.Writer) error {
		text, to := w.stdout, out
		if args["stream"] == "stderr" {
			text, to = w.stderr, err
		}
		from := offset(args, "offset")
		io.WriteString(to, text[from:min(len(text), from+offset(args, "limit"))])
		w.line(nonce, w.status, err)
		return nil
	}
	// clean is the end of a stream that looks like success and proves nothing.
	clean reply = func(w *wire, nonce string, _ map[string]string, out, err io.Writer) error {
		running(w, nonce, err)
		io.WriteString(out, w.stdout[:len(w.stdout)/2])
		return nil
	}
	silent reply = func(*wire, string, map[string]string, io.Writer, io.Writer) error { return nil }
	gone   reply = func(*wire, string, map[string]string, io.Writer, io.Writer) error { return ErrGone }
	midway reply = func(w *wire, nonce string, a map[string]string, o, e io.Writer) error {
		if err := clean(w, nonce, a, o, e); err != nil {
			return err
		}
		return ErrGone
	}
	broken  reply = func(*wire, string, map[string]string, io.Writer, io.Writer) error { return errors.New("1006") }
	snipped reply = func(w *wire, nonce string, a map[string]string, out, err io.Writer) error {
		running(w, nonce, err)
		io.WriteString(out, w.stdout[:len(w.stdout)-4])
		io.WriteString(err, w.stderr)
		w.line(nonce, w.status, err)
		return nil
	}
	forged reply = func(w *wire, _ string, _ map[string]string, _, err io.Writer) error {
		w.line("guess", w.status, err)
		return nil
	}
)

func newWire(code int) *wire {
	w := &wire{stdout: "0123456789", stderr: "abc\n"}
	w.status = trailer.Status{
		ID: "exe_1", State: trailer.Exited, Started: true, ExitCode: &code,
		StdoutBytes: 10, StderrBytes: 4, StdoutStored: 10, StderrStored: 4, DurationMS: 1500,
	}
	return w
}

func request() Request {
	return Request{ID: "exe_1", Nonce: "n", Command: []string{"true"}, Timeout: 10 * time.Second}
}

// An outcome is believed only with the seal: from the stream, else by asking.
func TestExecBelievesOnlyProof(t *testing.T) {
	for _, c := range []struct {
		name    string
		streams map[string][]reply
		cond    []Condition
		code    int
		state   harness.ExecutionState
		reason  Reason
		started bool
		stdout  string
		calls   []string
	}{
		{
			name: "a whole stream", streams: map[string][]reply{"run": {whole}},
			state: harness.ExecutionCompleted, started: true, stdout: "0123456789", calls: []string{"run"},
		}, {
			name: "B01 a clean end without a trailer, and no answer ever after", code: 0,
			streams: map[string][]reply{"run": {clean, silent}},
			state:   harness.ExecutionUnknown, reason: ReasonUnproved, started: true, stdout: "01234",
		}, {
			name: "B01 not even a sign that it began", streams: map[string][]reply{"run": {silent}},
			state: harness.ExecutionUnknown, reason: ReasonUnproved,
		}, {
			name: "B02 cut while it runs on, asked until it ends", code: 3,
			streams: map[string][]reply{"run": {clean, broken, whole}, "status": {stillRunning}},
			state:   harness.ExecutionFailed, started: true, stdout: "0123456789", calls: []string{"run", "status", "run", "status", "run"},
		}, {
			name: "B02 cut, and ended when asked", code: 3,
			streams: map[string][]reply{"run": {clean}, "status": {status}, "output": {output}},
			state:   harness.ExecutionFailed, started: true, stdout: "0123456789", calls: []string{"run", "status", "output", "output"},
		}, {
			name: "B05 the last bytes lost, the trailer not", streams: map[string][]reply{"run": {snipped}, "output": {output}},
			state: harness.ExecutionCompleted, started: true, stdout: "0123456789", calls: []string{"run", "output"},
		}, {
			name: "never reached, then reached", streams: map[string][]reply{"run": {broken, whole}, "status": {unseen}},
			state: harness.ExecutionCompleted, started: true, stdout: "0123456789", calls: []string{"run", "status", "run"},
		}, {
			name: "refused at the sandbox's end", streams: map[string][]reply{"run": {unseen}},
			state: harness.ExecutionFailed, reason: ReasonSandboxEnding, calls: []string{"run"},
		}, {
			name: "a trailer of another seal", streams: map[string][]reply{"run": {forged}, "status": {forged}},
			state: harness.ExecutionUnknown, reason: ReasonUnproved,
		}, {
			name: "gone before anything was heard", streams: map[string][]reply{"run": {gone}},
			cond:  []Condition{{Exists: true}, {Reason: "node lost"}},
			state: harness.ExecutionUnknown, reason: ReasonSandboxGone, calls: []string{"run"},
		}, {
			name: "gone from the beginning", cond: []Condition{{}},
			state: harness.ExecutionUnknown, reason: ReasonSandboxGone,
		}, {
			name: "gone in the middle", streams: map[string][]reply{"run": {midway}}, cond: []Condition{{Exists: true}, {}},
			state: harness.ExecutionSandboxGone, reason: ReasonSandboxGone, started: true, stdout: "01234",
		}, {
			name: "B12 gone in the middle by the memory limit", streams: map[string][]reply{"run": {midway}},
			cond:  []Condition{{Exists: true, OOMKills: 2}, {OOMKills: 3}},
			state: harness.ExecutionOutOfMemory, reason: ReasonMemory, started: true, stdout: "01234",
		}, {
			name: "an earlier kill is not this one's", streams: map[string][]reply{"run": {midway}},
			cond:  []Condition{{Exists: true, OOMKills: 2}, {OOMKills: 2}},
			state: harness.ExecutionSandboxGone, reason: ReasonSandboxGone, started: true, stdout: "01234",
		}, {
			name: "B11 evicted in the middle", streams: map[string][]reply{"run": {midway}},
			cond:  []Condition{{Exists: true}, {Evicted: true, Reason: "ephemeral storage"}},
			state: harness.ExecutionDiskLimit, reason: ReasonEvicted, started: true, stdout: "01234",
		}, {
			name: "cut at the moment of its end, gone when asked", streams: map[string][]reply{"run": {clean}, "status": {gone}},
			cond:  []Condition{{Exists: true}, {}},
			state: harness.ExecutionSandboxGone, reason: ReasonSandboxGone, started: true, stdout: "01234", calls: []string{"run", "status"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(c.code)
				w.streams, w.cond = c.streams, c.cond
				var got bytes.Buffer
				res, err := Exec(t.Context(), w, Sandbox{}, request(), func(stream string, off int64, data []byte) {
					if stream == stdout {
						if off != int64(got.Len()) {
							t.Errorf("offset %d, have %d", off, got.Len())
						}
						got.Write(data)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if res.State != c.state || res.Reason != c.reason || res.Started != c.started || got.String() != c.stdout || res.Incomplete {
					t.Errorf("%+v, stdout %q", res, got.String())
				}
				if proved := res.Started && (res.State == harness.ExecutionCompleted || res.State == harness.ExecutionFailed); proved != (res.ExitCode != nil) {
					t.Errorf("exit code %v with %s", res.ExitCode, res.State)
				}
				if c.calls != nil {
					if diff := cmp.Diff(c.calls, w.calls); diff != "" {
						t.Errorf("calls (-want +got)\n%s", diff)
					}
				}
			})
		})
	}
}

func TestExecReportsWhatItCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(0)
		w.streams = map[string][]reply{"run": {snipped}, "output": {broken}}
		res, err := Exec(t.Context(), w, Sandbox{}, request(), nil)
		if err != nil || res.State != harness.ExecutionCompleted || !res.Incomplete {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestExecLeavesWhenTheCallerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.streams = map[string][]reply{"status": {stillRunning}, "run": {func(w *wire, nonce string, _ map[string]string, _, err io.Writer) error {
			running(w, nonce, err)
			<-ctx.Done()
			return ctx.Err()
		}}}
		if res, err := Exec(ctx, w, Sandbox{}, request(), nil); !errors.Is(err, ErrStillRunning) {
			t.Errorf("%+v, %v", res, err)
		}
		// It ended in the moment the caller left: that is no reason to say otherwise.
		w.streams["status"], w.streams["output"] = []reply{status}, []reply{output}
		if res, err := Exec(ctx, w, Sandbox{}, request(), nil); err != nil || res.State != harness.ExecutionCompleted {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// A command may print what looks like the runner's line, torn at any byte.
func TestLineFilter(t *testing.T) {
	sealed, err := trailer.Seal(trailer.Status{ID: "x", State: trailer.Exited}, "n")
	if err != nil {
		t.Fatal(err)
	}
	genuine := trailer.Marker + string(sealed) + "\n"
	fake := trailer.Marker + `{"status":{},"mac":"00"}` + "\n"
	for name, c := range map[string]struct{ in, want string }{
		"none":           {"plain\ntext", "plain\ntext"},
		"at the end":     {"plain" + genuine, "plain"},
		"after newline":  {"plain\n" + genuine, "plain\n"},
		"in the middle":  {"a" + genuine + "b" + genuine, "ab"},
		"two":            {genuine + genuine, ""},
		"fake":           {"a" + fake + "b", "a" + fake + "b"},
		"fake, genuine":  {fake + genuine, fake},
		"torn, genuine":  {trailer.Marker + "half" + genuine, trailer.Marker + "half"},
		"begun, genuine": {"\n\n@tulu" + genuine, "\n\n@tulu"},
		"begun only":     {"x\n@tuluat-runner", "x\n@tuluat-runner"},
		"endless":        {trailer.Marker + strings.Repeat("y", 2*trailer.MaxLine), trailer.Marker + strings.Repeat("y", 2*trailer.MaxLine)},
	} {
		for _, size := range []int{1, 2, 3, 7, 16, 17, 1 << 20} {
			var got bytes.Buffer
			f := &lineFilter{
				emit: func(b []byte) { got.Write(b) },
				open: func(b []byte) bool { _, err := trailer.Open(b, "n"); return err == nil },
			}
			if size == 1 && len(c.in) > 1<<10 {
				continue
			}
			for in := []byte(c.in); len(in) > 0; {
				n := min(size, len(in))
				f.Write(in[:n])
				in = in[n:]
			}
			f.flush()
			if got.String() != c.want {
				t.Errorf("%s by %d: got %q, want %q", name, size, got.String(), c.want)
			}
		}
	}
}

func TestSeal(t *testing.T) {
	code := 3
	st := trailer.Status{ID: "<&>\u2028é", State: trailer.Exited, Started: true, ExitCode: &code, StdoutTail: []byte{0, 255, 10}}
	sealed, err := trailer.Seal(st, "n")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.ContainsRune(sealed, '\n') {
		t.Error("more than one line")
	}
	got, err := trailer.Open(sealed, "n")
	if diff := cmp.Diff(st, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for name, bad := range map[string][]byte{
		"another code": bytes.Replace(sealed, []byte(`"exitCode":3`), []byte(`"exitCode":0`), 1),
		"empty":        {}, "null": []byte("null"), "no seal": []byte(`{"status":{"id":"x"}}`),
	} {
		if _, err := trailer.Open(bad, "n"); !errors.Is(err, trailer.ErrSeal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, nonce := range []string{"", "m"} {
		if _, err := trailer.Open(sealed, nonce); !errors.Is(err, trailer.ErrSeal) {
			t.Errorf("nonce %q: %v", nonce, err)
		}
	}
	big, err := trailer.Seal(trailer.Status{StdoutTail: make([]byte, TailBytes), StderrTail: make([]byte, TailBytes), Message: strings.Repeat("\x01", 4<<10)}, "n")
	if err != nil || len(trailer.Marker)+len(big)+1 > trailer.MaxLine {
		t.Errorf("the longest line has %d bytes, %v", len(big), err)
	}
}
