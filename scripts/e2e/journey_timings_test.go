//go:build e2e

package e2e_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/kubernetes"
)

// journeyTimings measures beside what the cluster itself can do, in the same run.
// What is over its bound is said in the table: figures of a busy machine are no
// reason to fail.
func journeyTimings(t *testing.T, s *system) {
	// The largest share that two cores leave beside the functions: the cluster's
	// own time is compared, not the kernel's throttling.
	const block = `{cpu: 500m, memory: 128Mi, volumeSize: 16Mi, timeoutSeconds: 60, ttlSeconds: 300, idleSeconds: 15, egress: none}`
	h, err := s.makeHook(t.Context(), "timed", block, "")
	must(t, err)
	t.Run("start", func(t *testing.T) { timeStarts(t, s, h) })
	t.Run("exec", func(t *testing.T) { timeExecs(t, s, h) })
	t.Run("warm", func(t *testing.T) { timeWarm(t, s) })
	t.Run("from zero", func(t *testing.T) { timeFromZero(t, s) })
}

const starts = 8

// timeStarts compares the time from an event to the first instruction of its
// command in a new sandbox with that of bare Pods.
func timeStarts(t *testing.T, s *system, h *hook) {
	m := measureStarts(t, s, h, starts)
	own, bound := quantile(m.ours, 0.5), quantile(m.bare, 0.5)
	ratio := float64(own) / float64(bound)
	s.figures.add("timings", "event to command start, new sandbox", spread(m.ours), "")
	s.figures.add("timings", "event to RUNNING committed", spread(m.rows), "")
	s.figures.add("timings", "bare Pod, same image and init container, create to running", spread(m.bare), "")
	s.figures.add("timings", "plain Pod, same image, create to running", spread(m.plain), "")
	s.figures.add("timings", "event to command start / bare Pod", fmt.Sprintf("%.2f", ratio), "1.25")
	t.Logf("event to command start %v, bare %v, plain %v", m.ours, m.bare, m.plain)
}

// startTimes are those of new sandboxes and of bare Pods, in turn.
type startTimes struct {
	ours, rows []time.Duration // from the event to the command's first instruction, and to RUNNING in its row
	bare       []time.Duration // of a Pod with the same image and init container, from its creation until it runs
	plain      []time.Duration // of one without the init container
	model      *corev1.Pod     // a sandbox, as the bare Pods are made
}

func measureStarts(t *testing.T, s *system, h *hook, n int) startTimes {
	t.Helper()
	ctx := t.Context()
	var m startTimes
	for i := range n + 1 {
		mark := fmt.Sprintf("start-%d", i)
		began := h.in(mark)
		if _, err := began.ask(ctx, patience, "run: date +%s.%N; : "+mark); err != nil {
			t.Fatal(err)
		}
		e, err := began.awaitExecution(ctx, patience, ": "+mark, hasEnded)
		must(t, err)
		if e.State != "COMPLETED" {
			t.Fatalf("%s is %s %q", mark, e.State, e.Reason)
		}
		if i == 0 { // the function may have slept; its sandbox is the model of the bare Pods
			m.model, err = s.cluster.client.CoreV1().Pods(s.sandboxes()).Get(ctx, *e.Name, metav1.GetOptions{})
			must(t, err)
			continue
		}
		at, err := strconv.ParseFloat(strings.TrimSpace(e.Output), 64)
		must(t, err)
		m.ours = append(m.ours, time.Unix(0, int64(at*1e9)).Sub(e.CreatedAt))
		m.rows = append(m.rows, e.StartedAt.Sub(e.CreatedAt))
		// In turns, so that what else the machine does falls on all alike.
		took, err := s.barePod(ctx, m.model, true)
		must(t, err)
		m.bare = append(m.bare, took)
		took, err = s.barePod(ctx, m.model, false)
		must(t, err)
		m.plain = append(m.plain, took)
		t.Logf("start %d of %d: new sandbox %s, bare Pod %s, plain Pod %s", i, n, short(m.ours[i-1]), short(m.bare[i-1]), short(took))
	}
	return m
}

// likeSandbox is a Pod as a sandbox has it, with or without its init container,
// that nobody of the product knows.
func likeSandbox(model *corev1.Pod, withInit bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare-" + strings.ToLower(rand.Text()[:8])}, Spec: *model.Spec.DeepCopy()}
	pod.Spec.NodeName, pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount, pod.Spec.PriorityClassName, pod.Spec.Priority = "", "", "", "", nil
	if !withInit {
		pod.Spec.InitContainers = nil
		pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args = []string{"sleep", "60"}, nil
	}
	return pod
}

// barePod makes such a Pod and returns the time from the request to the moment
// that the API server shows its container running.
func (s *system) barePod(ctx context.Context, model *corev1.Pod, withInit bool) (time.Duration, error) {
	pod := likeSandbox(model, withInit)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	pods := s.cluster.client.CoreV1().Pods(s.world())
	watch, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	if err != nil {
		return 0, err
	}
	defer watch.Stop()
	now := int64(0)
	defer func() {
		_ = pods.Delete(context.WithoutCancel(ctx), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	}()
	began := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	for e := range watch.ResultChan() {
		p, ok := e.Object.(*corev1.Pod)
		if ok && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil {
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("the bare Pod %s does not run: %w", pod.Name, context.Cause(ctx))
}

const execs = 40

// timeExecs compares `true` through the driver in a warm sandbox with a raw exec
// of the same in the same Pod.
func timeExecs(t *testing.T, s *system, h *hook) {
	w := s.warmSandbox(t, h)
	var ours, raw []time.Duration
	for i := range execs + 2 {
		took, _ := w.proved(t, "true")
		alone, _ := w.raw(t, "true")
		if i >= 2 { // connections are warm
			ours, raw = append(ours, took), append(raw, alone)
		}
	}
	own, bound := quantile(ours, 0.5), quantile(raw, 0.5)
	ratio := float64(own) / float64(bound)
	s.figures.add("timings", "exec of true in a warm sandbox, proved", spread(ours), "")
	s.figures.add("timings", "raw client-go exec of true", spread(raw), "")
	s.figures.add("timings", "exec / raw exec", fmt.Sprintf("%.2f", ratio), "1.3")
}

// warmSandbox is one that a command has run in, with a driver of our own.
type warmSandbox struct {
	s      *system
	box    sandbox.Sandbox
	driver *kubernetes.Driver
}

func (s *system) warmSandbox(t *testing.T, h *hook) warmSandbox {
	t.Helper()
	ctx := t.Context()
	if _, err := h.in("exec").ask(ctx, patience, "run: : exec-place"); err != nil {
		t.Fatal(err)
	}
	e, err := h.awaitExecution(ctx, patience, "exec-place", hasEnded)
	must(t, err)
	w := warmSandbox{s: s, box: sandbox.Sandbox{ID: harness.SandboxID(*e.SandboxID), Name: *e.Name, UID: e.UID, Agent: harness.AgentName(h.name), ExpiresAt: time.Now().Add(time.Minute)}}
	images := t.TempDir()
	must(t, os.WriteFile(filepath.Join(images, "default"), []byte(s.settings.standard), 0o600))
	w.driver, err = kubernetes.New(kubernetes.Options{Config: s.cluster.config, Namespace: s.sandboxes(), RunnerImage: "not-started-here", ImagesDir: images})
	must(t, err)
	return w
}

// proved runs a command through the driver and says how much it printed. Of a
// stream the sandbox keeps 32 MiB at most; the rest is drained and counted.
func (w warmSandbox) proved(t *testing.T, command ...string) (took time.Duration, printed int64) {
	t.Helper()
	began := time.Now()
	result, err := sandbox.Exec(t.Context(), w.driver, w.box, sandbox.Request{
		ID: harness.ExecutionID("exe_" + strings.ToLower(rand.Text())), Nonce: rand.Text(), Command: command, Timeout: 2 * time.Minute, MaxOutput: 1 << 30,
	}, func(string, int64, []byte) {})
	took = time.Since(began)
	must(t, err)
	if result.State != harness.ExecutionCompleted {
		t.Fatalf("%q is %s %s %q", command, result.State, result.Reason, result.Message)
	}
	return took, result.StdoutBytes
}

// raw runs it as kubectl does, and counts too.
func (w warmSandbox) raw(t *testing.T, command ...string) (took time.Duration, printed int64) {
	t.Helper()
	var n counting
	began := time.Now()
	must(t, w.s.cluster.execTo(t.Context(), &n, w.s.sandboxes(), w.box.Name, "sandbox", command...))
	return time.Since(began), int64(n)
}

// counting takes what is written and keeps how much it was.
type counting int64

func (c *counting) Write(p []byte) (int, error) {
	*c += counting(len(p))
	return len(p), nil
}

// timeWarm measures a message to its reply, all functions awake.
func timeWarm(t *testing.T, s *system) {
	ann, err := s.outside.onWhatsApp(t.Context(), sampleNumber, "15552000002")
	must(t, err)
	var times []time.Duration
	for i := range 42 {
		said, answered, err := ann.ask(t.Context(), patience, "hello")
		must(t, err)
		if i >= 2 {
			times = append(times, answered.At.Sub(said.At))
		}
	}
	s.figures.add("timings", "message to reply, warm", spread(times), "")
}

// timeFromZero measures the same with no function pod at all.
func timeFromZero(t *testing.T, s *system) {
	ctx := t.Context()
	ann, err := s.outside.onWhatsApp(ctx, sampleNumber, "15552000002")
	must(t, err)
	var times []time.Duration
	for range 4 {
		state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
			functions, _, err := s.functionPods(ctx)
			if err != nil {
				return false, err.Error()
			}
			return len(functions) == 0, fmt.Sprint(functions)
		})
		if !ok {
			t.Fatalf("there is always a function pod: %s", state)
		}
		said, answered, err := ann.ask(ctx, patience, "hello")
		must(t, err)
		times = append(times, answered.At.Sub(said.At))
	}
	s.figures.add("timings", "message to reply, from zero", spread(times), "")
}

// touch wakes a function from inside the cluster, and says how long it took.
func (s *system) touch(ctx context.Context, service string) (time.Duration, error) {
	target := fmt.Sprintf("http://%s.%s.svc.cluster.local/healthz", service, s.systems())
	began := time.Now()
	var answer struct{ Status int }
	if err := s.outside.call(ctx, http.MethodPost, portControl, "/touch?url="+url.QueryEscape(target), nil, &answer); err != nil {
		return 0, err
	}
	if answer.Status != http.StatusOK {
		return 0, fmt.Errorf("%s answers %d", service, answer.Status)
	}
	return time.Since(began), nil
}
