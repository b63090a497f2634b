package devcluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/devcluster"
	"tuluat.ai/harness/scripts/internal/manifest"
)

// world is a cluster with a Broker, the Services "front" (public), "worker" and
// "dead", one Trigger (type wanted, channel optional) and both kinds of source.
type world struct {
	t       *testing.T
	cluster *devcluster.Cluster
	dir     string
	stop    func()
	options devcluster.Options

	mu     sync.Mutex
	errors []string
}

type setting struct {
	worker, dead, front string // behaviours
	trigger             string // replaces the Trigger's delivery
	async               string // "false" for a broker that waits
	concurrency         int
	timeout             int
	scale               int
	options             func(*devcluster.Options)
}

func start(t *testing.T, s setting) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	for _, folder := range []string{"agents", "logs", "wiring"} {
		if err := os.Mkdir(filepath.Join(w.dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.write("wiring/wiring.yaml", s.yaml())
	set, err := manifest.Read(filepath.Join(w.dir, "wiring"))
	if err != nil {
		t.Fatal(err)
	}
	behaviours := map[string]string{"worker": s.worker, "dead": s.dead, "front": s.front}
	o := devcluster.Options{
		Manifest: set, LogDir: filepath.Join(w.dir, "logs"), AgentsDir: filepath.Join(w.dir, "agents"),
		Binary: func(string) string { return os.Args[0] },
		Secret: func(name, key string) (string, bool) { return "s3cret", name == "database" && key == "url" },
		ConfigMap: func(name string) (string, bool) {
			return filepath.Join(w.dir, "agents"), name == "agents"
		},
		Env: func(s *manifest.Service) map[string]string {
			return map[string]string{"NOTES": w.path(s.Name), "BEHAVIOUR": behaviours[s.Name]}
		},
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnError: func(service, line string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.errors = append(w.errors, service+": "+line)
		},
		StopGrace: 5 * time.Second,
	}
	if s.options != nil {
		s.options(&o)
	}
	w.options = o
	if w.cluster, err = devcluster.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.cluster.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	t.Cleanup(w.stop)
	return w
}

func (s setting) yaml() string {
	or := func(n, def int) int {
		if n == 0 {
			return def
		}
		return n
	}
	if s.trigger == "" {
		s.trigger = "{retry: 2, backoffPolicy: exponential, backoffDelay: PT0.01S, timeout: PT60S}"
	}
	if s.async == "" {
		s.async = "true"
	}
	service := func(name, meta string, concurrency, timeout, scale int) string {
		return fmt.Sprintf(`---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: %s, namespace: n, %s}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/min-scale: "0", autoscaling.knative.dev/max-scale: "%d"}}
    spec:
      serviceAccountName: a
      containerConcurrency: %d
      timeoutSeconds: %d
      containers:
        - image: ko://example.com/%s
          env:
            - {name: BROKER_URL, value: "http://broker-ingress.knative-eventing.svc.cluster.local/n/default"}
            - {name: OTHER_URL, value: "http://dead.n.svc.cluster.local/events"}
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: database, key: url}}}
            - {name: ABSENT, valueFrom: {secretKeyRef: {name: none, key: none, optional: true}}}
            - {name: FOLDER, value: /etc/agents}
          volumeMounts: [{name: agents, mountPath: /etc/agents, readOnly: true}]
          resources: {}
          securityContext: {runAsNonRoot: true, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
      volumes: [{name: agents, configMap: {name: agents}}]
`, name, meta, scale, concurrency, timeout, name)
	}
	local := "labels: {networking.knative.dev/visibility: cluster-local}"
	ref := func(name string) string {
		return "{ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: " + name + ", namespace: n}, uri: /events}"
	}
	delivery := strings.TrimSuffix(s.trigger, "}") + ", deadLetterSink: " + ref("dead") + "}"
	return service("worker", local, or(s.concurrency, 10), or(s.timeout, 30), or(s.scale, 2)) +
		service("dead", local, 10, 30, 1) +
		service("front", "annotations: {tuluat.ai/public-path: \"/api/hook/,/docs\"}", 10, 30, 1) +
		`---
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: default, namespace: n, annotations: {eventing.knative.dev/broker.class: MTChannelBasedBroker, messaging.knative.dev/async-handler: "` + s.async + `"}}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: wanted, namespace: n}
spec:
  broker: default
  filter: {attributes: {type: wanted, channel: webhook}}
  subscriber: ` + ref("worker") + `
  delivery: ` + delivery + `
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: reply, namespace: n}
spec:
  broker: default
  filters: [{exact: {type: reply}}]
  subscriber: ` + ref("worker") + `
  delivery: ` + delivery + `
---
apiVersion: sources.knative.dev/v1
kind: PingSource
metadata: {name: tick, namespace: n}
spec: {schedule: "0 0 1 1 *", sink: ` + ref("worker") + `}
---
apiVersion: sources.knative.dev/v1
kind: ApiServerSource
metadata: {name: agents, namespace: n}
spec:
  mode: Reference
  resources: [{apiVersion: tuluat.ai/v1alpha1, kind: AiAgent}]
  sink: ` + ref("front") + "\n"
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name+".notes") }

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

type noted struct {
	what   string
	pid    int
	fields map[string]string
}

func (w *world) notes(service, what string) []noted {
	w.t.Helper()
	var all []noted
	for line := range strings.Lines(notes(w.path(service))) {
		var n noted
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(words) < 3 || words[0] != what {
			continue
		}
		n.what, n.pid = words[0], number(words[1])
		if json.Unmarshal([]byte(words[2]), &n.fields) == nil {
			all = append(all, n)
		}
	}
	return all
}

// await waits for n notes of that kind and returns them.
func (w *world) await(service, what string, n int) []noted {
	w.t.Helper()
	var got []noted
	w.until(fmt.Sprintf("%d %q of %s", n, what, service), func() bool {
		got = w.notes(service, what)
		return len(got) >= n
	})
	return got
}

func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited too long for %s; counts %+v", what, w.cluster.Counts())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// publish posts an event of the type to the Broker and returns the status.
func (w *world) publish(id, eventType string) int {
	w.t.Helper()
	return w.post(w.cluster.BrokerURL("n", "default"), map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": id, "Ce-Source": "test", "Ce-Type": eventType, "Ce-Channel": "webhook", "Content-Type": "application/json",
	}, `{"session":"ses_1"}`)
}

func (w *world) post(url string, header map[string]string, body string) int {
	w.t.Helper()
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

func (w *world) reported() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.errors, "\n")
}
