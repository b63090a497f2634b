package kubernetes

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

var update = flag.Bool("update", false, "write the golden files anew")

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func testDriver(t *testing.T, change func(*Options)) *Driver {
	t.Helper()
	o := Options{Config: &rest.Config{Host: "https://10.96.0.1:443"}, Namespace: "tuluat-sandbox", RunnerImage: "registry.example/runner@sha256:0", CheckNetwork: true}
	if change != nil {
		change(&o)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func testSandbox(change func(*harness.SandboxSpec)) sandbox.Sandbox {
	spec := harness.DefaultSandbox()
	if change != nil {
		change(&spec)
	}
	return sandbox.Sandbox{
		ID: "sbx_01", Name: "sb-01", Agent: "python-coder", Session: "ses_01", Spec: spec, ExpiresAt: noon.Add(10 * time.Minute),
	}
}

// variants are Pods of every kind the driver makes.
func variants(t *testing.T) map[string]*corev1.Pod {
	return map[string]*corev1.Pod{
		"default": testDriver(t, nil).pod(testSandbox(nil), "debian:12", noon),
		"everything": testDriver(t, func(o *Options) {
			o.RunnerMount, o.PullSecrets, o.RuntimeClass, o.CheckNetwork = ImageVolume, []string{"registry"}, "gvisor", false
		}).pod(testSandbox(func(s *harness.SandboxSpec) {
			s.Workdir, s.KeepBackground, s.Egress, s.CPUMillis, s.RuntimeClass = "persistent", true, harness.EgressNone, 250, "kata"
		}), "registry.example/team/python:3", noon),
	}
}

// The golden files are what reviewers of a cluster read.
func TestPod(t *testing.T) {
	for name, pod := range variants(t) {
		got, err := yaml.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", "pod_"+name+".yaml")
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s: run with -update and look at the difference (-want +got):\n%s", path, diff)
		}
	}
}

// The cluster's own code of Pod Security admits every Pod, and would not if it
// were any laxer.
func TestPodSecurityAdmitsThePod(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	admit := func(pod *corev1.Pod) policy.AggregateCheckResult {
		return policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec))
	}
	for name, pod := range variants(t) {
		if r := admit(pod); !r.Allowed {
			t.Errorf("%s: %s", name, r.ForbiddenDetail())
		}
		for what, loosen := range map[string]func(*corev1.PodSpec){
			"escalation":   func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.AllowPrivilegeEscalation = new(true) },
			"capabilities": func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.Capabilities = nil },
			"root":         func(s *corev1.PodSpec) { s.SecurityContext.RunAsNonRoot = nil },
			"seccomp":      func(s *corev1.PodSpec) { s.SecurityContext.SeccompProfile = nil },
			"host":         func(s *corev1.PodSpec) { s.HostNetwork = true },
		} {
			lax := pod.DeepCopy()
			loosen(&lax.Spec)
			if admit(lax).Allowed {
				t.Errorf("%s: admitted without %s", name, what)
			}
		}
	}
}

// One that the platform ended counts from its last change: not from its start,
// which would make it old at once.
func TestEndedAt(t *testing.T) {
	at := func(minutes int) metav1.Time { return metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute)) }
	status := func(state corev1.ContainerState) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: container, State: state}}
	}
	conditions := []corev1.PodCondition{{Type: corev1.PodScheduled, LastTransitionTime: at(1)}, {Type: corev1.PodReady, LastTransitionTime: at(30)}, {Type: corev1.PodInitialized, LastTransitionTime: at(2)}}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   time.Time
	}{
		"runs":                 {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: conditions}, time.Time{}},
		"its container says":   {corev1.PodStatus{Phase: corev1.PodFailed, Conditions: conditions, ContainerStatuses: status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(20)}})}, at(20).Time},
		"without a word of it": {corev1.PodStatus{Phase: corev1.PodFailed, Conditions: conditions}, at(30).Time},
		"lost":                 {corev1.PodStatus{Phase: corev1.PodFailed, Conditions: conditions, ContainerStatuses: status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown"}})}, at(30).Time},
		"never had anything":   {corev1.PodStatus{Phase: corev1.PodFailed}, at(0).Time},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(0)}, Status: c.status}
		if got := endedAt(pod); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestLabelValue(t *testing.T) {
	for _, v := range []string{"python-coder", "", "ses_01", "+49 170 1234567", "Ünïcode Agent", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("-", 80), "/", "a/b", "a b"} {
		got := labelValue(v)
		if problems := validation.IsValidLabelValue(got); len(problems) > 0 {
			t.Errorf("%q became %q: %v", v, got, problems)
		}
		if valid := len(validation.IsValidLabelValue(v)) == 0; valid != (got == v) {
			t.Errorf("%q became %q", v, got)
		}
	}
	if labelValue("a/b") == labelValue("a b") {
		t.Error("two values have one label")
	}
}

func TestAPIServer(t *testing.T) {
	for host, want := range map[string]string{
		"https://10.96.0.1:443":   "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)",
		"https://[fd00::1]:443":   "[$(KUBERNETES_SERVICE_HOST)]:$(KUBERNETES_SERVICE_PORT)",
		"https://k8s.example":     "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)",
		"10.0.0.1:6443":           "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)",
		"http://127.0.0.1:8080/x": "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)",
	} {
		if got := apiServer(host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

func TestPolicyOfAList(t *testing.T) {
	d := testDriver(t, nil)
	list := func(rules ...harness.EgressRule) sandbox.Sandbox {
		return testSandbox(func(s *harness.SandboxSpec) { s.Egress, s.EgressAllow = harness.EgressAllowlist, rules })
	}
	sb := list(harness.EgressRule{CIDR: "203.0.113.7/24", Ports: []int{443, 8443}}, harness.EgressRule{CIDR: "0.0.0.0/0"}, harness.EgressRule{CIDR: "2001:db8::/32"})
	open, err := rules(sb.Spec)
	if err != nil {
		t.Fatal(err)
	}
	pod := d.pod(sb, "debian:12", noon)
	pod.UID = "uid-1"
	got, err := yaml.Marshal(d.policy(sb, pod, open))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "policy.yaml")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []harness.EgressRule{{CIDR: "169.254.169.254/32"}, {CIDR: "169.254.0.0/16"}, {CIDR: "fd00:ec2::254/128"}, {CIDR: "example.com"}, {CIDR: "10.0.0.1"}, {CIDR: "10.0.0.0/8", Ports: []int{0}}, {CIDR: "127.0.0.1/32"}} {
		if _, err := rules(list(bad).Spec); harness.KindOf(err) != harness.Invalid || sandbox.ReasonOf(err) != sandbox.ReasonSpec {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if open, err := rules(testSandbox(nil).Spec); open != nil || err != nil {
		t.Errorf("a policy for a sandbox without a list: %v, %v", open, err)
	}
}

func TestImages(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"default": "debian:12\n", "python": " registry.example/python:3 \n", "empty": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "..data"), 0o755); err != nil { // as a mounted ConfigMap has
		t.Fatal(err)
	}
	d := testDriver(t, func(o *Options) { o.ImagesDir = dir })
	for _, c := range []struct{ image, ref, want, says string }{
		{"", "", "debian:12", ""},
		{"", "python", "registry.example/python:3", ""},
		{"own:1", "python", "own:1", ""},
		{"", "rust", "", "default, empty, python"},
		{"", "empty", "", "is empty"},
		{"", "../default", "", "default, empty, python"},
		{"", "..data", "", "default, empty, python"},
	} {
		got, err := d.image(harness.SandboxSpec{Image: c.image, ImageRef: c.ref})
		if got != c.want || (err == nil) != (c.says == "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		if err != nil && (harness.KindOf(err) != harness.Invalid || !strings.Contains(harness.MessageOf(err), c.says)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "rust"), []byte("rust:1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := d.image(harness.SandboxSpec{ImageRef: "rust"}); got != "rust:1" || err != nil {
		t.Errorf("a change of the folder is not seen: %q, %v", got, err)
	}
	if _, err := testDriver(t, nil).image(harness.SandboxSpec{}); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("without a folder: %v", err)
	}
}
