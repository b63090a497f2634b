package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/kubernetes/kubetest"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

// exec runs a command to its final result, or fails the test.
func (b *bench) exec(sb sandbox.Sandbox, req sandbox.Request) (sandbox.Result, *sandboxtest.Output) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 60*time.Second)
	defer cancel()
	out := sandboxtest.NewOutput(b.t, req)
	res, err := sandbox.Exec(ctx, b.driver, sb, req, out.Sink)
	if err != nil {
		b.t.Fatalf("exec: %v", err)
	}
	return res, out
}

func exited(code int, stdout string) trailer.Status {
	return trailer.Status{State: trailer.Exited, Started: true, ExitCode: &code, StdoutBytes: int64(len(stdout)), StdoutStored: int64(len(stdout))}
}

// outputs answers the runner's word output from what it keeps.
func outputs(kept string) kubetest.Script {
	return func(ctx context.Context, x *kubetest.Exec) kubetest.Ending {
		from := min(number(x.Flag("offset")), len(kept))
		to := min(from+number(x.Flag("limit")), len(kept))
		return kubetest.Answers(exited(0, kept), kept[from:to], "", kubetest.Exit(0))(ctx, x)
	}
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// B01: a stream that ends as if all were well, and proves nothing. Nobody can be
// asked either.
func TestExecNoProof(t *testing.T) {
	for _, how := range []string{"websocket", "spdy"} {
		t.Run(how, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			if how == "spdy" {
				b.On(kubetest.Match{Resource: "pods/exec", Upgrade: "websocket"}, -1, kubetest.FailPlain(http.StatusBadRequest, "no"))
			}
			b.Otherwise(kubetest.Prints("", "", kubetest.Close(1000)))
			b.Exec("run", kubetest.Begins("so far", kubetest.Close(1000)))
			req := sandboxtest.Command("true")
			req.Timeout = -18 * time.Second // so that the time to ask is soon over
			res, out := b.exec(sb, req)
			if res.State != harness.ExecutionUnknown || res.ExitCode != nil || res.Reason != sandbox.ReasonUnproved || !res.Started {
				t.Errorf("%+v", res)
			}
			if got := out.String("stdout"); got != "so far" {
				t.Errorf("stdout %q", got)
			}
			if b.Count(word("status")) == 0 {
				t.Errorf("nobody asked how the command stands")
			}
		})
	}
}

// B02: the stream is cut in the middle of a line, in each way it can be; the real
// runner is asked later and knows.
func TestExecCutAndFetched(t *testing.T) {
	for name, end := range map[string]kubetest.Ending{
		"success without status": kubetest.Close(1000), "server goes": kubetest.Close(1001), "cut": kubetest.Cut(), "reset": kubetest.Broken(),
		"success": kubetest.Exit(0), "failure": kubetest.Exit(1), "internal error": kubetest.Says(kubetest.Internal("lost")),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m := b.real()
			sb := b.start()
			b.Exec("run", kubetest.After(m.Script(), 5, end))
			res, out := b.exec(sb, sandboxtest.Command("echo x >> count; printf 'half a '; sleep 0.5; echo line; sleep 0.5; wc -l < count; exit 7"))
			if res.State != harness.ExecutionFailed || res.ExitCode == nil || *res.ExitCode != 7 || res.Incomplete {
				t.Errorf("%+v", res)
			}
			if got := out.String("stdout"); got != "half a line\n1\n" {
				t.Errorf("stdout %q", got)
			}
		})
	}
}

// B05: the stream ends well with a seal, and less output than it counts.
func TestExecShort(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 1<<10) // 16 KiB
	for name, test := range map[string]struct {
		output kubetest.Script
		want   string
	}{
		"fetched": {outputs(text), text},
		"lost":    {kubetest.Answers(exited(0, text), "", "", kubetest.Exit(0)), text[:12<<10]},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			b.Otherwise(test.output)
			b.Exec("run", kubetest.Short(kubetest.Answers(exited(0, text), text, "", kubetest.Exit(0)), 4<<10))
			res, out := b.exec(sb, sandboxtest.Command("true"))
			if res.State != harness.ExecutionCompleted || res.StdoutBytes != int64(len(text)) || res.Incomplete != (test.want != text) {
				t.Errorf("%+v", res)
			}
			if got := out.String("stdout"); got != test.want {
				t.Errorf("%d bytes of stdout, want %d", len(got), len(test.want))
			}
		})
	}
}

// B06: what fits a buffer, and what just does not.
func TestExecByteExact(t *testing.T) {
	b := newBench(t)
	b.real()
	sb := b.start()
	for _, n := range []int{0, 1, 10, 4095, 4096, 4097, 65536, 1 << 20} {
		req := sandboxtest.Command("head -c $N /dev/zero | tr '\\0' x; printf e >&2")
		req.Env = map[string]string{"N": strconv.Itoa(n)}
		res, out := b.exec(sb, req)
		if got := out.String("stdout"); res.State != harness.ExecutionCompleted || len(got) != n || strings.Trim(got, "x") != "" || out.String("stderr") != "e" {
			t.Errorf("%d bytes: got %d, %+v", n, len(got), res)
		}
	}
}

// B08: a right that is missing is no reason for another transport.
func TestStreamForbidden(t *testing.T) {
	for _, verb := range []string{"get", "create"} {
		t.Run(verb, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			b.On(word("run"), -1, kubetest.Fail(kubetest.NoRight(verb, "pods/exec", sb.Name)))
			err := b.driver.Stream(t.Context(), sb, []string{"run"}, strings.NewReader("{}"), io.Discard, io.Discard)
			if harness.KindOf(err) != harness.Denied || errors.Is(err, sandbox.ErrGone) {
				t.Errorf("%v", err)
			}
			for _, want := range []string{verb, "pods/exec", namespace} {
				if said := harness.MessageOf(err); !strings.Contains(said, want) {
					t.Errorf("%q does not name %q", said, want)
				}
			}
			if n := b.Count(word("run")); n != 1 {
				t.Errorf("%d tries", n)
			}
		})
	}
}

// B08: where WebSocket is not to be had, SPDY is used once.
func TestStreamFallsBack(t *testing.T) {
	for name, answer := range map[string]kubetest.Answer{
		"400 of a proxy": kubetest.FailPlain(http.StatusBadRequest, "Bad Request"),
		"426":            kubetest.FailPlain(http.StatusUpgradeRequired, "Upgrade Required"),
		"502 of a proxy": kubetest.FailPlain(http.StatusBadGateway, "<html>"),
		"200":            kubetest.FailPlain(http.StatusOK, "hello"),
	} {
		for _, protocol := range []string{"v5.channel.k8s.io", "v4.channel.k8s.io"} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				b := newBench(t)
				b.SPDYSpeaks(protocol)
				sb := b.start()
				b.On(kubetest.Match{Resource: "pods/exec", Upgrade: "websocket"}, -1, answer)
				b.Exec("run", kubetest.Answers(exited(3, "out"), "out", "err", kubetest.Exit(0)))
				res, out := b.exec(sb, sandboxtest.Command("true"))
				if res.State != harness.ExecutionFailed || res.ExitCode == nil || *res.ExitCode != 3 || out.String("stdout") != "out" || out.String("stderr") != "err" {
					t.Errorf("%+v, %q, %q", res, out.String("stdout"), out.String("stderr"))
				}
				socket, spdy := b.Count(kubetest.Match{Op: "run", Upgrade: "websocket"}), b.Count(kubetest.Match{Op: "run", Upgrade: "spdy"})
				if socket != 1 || spdy != 1 {
					t.Errorf("%d times by WebSocket, %d by SPDY", socket, spdy)
				}
			})
		}
	}
}

// A server that fails, or has no such Pod, is no reason for another transport.
func TestStreamNoFallback(t *testing.T) {
	for name, answer := range map[string]kubetest.Answer{
		"500": kubetest.Fail(kubetest.Internal("x")), "503": kubetest.Fail(kubetest.Unavailable()), "429": kubetest.Fail(kubetest.TooMany(1)),
		"reset": kubetest.Reset(), "no node": kubetest.NoNode(),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			b.On(word("run"), -1, answer)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := b.driver.Stream(ctx, sb, []string{"run"}, strings.NewReader("{}"), io.Discard, io.Discard)
			if harness.KindOf(err) != harness.Unavailable || errors.Is(err, sandbox.ErrGone) || ctx.Err() != nil {
				t.Errorf("%v", err)
			}
			if n := b.Count(kubetest.Match{Op: "run", Upgrade: "spdy"}); n != 0 {
				t.Errorf("%d tries by SPDY", n)
			}
			if n := b.Count(word("run")); n > 40 {
				t.Errorf("%d tries: a busy loop", n)
			}
		})
	}
}

// K14: a container that its node does not know for a moment. What was to be sent
// arrives whole.
func TestStreamNoContainerAtFirst(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	b.On(word("put"), 3, kubetest.NoContainer("sandbox"))
	var got bytes.Buffer
	b.Exec("put", func(_ context.Context, x *kubetest.Exec) kubetest.Ending {
		_, _ = io.Copy(&got, x.Stdin)
		return kubetest.Exit(0)
	})
	if err := b.driver.Stream(t.Context(), sb, []string{"put"}, strings.NewReader("a file"), io.Discard, io.Discard); err != nil || got.String() != "a file" {
		t.Errorf("%v, %q", err, got.String())
	}
	if n := b.Count(word("put")); n != 4 {
		t.Errorf("%d tries, want 4", n)
	}
	// What has said anything is not begun again.
	b.Exec("run", kubetest.Prints("x", "", kubetest.Says(kubetest.Internal(`container not found ("sandbox")`))))
	if err := b.driver.Stream(t.Context(), sb, []string{"run"}, strings.NewReader("{}"), io.Discard, io.Discard); err == nil {
		t.Error("a failure was taken for the end")
	}
	if n := b.Count(word("run")); n != 1 {
		t.Errorf("%d tries after the first byte", n)
	}
}

// A node whose clock is ahead makes its containers young for ever, and not the
// tries endless.
func TestStreamNoContainerEver(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	b.Change(sb.Name, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(time.Now().Add(time.Hour))
	})
	b.On(word("put"), -1, kubetest.NoContainer("sandbox"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := b.driver.Stream(ctx, sb, []string{"put"}, strings.NewReader("a file"), io.Discard, io.Discard); harness.KindOf(err) != harness.Unavailable || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	if n := b.Count(word("put")); n < 2 {
		t.Errorf("%d tries", n)
	}
}

// B11: the kubelet evicts the Pod for its disk while a command runs.
func TestExecEvicted(t *testing.T) {
	const words = "Usage of EmptyDir volume \"workspace\" exceeds the limit \"32Mi\". "
	b := newBench(t)
	sb := b.start()
	b.Otherwise(kubetest.Begins("so far", kubetest.Stall()))
	go func() {
		b.Await(word("run"), 1)
		b.Change(sb.Name, kubetest.Ended("Evicted", words))
	}()
	begun := time.Now()
	res, out := b.exec(sb, sandboxtest.Command("true"))
	if res.State != harness.ExecutionDiskLimit || res.Reason != sandbox.ReasonEvicted || !strings.Contains(res.Message, strings.TrimSpace(words)) || res.ExitCode != nil {
		t.Errorf("%+v", res)
	}
	if strings.Contains(res.Message, "waits") {
		t.Errorf("a Pod that has ended waits for nothing: %q", res.Message)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if out.String("stdout") != "so far" {
		t.Errorf("stdout %q", out.String("stdout"))
	}
}

// B12 a: the memory limit ends the container, and the stream with it, in whatever
// words; also when the stream freezes.
func TestExecOutOfMemoryAll(t *testing.T) {
	for name, end := range map[string]kubetest.Ending{"success": kubetest.Exit(0), "137": kubetest.Exit(137), "cut": kubetest.Cut(), "frozen": kubetest.Stall()} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			b.Exec("run", func(ctx context.Context, x *kubetest.Exec) kubetest.Ending {
				kubetest.Begins("so far", end)(ctx, x)
				b.Change(sb.Name, kubetest.Terminated(137, "OOMKilled", ""))
				return end
			})
			res, _ := b.exec(sb, sandboxtest.Command("true"))
			if res.State != harness.ExecutionOutOfMemory || res.Reason != sandbox.ReasonMemory || res.ExitCode != nil || !res.Started {
				t.Errorf("%+v", res)
			}
		})
	}
}

// B12 b: the memory limit ends a child only; the sandbox goes on.
func TestExecOutOfMemoryChild(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	one := 1
	st := exited(137, "")
	st.OOMKills = &one
	b.Exec("run", kubetest.Answers(st, "", "Killed\n", kubetest.Exit(0)), kubetest.Answers(exited(0, "again"), "again", "", kubetest.Exit(0)))
	res, _ := b.exec(sb, sandboxtest.Command("true"))
	if res.State != harness.ExecutionOutOfMemory || res.Reason != sandbox.ReasonMemory || res.ExitCode == nil || *res.ExitCode != 137 {
		t.Errorf("%+v", res)
	}
	if res, out := b.exec(sb, sandboxtest.Command("true")); res.State != harness.ExecutionCompleted || out.String("stdout") != "again" {
		t.Errorf("the next: %+v", res)
	}
}

// K13: another Pod of the same name gets no command.
func TestExecAnotherPod(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	was := b.Count(execs)
	b.Remove(sb.Name)
	other := sandboxtest.New(sandboxtest.Spec())
	other.Name = sb.Name
	if _, err := b.driver.Start(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	started := b.Count(execs)
	if err := b.driver.Stream(t.Context(), sb, []string{"run"}, strings.NewReader("{}"), io.Discard, io.Discard); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("%v", err)
	}
	res, _ := b.exec(sb, sandboxtest.Command("true"))
	if res.State != harness.ExecutionUnknown && res.State != harness.ExecutionSandboxGone || res.Reason != sandbox.ReasonSandboxGone {
		t.Errorf("%+v", res)
	}
	if c, err := b.driver.Inspect(t.Context(), sb); err != nil || c.Exists {
		t.Errorf("%+v, %v", c, err)
	}
	if n := b.Count(execs); n != started || started < was {
		t.Errorf("%d execs reached a stranger", n-started)
	}
}

// K15: the Pod goes while the stream is frozen.
func TestExecPodDeleted(t *testing.T) {
	for name, watch := range map[string]kubetest.Answer{
		"watched":           kubetest.Healthy(),
		"watch ends":        kubetest.EndAfter(1),
		"watch never sends": kubetest.Silent(),
		"watch refused":     kubetest.Fail(kubetest.Internal("x")),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			b.On(watches, -1, watch)
			b.Otherwise(kubetest.Begins("so far", kubetest.Stall()))
			req := sandboxtest.Command("true")
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			res, err := sandbox.Exec(ctx, b.driver, sb, req, func(string, int64, []byte) {
				b.Await(watches, 1)
				b.Remove(sb.Name)
			})
			if err != nil {
				t.Fatal(err)
			}
			if res.State != harness.ExecutionSandboxGone || res.Reason != sandbox.ReasonSandboxGone || res.ExitCode != nil {
				t.Errorf("%+v", res)
			}
			limit := 3 * time.Second
			if name != "watched" {
				limit = 15 * time.Second
			}
			if took := time.Since(begun); took > limit {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// The API server restarts while a command runs, and is away for a while: the
// command is attached to again, and was started once.
func TestExecOverARestart(t *testing.T) {
	b := newBench(t)
	b.real()
	sb := b.start()
	go func() {
		b.Await(word("run"), 1)
		time.Sleep(500 * time.Millisecond) // so that the command has begun
		b.Restart(2 * time.Second)
	}()
	res, out := b.exec(sb, sandboxtest.Command("echo x >> count; for i in 1 2 3 4; do echo $i; sleep 1; done; wc -l < count; exit 5"))
	if res.State != harness.ExecutionFailed || res.ExitCode == nil || *res.ExitCode != 5 || res.Incomplete {
		t.Errorf("%+v", res)
	}
	if got := out.String("stdout"); got != "1\n2\n3\n4\n1\n" {
		t.Errorf("stdout %q", got)
	}
}

// A sink that blocks stops nobody but itself: it does so until a second caller
// has been told that the command is over.
func TestExecSlowSink(t *testing.T) {
	b := newBench(t)
	b.real()
	sb := b.start()
	req := sandboxtest.Command("for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero | tr '\\0' x; done")
	req.MaxOutput = 16 << 20
	var got int
	var second sandbox.Result
	var failed error
	res, err := sandbox.Exec(t.Context(), b.driver, sb, req, func(_ string, _ int64, data []byte) {
		if got == 0 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			second, failed = sandbox.Exec(ctx, b.driver, sb, req, nil)
		}
		got += len(data)
	})
	if failed != nil || second.State != harness.ExecutionCompleted {
		t.Errorf("the command waited for the sink: %+v, %v", second, failed)
	}
	if err != nil || res.State != harness.ExecutionCompleted || res.Incomplete || got != 8_000_000 {
		t.Errorf("%d bytes, %+v, %v", got, res, err)
	}
}

// A caller that gives up is answered at once, whatever the stream does.
func TestExecGivenUp(t *testing.T) {
	for _, how := range []string{"websocket", "spdy"} {
		t.Run(how, func(t *testing.T) {
			b := newBench(t)
			b.real()
			sb := b.start()
			if how == "spdy" {
				b.On(kubetest.Match{Resource: "pods/exec", Upgrade: "websocket"}, -1, kubetest.FailPlain(http.StatusBadRequest, "no"))
			}
			ctx, cancel := context.WithCancel(t.Context())
			var ended time.Time
			req := sandboxtest.Command("echo on; sleep 30")
			_, err := sandbox.Exec(ctx, b.driver, sb, req, func(string, int64, []byte) {
				ended = time.Now()
				cancel()
			})
			if !errors.Is(err, sandbox.ErrStillRunning) {
				t.Errorf("%v", err)
			}
			if took := time.Since(ended); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			// The command goes on until someone ends it.
			if err := sandbox.Cancel(t.Context(), b.driver, sb, req.ID, req.Nonce); err != nil {
				t.Errorf("cancel: %v", err)
			}
			if res, _ := b.exec(sb, req); res.State != harness.ExecutionCancelled {
				t.Errorf("%+v", res)
			}
		})
	}
}

// Transport faults one after the other cost time, never a second start.
func TestExecThroughEverything(t *testing.T) {
	b := newBench(t)
	m := b.real()
	sb := b.start()
	b.On(word("run"), 1, kubetest.Fail(kubetest.Unavailable()))
	b.On(word("status"), 1, kubetest.NoNode())
	b.On(gets, 2, kubetest.Fail(kubetest.TooMany(1)))
	b.Exec("run", kubetest.After(m.Script(), 2, kubetest.Broken()), kubetest.Instead(m.Script(), kubetest.Close(1001)))
	b.Exec("status", kubetest.Prints("", "", kubetest.Exit(1)), kubetest.Prints("", "", kubetest.Close(1000)))
	b.Exec("output", kubetest.Prints("", "", kubetest.Cut()))
	res, out := b.exec(sb, sandboxtest.Command("echo x >> count; echo one; sleep 1; echo two; wc -l < count"))
	if res.State != harness.ExecutionCompleted || res.Incomplete || out.String("stdout") != "one\ntwo\n1\n" {
		t.Errorf("%+v, %q", res, out.String("stdout"))
	}
}
