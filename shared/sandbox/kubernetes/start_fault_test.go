package kubernetes_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/kubernetes"
	"tuluat.ai/harness/shared/sandbox/kubernetes/kubetest"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

// B09: two creations that meet in the books of a quota are no failure.
func TestStartQuotaConflict(t *testing.T) {
	b := newBench(t)
	b.On(creates, 2, kubetest.Fail(kubetest.QuotaConflict()))
	sb := b.start()
	if n := b.Count(creates); n != 3 {
		t.Errorf("%d creations, want 3", n)
	}
	if pods := b.Pods(); len(pods) != 1 || string(pods[0].UID) != sb.UID {
		t.Errorf("%d Pods", len(pods))
	}
}

// B09: a quota that always conflicts is given up soon, and is no fault of the spec.
func TestStartQuotaConflictForEver(t *testing.T) {
	b := newBench(t)
	b.On(creates, -1, kubetest.Fail(kubetest.QuotaConflict()))
	_, err := b.driver.Start(t.Context(), sandboxtest.New(sandboxtest.Spec()))
	b.fails(err, harness.Exhausted, sandbox.ReasonCapacity)
	if n := b.Count(creates); n < 2 || n > 10 {
		t.Errorf("%d creations", n)
	}
}

// What the API server refuses is answered once, in its own words, by who can mend
// it, and is not tried again.
func TestStartRefused(t *testing.T) {
	for name, test := range map[string]struct {
		status metav1.Status
		kind   harness.Kind
		reason sandbox.Reason
		says   string
	}{
		"quota":        {kubetest.QuotaExceeded("x"), harness.Exhausted, sandbox.ReasonCapacity, "limits.cpu=8"},
		"Pod Security": {kubetest.PodSecurity("x"), harness.Invalid, sandbox.ReasonSpec, "allowPrivilegeEscalation"},
		"limit range":  {kubetest.LimitRange("x"), harness.Invalid, sandbox.ReasonSpec, "maximum memory usage per Container is 1Gi"},
		"class":        {kubetest.NoRuntimeClass("x", "gvisor"), harness.Invalid, sandbox.ReasonSpec, `"gvisor" not found`},
		"namespace":    {kubetest.NamespaceTerminating("x", namespace), harness.Unavailable, sandbox.ReasonStartFailed, namespace},
		"right":        {kubetest.NoRight("create", "pods", "x"), harness.Invalid, sandbox.ReasonSpec, `cannot create resource "pods"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.On(creates, -1, kubetest.Fail(test.status))
			_, err := b.driver.Start(t.Context(), sandboxtest.New(sandboxtest.Spec()))
			if said := b.fails(err, test.kind, test.reason); !strings.Contains(said, test.says) {
				t.Errorf("%q says nothing of %q", said, test.says)
			}
			if n := b.Count(creates); n != 1 {
				t.Errorf("%d creations, want 1", n)
			}
			b.noPod()
		})
	}
}

// B10 and its kind: no state in which a Pod stays Pending for ever outlives the
// start's time, the message says what to mend, and the Pod is deleted.
func TestStartStuck(t *testing.T) {
	const (
		atOnce = 15 * time.Second // with the usual timeout
		inTime = shortTimeout + 8*time.Second
	)
	for name, test := range map[string]struct {
		life   kubetest.Life
		kind   harness.Kind
		reason sandbox.Reason
		within time.Duration
		says   []string
	}{
		"image pull": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.Waiting("ErrImagePull", "not found"), kubetest.Waiting("ImagePullBackOff", "Back-off pulling image")),
			harness.Invalid, sandbox.ReasonImage, inTime,
			[]string{image},
		},
		"image name": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.Waiting("InvalidImageName", "couldn't parse image name")),
			harness.Invalid, sandbox.ReasonImage, atOnce,
			[]string{image, "couldn't parse"},
		},
		"never pull": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.Waiting("ErrImageNeverPull", "not present with pull policy of Never")),
			harness.Invalid, sandbox.ReasonImage, atOnce,
			[]string{image},
		},
		"config": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.Waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")),
			harness.Invalid, sandbox.ReasonSpec, atOnce,
			[]string{"will run as root"},
		},
		"create": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.Waiting("CreateContainerError", "failed to reserve container name")),
			harness.Unavailable, sandbox.ReasonStartFailed, inTime,
			[]string{"reserve container name"},
		},
		"run": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.Waiting("RunContainerError", "exec format error")),
			harness.Unavailable, sandbox.ReasonStartFailed, inTime,
			[]string{"exec format error"},
		},
		"runner's image": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.InitWaiting("InvalidImageName", "no such name")),
			harness.Unavailable, sandbox.ReasonImage, atOnce,
			[]string{"registry.example/runner:1"},
		},
		"init container": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.InitFailed(1, "Error", "no space left on device")),
			harness.Unavailable, sandbox.ReasonStartFailed, atOnce,
			[]string{"no space left on device"},
		},
		"no node": {
			kubetest.Steps(kubetest.Unschedulable("0/3 nodes are available: 3 Insufficient memory.")),
			harness.Exhausted, sandbox.ReasonCapacity, inTime,
			[]string{"Insufficient memory"},
		},
		"nothing happens": {
			kubetest.Steps(),
			harness.Unavailable, sandbox.ReasonStartTimeout, inTime, nil,
		},
		"container ended": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.Terminated(127, "StartError", "no such file or directory")),
			harness.Unavailable, sandbox.ReasonStartFailed, atOnce,
			[]string{"no such file"},
		},
		"node has no room": {
			kubetest.Steps(kubetest.Ended("OutOfcpu", "Node didn't have enough resource: cpu")),
			harness.Exhausted, sandbox.ReasonCapacity, atOnce,
			[]string{"enough resource: cpu"},
		},
		"network open": {
			kubetest.Steps(kubetest.Scheduled(), kubetest.Running(), kubetest.Terminated(3, "Error", `{"reason":"NETWORK_OPEN","error":"169.254.169.254:80 answers"}`)),
			harness.Unavailable, sandbox.ReasonNetwork, atOnce, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(o *kubernetes.Options) {
				if test.within == inTime {
					o.StartTimeout = shortTimeout
				}
			})
			b.Lives(test.life)
			begun := time.Now()
			_, err := b.driver.Start(t.Context(), sandboxtest.New(sandboxtest.Spec()))
			if took := time.Since(begun); took > test.within {
				t.Errorf("it took %v, want %v at most", took, test.within)
			}
			said := b.fails(err, test.kind, test.reason)
			for _, want := range test.says {
				if !strings.Contains(said, want) {
					t.Errorf("%q says nothing of %q", said, want)
				}
			}
			b.noPod()
			if n := b.Count(creates); n != 1 {
				t.Errorf("%d creations", n)
			}
		})
	}
}

// A state that passes by itself is no failure.
func TestStartThatHesitates(t *testing.T) {
	b := newBench(t)
	b.Lives(kubetest.Later(kubetest.Steps(kubetest.Unschedulable("0/1 nodes"), kubetest.Scheduled(), kubetest.Waiting("ErrImagePull", "timeout")),
		time.Second, kubetest.Steps(kubetest.Running())))
	b.On(execs, 2, kubetest.NoContainer("sandbox")) // K14
	b.start()
}

// A creation whose answer is lost is found by its name: no second Pod, and none
// that nobody knows of.
func TestStartAnswerLost(t *testing.T) {
	for name, answer := range map[string]kubetest.Answer{
		"500":        kubetest.DoneThen(kubetest.Internal("etcdserver: request timed out")),
		"503":        kubetest.DoneThen(kubetest.Unavailable()),
		"reset":      kubetest.DoneThenReset(),
		"plain 502":  func(c *kubetest.Call) { kubetest.DoneThen(metav1.Status{Code: http.StatusBadGateway})(c) },
		"not at all": kubetest.Reset(),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.On(creates, 1, answer)
			sb := sandboxtest.New(sandboxtest.Spec())
			uid, err := b.driver.Start(t.Context(), sb)
			found, listErr := b.driver.List(t.Context())
			if listErr != nil {
				t.Fatal(listErr)
			}
			if err == nil { // found, and used
				if len(found) != 1 || found[0].UID != uid {
					t.Errorf("started as %s; there are %+v", uid, found)
				}
				return
			}
			if harness.KindOf(err) != harness.Unavailable {
				t.Errorf("%v, want what may be tried again", err)
			}
			if uid, err = b.driver.Start(t.Context(), sb); err != nil || len(b.Pods()) != 1 || string(b.Pods()[0].UID) != uid {
				t.Errorf("again: %s, %v, %d Pods", uid, err, len(b.Pods()))
			}
			b.leftIsFound(sb)
		})
	}
}

// Starting again what is there already returns it; a stranger's is left alone.
func TestStartAgain(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	if uid, err := b.driver.Start(t.Context(), sb); err != nil || uid != sb.UID {
		t.Errorf("again: %s, %v", uid, err)
	}
	other := sandboxtest.New(sandboxtest.Spec())
	other.Name = sb.Name
	_, err := b.driver.Start(t.Context(), other)
	b.fails(err, harness.Conflict, sandbox.ReasonTaken)
	if pods := b.Pods(); len(pods) != 1 || string(pods[0].UID) != sb.UID || pods[0].DeletionTimestamp != nil {
		t.Errorf("the sandbox was touched: %+v", pods)
	}
	b.Change(sb.Name, kubetest.Terminated(0, "Completed", ""))
	_, err = b.driver.Start(t.Context(), sb)
	b.fails(err, harness.NotFound, sandbox.ReasonEnded)
}

// A watch that is of no use delays a start; it does not fail it.
func TestStartWithoutWatch(t *testing.T) {
	for name, answer := range map[string]kubetest.Answer{
		"ends early":        kubetest.EndAfter(1),
		"expired event":     kubetest.ExpiredWatch(),
		"410":               kubetest.Fail(kubetest.Expired()),
		"500":               kubetest.Fail(kubetest.Internal("x")),
		"reset":             kubetest.Reset(),
		"never answers":     kubetest.Slow(time.Hour, kubetest.Healthy()),
		"accepts and stays": kubetest.Silent(),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.On(watches, -1, answer)
			b.Lives(kubetest.Later(kubetest.Steps(kubetest.Scheduled()), 500*time.Millisecond, kubetest.Steps(kubetest.Running())))
			b.start()
			if n := b.Count(watches); n > 60 {
				t.Errorf("%d watches: a busy loop", n)
			}
		})
	}
}

// The API server goes away and comes back while a sandbox starts.
func TestStartOverARestart(t *testing.T) {
	b := newBench(t)
	b.Lives(kubetest.Later(kubetest.Steps(kubetest.Scheduled()), 1500*time.Millisecond, kubetest.Steps(kubetest.Running())))
	go func() {
		b.Await(watches, 1)
		b.Restart(time.Second)
	}()
	b.start()
	if n := len(b.Pods()); n != 1 {
		t.Errorf("%d Pods", n)
	}
}

// Someone deletes the Pod while it starts.
func TestStartRemovedMeanwhile(t *testing.T) {
	b := newBench(t)
	b.Lives(kubetest.Steps(kubetest.Scheduled()))
	sb := sandboxtest.New(sandboxtest.Spec())
	go func() {
		b.Await(watches, 1)
		b.Remove(sb.Name)
	}()
	begun := time.Now()
	_, err := b.driver.Start(t.Context(), sb)
	b.fails(err, harness.Unavailable, sandbox.ReasonStartFailed)
	if took := time.Since(begun); took > startTimeout/3 {
		t.Errorf("it took %v", took)
	}
}

// A caller that gives up waits for nothing, and what it leaves is deleted or found.
func TestStartGivenUp(t *testing.T) {
	for name, life := range map[string]kubetest.Life{"pending": kubetest.Steps(), "running, and nobody answers": kubetest.Healthily()} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(o *kubernetes.Options) { o.StartTimeout = time.Minute })
			b.Lives(life)
			b.Otherwise(kubetest.Prints("", "", kubetest.Stall()))
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			var ended time.Time
			go func() {
				if name == "pending" {
					b.Await(watches, 1)
				} else {
					b.Await(execs, 1)
				}
				ended = time.Now()
				cancel(enough)
			}()
			sb := sandboxtest.New(sandboxtest.Spec())
			_, err := b.driver.Start(ctx, sb)
			b.fails(err, harness.Unavailable, sandbox.ReasonStartTimeout)
			if took := time.Since(ended); took > time.Second {
				t.Errorf("it took %v after the end of its context", took)
			}
			b.leftIsFound(sb)
		})
	}
}

// B08 at the start: a right that is missing is told at once, by name.
func TestStartMayNotExec(t *testing.T) {
	b := newBench(t)
	b.On(execs, -1, kubetest.Fail(kubetest.NoRight("get", "pods/exec", "x")))
	begun := time.Now()
	_, err := b.driver.Start(t.Context(), sandboxtest.New(sandboxtest.Spec()))
	said := b.fails(err, harness.Denied, sandbox.ReasonRefused)
	for _, want := range []string{"get", "create", "pods/exec", namespace} {
		if !strings.Contains(said, want) {
			t.Errorf("%q does not name %q", said, want)
		}
	}
	if took := time.Since(begun); took > startTimeout/3 {
		t.Errorf("it took %v", took)
	}
	b.noPod()
}
