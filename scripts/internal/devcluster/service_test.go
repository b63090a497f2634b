package devcluster_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/devcluster"
)

// Nothing runs at rest; a request starts a process with the environment a pod
// would have; an idle process is asked to end, and the next request starts
// another.
func TestServiceScalesFromAndToZero(t *testing.T) {
	t.Setenv("DEVCLUSTER_LEAK", "a variable of this machine")
	w := start(t, setting{options: func(o *devcluster.Options) { o.IdleAfter = 50 * time.Millisecond }})
	if n := len(w.notes("worker", "start")); n != 0 {
		t.Fatalf("%d processes run at rest", n)
	}
	if got := w.post(w.cluster.ServiceURL("worker")+"/events", nil, ""); got != http.StatusAccepted {
		t.Fatalf("got %d", got)
	}
	env := w.notes("worker", "start")[0].fields
	for name, want := range map[string]string{
		"revision": "worker-00001", "configuration": "worker", "metrics": "0", "secret": "s3cret", "leak": "",
		"broker": w.cluster.BrokerURL("n", "default"), "other": w.cluster.ServiceURL("dead") + "/events", "folder": filepath.Join(w.dir, "agents"),
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	w.await("worker", "drained", 1)
	w.post(w.cluster.ServiceURL("worker")+"/events", nil, "")
	if n := len(w.notes("worker", "start")); n != 2 {
		t.Errorf("%d starts, want 2", n)
	}
}

func TestServiceHoldsConcurrency(t *testing.T) {
	w := start(t, setting{worker: "slow=20", concurrency: 2})
	var sending sync.WaitGroup
	for range 12 {
		sending.Go(func() {
			if got := w.post(w.cluster.ServiceURL("worker")+"/events", nil, ""); got != http.StatusAccepted {
				t.Errorf("got %d", got)
			}
		})
	}
	sending.Wait()
	for _, r := range w.notes("worker", "request") {
		if r.fields["inside"] > "2" {
			t.Errorf("%s requests at once", r.fields["inside"])
		}
	}
	if n := len(w.notes("worker", "start")); n != 1 {
		t.Errorf("%d processes, want 1", n)
	}
}

func TestServiceQueueIsBounded(t *testing.T) {
	w := start(t, setting{worker: "slow=500", concurrency: 1, options: func(o *devcluster.Options) { o.MaxQueue = 4 }})
	var mu sync.Mutex
	statuses := map[int]int{}
	var sending sync.WaitGroup
	for range 20 {
		sending.Go(func() {
			status := w.post(w.cluster.ServiceURL("worker")+"/events", nil, "")
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	sending.Wait()
	// Four wait; one more is taken if the first has left the queue in time.
	if statuses[http.StatusServiceUnavailable] < 10 || statuses[http.StatusAccepted] < 4 {
		t.Errorf("%v", statuses)
	}
}

func TestServiceEndsARequestAtItsTimeout(t *testing.T) {
	w := start(t, setting{worker: "slow=60000", timeout: 1})
	if got := w.post(w.cluster.ServiceURL("worker")+"/events", nil, ""); got != http.StatusGatewayTimeout {
		t.Errorf("got %d", got)
	}
	w.await("worker", "cancelled", 1)
}

func TestSeveralProcessesShareRequests(t *testing.T) {
	w := start(t, setting{worker: "slow=200", concurrency: 1, options: func(o *devcluster.Options) { o.Processes = 3 }})
	var sending sync.WaitGroup
	for range 4 {
		sending.Go(func() { w.post(w.cluster.ServiceURL("worker")+"/events", nil, "") })
	}
	sending.Wait()
	w.await("worker", "start", 2)
	if n := len(w.notes("worker", "start")); n != 2 {
		t.Errorf("%d processes; three are asked for and max-scale is 2", n)
	}
}

func TestServiceThatDoesNotStart(t *testing.T) {
	w := start(t, setting{worker: "refuses to start"})
	response, err := http.Post(w.cluster.ServiceURL("worker")+"/events", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "MODEL_NAME is not set") {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	if !strings.Contains(w.reported(), "worker: worker: configuration: MODEL_NAME is not set") {
		t.Errorf("told: %s", w.reported())
	}
}

func TestServiceRestartsAfterACrash(t *testing.T) {
	w := start(t, setting{worker: "dies"})
	for range 2 {
		if got := w.post(w.cluster.ServiceURL("worker")+"/events", nil, ""); got != http.StatusBadGateway {
			t.Errorf("got %d", got)
		}
	}
	w.until("both crashes", func() bool { return w.cluster.Counts().Crashes["worker"] == 2 })
}

// A renewed Service finishes its requests, and its next process has the
// Secrets of now.
func TestRenew(t *testing.T) {
	var secret atomic.Value
	secret.Store("old")
	w := start(t, setting{worker: "slow=300", options: func(o *devcluster.Options) {
		o.Secret = func(name, _ string) (string, bool) { return secret.Load().(string), name == "database" }
	}})
	answered := make(chan int, 1)
	go func() { answered <- w.post(w.cluster.ServiceURL("worker")+"/events", nil, "") }()
	w.await("worker", "request", 1)
	secret.Store("new")
	w.cluster.Renew("worker")
	w.post(w.cluster.ServiceURL("worker")+"/events", nil, "")
	if got := <-answered; got != http.StatusAccepted {
		t.Errorf("the running request was answered %d", got)
	}
	starts := w.notes("worker", "start")
	if len(starts) != 2 || starts[0].fields["secret"] != "old" || starts[1].fields["secret"] != "new" {
		t.Errorf("%+v", starts)
	}
	w.await("worker", "drained", 1)
}

// Kill is a node's death: no SIGTERM, and the next request finds a new process.
func TestKill(t *testing.T) {
	w := start(t, setting{worker: "slow=60000"})
	answered := make(chan int, 1)
	go func() { answered <- w.post(w.cluster.ServiceURL("worker")+"/events", nil, "") }()
	first := w.await("worker", "request", 1)[0].pid
	if n := w.cluster.Kill("worker"); n != 1 {
		t.Errorf("killed %d processes", n)
	}
	if got := <-answered; got != http.StatusBadGateway {
		t.Errorf("the request was answered %d", got)
	}
	if len(w.notes("worker", "term")) != 0 {
		t.Error("it was asked to end")
	}
	go func() { answered <- w.post(w.cluster.ServiceURL("worker")+"/events", nil, "") }()
	if second := w.await("worker", "request", 2)[1].pid; second == first {
		t.Error("the same process answered")
	}
	w.cluster.Kill("worker")
	<-answered
	if n := w.cluster.Counts(); n.Kills["worker"] != 2 || n.Crashes["worker"] != 0 {
		t.Errorf("%+v", n)
	}
}

// A process that ignores SIGTERM is killed after the grace.
func TestStopEndsEverything(t *testing.T) {
	w := start(t, setting{worker: "ignores SIGTERM", options: func(o *devcluster.Options) { o.StopGrace = 100 * time.Millisecond }})
	w.post(w.cluster.ServiceURL("worker")+"/events", nil, "")
	w.post(w.cluster.ServiceURL("dead")+"/events", nil, "")
	w.stop()
	for _, service := range []string{"worker", "dead"} {
		for _, n := range w.notes(service, "start") {
			if err := syscall.Kill(n.pid, 0); err == nil {
				t.Errorf("process %d of %s is still there", n.pid, service)
			}
		}
	}
	if len(w.notes("dead", "drained")) != 1 {
		t.Error("dead was not drained")
	}
}

// Streams reach the caller at once, signed paths arrive as they were sent, and
// nothing else is reachable from outside.
func TestGateway(t *testing.T) {
	w := start(t, setting{front: "streams"})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.cluster.GatewayURL()+"/api/hook/a%2Fb/stream?chat=x;y&after=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if line, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || line != ": hello\n" {
		t.Errorf("got %q, %v", line, err)
	}
	got := w.await("front", "request", 1)[0].fields
	if got["query"] != "chat=x;y&after=1" || got["path"] != "/api/hook/a/b/stream" || "http://"+got["host"] != w.cluster.GatewayURL() {
		t.Errorf("%+v", got)
	}
	for _, path := range []string{"/", "/events", "/healthz", "/api/hook"} {
		if status := w.post(w.cluster.GatewayURL()+path, nil, ""); status != http.StatusNotFound {
			t.Errorf("%s answered %d", path, status)
		}
	}
}

func TestErrorsReachThePerson(t *testing.T) {
	w := start(t, setting{worker: "logs an error"})
	w.post(w.cluster.ServiceURL("worker")+"/events", nil, "")
	want := "worker: event failed: the model's key was rejected (agent coder) (session ses_1)"
	w.until("the line", func() bool { return w.reported() == want })
	text, err := os.ReadFile(filepath.Join(w.dir, "logs", "worker.log"))
	if err != nil || !strings.Contains(string(text), `"msg":"fine"`) {
		t.Errorf("the log has %q, %v", text, err)
	}
}

func TestTick(t *testing.T) {
	w := start(t, setting{})
	if err := w.cluster.Tick(t.Context(), "tick"); err != nil {
		t.Fatal(err)
	}
	if got := w.notes("worker", "request")[0].fields; got["type"] != "dev.knative.sources.ping" || got["path"] != "/events" {
		t.Errorf("%+v", got)
	}
	if err := w.cluster.Tick(t.Context(), "tock"); err == nil {
		t.Error("there is no such source")
	}
}

// Agents that appear, change, break and go are told of, by name.
func TestAgentsFolder(t *testing.T) {
	agent := func(name, text string) string {
		return "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: " + name + "}\nspec: {text: " + text + "}\n"
	}
	w := start(t, setting{})
	seen := 0
	next := func() (eventType, name string) {
		t.Helper()
		seen++
		got := w.await("front", "request", seen)[seen-1].fields
		return strings.TrimPrefix(got["type"], "dev.knative.apiserver.ref."), got["name"]
	}
	expect := func(wantType, wantName string) {
		t.Helper()
		if eventType, name := next(); eventType != wantType || name != wantName {
			t.Errorf("got %s %s, want %s %s", eventType, name, wantType, wantName)
		}
	}
	w.write("agents/notes.txt", "not YAML")
	w.write("agents/other.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
	w.write("agents/one.yaml", agent("coder", "a"))
	expect("add", "coder")
	w.write("agents/one.yaml", agent("coder", "b"))
	expect("update", "coder")
	w.write("agents/broken.yaml", "a: [")
	expect("add", "broken")
	if err := os.Remove(filepath.Join(w.dir, "agents", "one.yaml")); err != nil {
		t.Fatal(err)
	}
	expect("delete", "coder")
}

// What could not be honoured is refused before anything runs.
func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*devcluster.Options)
		want   string
	}{
		"a secret that is not there": {func(o *devcluster.Options) { o.Secret = func(string, string) (string, bool) { return "", false } }, "the Secret database has no key url"},
		"a folder that is not there": {func(o *devcluster.Options) { o.ConfigMap = nil }, "no folder stands for the ConfigMap agents"},
		"a sink that is no Service":  {func(o *devcluster.Options) { o.Manifest.Pings[0].Spec.Sink.Ref.Name = "nobody" }, "PingSource tick: there is no Service n/nobody"},
		"a host nobody serves": {func(o *devcluster.Options) {
			o.Manifest.Services[0].Env()[1].Value = "http://x.n.svc.cluster.local"
		}, "names nothing that runs here"},
		"an address that is taken": {func(o *devcluster.Options) { o.Gateway = "256.0.0.1:1" }, "256.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			good := start(t, setting{})
			o := good.options
			c.change(&o)
			cluster, err := devcluster.New(o)
			if err == nil {
				cluster.Close()
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
