//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// faultMatrix is the table of the faults of a cluster.
type faultMatrix struct {
	counting sync.WaitGroup // what settles while the next fault is there

	mu   sync.Mutex
	rows []*faultRow
}

type faultRow struct {
	name                  string
	took                  time.Duration // from the end of the fault to the last thing that was left to do
	leaked, lost, doubled int
	state                 string // what is left
}

// try has one fault come and go in a chat of its own. What it leaves is counted
// while the next ones are there: a sandbox that serves on ends in its own time.
func (m *faultMatrix) try(t *testing.T, s *system, h *hook, f clusterFault) {
	own := h.in(strings.ReplaceAll(strings.ToLower(f.name), " ", "-"))
	defer func() { // also of a fault whose own assertions failed
		if t.Skipped() {
			return
		}
		row := &faultRow{name: f.name}
		m.mu.Lock()
		m.rows = append(m.rows, row)
		m.mu.Unlock()
		m.counting.Go(func() { s.countFault(context.WithoutCancel(t.Context()), own, row) })
	}()
	f.run(t, s, own)
}

// chatsSQL names the sessions of a fault: its chat, and those that its name begins.
const chatsSQL = `(SELECT session_id FROM sessions WHERE agent_name = $1 AND (chat = $2 OR chat LIKE $2 || '/%'))`

// left, lost and doubled of the chats of a fault.
const (
	leftSQL = `
SELECT 'sessions at work', count(*) FROM sessions WHERE session_id IN ` + chatsSQL + ` AND (state NOT IN ('IDLE', 'BLOCKED', 'FAILED', 'COMPLETED', 'CANCELLED') OR due_at IS NOT NULL OR lease_owner IS NOT NULL)
UNION ALL SELECT 'messages not answered', count(*) FROM messages WHERE session_id IN ` + chatsSQL + ` AND state <> 'DONE'
UNION ALL SELECT 'tool calls without a result', count(*) FROM tool_calls WHERE session_id IN ` + chatsSQL + ` AND state IN ('PENDING', 'RUNNING')
UNION ALL SELECT 'executions open', count(*) FROM executions WHERE session_id IN ` + chatsSQL + ` AND (ended_at IS NULL OR lease_owner IS NOT NULL)
UNION ALL SELECT 'replies open', count(*) FROM replies WHERE session_id IN ` + chatsSQL + ` AND state = 'PLANNED'
UNION ALL SELECT 'sandboxes not GONE', count(*) FROM sandboxes WHERE session_id IN ` + chatsSQL + ` AND state <> 'GONE'`
	lostSQL = `
SELECT (SELECT count(*) FROM messages m WHERE m.session_id IN ` + chatsSQL + ` AND m.direction = 'INBOUND' AND NOT EXISTS (SELECT 1 FROM messages o WHERE o.in_reply_to = m.message_id))
	+ (SELECT count(*) FROM tool_calls WHERE session_id IN ` + chatsSQL + ` AND state NOT IN ('PENDING', 'RUNNING') AND result IS NULL)`
	doubledSQL = `
SELECT (SELECT COALESCE(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM messages WHERE session_id IN ` + chatsSQL + ` AND in_reply_to IS NOT NULL GROUP BY in_reply_to) a)::bigint
	+ (SELECT COALESCE(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM executions WHERE session_id IN ` + chatsSQL + ` AND started_at IS NOT NULL GROUP BY cause_id) e)::bigint
	+ (SELECT count(*) FROM execution_output o JOIN executions e USING (execution_id) WHERE e.session_id IN ` + chatsSQL + ` AND position('starts: ' IN convert_from(o.data, 'UTF8')) > 0
		AND position('starts: 1' IN convert_from(o.data, 'UTF8')) = 0)`
)

// countFault waits until nothing of a fault is left to do and counts. Whoever
// cannot look must not say that nothing is there.
func (s *system) countFault(ctx context.Context, h *hook, row *faultRow) {
	began := time.Now()
	row.leaked, row.lost, row.doubled = 1, 1, 1
	row.state, _ = eventually(ctx, 2*patience, func(ctx context.Context) (bool, string) {
		left, n, err := s.leftOf(ctx, h)
		if err != nil {
			return false, err.Error()
		}
		var lost, doubled int
		if err := s.rows.QueryRow(ctx, `SELECT (`+lostSQL+`), (`+doubledSQL+`)`, h.name, h.chat).Scan(&lost, &doubled); err != nil {
			return false, err.Error()
		}
		row.leaked, row.lost, row.doubled = n, lost, doubled
		return n == 0, left
	})
	row.took = time.Since(began)
}

// leftOf is what there is to do for the chats of a fault, and which of their Pods
// no row knows.
func (s *system) leftOf(ctx context.Context, h *hook) (string, int, error) {
	rows, err := s.rows.Query(ctx, leftSQL, h.name, h.chat)
	if err != nil {
		return "", 0, err
	}
	defer rows.Close()
	var left []string
	total := 0
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			return "", 0, err
		}
		if total += n; n > 0 {
			left = append(left, fmt.Sprintf("%s: %d", name, n))
		}
	}
	if err := rows.Err(); err != nil {
		return "", 0, err
	}
	pods, err := s.cluster.pods(ctx, s.sandboxes(), "tuluat.ai/agent="+h.name)
	if err != nil {
		return "", 0, err
	}
	for _, pod := range pods {
		var known bool
		if err := s.rows.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM sandboxes WHERE sandbox_name = $1 AND state <> 'GONE')`, pod.Name).Scan(&known); err != nil {
			return "", 0, err
		}
		if !known {
			left, total = append(left, "Pod without a row: "+pod.Name), total+1
		}
	}
	return strings.Join(left, ", "), total, nil
}

// print prints the table once all is counted, and fails where a figure is not 0.
func (m *faultMatrix) print(t *testing.T, s *system) {
	m.counting.Wait()
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  fault\tseconds to settle\tleaked\tlost\tdoubled")
	var sum faultRow
	for _, r := range m.rows {
		fmt.Fprintf(table, "  %s\t%.0f\t%d\t%d\t%d\n", r.name, r.took.Seconds(), r.leaked, r.lost, r.doubled)
		sum.leaked, sum.lost, sum.doubled = sum.leaked+r.leaked, sum.lost+r.lost, sum.doubled+r.doubled
		if r.leaked+r.lost+r.doubled > 0 {
			t.Errorf("%s: leaked %d, lost %d, doubled %d: %s", r.name, r.leaked, r.lost, r.doubled, r.state)
		}
	}
	fmt.Fprintf(table, "  %d faults\t\t%d\t%d\t%d\n", len(m.rows), sum.leaked, sum.lost, sum.doubled)
	_ = table.Flush() // to memory
	t.Logf("fault matrix of the cluster\n%s", b.String())
	s.figures.add("faults", fmt.Sprintf("leaked, lost, doubled by %d faults", len(m.rows)), fmt.Sprintf("%d, %d, %d", sum.leaked, sum.lost, sum.doubled), "0, 0, 0")
}

// faultEvicted: a Pod goes as a drain takes it.
func faultEvicted(t *testing.T, s *system, h *hook) {
	e, message := h.begin(t, "evicted-by-api", "sleep 100")
	must(t, s.cluster.client.CoreV1().Pods(s.sandboxes()).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: *e.Name, Namespace: s.sandboxes()}}))
	h.ended(t, patience, "evicted-by-api", message, "SANDBOX_GONE", "UNKNOWN")
}

// faultFinalizer: a Pod is deleted and does not go. Its row may not say GONE before
// it has, and its conversation goes on in another.
func faultFinalizer(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	e, message := h.begin(t, "held-by-finalizer", "sleep 100")
	pods := s.cluster.client.CoreV1().Pods(s.sandboxes())
	patch := func(ctx context.Context, finalizers string) error {
		_, err := pods.Patch(ctx, *e.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{})
		return err
	}
	must(t, patch(ctx, `["tuluat.ai/e2e-hold"]`))
	release := func() {
		if err := patch(context.WithoutCancel(ctx), "null"); err != nil && !gone(err) {
			t.Error(err)
		}
	}
	defer release()
	must(t, pods.Delete(ctx, *e.Name, metav1.DeleteOptions{}))
	h.ended(t, patience, "held-by-finalizer", message, "SANDBOX_GONE", "UNKNOWN")
	answered, err := h.ask(ctx, patience, "run: echo goes on")
	must(t, err)
	if printed(answered.Text) != "goes on" {
		t.Errorf("beside the Pod that does not go: %q", answered.Text)
	}
	before, err := s.sweeps(ctx)
	must(t, err)
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		n, err := s.sweeps(ctx)
		return err == nil && n >= before+2, fmt.Sprint(n, err)
	})
	if !ok {
		t.Fatal("nobody sweeps: ", state)
	}
	var row string
	must(t, s.rows.QueryRow(ctx, `SELECT state FROM sandboxes WHERE sandbox_id = $1`, *e.SandboxID).Scan(&row))
	if pod, err := pods.Get(ctx, *e.Name, metav1.GetOptions{}); err != nil || pod.DeletionTimestamp == nil {
		t.Fatalf("the Pod should be Terminating still: %v", err)
	}
	if row == "GONE" {
		t.Error("the row says GONE while the Pod is there")
	}
}

// faultImage: what a sandbox is to be made of never comes; its Pod goes again.
func faultImage(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	nowhere := registryOf(s.settings.standard) + "tuluat-e2e/never:1"
	other, err := s.makeHook(ctx, "faults-image", strings.Replace(sandboxBlock, "{", `{image: "`+nowhere+`", `, 1), "")
	must(t, err)
	*h = *other.in(h.chat) // so that its rows are counted
	message, err := h.say(ctx, "run: echo never-comes")
	must(t, err)
	e := h.ended(t, patience, "never-comes", message, "FAILED")
	if e.StartedAt != nil || !strings.Contains(e.Reason, "never") {
		t.Errorf("started %v, reason %q", e.StartedAt, e.Reason)
	}
	if err := s.noPodsOf(ctx, patience, h.name); err != nil {
		t.Error(err)
	}
}

// remove deletes the Pods of a namespace that a selector finds, at once.
func (s *system) removePods(ctx context.Context, namespace, selector string) (int, error) {
	pods, err := s.cluster.pods(ctx, namespace, selector)
	if err != nil {
		return 0, err
	}
	now := int64(0)
	for _, pod := range pods {
		if err := s.cluster.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !gone(err) {
			return 0, err
		}
	}
	return len(pods), nil
}

// turns says one thing in each of n chats of a fault, while something is done, and
// waits for the answers.
func (h *hook) turns(t *testing.T, n int, meanwhile func()) {
	t.Helper()
	ctx := t.Context()
	messages := make([]string, n)
	for i := range messages {
		var err error
		messages[i], err = h.in(fmt.Sprintf("%s/%d", h.chat, i)).say(ctx, "run: "+once(2))
		must(t, err)
	}
	meanwhile()
	for i, message := range messages {
		answered, err := h.answer(ctx, patience, message)
		if err != nil {
			t.Error(err)
		}
		t.Logf("chat %d is told %q", i, answered.Text)
	}
}

func faultTurnsKilled(t *testing.T, s *system, h *hook) {
	killed := 0
	h.turns(t, 3, func() {
		for range 6 {
			for _, service := range []string{"agent-step", "webhook-ingest", "webhook-ingest-events", "reaper-cron"} {
				n, err := s.removePods(t.Context(), s.systems(), "serving.knative.dev/service="+service)
				must(t, err)
				killed += n
			}
			time.Sleep(2 * time.Second) // some of the turns goes on
		}
	})
	t.Logf("%d Pods were killed", killed)
	if killed == 0 {
		t.Error("no Pod was killed")
	}
}

// faultRevision: what serves is replaced, and deleted under a command.
func faultRevision(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	const service = "sandbox-exec"
	_, message := h.begin(t, "revision-deleted", once(20))
	latest := func(ctx context.Context) (string, error) {
		out, err := s.cluster.kubectl(ctx, "", "-n", s.systems(), "get", "services.serving.knative.dev", service, "-o", "jsonpath={.status.latestReadyRevisionName}")
		return strings.TrimSpace(out), err
	}
	before, err := latest(ctx)
	must(t, err)
	_, err = s.cluster.kubectl(ctx, "", "-n", s.systems(), "patch", "services.serving.knative.dev", service, "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"tuluat.ai/e2e":"%d"}}}}}`, time.Now().Unix()))
	must(t, err)
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		now, err := latest(ctx)
		return err == nil && now != before, fmt.Sprint(now, err)
	})
	if !ok {
		t.Fatalf("there is no newer revision than %s: %s", before, state)
	}
	_, err = s.cluster.kubectl(ctx, "", "-n", s.systems(), "delete", "revisions.serving.knative.dev", before, "--wait=false")
	must(t, err)
	e := h.ended(t, patience, "revision-deleted", message, "COMPLETED")
	if !strings.Contains(e.Output, "starts: 1") {
		t.Errorf("the command was not started once: %q", e.Output)
	}
}

// faultTicks: two more sources tick at the same moments. No pass runs beside
// another.
func faultTicks(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	text, err := s.cluster.kubectl(ctx, "", "-n", s.systems(), "get", "pingsources.sources.knative.dev", "reaper", "-o", "json")
	must(t, err)
	var source struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Metadata   map[string]any  `json:"metadata"`
		Spec       json.RawMessage `json:"spec"`
	}
	must(t, json.Unmarshal([]byte(text), &source))
	names := []string{"e2e-reaper-2", "e2e-reaper-3"}
	for _, name := range names {
		source.Metadata = map[string]any{"name": name, "namespace": s.systems()}
		text, err := json.Marshal(source)
		must(t, err)
		_, err = s.cluster.kubectl(ctx, string(text), "apply", "-f", "-")
		must(t, err)
	}
	defer func() {
		_, err := s.cluster.kubectl(context.WithoutCancel(ctx), "", append([]string{"-n", s.systems(), "delete", "pingsources.sources.knative.dev"}, names...)...)
		must(t, err)
	}()
	began := time.Now()
	passes := func(ctx context.Context) (n int, err error) {
		err = s.rows.QueryRow(ctx, `SELECT count(*) FROM sweep_reports WHERE started_at > $1`, began).Scan(&n)
		return n, err
	}
	h.turns(t, 2, func() {
		state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
			n, err := passes(ctx)
			return err == nil && n >= 3, fmt.Sprint(n, err)
		})
		if !ok {
			t.Error("passes: ", state)
		}
	})
	var overlapping int
	must(t, s.rows.QueryRow(ctx, `SELECT count(*) FROM sweep_reports a JOIN sweep_reports b ON a.sweep_report_id <> b.sweep_report_id
		AND a.started_at > b.started_at AND a.started_at < b.completed_at WHERE a.started_at > $1`, began).Scan(&overlapping))
	if overlapping > 0 {
		t.Errorf("%d passes ran beside another", overlapping)
	}
}

// faultBroker: what holds the events of the in-memory channels goes with them.
func faultBroker(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	var killed int
	h.turns(t, 3, func() {
		for _, selector := range []string{"messaging.knative.dev/role=dispatcher", "eventing.knative.dev/brokerRole=filter", "eventing.knative.dev/brokerRole=ingress"} {
			n, err := s.removePods(ctx, "knative-eventing", selector)
			must(t, err)
			killed += n
		}
	})
	t.Logf("%d Pods of the broker were killed", killed)
	if killed == 0 {
		t.Error("no Pod of the broker was killed")
	}
}

// faultPostgres crashes the server within its Pod, whose volume stays.
func faultPostgres(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	pods, err := s.cluster.pods(ctx, s.systems(), "app.kubernetes.io/name=postgres")
	must(t, err)
	if len(pods) != 1 {
		t.Fatalf("%d Pods of PostgreSQL", len(pods))
	}
	restarts := func(ctx context.Context) (int32, bool) {
		pod, err := s.cluster.client.CoreV1().Pods(s.systems()).Get(ctx, pods[0].Name, metav1.GetOptions{})
		if err != nil || len(pod.Status.ContainerStatuses) == 0 {
			return 0, false
		}
		return pod.Status.ContainerStatuses[0].RestartCount, pod.Status.ContainerStatuses[0].Ready
	}
	before, _ := restarts(ctx)
	_, message := h.begin(t, "postgres-crashed", once(20))
	h.turns(t, 2, func() {
		// Its end takes the connection of the exec along.
		if _, err := s.cluster.exec(ctx, s.systems(), pods[0].Name, "postgres", "sh", "-c", "kill -QUIT 1"); err != nil {
			t.Log("exec: ", err)
		}
		state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
			n, ready := restarts(ctx)
			return ready && n > before, fmt.Sprint(n, ready)
		})
		if !ok {
			t.Fatal("PostgreSQL did not restart: ", state)
		}
	})
	e := h.ended(t, patience, "postgres-crashed", message, "COMPLETED")
	if !strings.Contains(e.Output, "starts: 1") {
		t.Errorf("the command was not started once: %q", e.Output)
	}
}

// faultDrained: the node takes no Pod any more and the sandboxes on it are evicted;
// what is said meanwhile is answered, at the latest when it takes Pods again.
func faultDrained(t *testing.T, s *system, h *hook) {
	ctx := t.Context()
	e, message := h.begin(t, "node-drained", "sleep 100")
	pod, err := s.cluster.client.CoreV1().Pods(s.sandboxes()).Get(ctx, *e.Name, metav1.GetOptions{})
	must(t, err)
	closed := func(ctx context.Context, closed bool) error {
		_, err := s.cluster.client.CoreV1().Nodes().Patch(ctx, pod.Spec.NodeName, types.StrategicMergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed), metav1.PatchOptions{})
		return err
	}
	must(t, closed(ctx, true))
	open := sync.OnceFunc(func() {
		if err := closed(context.WithoutCancel(ctx), false); err != nil {
			t.Error("the node stays closed: ", err)
		}
	})
	defer open()
	pods, err := s.cluster.pods(ctx, s.sandboxes(), "tuluat.ai/agent="+h.name)
	must(t, err)
	for _, p := range pods {
		err := s.cluster.client.CoreV1().Pods(s.sandboxes()).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: s.sandboxes()}})
		if err != nil && !gone(err) {
			t.Error(err)
		}
	}
	h.turns(t, 1, func() {
		state, ok := eventually(ctx, time.Minute, func(ctx context.Context) (bool, string) {
			pods, err := s.cluster.pods(ctx, s.sandboxes(), "tuluat.ai/agent="+h.name)
			if err != nil {
				return false, err.Error()
			}
			for _, p := range pods {
				if p.Status.Phase == corev1.PodPending {
					return true, ""
				}
			}
			return false, fmt.Sprintf("%d Pods", len(pods))
		})
		t.Logf("a sandbox waits for a node: %v %s", ok, state) // unless its function waits for one itself
		open()
	})
	h.ended(t, patience, "node-drained", message, "SANDBOX_GONE", "UNKNOWN")
}
