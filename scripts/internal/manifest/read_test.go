package manifest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/scripts/internal/manifest"
)

const trigger = `apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata:
  name: t
  namespace: n
spec:
  broker: default
  filter:
    attributes:
      type: a
  subscriber:
    ref:
      apiVersion: serving.knative.dev/v1
      kind: Service
      name: s
  delivery:
    retry: 3
    timeout: PT10S
`

const service = `apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: s
  namespace: n
  labels:
    networking.knative.dev/visibility: cluster-local
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/min-scale: "0"
        autoscaling.knative.dev/max-scale: "2"
    spec:
      serviceAccountName: s
      containerConcurrency: 4
      timeoutSeconds: 30
      containers:
        - image: ko://example.com/s
          env:
            - name: A
              value: b
          resources: {}
          securityContext:
            runAsNonRoot: true
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
`

func TestReadKeepsWhatTheFilesSay(t *testing.T) {
	folder := write(t, "# a comment\n---\n"+trigger+"---\n"+service)
	set, err := manifest.Read(folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Triggers) != 1 || len(set.Services) != 1 {
		t.Fatalf("got %d triggers and %d services, want one of each", len(set.Triggers), len(set.Services))
	}
	s := set.Services[0]
	got := []any{s.ImportPath(), s.Function(), s.Host(), s.Public(), s.Concurrency(), s.Timeout().String(), s.Env()[0]}
	want := []any{"example.com/s", "s", "s.n.svc.cluster.local", false, 4, "30s", manifest.EnvVar{Name: "A", Value: "b"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Each case is refused, and the message names the line of the fault.
func TestReadRefuses(t *testing.T) {
	replace := strings.NewReplacer
	for name, c := range map[string]struct{ text, want string }{
		"unknown field":             {replace("retry: 3", "retries: 3").Replace(trigger), `:17: unknown field "spec.delivery.retries"`},
		"unknown field of a second": {trigger + "---\n" + replace("timeoutSeconds", "timeoutSecond").Replace(service), `unknown field "spec.template.spec.timeoutSecond"`},
		"pod field behind a flag":   {replace("serviceAccountName: s", "serviceAccountName: s\n      nodeSelector: {a: b}").Replace(service), `:16: unknown field "spec.template.spec.nodeSelector"`},
		"wrong type":                {replace("retry: 3", "retry: many").Replace(trigger), ":17: json: cannot unmarshal string"},
		"duplicate key":             {replace("    retry: 3", "    retry: 3\n    retry: 4").Replace(trigger), `line 18: mapping key "retry" already defined at line 17`},
		"unsupported kind":          {replace("kind: Trigger", "kind: Sequence").Replace(trigger), ":2: eventing.knative.dev/v1 Sequence is not supported"},
		"unsupported version":       {replace("eventing.knative.dev/v1", "eventing.knative.dev/v1beta1").Replace(trigger), ":2: eventing.knative.dev/v1beta1 Trigger is not supported"},
		"eventing refuses":          {replace("timeout: PT10S", "timeout: 10s").Replace(trigger), ":18: invalid value: 10s: spec.delivery.timeout"},
		"eventing refuses a filter": {replace("type: a", "tuluat_session: a").Replace(trigger), ":10: invalid key name"},
		"no broker class":           {"apiVersion: eventing.knative.dev/v1\nkind: Broker\nmetadata: {name: b, namespace: n}\n", "missing field(s): eventing.knative.dev/broker.class"},
		"bad schedule":              {"apiVersion: sources.knative.dev/v1\nkind: PingSource\nmetadata: {name: p, namespace: n}\nspec:\n  schedule: every minute\n  sink: {uri: 'http://a'}\n", ":5: invalid value"},
		"no namespace":              {replace("  namespace: n\n", "").Replace(trigger), ":3: metadata needs a name and a namespace"},
		"twice":                     {trigger + "---\n" + trigger, ":20: Trigger n/t is already at"},
		"no max-scale":              {replace(`autoscaling.knative.dev/max-scale: "2"`, "a: b").Replace(service), "spec.template.metadata.annotations"},
		"no concurrency":            {replace("      containerConcurrency: 4\n", "").Replace(service), ":14: missing field(s): spec.template.spec.containerConcurrency"},
		"timeout beyond Knative":    {replace("timeoutSeconds: 30", "timeoutSeconds: 601").Replace(service), ":17: expected 1 <= 601 <= 600: spec.template.spec.timeoutSeconds"},
		"image by name":             {replace("ko://example.com/s", "example.com/s").Replace(service), ":19: invalid value: example.com/s"},
		"public without a path":     {replace("    networking.knative.dev/visibility: cluster-local", "    a: b").Replace(service), "needs the annotation tuluat.ai/public-path"},
		"public with a wide path":   {public("/api/x/,/").Replace(service), "invalid value: /api/x/,/: metadata.annotations"},
		"public with an odd path":   {public("/api/../x").Replace(service), "metadata.annotations"},
		"public with no path":       {public("/api/x/,").Replace(service), "metadata.annotations"},
		"public with a space":       {public("/api/x/, /docs").Replace(service), "metadata.annotations"},
		"role in a namespace":       {"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r, namespace: n}\n", ":3: metadata needs a name and no namespace"},
		"privileges":                {replace("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true").Replace(service), ":24: runAsNonRoot, no privilege escalation"},
		"env without a value":       {replace("              value: b\n", "").Replace(service), ":21: expected exactly one, got neither"},
		"env twice":                 {replace("              value: b\n", "              value: b\n            - name: A\n              value: c\n").Replace(service), ":23: A is set twice"},
		"torn YAML":                 {"a: [b\n", "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := manifest.Read(write(t, c.text))
			if err == nil {
				t.Fatalf("accepted: %+v", set)
			}
			if !strings.Contains(err.Error(), "wiring.yaml:") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// public makes the service public at these paths.
func public(paths string) *strings.Replacer {
	return strings.NewReplacer("    networking.knative.dev/visibility: cluster-local", "    a: b\n  annotations: {tuluat.ai/public-path: \""+paths+"\"}")
}

// The longest path has a request; one without a slash at its end is itself only.
func TestPublicPaths(t *testing.T) {
	set, err := manifest.Read(write(t, public("/api/v1/,/api/v1/channels/x/,/docs").Replace(service)))
	if err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"/api/v1/agents": "/api/v1/", "/api/v1/": "/api/v1/", "/api/v1": "", "/api/v1/channels/x/a": "/api/v1/channels/x/", "/api/v1/channels": "/api/v1/",
		"/docs": "/docs", "/docs/": "", "/docs/x": "", "/docsx": "", "/": "", "": "", "/events": "",
	} {
		if got := set.Services[0].Serves(url); got != want {
			t.Errorf("%s belongs to %q, want %q", url, got, want)
		}
	}
	set.Services[0].Labels[manifest.Visibility] = "cluster-local"
	if got := set.Services[0].Serves("/docs"); got != "" {
		t.Errorf("a cluster-local Service serves %q", got)
	}
}

func TestReadReportsEveryProblem(t *testing.T) {
	_, err := manifest.Read(write(t, strings.NewReplacer("retry: 3", "retries: 3", "timeout: PT10S", "timeouts: PT10S").Replace(trigger)), t.TempDir())
	for _, want := range []string{"spec.delivery.retries", "spec.delivery.timeouts", "no .yaml file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func write(t *testing.T, text string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "wiring.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}
