//go:build e2e

package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/scripts/internal/counted"
)

// journeyChat: the sample agent is applied as a resource, somebody writes to it
// on WhatsApp, and the answer holds what a command in a Pod printed.
func journeyChat(t *testing.T, s *system) {
	ctx := t.Context()
	began := time.Now()
	must(t, s.applySample(ctx))
	r, err := s.awaitAgent(ctx, patience, sampleAgent, ready)
	must(t, err)
	t.Logf("%s is %s, revision %d", sampleAgent, r.Status.Phase, r.Status.Revision)
	s.figures.add("chat", "kubectl apply to READY", short(time.Since(began)), "")

	ann, err := s.outside.onWhatsApp(ctx, sampleNumber, "15552000001")
	must(t, err)
	// /proc/sys/kernel/hostname is the Pod's name, told by the kernel.
	const command = `run: python3 -c 'print("six times seven is", 6*7)'; cat /proc/sys/kernel/hostname`
	said, answered, err := ann.ask(ctx, patience, command)
	must(t, err)
	s.figures.add("chat", "first message ever to reply, WhatsApp", short(answered.At.Sub(said.At)), "")
	t.Logf("WhatsApp: %q", answered.Text)
	text, name, _ := strings.Cut(printed(answered.Text), "\n")
	if text != "six times seven is 42" {
		t.Errorf("the answer is %q", answered.Text)
	}
	s.checkPodOf(t, name)

	bot, err := s.outside.onTelegram(ctx, sampleBot, 5001)
	must(t, err)
	said, answered, err = bot.ask(ctx, patience, "run: echo over $((6*7)) wires")
	must(t, err)
	s.figures.add("chat", "first message to reply, Telegram", short(answered.At.Sub(said.At)), "")
	if !strings.Contains(answered.Text, "over 42 wires") {
		t.Errorf("Telegram: %q", answered.Text)
	}

	// A conversation goes on in its sandbox: the file of one command is there for the next.
	_, _, err = ann.ask(ctx, patience, "run: echo kept > /workspace/note")
	must(t, err)
	_, answered, err = ann.ask(ctx, patience, "run: cat /workspace/note")
	must(t, err)
	if printed(answered.Text) != "kept" {
		t.Errorf("the second command finds %q", answered.Text)
	}

	// What the resource shows of all that.
	_, err = s.awaitAgent(ctx, patience, sampleAgent, func(r standing) bool {
		return r.Status.LastExecutionStatus == "COMPLETED" && r.Status.LastExecutionAt != nil
	})
	if err != nil {
		t.Error(err)
	}
	columns, err := s.cluster.kubectl(ctx, "", "-n", s.agents(), "get", "aiagents")
	must(t, err)
	t.Logf("kubectl get aiagents\n%s", columns)
}

// checkPodOf proves that a name is that of a Pod of the sandbox namespace, and of a row.
func (s *system) checkPodOf(t *testing.T, name string) {
	t.Helper()
	var rows int
	must(t, s.rows.QueryRow(t.Context(), "SELECT count(*) FROM sandboxes WHERE sandbox_name = $1 AND sandbox_uid <> ''", name).Scan(&rows))
	if rows != 1 {
		t.Errorf("%q is the name of %d sandboxes", name, rows)
	}
	pod, err := s.cluster.client.CoreV1().Pods(s.sandboxes()).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Errorf("the command ran on %q, which is no Pod of %s: %v", name, s.sandboxes(), err)
		return
	}
	if pod.Status.Phase != corev1.PodRunning {
		t.Errorf("Pod %s is %s", name, pod.Status.Phase)
	}
}

// functionPods are the Pods of our functions by their Service, and apart from
// them what Knative runs here for itself.
func (s *system) functionPods(ctx context.Context) (functions map[string]int, adapters []string, err error) {
	functions = map[string]int{}
	for _, namespace := range []string{s.systems(), s.agents()} {
		pods, err := s.cluster.pods(ctx, namespace, "")
		if err != nil {
			return nil, nil, err
		}
		for _, pod := range pods {
			switch service := pod.Labels["serving.knative.dev/service"]; {
			case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
			case service != "":
				functions[service]++
			case pod.Labels["app.kubernetes.io/name"] == "postgres":
			case pod.Labels["eventing.knative.dev/source"] != "" || pod.Labels["sources.knative.dev/role"] != "":
				adapters = append(adapters, pod.Name)
			default:
				functions["? "+pod.Name]++
			}
		}
	}
	return functions, adapters, nil
}

// atZero waits until there is no pod of a function and no sandbox.
func (s *system) atZero(ctx context.Context) error {
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		functions, _, err := s.functionPods(ctx)
		if err != nil {
			return false, err.Error()
		}
		pods, err := s.cluster.pods(ctx, s.sandboxes(), "")
		if err != nil {
			return false, err.Error()
		}
		return len(functions) == 0 && len(pods) == 0, fmt.Sprintf("functions %v, sandboxes %s", functions, podNames(pods))
	})
	if !ok {
		return fmt.Errorf("the system never comes to rest: %s", state)
	}
	return nil
}

var flagSilence = flag.Duration("silence", 2*time.Minute, "how long nobody talks in the journey idle")

// journeyIdle: while nobody talks nothing runs but the sweep; after that every
// figure is what the rows say, and the next message is answered as ever.
func journeyIdle(t *testing.T, s *system) {
	ctx := t.Context()
	began := time.Now()
	must(t, s.atZero(ctx))
	s.figures.add("idle", "last message to 0 pods", short(time.Since(began)), "")

	watched := *flagSilence
	var podTime, zero time.Duration
	seen, adapters := map[string]time.Duration{}, []string(nil)
	longest, run := time.Duration(0), time.Duration(0)
	ctx, cancel := context.WithTimeout(ctx, watched)
	defer cancel()
	last := time.Now()
	for pause(ctx, 500*time.Millisecond) {
		functions, found, err := s.functionPods(ctx)
		if err != nil {
			break // the time is over in the middle of a question
		}
		boxes, err := s.cluster.pods(ctx, s.sandboxes(), "")
		if err != nil {
			break
		}
		if len(boxes) > 0 {
			t.Errorf("a sandbox while nobody talks: %s", podNames(boxes))
		}
		adapters = found
		span := time.Since(last)
		last = last.Add(span)
		for service, n := range functions {
			podTime += time.Duration(n) * span
			seen[service] += time.Duration(n) * span
		}
		if len(functions) > 0 {
			run = 0
			continue
		}
		zero, run = zero+span, run+span
		longest = max(longest, run)
	}
	ctx = t.Context()
	t.Logf("%s of silence: 0 function pods for %s, longest at a stretch %s; pods that were: %v; adapters of Knative: %v", watched, short(zero), short(longest), seen, adapters)
	for service := range seen {
		if service != "reaper-cron" && service != "agent-status" {
			t.Errorf("%s ran while nobody talked", service)
		}
	}
	if longest < 5*time.Second { // Knative gives an ended pod half a minute to drain
		t.Errorf("between ticks there are never 5 s without a function pod, at most %s", longest)
	}
	s.figures.add("idle", "longest stretch without a function pod", short(longest), "")
	perHour := podTime.Seconds() * float64(time.Hour) / float64(watched)
	s.figures.add("idle", "pod-seconds of functions per idle hour", fmt.Sprintf("%.0f (%.1f%% of one pod)", perHour, perHour/36), "")
	s.figures.add("idle", "sandboxes in "+watched.String()+" of silence", "0", "0")
	s.figures.add("idle", "Knative's own adapters", fmt.Sprint(len(adapters)), "listed apart")
	compareFigures(t, s)

	ann, err := s.outside.onWhatsApp(ctx, sampleNumber, "15552000001")
	must(t, err)
	said, answered, err := ann.ask(ctx, patience, "run: echo awake")
	must(t, err)
	if printed(answered.Text) != "awake" {
		t.Errorf("after the silence: %q", answered.Text)
	}
	s.figures.add("idle", "message to reply from zero, with a new sandbox", short(answered.At.Sub(said.At)), "")
}

// compareFigures scrapes the management API, which has slept, and counts the rows.
func compareFigures(t *testing.T, s *system) {
	t.Helper()
	ctx := t.Context()
	status, scraped, err := s.ingress.send(ctx, "management-api", http.MethodGet, "/api/v1/metrics", http.Header{"Authorization": {"Bearer " + s.caller(ctx, t, "viewer")}}, nil)
	must(t, err)
	if status != http.StatusOK {
		t.Fatalf("the scrape answered %d %s", status, scraped)
	}
	got, err := counted.Figures(string(scraped))
	must(t, err)
	rows, err := s.rows.Query(ctx, counted.SQL)
	must(t, err)
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	t.Logf("figures after the silence:\n  %s", strings.Join(got, "\n  "))
	if !slices.Equal(got, want) {
		t.Errorf("the rows say\n  %s", strings.Join(want, "\n  "))
	}
	s.figures.add("idle", "business figures that equal the rows", fmt.Sprint(len(want)), "all")
}
