package sandboxtest

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// counted returns a shell text that leaves a line of evidence, and a function
// that counts the lines.
func (b Bench) counted(t *testing.T, sb sandbox.Sandbox, text string) (string, func() int) {
	name := strings.ReplaceAll(t.Name(), "/", "_") + "-" + string(harness.NewExecutionID(time.Now()))
	return "echo begun >> " + b.Evidence.Inside() + "/" + name + "; " + text, func() int {
		t.Helper()
		return strings.Count(b.Evidence.Read(t, sb, name), "begun\n")
	}
}

// until waits for a condition that something outside the test brings about.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

func sameID(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	text, count := b.counted(t, sb, "sleep 0.3; echo once; exit 7")
	req := Command(text)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			out := NewOutput(t, req)
			res, err := sandbox.Exec(t.Context(), b.Driver, sb, req, out.Sink)
			if err != nil || res.State != harness.ExecutionFailed || res.ExitCode == nil || *res.ExitCode != 7 || out.String("stdout") != "once\n" {
				t.Errorf("%+v, %v, %q", res, err, out.String("stdout"))
			}
		})
	}
	all.Wait()
	if n := count(); n != 1 {
		t.Errorf("started %d times", n)
	}
}

func offsets(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	text, count := b.counted(t, sb, "printf 0123456789; printf abcdef >&2")
	req := Command(text)
	first, _ := Exec(t, b.Driver, sb, req)
	req.StdoutOffset, req.StderrOffset = 4, 6
	again, out := Exec(t, b.Driver, sb, req)
	if out.String("stdout") != "456789" || out.String("stderr") != "" {
		t.Errorf("from the offsets: %q, %q", out.String("stdout"), out.String("stderr"))
	}
	if first.State != again.State || first.StdoutBytes != 10 || again.StdoutBytes != 10 || first.Duration != again.Duration {
		t.Errorf("the saved result differs: %+v, %+v", first, again)
	}
	req.StdoutOffset = 10
	if _, out := Exec(t, b.Driver, sb, req); out.String("stdout") != "" {
		t.Errorf("nothing was left, got %q", out.String("stdout"))
	}
	if n := count(); n != 1 {
		t.Errorf("started %d times", n)
	}
}

func wrongNonce(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	req := Command("echo mine")
	Exec(t, b.Driver, sb, req)
	req.Nonce += "x"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if res, err := sandbox.Exec(ctx, b.Driver, sb, req, nil); !errors.Is(err, sandbox.ErrStillRunning) {
		t.Errorf("an outcome sealed for another was believed: %+v, %v", res, err)
	}
}

func attach(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	text, count := b.counted(t, sb, "printf first; until [ -e "+b.Evidence.Inside()+"/go-"+sb.Name+" ]; do sleep 0.05; done; printf second; exit 5")
	req := Command(text)
	ctx, leave := context.WithCancel(t.Context())
	out := NewOutput(t, req)
	go func() { <-out.arrived; leave() }()
	if res, err := sandbox.Exec(ctx, b.Driver, sb, req, out.Sink); !errors.Is(err, sandbox.ErrStillRunning) {
		t.Fatalf("the caller left: %+v, %v", res, err)
	}
	if out.String("stdout") != "first" {
		t.Fatalf("got %q", out.String("stdout"))
	}
	req.StdoutOffset = int64(len("first"))
	out = NewOutput(t, req)
	b.release(t, sb)
	res, err := sandbox.Exec(t.Context(), b.Driver, sb, req, out.Sink)
	if err != nil || res.ExitCode == nil || *res.ExitCode != 5 || out.String("stdout") != "second" {
		t.Errorf("%+v, %v, %q", res, err, out.String("stdout"))
	}
	if n := count(); n != 1 {
		t.Errorf("started %d times", n)
	}
}

// release lets a command end that waits for this file. It comes from outside,
// for commands of a sandbox run one after the other.
func (b Bench) release(t *testing.T, sb sandbox.Sandbox) {
	t.Helper()
	b.Evidence.Write(t, sb, "go-"+sb.Name)
}

func clientKilled(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	text, count := b.counted(t, sb, "sleep 1; echo survived; exit 3")
	req := Command("")
	argv := b.Client(sb, "run", "--id", string(req.ID), "--timeout", "30s", "--", "sh", "-c", text)
	client := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	client.Stdin = strings.NewReader(`{"nonce":"` + req.Nonce + `"}`)
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "begun", func() bool { return count() > 0 })
	if err := client.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = client.Wait()
	res, out := Exec(t, b.Driver, sb, req)
	if res.ExitCode == nil || *res.ExitCode != 3 || out.String("stdout") != "survived\n" {
		t.Errorf("%+v, %q", res, out.String("stdout"))
	}
	if n := count(); n != 1 {
		t.Errorf("started %d times", n)
	}
}

// processes returns how many processes of the sandbox are not PID 1, the shell
// that counts, or what it runs for that.
func processes(t *testing.T, b Bench, sb sandbox.Sandbox, name string) string {
	t.Helper()
	_, out := Exec(t, b.Driver, sb, Command(`for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep -c '^`+name+`'`))
	return strings.TrimSpace(out.String("stdout"))
}

func timeoutGroup(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	req := Command("echo before; sleep 1000 & sleep 1000")
	req.Timeout = 2 * time.Second
	begun := time.Now()
	res, out := Exec(t, b.Driver, sb, req)
	if res.State != harness.ExecutionTimedOut || res.Reason != sandbox.ReasonDeadline || out.String("stdout") != "before\n" {
		t.Errorf("%+v, %q", res, out.String("stdout"))
	}
	if took := time.Since(begun); took < 2*time.Second || took > 9*time.Second {
		t.Errorf("took %v", took)
	}
	if n := processes(t, b, sb, "sleep"); n != "0" {
		t.Errorf("%s sleeps left", n)
	}
}

func timeoutUsable(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	req := Command("trap '' TERM; echo deaf; while :; do sleep 1; done")
	req.Timeout = time.Second
	begun := time.Now()
	res, _ := Exec(t, b.Driver, sb, req)
	if took := time.Since(begun); res.State != harness.ExecutionTimedOut || took < time.Second || took > 9*time.Second {
		t.Errorf("%+v after %v", res, took)
	}
	Usable(t, b.Driver, sb)
	if n := processes(t, b, sb, "sh -c trap"); n != "0" {
		t.Errorf("%s left", n)
	}
}

func cancelCommand(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	text, count := b.counted(t, sb, "sleep 600")
	req := Command(text)
	go func() {
		for count() == 0 && t.Context().Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		if err := sandbox.Cancel(t.Context(), b.Driver, sb, req.ID, req.Nonce); err != nil {
			t.Errorf("cancel: %v", err)
		}
	}()
	if res, _ := Exec(t, b.Driver, sb, req); res.State != harness.ExecutionCancelled || !res.Started {
		t.Errorf("%+v", res)
	}
	// Cancelled before it came: it never starts.
	text, count = b.counted(t, sb, "true")
	req = Command(text)
	if err := sandbox.Cancel(t.Context(), b.Driver, sb, req.ID, req.Nonce); err != nil {
		t.Fatal(err)
	}
	if res, _ := Exec(t, b.Driver, sb, req); res.State != harness.ExecutionCancelled || res.Started {
		t.Errorf("%+v", res)
	}
	if n := count(); n != 0 {
		t.Errorf("started %d times", n)
	}
	Usable(t, b.Driver, sb)
}

func busy(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	text, count := b.counted(t, sb, "sleep 600")
	long := Command(text)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res, err := sandbox.Exec(t.Context(), b.Driver, sb, long, nil)
		if err != nil || res.State != harness.ExecutionCancelled {
			t.Errorf("%+v, %v", res, err)
		}
	}()
	until(t, "begun", func() bool { return count() > 0 })
	text, second := b.counted(t, sb, "true")
	if res, err := sandbox.Exec(t.Context(), b.Driver, sb, Command(text), nil); !errors.Is(err, sandbox.ErrBusy) {
		t.Errorf("%+v, %v", res, err)
	}
	if n := second(); n != 0 {
		t.Errorf("the second command ran")
	}
	if err := sandbox.Cancel(t.Context(), b.Driver, sb, long.ID, long.Nonce); err != nil {
		t.Error(err)
	}
	<-ended
	Usable(t, b.Driver, sb)
}

// EatMemory is a shell text that takes more memory than any test sandbox has.
const EatMemory = `exec awk 'BEGIN { s = "x"; while (1) s = s s }'`

func outOfMemory(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	for _, text := range []string{EatMemory, "sh -c \"" + strings.ReplaceAll(EatMemory, `"`, `\"`) + "\"; exit $?"} {
		res, _ := Exec(t, b.Driver, sb, Command(text))
		if res.State != harness.ExecutionOutOfMemory || res.Reason != sandbox.ReasonMemory {
			t.Errorf("%s: %+v", text, res)
		}
		if wholeEnded(t, b, sb) {
			sb = Started(t, b.Driver, Spec())
		}
		Usable(t, b.Driver, sb)
	}
	// An earlier kill is not held against a later failure.
	if res, _ := Exec(t, b.Driver, sb, Command("kill -KILL $$")); res.State != harness.ExecutionFailed {
		t.Errorf("%+v", res)
	}
	cond, err := b.Driver.Inspect(t.Context(), sb)
	if err != nil || !cond.Exists || cond.OOMKills < 2 && !countsOnlyTheEnd(b.Driver) {
		t.Errorf("%+v, %v", cond, err)
	}
}

func countsOnlyTheEnd(d sandbox.Driver) bool {
	b, ok := d.(sandbox.Bookkeeper)
	return ok && b.CountsOnlyTheEnd()
}

// wholeEnded reports that the memory limit ended the sandbox with the command:
// nodes with version 2 of cgroups do that, and then only the end is counted.
func wholeEnded(t *testing.T, b Bench, sb sandbox.Sandbox) bool {
	t.Helper()
	cond, err := b.Driver.Inspect(t.Context(), sb)
	if err != nil {
		t.Fatal(err)
	}
	if !cond.Exists && (!countsOnlyTheEnd(b.Driver) || cond.OOMKills == 0) {
		t.Fatalf("the memory limit ended the sandbox: %+v", cond)
	}
	return !cond.Exists
}

func goneMidCommand(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	text, count := b.counted(t, sb, "echo out; sleep 600")
	req := Command(text)
	out := NewOutput(t, req)
	started := make(chan int, 1)
	terminated := make(chan time.Time, 1)
	go func() {
		defer close(terminated)
		select {
		case <-out.arrived:
			started <- count() // what is in the sandbox goes with it
			terminated <- time.Now()
			if err := b.Driver.Terminate(t.Context(), sb); err != nil {
				t.Errorf("terminate: %v", err)
			}
		case <-t.Context().Done():
		}
	}()
	res, err := sandbox.Exec(t.Context(), b.Driver, sb, req, out.Sink)
	if err != nil || res.State != harness.ExecutionSandboxGone || !res.Started || res.ExitCode != nil {
		t.Errorf("%+v, %v", res, err)
	}
	if took := time.Since(<-terminated); took > 10*time.Second {
		t.Errorf("noticed after %v", took)
	}
	<-terminated // and proved gone
	// Asked again, and without the memory of having seen it begin, nobody knows.
	if res, _ := Exec(t, b.Driver, sb, req); res.State != harness.ExecutionUnknown {
		t.Errorf("%+v", res)
	}
	if n := <-started; n != 1 {
		t.Errorf("started %d times", n)
	}
}

func keepBackground(t *testing.T, b Bench) {
	spec := Spec()
	sb := Started(t, b.Driver, spec)
	res, out := Exec(t, b.Driver, sb, Command("(setsid sleep 600 &) ; sleep 600 & echo started"))
	if res.State != harness.ExecutionCompleted || out.String("stdout") != "started\n" {
		t.Errorf("%+v, %q", res, out.String("stdout"))
	}
	if n := processes(t, b, sb, "sleep"); n != "0" {
		t.Errorf("%s left running although nobody asked for it", n)
	}
	spec.KeepBackground = true
	sb = Started(t, b.Driver, spec)
	begun := time.Now()
	res, out = Exec(t, b.Driver, sb, Command("(setsid sh -c 'while sleep 0.1; do echo tick; done' &) ; sleep 600 & echo started"))
	if res.State != harness.ExecutionCompleted || !strings.Contains(out.String("stdout"), "started\n") || time.Since(begun) > 5*time.Second {
		t.Errorf("%+v, %q", res, out.String("stdout"))
	}
	if n := processes(t, b, sb, "sleep 600"); n != "1" {
		t.Errorf("%s left, want the one", n)
	}
	if n := processes(t, b, sb, "sh -c while"); n != "1" {
		t.Errorf("%s left, want the one that goes on printing", n)
	}
}
