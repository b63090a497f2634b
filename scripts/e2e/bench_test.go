//go:build e2e && clusterbench

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/install"
)

// What the bench promises of a cluster.
const (
	helloRatio = 1.3 // first answer from zero, ours to hello-world's
	coldRatio  = 1.2 // a new sandbox to a bare Pod with the same init container
	warmRatio  = 1.2 // exec in a warm sandbox to raw exec
	flowRatio  = 0.8 // rate of 100 MB of output to raw exec's
	idleShare  = 0.2 // pod-seconds to those of one pod of each Service
)

const (
	flow    = 100_000_000 // bytes
	flows   = 5
	crowd   = 20
	fromOff = 6 // requests to no pod, of each side
)

// benchSettings are of the environment, as the others of these tests.
func benchSettings(t *testing.T) (window, between time.Duration, file string) {
	t.Helper()
	window, between = 9*time.Minute, 3*time.Minute // 20 messages an hour
	for name, d := range map[string]*time.Duration{"BENCH_WINDOW": &window, "BENCH_BETWEEN": &between} {
		if text := os.Getenv(name); text != "" {
			var err error
			if *d, err = time.ParseDuration(text); err != nil || *d <= 0 {
				t.Fatalf("%s is %q: write a duration, as in 9m", name, text)
			}
		}
	}
	return window, between, os.Getenv("BENCH_JSON")
}

// TestBench measures the product beside what the cluster can do without it. What
// misses its target is said in the table and is no failure.
func TestBench(t *testing.T) {
	s := under
	window, between, file := benchSettings(t)
	// Small enough that bare Pods find room beside all sandboxes of the agent.
	const block = `{cpu: 200m, memory: 256Mi, volumeSize: 256Mi, timeoutSeconds: 120, ttlSeconds: 300, idleSeconds: 30, egress: none}`
	h, err := s.makeHook(t.Context(), "bench", block, "")
	must(t, err)
	var figures []figure.Figure
	for _, part := range []struct {
		name    string
		measure func(*testing.T, *system, *hook) []figure.Figure
	}{
		{"from zero", benchFromZero},
		{"cold", benchCold},
		{"warm", benchWarm},
		{"at once", benchAtOnce},
		{"quiet", func(t *testing.T, s *system, h *hook) []figure.Figure { return benchQuiet(t, s, h, window, between) }},
	} {
		t.Run(part.name, func(t *testing.T) { figures = append(figures, part.measure(t, s, h)...) })
	}
	figure.Print(os.Stdout, figures)
	must(t, figure.Write(file, figures))
}

func millis(times []time.Duration) []float64 {
	values := make([]float64, len(times))
	for i, d := range times {
		values[i] = figure.Milliseconds(d)
	}
	return values
}

// ratios are those of two sides that were measured in turn.
func ratios(a, b []time.Duration) []float64 {
	values := make([]float64, len(a))
	for i := range a {
		values[i] = a[i].Seconds() / b[i].Seconds()
	}
	return values
}

// helloYAML is the sample's Service with the resources and the window that
// webhook-ingest has.
const helloYAML = `apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, namespace: @WORLD@}
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/window: 20s
        autoscaling.knative.dev/scale-to-zero-pod-retention-period: 0s
    spec:
      containers:
        - image: ko://tuluat.ai/harness/scripts/bench/hello
          resources:
            requests: {cpu: 50m, memory: 64Mi}
            limits: {cpu: "1", memory: 512Mi}
`

// benchFromZero asks webhook-ingest and hello-world, each without a pod, in turn.
func benchFromZero(t *testing.T, s *system, h *hook) []figure.Figure {
	ctx := t.Context()
	yaml, err := install.Resolve(ctx, s.home, []byte(strings.ReplaceAll(helloYAML, "@WORLD@", s.world())), os.Stderr)
	must(t, err)
	_, err = s.cluster.kubectl(ctx, string(yaml), "apply", "-f", "-")
	must(t, err)
	_, err = s.cluster.kubectl(ctx, "", "-n", s.world(), "wait", "--for=condition=Ready", "--timeout=300s", "services.serving.knative.dev/hello")
	must(t, err)
	url, err := s.cluster.kubectl(ctx, "", "-n", s.world(), "get", "services.serving.knative.dev", "hello", "-o", "jsonpath={.status.url}")
	must(t, err)
	s.ingress.hosts["hello"], err = hostOf(url)
	must(t, err)
	var ours, hello []time.Duration
	for n := range fromOff {
		must(t, s.awaitNoPod(ctx, s.systems(), "webhook-ingest"))
		must(t, s.awaitNoPod(ctx, s.world(), "hello"))
		body, err := json.Marshal(map[string]any{"messageId": fmt.Sprint("zero-", n, "-", time.Now().UnixNano()), "channelUserId": "ann", "chat": "zero", "text": "hello"})
		must(t, err)
		// Whoever is first changes, so that a warm node is nobody's advantage.
		for turn := range 2 {
			began := time.Now()
			if turn == n%2 {
				status, answer, err := h.post(ctx, body)
				must(t, err)
				if status != http.StatusAccepted {
					t.Fatalf("webhook-ingest answers %d %s", status, answer)
				}
				ours = append(ours, time.Since(began))
				continue
			}
			status, answer, err := s.ingress.send(ctx, "hello", http.MethodGet, "/", nil, nil)
			must(t, err)
			if status != http.StatusOK {
				t.Fatalf("hello answers %d %s", status, answer)
			}
			hello = append(hello, time.Since(began))
		}
	}
	delete(s.ingress.hosts, "hello")
	_, err = s.cluster.kubectl(ctx, "", "-n", s.world(), "delete", "services.serving.knative.dev", "hello")
	must(t, err)
	return []figure.Figure{
		figure.Of("first answer from no pod: webhook-ingest, signed message stored", "ms", millis(ours)...),
		figure.Of("first answer from no pod: hello-world", "ms", millis(hello)...),
		figure.Of("first answer from no pod, ours / hello-world", "ratio", ratios(ours, hello)...).AtMost(helloRatio, "at most 1.3"),
	}
}

// awaitNoPod returns when no Pod of the Service is left, also none that ends.
func (s *system) awaitNoPod(ctx context.Context, namespace, service string) error {
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		pods, err := s.cluster.pods(ctx, namespace, "serving.knative.dev/service="+service)
		if err != nil {
			return false, err.Error()
		}
		return len(pods) == 0, podNames(pods)
	})
	if !ok {
		return fmt.Errorf("there is always a pod of %s: %s", service, state)
	}
	return nil
}

func benchCold(t *testing.T, s *system, h *hook) []figure.Figure {
	m := measureStarts(t, s, h, 2*starts)
	return []figure.Figure{
		figure.Of("event to the first instruction of a command, new sandbox", "ms", millis(m.ours)...),
		figure.Of("bare Pod with the same init container, creation until it runs", "ms", millis(m.bare)...),
		figure.Of("plain Pod without it", "ms", millis(m.plain)...),
		figure.Of("new sandbox / bare Pod with the same init container", "ratio", ratios(m.ours, m.bare)...).AtMost(coldRatio, "at most 1.2"),
	}
}

func benchWarm(t *testing.T, s *system, h *hook) []figure.Figure {
	w := s.warmSandbox(t, h)
	var ours, raw []time.Duration
	for i := range execs + 2 {
		took, _ := w.proved(t, "true")
		alone, _ := w.raw(t, "true")
		if i >= 2 { // connections are warm
			ours, raw = append(ours, took), append(raw, alone)
		}
	}
	w = s.warmSandbox(t, h) // the first may have ended meanwhile
	var out, bare []time.Duration
	print := []string{"head", "-c", strconv.Itoa(flow), "/dev/zero"}
	for i := range flows + 1 {
		took, n := w.proved(t, print...)
		alone, m := w.raw(t, print...)
		if n != flow || m != flow {
			t.Fatalf("%d bytes were printed; the driver counts %d, %d came through raw exec", flow, n, m)
		}
		if i > 0 {
			out, bare = append(out, took), append(bare, alone)
		}
	}
	return []figure.Figure{
		figure.Of("`true` in a warm sandbox, proved", "ms", millis(ours)...),
		figure.Of("raw exec of `true`", "ms", millis(raw)...),
		figure.Of("warm exec / raw exec", "ratio", ratios(ours, raw)...).AtMost(warmRatio, "at most 1.2"),
		figure.Of("100 MB of output, proved, taken as far as kept", "ms", millis(out)...),
		figure.Of("100 MB of output by raw exec", "ms", millis(bare)...),
		figure.Of("rate of 100 MB of output, ours / raw exec", "ratio", ratios(bare, out)...).AtLeast(flowRatio, "at least 0.8"),
	}
}

// crowdBlock is small enough that a small cluster has room for all at once.
const crowdBlock = `{cpu: 20m, memory: 32Mi, volumeSize: 4Mi, timeoutSeconds: 120, ttlSeconds: 300, idleSeconds: 15, egress: none}`

// benchAtOnce lets 20 chats of five agents have a command at once, each in a new
// sandbox, beside as many bare Pods.
func benchAtOnce(t *testing.T, s *system, _ *hook) []figure.Figure {
	ctx := t.Context()
	var hooks [5]*hook // each with as many sandboxes as such an agent may have
	for n := range hooks {
		var err error
		hooks[n], err = s.makeHook(ctx, fmt.Sprint("crowd-", n), crowdBlock, "")
		must(t, err)
	}
	h := hooks[0]
	if _, err := h.ask(ctx, patience, "run: : crowd-first"); err != nil { // the functions wake up
		t.Fatal(err)
	}
	e, err := h.awaitExecution(ctx, patience, "crowd-first", hasEnded)
	must(t, err)
	model, err := s.cluster.client.CoreV1().Pods(s.sandboxes()).Get(ctx, *e.Name, metav1.GetOptions{})
	must(t, err)
	ours, err := together(func(n int) error {
		_, err := hooks[n%len(hooks)].in(fmt.Sprint("crowd-", n)).ask(ctx, patience, "run: true")
		return err
	})
	must(t, err)
	must(t, s.awaitNoSandbox(ctx))
	bare, err := together(func(int) error {
		_, err := s.barePod(ctx, model, true)
		return err
	})
	must(t, err)
	return []figure.Figure{
		figure.Of("20 messages at once, each with a new sandbox: until the last answer", "ms", figure.Milliseconds(ours)),
		figure.Of("20 bare Pods at once: until the last one runs", "ms", figure.Milliseconds(bare)),
		figure.Of("20 at once, ours / bare Pods", "ratio", ours.Seconds()/bare.Seconds()),
	}
}

func together(do func(n int) error) (time.Duration, error) {
	var running sync.WaitGroup
	failed := make([]error, crowd)
	began := time.Now()
	for n := range crowd {
		running.Go(func() { failed[n] = do(n) })
	}
	running.Wait()
	return time.Since(began), errors.Join(failed...)
}

func (s *system) awaitNoSandbox(ctx context.Context) error {
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		pods, err := s.cluster.pods(ctx, s.sandboxes(), "")
		if err != nil {
			return false, err.Error()
		}
		return len(pods) == 0, podNames(pods)
	})
	if !ok {
		return fmt.Errorf("sandboxes do not end: %s", state)
	}
	return nil
}

// benchQuiet counts the time of pods while a message comes every few minutes, and
// says what one pod of each Service would have had. Pods that drain count, and so
// do Knative's adapters of our sources, on both sides.
func benchQuiet(t *testing.T, s *system, h *hook, window, between time.Duration) []figure.Figure {
	ctx := t.Context()
	must(t, s.atZero(ctx))
	services, err := s.cluster.kubectl(ctx, "", "-n", s.systems(), "get", "services.serving.knative.dev", "-o", "name")
	must(t, err)
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	var talking sync.WaitGroup
	talking.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if _, err := h.in(fmt.Sprint("quiet-", n)).ask(ctx, patience, "hello"); err != nil && ctx.Err() == nil {
				t.Errorf("message %d: %v", n, err)
			}
			pause(ctx, between)
		}
	})
	var functions, adapters, none, all time.Duration
	last := time.Now()
	for pause(ctx, 500*time.Millisecond) {
		pods, err := s.ourPods(ctx)
		if err != nil {
			break // the time is over in the middle of a question
		}
		span := time.Since(last)
		last = last.Add(span)
		all += span
		if pods.functions == 0 {
			none += span
		}
		functions += time.Duration(pods.functions) * span
		adapters += time.Duration(pods.adapters) * span
	}
	talking.Wait()
	n := len(strings.Fields(services))
	always := time.Duration(n)*all + adapters
	perHour := func(d time.Duration) float64 { return d.Seconds() * float64(time.Hour) / float64(all) }
	return []figure.Figure{
		figure.Of(fmt.Sprintf("a message every %s: pod-seconds of functions per hour", between), "s", perHour(functions)),
		figure.Of("pod-seconds of Knative's adapters of our sources per hour", "s", perHour(adapters)),
		figure.Of(fmt.Sprintf("always on: pod-seconds of %d Services and the adapters per hour, reckoned", n), "s", perHour(always)),
		figure.Of("share of the time without a pod of a function", "ratio", none.Seconds()/all.Seconds()),
		figure.Of("pod-seconds, ours / always on", "ratio", (functions+adapters).Seconds()/always.Seconds()).AtMost(idleShare, "at most 0.2"),
	}
}

// podCount is how many Pods there are, those that end included.
type podCount struct{ functions, adapters int }

func (s *system) ourPods(ctx context.Context) (n podCount, err error) {
	for _, namespace := range []string{s.systems(), s.agents()} {
		pods, err := s.cluster.pods(ctx, namespace, "")
		if err != nil {
			return n, err
		}
		for _, pod := range pods {
			switch {
			case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
			case pod.Labels["serving.knative.dev/service"] != "":
				n.functions++
			case pod.Labels["eventing.knative.dev/source"] != "" || pod.Labels["sources.knative.dev/role"] != "":
				n.adapters++
			}
		}
	}
	return n, nil
}
