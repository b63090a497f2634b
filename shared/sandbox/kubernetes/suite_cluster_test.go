//go:build cluster

package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	exitcode "k8s.io/client-go/util/exec"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/kubernetes"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

// The suite on a real cluster: KUBECONFIG, SANDBOX_TEST_IMAGE (with bash,
// coreutils and awk), SANDBOX_TEST_RUNNER_IMAGE, and, if another is wanted,
// SANDBOX_TEST_NAMESPACE, the prefix of the namespace that is made and removed.
// What is missing is a failure: whoever runs this wants to know.

const (
	suiteCPU  = 250  // thousandths of a core: the cases run beside each other, and fit on a small node
	figureCPU = 1000 // one Pod at a time, as an agent gets it
	execBound = 20 * time.Second
)

// cluster is one namespace for the tests.
type cluster struct {
	config    *rest.Config
	core      *corev1client.CoreV1Client
	namespace string
	image     string
	runner    string
}

func openCluster(t *testing.T) *cluster {
	t.Helper()
	need := func(name string) string {
		v := os.Getenv(name)
		if v == "" {
			t.Fatalf("%s is not set", name)
		}
		return v
	}
	c := &cluster{image: need("SANDBOX_TEST_IMAGE"), runner: need("SANDBOX_TEST_RUNNER_IMAGE")}
	var err error
	if c.config, err = kubernetes.LoadConfig("", need("KUBECONFIG")); err != nil {
		t.Fatal(err)
	}
	c.config.QPS, c.config.Burst = 50, 100
	if c.core, err = corev1client.NewForConfig(c.config); err != nil {
		t.Fatal(err)
	}
	prefix := os.Getenv("SANDBOX_TEST_NAMESPACE")
	if prefix == "" {
		prefix = "tuluat-suite"
	}
	c.namespace = fmt.Sprintf("%s-%x", prefix, time.Now().UnixMilli())
	_, err = c.core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: c.namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer func() { // both clients share the connections of one cluster
			if transport, err := rest.TransportFor(c.config); err == nil {
				utilnet.CloseIdleConnectionsFor(transport)
			}
		}()
		if err := c.core.Namespaces().Delete(context.Background(), c.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	_, err = c.core.ServiceAccounts(c.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: kubernetes.ServiceAccount}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// small is the driver with sandboxes that fit.
type small struct {
	*kubernetes.Driver
	image     string
	cpuMillis int64
}

func (s small) Start(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	sb.Spec.CPUMillis, sb.Spec.Image = s.cpuMillis, s.image
	return s.Driver.Start(ctx, sb)
}

func (c *cluster) driver(t *testing.T, cpuMillis int64) small {
	t.Helper()
	d, err := kubernetes.New(kubernetes.Options{
		Config: c.config, Namespace: c.namespace, RunnerImage: c.runner, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return small{d, c.image, cpuMillis}
}

// raw runs a command in the Pod without the driver and without the runner.
func (c *cluster) raw(ctx context.Context, pod string, command ...string) (string, error) {
	url := c.core.RESTClient().Post().Namespace(c.namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "sandbox", Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(c.config, "GET", url.String())
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.String())
	}
	return stdout.String(), nil
}

// Inside, Read and Write are the evidence of the suite: files in the sandbox,
// seen by execs of our own.
func (*cluster) Inside() string { return "/tmp" }

func (c *cluster) Read(t *testing.T, sb sandbox.Sandbox, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), execBound)
	defer cancel()
	for {
		text, err := c.raw(ctx, sb.Name, "sh", "-c", `[ ! -e "$0" ] || cat "$0"`, "/tmp/"+name)
		// The end of a command ends all that runs in the sandbox, and so a look at
		// just that moment.
		if ended, ok := errors.AsType[exitcode.CodeExitError](err); ok && ended.ExitStatus() == 128+int(syscall.SIGKILL) {
			continue
		}
		if err != nil {
			t.Errorf("read %s: %v", name, err)
		}
		return text
	}
}

func (c *cluster) Write(t *testing.T, sb sandbox.Sandbox, name string) {
	t.Helper()
	if _, err := c.raw(t.Context(), sb.Name, "touch", "/tmp/"+name); err != nil {
		t.Error(err)
	}
}

func TestClusterSuite(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	c := openCluster(t)
	d := c.driver(t, suiteCPU)
	t.Cleanup(func() {
		found, err := d.List(context.Background())
		if err != nil || len(found) > 0 {
			t.Errorf("left behind: %+v, %v", found, err)
		}
	})
	// The cases run beside each other: this one ends when all of them have.
	t.Run("all", func(t *testing.T) {
		sandboxtest.Run(t, func(*testing.T) sandboxtest.Bench {
			return sandboxtest.Bench{
				Driver: d, Evidence: c, ShortLife: 15 * time.Second,
				Client: func(sb sandbox.Sandbox, argv ...string) []string {
					return append([]string{kubectl, "exec", "-i", "-n", c.namespace, "-c", "sandbox", sb.Name, "--", "/opt/tuluat/runner"}, argv...)
				},
			}
		})
	})
}

// TestClusterFigures prints what the driver costs beside a plain Pod and a plain
// exec, taken in turns.
func TestClusterFigures(t *testing.T) {
	c := openCluster(t)
	d := c.driver(t, figureCPU)
	rounds := 5
	var plain, with, bare []time.Duration
	var sb sandbox.Sandbox
	for i := range rounds {
		bare = append(bare, c.plainPod(t, fmt.Sprintf("bare-%d", i), false))
		plain = append(plain, c.plainPod(t, fmt.Sprintf("plain-%d", i), true))
		begun := time.Now()
		sb = sandboxtest.Started(t, d, sandboxtest.Spec())
		with = append(with, time.Since(begun))
		if i < rounds-1 {
			if err := d.Terminate(t.Context(), sb); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("create to running, plain Pod:                     p50 %v of %v", median(bare), bare)
	t.Logf("create to running, plain Pod with init container: p50 %v of %v", median(plain), plain)
	t.Logf("Start, until it takes commands:                   p50 %v of %v: %.2f times", median(with), with, float64(median(with))/float64(median(plain)))
	var raws, execs []time.Duration
	for range 20 {
		begun := time.Now()
		if _, err := c.raw(t.Context(), sb.Name, "true"); err != nil {
			t.Fatal(err)
		}
		raws = append(raws, time.Since(begun))
		begun = time.Now()
		req := sandboxtest.Command("")
		req.Command = []string{"true"}
		if res, err := sandbox.Exec(t.Context(), d, sb, req, nil); err != nil || res.State != harness.ExecutionCompleted {
			t.Fatalf("%+v, %v", res, err)
		}
		execs = append(execs, time.Since(begun))
	}
	ratio := float64(median(execs)) / float64(median(raws))
	t.Logf("warm exec of true: p50 %v, raw p50 %v: %.2f times", median(execs), median(raws), ratio)
	if ratio > 1.3 {
		t.Errorf("a warm exec costs %.2f times a raw one, at most 1.3 is allowed", ratio)
	}
}

func median(d []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(d))
	return sorted[len(sorted)/2].Round(time.Millisecond)
}

// plainPod returns how long a Pod of the same image takes to run, with or
// without an init container that does nothing but start.
func (c *cluster) plainPod(t *testing.T, name string, withInit bool) time.Duration {
	t.Helper()
	limits := corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(figureCPU, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("64Mi")}
	make := func(name string, command ...string) corev1.Container {
		return corev1.Container{
			Name: name, Image: c.image, Command: command, Resources: corev1.ResourceRequirements{Requests: limits, Limits: limits},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers:      []corev1.Container{make("sandbox", "sleep", "600")},
		},
	}
	if withInit {
		pod.Spec.InitContainers = []corev1.Container{make("init", "true")}
	}
	pods := c.core.Pods(c.namespace)
	begun := time.Now()
	made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := pods.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: made.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning {
			took := time.Since(begun)
			if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return took
		}
	}
	t.Fatalf("%s never ran", strings.TrimSpace(name))
	return 0
}
