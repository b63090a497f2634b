package install

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRenameRefusesOtherPrefixes(t *testing.T) {
	for _, prefix := range []string{"", "tuluat", "-", "Tuluat-", "a_b-", "1-", strings.Repeat("a", 40) + "-"} {
		if out, err := Rename([]byte("namespace: tuluat-system"), prefix); err == nil {
			t.Errorf("%q gave %s", prefix, out)
		}
	}
	// Names that only look alike stay.
	const text = "tuluat-system tuluat-systems nottuluat-system tuluat-harness tuluat-sandbox/x http://a.tuluat-agents.svc"
	out, err := Rename([]byte(text), "e2e-")
	if want := "e2e-system tuluat-systems nottuluat-system tuluat-harness e2e-sandbox/x http://a.e2e-agents.svc"; err != nil || string(out) != want {
		t.Errorf("got  %s, %v\nwant %s", out, err, want)
	}
}

func TestObjectsComeInSteps(t *testing.T) {
	objects, err := Objects([]byte(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: f, namespace: n}
---
apiVersion: v1
kind: Service
metadata: {name: postgres, namespace: n}
---
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: n}
---
apiVersion: sources.knative.dev/v1
kind: PingSource
metadata: {name: p, namespace: n}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: postgres, namespace: n}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, fmt.Sprint(o, " ", stepOf(o), " ", awaited(o), " ", resource(o)))
	}
	want := []string{
		"Service f 2 true service.v1.serving.knative.dev", "Service postgres 0 false service", "Job migrate 1 true job.v1.batch",
		"PingSource p 3 true pingsource.v1.sources.knative.dev", "StatefulSet postgres 0 true statefulset.v1.apps",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := Objects([]byte("kind: Service\nmetadata: {name: x}\n")); err == nil {
		t.Error("an object without apiVersion was taken")
	}
}

func TestJudge(t *testing.T) {
	service, job, set := Object{APIVersion: "serving.knative.dev/v1", Kind: "Service"}, Object{APIVersion: "batch/v1", Kind: "Job"}, Object{APIVersion: "apps/v1", Kind: "StatefulSet"}
	for name, c := range map[string]struct {
		object Object
		now    string
		want   state
	}{
		"absent":           {service, `null`, state{word: "not there yet"}},
		"seen too early":   {service, `{"metadata":{"generation":2},"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"True"}]}}`, state{word: "its controller has not seen it yet"}},
		"ready":            {service, `{"metadata":{"generation":2},"status":{"observedGeneration":2,"conditions":[{"type":"Ready","status":"True"}]}}`, state{ready: true, word: "ready"}},
		"with a reason":    {service, `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"R","message":"why"}]}}`, state{word: "not ready: R why"}},
		"without":          {service, `{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`, state{word: "not ready yet"}},
		"a Job that runs":  {job, `{"status":{"active":1}}`, state{word: "running"}},
		"that tries again": {job, `{"status":{"active":1,"failed":2}}`, state{word: "running, after 2 failed attempts"}},
		"that is done":     {job, `{"status":{"conditions":[{"type":"Complete","status":"True"}]}}`, state{ready: true, word: "done"}},
		"that failed":      {job, `{"status":{"conditions":[{"type":"Failed","status":"True","reason":"BackoffLimitExceeded"}]}}`, state{final: true, word: "failed: BackoffLimitExceeded"}},
		"old pods":         {set, `{"metadata":{"generation":1},"spec":{"replicas":1},"status":{"observedGeneration":1,"readyReplicas":1}}`, state{word: "1 of 1 pods ready"}},
		"new pods":         {set, `{"metadata":{"generation":1},"spec":{"replicas":1},"status":{"observedGeneration":1,"readyReplicas":1,"updatedReplicas":1}}`, state{ready: true, word: "ready"}},
	} {
		var now map[string]any
		if err := json.Unmarshal([]byte(c.now), &now); err != nil {
			t.Fatal(err)
		}
		if got := judge(c.object, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestAddressesOfTheClusterAreFound(t *testing.T) {
	blocks := []block{{netip.MustParsePrefix("0.0.0.0/0"), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16")}}}
	for address, open := range map[string]bool{"10.1.2.3/32": false, "10.0.0.0/8": false, "10.0.0.0/7": true, "192.168.4.0/24": false, "34.1.2.3/32": true, "fd00::1/128": false} {
		if got := blocks[0].opens(netip.MustParsePrefix(address)); got != open {
			t.Errorf("%s: %v, want %v", address, got, open)
		}
	}
}

func TestMissingToolsAreNamedTogether(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("KO_DOCKER_REPO", "")
	err := missingTools(true)
	for _, want := range []string{"kubectl is not in PATH", "go install github.com/google/ko", "kind.local"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	if err := missingTools(false); err == nil || strings.Contains(err.Error(), "ko,") {
		t.Errorf("without images: %v", err)
	}
}

// player answers for kubectl: a file per verb and object, and a list of what it
// was asked. It stands where the program would.
type player struct {
	t      *testing.T
	folder string
}

func play(t *testing.T, answers map[string]string) player {
	t.Helper()
	p := player{t, t.TempDir()}
	const script = `#!/bin/sh
cd "$PLAYER" || exit 1
n=$(ls calls | wc -l)
printf '%s\n' "$*" > calls/$n
case "$*" in *-f\ -*|*/dev/stdin*) cat > "stdin-$n";; esac
for answer in answers/*; do
  pattern=$(head -1 "$answer")
  case "$*" in *"$pattern"*)
    tail -n +2 "$answer"
    grep -q '^FAIL' "$answer" && { echo refused >&2; exit 1; }
    exit 0;;
  esac
done
exit 0
`
	for _, dir := range []string{"calls", "answers"} {
		if err := os.Mkdir(filepath.Join(p.folder, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.write("kubectl", script, 0o700)
	i := 0
	for pattern, answer := range answers {
		p.write(fmt.Sprintf("answers/%d", i), pattern+"\n"+answer, 0o600)
		i++
	}
	t.Setenv("PLAYER", p.folder)
	t.Setenv("PATH", p.folder+":"+os.Getenv("PATH"))
	return p
}

func (p player) write(name, text string, mode os.FileMode) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.folder, name), []byte(text), mode); err != nil {
		p.t.Fatal(err)
	}
}

func (p player) calls() []string {
	p.t.Helper()
	entries, err := os.ReadDir(filepath.Join(p.folder, "calls"))
	if err != nil {
		p.t.Fatal(err)
	}
	calls := make([]string, len(entries))
	for i := range calls {
		text, err := os.ReadFile(filepath.Join(p.folder, "calls", fmt.Sprint(i)))
		if err != nil {
			p.t.Fatal(err)
		}
		calls[i] = strings.TrimSpace(string(text))
	}
	return calls
}

// written is what went in by stdin, all together.
func (p player) written() string {
	p.t.Helper()
	files, err := filepath.Glob(filepath.Join(p.folder, "stdin-*"))
	if err != nil {
		p.t.Fatal(err)
	}
	all := ""
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			p.t.Fatal(err)
		}
		all += string(text)
	}
	return all
}

const inCluster = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: postgres, namespace: tuluat-system}
spec: {template: {spec: {containers: [{env: [{name: P, valueFrom: {secretKeyRef: {name: postgres, key: password}}}]}]}}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: agent-step, namespace: tuluat-system}
spec: {template: {spec: {containers: [{env: [
  {name: DATABASE_URL, valueFrom: {secretKeyRef: {name: database, key: agent-step}}},
  {name: KEY, valueFrom: {secretKeyRef: {name: model, key: openai-api-key, optional: true}}},
  {name: MODEL_NAME, valueFrom: {secretKeyRef: {name: model, key: name}}}]}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: tuluat-system}
spec: {template: {spec: {containers: [{env: [{name: DATABASE_URL, valueFrom: {secretKeyRef: {name: database, key: migrate}}}]}],
  volumes: [{name: l, secret: {secretName: database, items: [{key: agent-step, path: a}, {key: reaper-cron, path: r}]}}]}}}
`

func inClusterObjects(t *testing.T) []Object {
	t.Helper()
	objects, err := Objects([]byte(inCluster))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// The first deployment makes every login up, a later one adds what is new, and
// none replaces what is there. No password is ever an argument.
func TestDatabaseSecretIsMadeOnceAndNeverReplaced(t *testing.T) {
	quiet := func(string, ...any) {}
	p := play(t, nil)
	if err := ensureDatabase(context.Background(), inClusterObjects(t), quiet); err != nil {
		t.Fatal(err)
	}
	created := p.written()
	for _, want := range []string{
		`"agent-step":"postgres://agent_step:`, `"migrate":"postgres://tuluat:`, `"reaper-cron":"postgres://reaper_cron:`,
		"@postgres.tuluat-system.svc.cluster.local:5432/tuluat?sslmode=disable", `"name":"postgres"`,
	} {
		if !strings.Contains(created, want) {
			t.Errorf("%s is not in what was created", want)
		}
	}
	if calls := strings.Join(p.calls(), "\n"); strings.Contains(calls, "postgres://") || strings.Count(calls, "create -f -") != 2 {
		t.Errorf("kubectl was asked\n%s", calls)
	}

	p = play(t, map[string]string{"get secret database": "agent-step\nmigrate\n", "get secret postgres --ignore": "password\n", "base64decode": "old-password"})
	if err := ensureDatabase(context.Background(), inClusterObjects(t), quiet); err != nil {
		t.Fatal(err)
	}
	added := p.written()
	if strings.Contains(added, "agent_step") || strings.Contains(added, "old-password") || !strings.Contains(added, "reaper_cron") {
		t.Errorf("written over: %s", added)
	}

	p = play(t, map[string]string{"get secret database": "agent-step\nmigrate\nreaper-cron\n", "get secret postgres --ignore": "password\n", "base64decode": "x"})
	if err := ensureDatabase(context.Background(), inClusterObjects(t), quiet); err != nil || p.written() != "" {
		t.Errorf("%v, wrote %s", err, p.written())
	}
	// Without a Postgres of ours nothing is made up.
	p = play(t, nil)
	if err := ensureDatabase(context.Background(), inClusterObjects(t)[1:], quiet); err != nil || len(p.calls()) > 0 {
		t.Errorf("%v, asked %v", err, p.calls())
	}
}

func TestMissingSecretsAreNamedTogether(t *testing.T) {
	play(t, map[string]string{"get secret database": "agent-step\n"})
	err := missingSecrets(context.Background(), inClusterObjects(t))
	for _, want := range []string{
		"the Secret database in tuluat-system lacks migrate, reaper-cron", "the Secret model in tuluat-system lacks name", "kubectl -n tuluat-system create secret generic model",
		"the Secret postgres in tuluat-system lacks password",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "openai-api-key,") {
		t.Errorf("an optional key is missed: %v", err)
	}
}

func TestMissingPartsOfTheCluster(t *testing.T) {
	for name, c := range map[string]struct {
		answers map[string]string
		want    string
	}{
		"no answer":     {map[string]string{"--raw /version": "FAIL"}, "does not answer"},
		"no Knative":    {map[string]string{"--raw /apis": `{"groups":[{"name":"apps"}]}`}, "Knative Serving is not installed"},
		"how":           {map[string]string{"--raw /apis": `{"groups":[{"name":"serving.knative.dev"}]}`}, "https://knative.dev/docs/install/"},
		"another class": {map[string]string{"--raw /apis": allGroups, "deployments -A": "mt-broker-controller"}, "no Deployment kafka-controller"},
	} {
		play(t, c.answers)
		if err := missingInCluster(context.Background(), "Kafka"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	play(t, map[string]string{"--raw /apis": allGroups, "deployments -A": "a kafka-controller b"})
	if err := missingInCluster(context.Background(), "Kafka"); err != nil {
		t.Error(err)
	}
}

const allGroups = `{"groups":[{"name":"serving.knative.dev"},{"name":"eventing.knative.dev"},{"name":"sources.knative.dev"}]}`

// What cannot be made again is kept unless asked for; the kinds also when
// somebody else uses them.
func TestUndeployKeepsData(t *testing.T) {
	overlay := t.TempDir()
	files := map[string]string{
		"kustomization.yaml": "kind: Kustomization\nresources: [all.yaml]\n",
		"all.yaml": inCluster + `---
apiVersion: v1
kind: Namespace
metadata: {name: tuluat-agents}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: postgres, namespace: tuluat-system}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: aiagents.tuluat.ai}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: of-callers, labels: {app.kubernetes.io/component: access}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: of-a-function}
`,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(overlay, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	groups := `{"groups":[{"name":"apps"},{"name":"batch"},{"name":"apiextensions.k8s.io"},{"name":"rbac.authorization.k8s.io"},{"name":"serving.knative.dev"}]}`
	deleted := func(p player, what string) bool { return strings.Contains(p.written(), fmt.Sprintf("%q", what)) }
	for _, c := range []struct {
		purge bool
		users string // namespaces of another install
		gone  []string
		kept  []string
	}{
		{false, "", []string{"Service", "Job", "StatefulSet", "of-a-function"}, []string{"Namespace", "PersistentVolumeClaim", "CustomResourceDefinition", "of-callers"}},
		{true, "", []string{"Service", "Job", "StatefulSet", "Namespace", "CustomResourceDefinition", "of-callers", "of-a-function"}, nil},
		{true, "other-system other-agents", []string{"Namespace", "of-a-function"}, []string{"CustomResourceDefinition", "of-callers"}},
	} {
		p := play(t, map[string]string{"--raw /apis": groups, "get namespaces -l app.kubernetes.io/part-of=tuluat-harness": c.users})
		if err := Undeploy(context.Background(), Options{Overlay: overlay, Log: io.Discard}, c.purge); err != nil {
			t.Fatal(err)
		}
		for _, what := range c.gone {
			if !deleted(p, what) {
				t.Errorf("purge %v: %s stayed", c.purge, what)
			}
		}
		for _, what := range c.kept {
			if deleted(p, what) {
				t.Errorf("purge %v, used by %q: %s went", c.purge, c.users, what)
			}
		}
		if !slices.ContainsFunc(p.calls(), func(call string) bool {
			return strings.HasPrefix(call, "-n tuluat-sandbox delete pods")
		}) {
			t.Error("sandboxes were left")
		}
	}
}
