//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// clusterFault is one thing that goes wrong on a cluster.
type clusterFault struct {
	name string
	run  func(*testing.T, *system, *hook)
}

// journeyFaults breaks things under running commands and turns. Each command must
// end with the outcome that is true, told in its chat, and behind each fault
// nothing may be leaked, lost or doubled: a table says so. What only a machine has
// (crashes between any two writes, clocks, S3) is in the table of make system.
func journeyFaults(t *testing.T, s *system) {
	ctx := t.Context()
	h, err := s.makeHook(ctx, "faults", sandboxBlock, "")
	must(t, err)
	// The agent's function is awake and its first sandbox was made.
	if _, err := h.ask(ctx, patience, "run: echo begun"); err != nil {
		t.Fatal(err)
	}
	m := &faultMatrix{}
	defer m.print(t, s)
	t.Run("within the sandbox", func(t *testing.T) {
		for _, f := range []clusterFault{
			{"Pod deleted", faultPodDeleted},
			{"Pod evicted by the API", faultEvicted},
			{"out of memory", faultMemory},
			{"disk full", faultDisk},
			{"Pod held by a finalizer", faultFinalizer},
			{"image that never comes", faultImage},
		} {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				m.try(t, s, h, f)
			})
		}
	})
	for _, f := range []clusterFault{
		{"function killed under a command", faultFunctionKilled},
		{"functions killed in turns", faultTurnsKilled},
		{"revision deleted while it serves", faultRevision},
		{"two ticks at once", faultTicks},
		{"broker restarted", faultBroker},
		{"PostgreSQL crashes", faultPostgres},
		{"kubelet restarted", func(t *testing.T, s *system, h *hook) {
			faultRestart(t, s, h, s.settings.restartKubelet, "E2E_RESTART_KUBELET")
		}},
		{"API server restarted", func(t *testing.T, s *system, h *hook) {
			faultRestart(t, s, h, s.settings.restartAPIServer, "E2E_RESTART_APISERVER")
		}},
		{"node closed and drained of sandboxes", faultDrained},
		{"quota exhausted", faultQuota},
		{"nobody sweeps", faultNoSweep},
		{"namespace terminating", faultNamespace},
	} {
		t.Run(f.name, func(t *testing.T) { m.try(t, s, h, f) })
	}
}

// ended waits for the end of a command and checks its state and that its chat
// was told.
func (h *hook) ended(t *testing.T, patience time.Duration, mark, message string, states ...string) *execution {
	t.Helper()
	began := time.Now()
	e, err := h.awaitExecution(t.Context(), patience, mark, hasEnded)
	must(t, err)
	right := false
	for _, state := range states {
		right = right || e.State == state
	}
	t.Logf("%s: %s %q after %s, output %q", mark, e.State, e.Reason, short(time.Since(began)), e.Output)
	if !right {
		t.Errorf("%s is stored as %s %q, want %v", mark, e.State, e.Reason, states)
	}
	answered, err := h.answer(t.Context(), patience, message)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s: the chat is told %q", mark, answered.Text)
	h.s.figures.add("faults", mark, fmt.Sprintf("%s in %s", e.State, short(time.Since(began))), strings.Join(states, " or "))
	return e
}

// begin asks for a command and returns when it runs and has printed.
func (h *hook) begin(t *testing.T, mark, command string) (*execution, string) {
	t.Helper()
	message, err := h.say(t.Context(), "run: echo "+mark+"; "+command)
	must(t, err)
	e, err := h.awaitExecution(t.Context(), patience, mark, func(e *execution) bool { return isRunning(e) && e.Output != "" || hasEnded(e) })
	must(t, err)
	if hasEnded(e) {
		t.Fatalf("%s has ended before anything was done to it: %s %q %q", mark, e.State, e.Reason, e.Output)
	}
	return e, message
}

func faultPodDeleted(t *testing.T, s *system, h *hook) {
	e, message := h.begin(t, "pod-deleted", "sleep 100")
	must(t, s.cluster.client.CoreV1().Pods(s.sandboxes()).Delete(t.Context(), *e.Name, metav1.DeleteOptions{}))
	h.ended(t, patience, "pod-deleted", message, "SANDBOX_GONE", "UNKNOWN")
}

func faultMemory(t *testing.T, _ *system, h *hook) {
	message, err := h.say(t.Context(), "run: echo out-of-memory; head -c 400000000 /dev/zero | tail -c 399999999 >/dev/null")
	must(t, err)
	h.ended(t, patience, "out-of-memory", message, "OUT_OF_MEMORY")
}

func faultDisk(t *testing.T, _ *system, h *hook) {
	// The kubelet looks at volumes once in a while, so the command stays.
	message, err := h.say(t.Context(), "run: echo disk-full; for i in 1 2 3 4 5 6; do head -c 12000000 /dev/zero >/workspace/$i; done; sleep 110")
	must(t, err)
	h.ended(t, patience, "disk-full", message, "DISK_LIMIT")
}

// once is a command that counts how often it was started and takes its time.
func once(seconds int) string {
	return fmt.Sprintf("echo x >>/workspace/starts; sleep %d; echo starts: $(wc -l </workspace/starts)", seconds)
}

func faultFunctionKilled(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	_, message := h.begin(t, "function-killed", once(30))
	pods, err := s.cluster.pods(ctx, s.systems(), "serving.knative.dev/service=sandbox-exec")
	must(t, err)
	if len(pods) == 0 {
		t.Fatal("a command runs and no Pod of sandbox-exec")
	}
	now := int64(0)
	for _, pod := range pods {
		must(t, s.cluster.client.CoreV1().Pods(s.systems()).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	}
	e := h.ended(t, patience, "function-killed", message, "COMPLETED")
	if !strings.Contains(e.Output, "starts: 1") {
		t.Errorf("the command was not started once: %q", e.Output)
	}
}

func faultRestart(t *testing.T, s *system, h *hook, command, variable string) {
	if command == "" {
		t.Skipf("%s does not say how", variable)
	}
	mark := h.chat + "-restarted"
	_, message := h.begin(t, mark, once(30))
	must(t, shell(t.Context(), command, os.Stderr))
	e := h.ended(t, patience, mark, message, "COMPLETED")
	if !strings.Contains(e.Output, "starts: 1") {
		t.Errorf("the command was not started once: %q", e.Output)
	}
}

func faultQuota(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	quotas := s.cluster.client.CoreV1().ResourceQuotas(s.sandboxes())
	none := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "e2e-none"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}}
	_, err := quotas.Create(ctx, none, metav1.CreateOptions{})
	must(t, err)
	lift := func() { _ = quotas.Delete(context.WithoutCancel(ctx), none.Name, metav1.DeleteOptions{}) }
	defer lift()
	// The quota counts once its controller has looked at it.
	state, ok := eventually(ctx, 30*time.Second, func(ctx context.Context) (bool, string) {
		q, err := quotas.Get(ctx, none.Name, metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) > 0, fmt.Sprint(err)
	})
	if !ok {
		t.Fatal("the quota is not looked at: ", state)
	}
	message, err := h.say(ctx, "run: echo quota-exhausted")
	must(t, err)
	e := h.ended(t, patience, "quota-exhausted", message, "FAILED")
	if e.StartedAt != nil || !strings.Contains(e.Reason, "quota") {
		t.Errorf("started %v, reason %q", e.StartedAt, e.Reason)
	}
	lift()
	answered, err := h.ask(ctx, patience, "run: echo room again")
	must(t, err)
	if printed(answered.Text) != "room again" {
		t.Errorf("with room again: %q", answered.Text)
	}
}

// faultNoSweep: without the sweep a sandbox ends by itself, and the sweep finds
// what it left.
func faultNoSweep(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	schedule := func(ctx context.Context, at string) error {
		_, err := s.cluster.kubectl(ctx, "", "-n", s.systems(), "patch", "pingsources.sources.knative.dev", "reaper", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"schedule":%q}}`, at))
		return err
	}
	must(t, schedule(ctx, "0 0 1 1 *"))
	back := func() error { return schedule(context.WithoutCancel(ctx), "* * * * *") }
	defer func() { must(t, back()) }()
	if _, err := h.ask(ctx, patience, "run: echo unswept"); err != nil {
		t.Fatal(err)
	}
	e, err := h.awaitExecution(ctx, patience, "unswept", hasEnded)
	must(t, err)
	began := time.Now()
	var pod *corev1.Pod
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		pod, err = s.cluster.client.CoreV1().Pods(s.sandboxes()).Get(ctx, *e.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed, string(pod.Status.Phase)
	})
	if !ok {
		t.Fatalf("the idle sandbox does not end by itself: %s", state)
	}
	t.Logf("the runner ended by itself %s after its command: %s", short(time.Since(began)), pod.Status.Phase)
	s.figures.add("faults", "idle sandbox without a sweep ends by itself", short(time.Since(began)), "idle 15 s and 30 s")
	must(t, back())
	if err := s.noPodsOf(ctx, patience, h.name); err != nil {
		t.Error(err)
	}
	row := ""
	state, ok = eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		err := s.rows.QueryRow(ctx, "SELECT state FROM sandboxes WHERE sandbox_id = $1", *e.SandboxID).Scan(&row)
		return row == "GONE", fmt.Sprint(row, err)
	})
	if !ok {
		t.Errorf("its row: %s", state)
	}
}

// faultNamespace: the sandboxes' namespace is being removed while a command runs
// in it and another is asked for.
func faultNamespace(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	one, two := h.in(h.chat+"/one"), h.in(h.chat+"/two")
	_, message := one.begin(t, "namespace-removed", "sleep 100")
	// Something holds the namespace, so that it stays in its last state.
	maps := s.cluster.client.CoreV1().ConfigMaps(s.sandboxes())
	hold := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "e2e-hold", Finalizers: []string{"tuluat.ai/e2e-hold"}}}
	_, err := maps.Create(ctx, hold, metav1.CreateOptions{})
	must(t, err)
	release := func() {
		_, _ = maps.Patch(context.WithoutCancel(ctx), hold.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
	defer release()
	namespaces := s.cluster.client.CoreV1().Namespaces()
	must(t, namespaces.Delete(ctx, s.sandboxes(), metav1.DeleteOptions{}))
	one.ended(t, patience, "namespace-removed", message, "SANDBOX_GONE", "UNKNOWN")
	message, err = two.say(ctx, "run: echo namespace-terminating")
	must(t, err)
	e := two.ended(t, patience, "namespace-terminating", message, "FAILED")
	if e.StartedAt != nil || !strings.Contains(e.Reason, "namespace") {
		t.Errorf("started %v, reason %q", e.StartedAt, e.Reason)
	}
	release()
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		_, err := namespaces.Get(ctx, s.sandboxes(), metav1.GetOptions{})
		return gone(err), fmt.Sprint(err)
	})
	if !ok {
		t.Fatalf("the namespace does not go: %s", state)
	}
	must(t, s.restore(ctx, s.sandboxes(), s.sandboxes()))
	answered, err := two.ask(ctx, patience, "run: echo there again")
	must(t, err)
	if printed(answered.Text) != "there again" {
		t.Errorf("in the new namespace: %q", answered.Text)
	}
}
