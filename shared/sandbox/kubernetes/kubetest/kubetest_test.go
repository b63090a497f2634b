package kubetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/httpstream"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"tuluat.ai/harness/shared/sandbox/kubernetes/kubetest"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil //nolint:reassign // cut streams are what these tests are about
	code := m.Run()
	if err := kubetest.Leaks(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const ns = "sandboxes"

func client(t *testing.T, s *kubetest.Server) kubernetes.Interface {
	t.Helper()
	config := s.Config()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "runner"}}, Containers: []corev1.Container{{Name: "sandbox"}}},
	}
}

// running makes a Pod and waits until it runs.
func running(t *testing.T, s *kubetest.Server, c kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	if _, err := c.CoreV1().Pods(ns).Create(t.Context(), pod(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var p *corev1.Pod
	s.Until("a Pod that runs", func() bool {
		var err error
		if p, err = c.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		return p.Status.Phase == corev1.PodRunning
	})
	return p
}

// stream runs argv by one of client-go's own executors.
func stream(ctx context.Context, t *testing.T, s *kubetest.Server, c kubernetes.Interface, how, name string, argv ...string) (stdout, stderr string, err error) {
	t.Helper()
	u := c.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "sandbox", Command: argv, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	var ex remotecommand.Executor
	if how == "websocket" {
		ex, err = remotecommand.NewWebSocketExecutor(s.Config(), http.MethodGet, u.String())
	} else {
		ex, err = remotecommand.NewSPDYExecutor(s.Config(), http.MethodPost, u)
	}
	if err != nil {
		t.Fatal(err)
	}
	var out, errs text
	err = ex.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader(`{"nonce":"n"}`), Stdout: &out, Stderr: &errs})
	return out.String(), errs.String(), err
}

// text is a buffer that client-go may go on writing to after a call whose context
// has ended.
type text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *text) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *text) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// What client-go makes of each way a stream can end is why nothing but a seal is
// believed.
func TestStreams(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 20<<10)
	for _, how := range []string{"websocket", "spdy"} {
		for name, test := range map[string]struct {
			script kubetest.Script
			stdout string
			check  func(error) bool
		}{
			"exit 0":         {kubetest.Prints("out", "err", kubetest.Exit(0)), "out", func(err error) bool { return err == nil }},
			"exit 7":         {kubetest.Prints("out", "err", kubetest.Exit(7)), "out", isExit(7)},
			"large":          {kubetest.Prints(big, "err", kubetest.Exit(0)), big, func(err error) bool { return err == nil }},
			"no status":      {kubetest.Prints("out", "err", kubetest.Close(1000)), "out", func(err error) bool { return err == nil }},
			"server goes":    {kubetest.Prints("out", "err", kubetest.Close(1001)), "out", func(err error) bool { return (err != nil) == (how == "websocket") }},
			"reset":          {kubetest.Prints("out", "err", kubetest.Broken()), "", func(err error) bool { return how == "spdy" || err != nil && !isExit(7)(err) }},
			"connection cut": {kubetest.Prints("out", "err", kubetest.Cut()), "out", func(err error) bool { return how == "spdy" || err != nil && !isExit(7)(err) }},
			"status of its own": {kubetest.Prints("", "", kubetest.Says(kubetest.Internal("no room"))), "", func(err error) bool {
				return err != nil && strings.Contains(err.Error(), "no room")
			}},
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				t.Parallel()
				s := kubetest.New(t, ns)
				c := client(t, s)
				running(t, s, c, "a")
				s.Exec("run", test.script)
				stdout, _, err := stream(t.Context(), t, s, c, how, "a", "/opt/runner", "run")
				if !test.check(err) {
					t.Errorf("err %v", err)
				}
				if test.stdout != "" && stdout != test.stdout {
					t.Errorf("stdout %d bytes, want %d", len(stdout), len(test.stdout))
				}
				if n := s.Count(kubetest.Match{Resource: "pods/exec", Upgrade: how, Op: "run"}); n != 1 {
					t.Errorf("%d execs", n)
				}
			})
		}
	}
}

func isExit(code int) func(error) bool {
	return func(err error) bool {
		var exit exec.CodeExitError
		return errors.As(err, &exit) && exit.Code == code
	}
}

func TestStreamRefused(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"websocket", "spdy"} {
		s := kubetest.New(t, ns)
		c := client(t, s)
		running(t, s, c, "a")
		exec := kubetest.Match{Resource: "pods/exec"}
		s.On(exec, 1, kubetest.Fail(kubetest.NoRight("get", "pods/exec", "a")))
		s.On(exec, 1, kubetest.FailPlain(http.StatusBadRequest, "no upgrade here"))
		s.On(exec, 1, kubetest.NoContainer("sandbox"))
		_, _, err := stream(t.Context(), t, s, c, how, "a", "x", "run")
		if how == "websocket" && (!httpstream.IsUpgradeFailure(err) || !isForbidden(err)) {
			t.Errorf("%s: a right that is missing: %v", how, err)
		}
		if _, _, err = stream(t.Context(), t, s, c, how, "a", "x", "run"); err == nil || !strings.Contains(err.Error(), "no upgrade here") {
			t.Errorf("%s: 400: %v", how, err)
		}
		_, _, err = stream(t.Context(), t, s, c, how, "a", "x", "run")
		if err == nil || !strings.Contains(err.Error(), `container not found ("sandbox")`) {
			t.Errorf("%s: no container: %v", how, err)
		}
		if _, _, err = stream(t.Context(), t, s, c, how, "a", "x", "run"); err != nil {
			t.Errorf("%s: at last: %v", how, err)
		}
		s.Change("a", kubetest.Terminated(137, "OOMKilled", ""))
		if _, _, err = stream(t.Context(), t, s, c, how, "a", "x", "run"); err == nil || !strings.Contains(err.Error(), "container not found") {
			t.Errorf("%s: ended: %v", how, err)
		}
		if _, _, err = stream(t.Context(), t, s, c, how, "b", "x", "run"); err == nil {
			t.Errorf("%s: no Pod: %v", how, err)
		}
	}
}

func isForbidden(err error) bool {
	var upgrade *httpstream.UpgradeFailureError
	return errors.As(err, &upgrade) && apierrors.IsForbidden(upgrade.Cause)
}

func TestStdinAndTrailers(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"websocket", "spdy"} {
		s := kubetest.New(t, ns)
		c := client(t, s)
		running(t, s, c, "a")
		code := 3
		s.Exec("run", kubetest.Answers(trailer.Status{State: trailer.Exited, Started: true, ExitCode: &code}, "hello", "", kubetest.Exit(0)),
			kubetest.Short(kubetest.Prints("hello", "", kubetest.Exit(0)), 2),
			kubetest.After(func(ctx context.Context, x *kubetest.Exec) kubetest.Ending {
				_, _ = io.WriteString(x.Stdout, "hello")
				<-ctx.Done()
				return kubetest.Exit(0)
			}, 3, kubetest.Close(1000)))
		_, stderr, err := stream(t.Context(), t, s, c, how, "a", "x", "run", "--id", "e1")
		lines := strings.Split(stderr, trailer.Marker)
		if err != nil || len(lines) != 3 {
			t.Fatalf("%s: %q, %v", how, stderr, err)
		}
		st, err := trailer.Open([]byte(strings.TrimSpace(lines[2])), "n")
		if err != nil || st.ID != "e1" || st.State != trailer.Exited {
			t.Errorf("%s: %+v, %v", how, st, err)
		}
		if stdout, _, _ := stream(t.Context(), t, s, c, how, "a", "x", "run"); stdout != "hel" {
			t.Errorf("%s: shortened: %q", how, stdout)
		}
		if stdout, _, err := stream(t.Context(), t, s, c, how, "a", "x", "run"); stdout != "hel" || err != nil {
			t.Errorf("%s: broken off: %q, %v", how, stdout, err)
		}
	}
}

func TestStallEndsWithTheClient(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"websocket", "spdy"} {
		s := kubetest.New(t, ns)
		c := client(t, s)
		running(t, s, c, "a")
		over := make(chan struct{})
		s.Exec("run", func(ctx context.Context, x *kubetest.Exec) kubetest.Ending {
			_, _ = io.WriteString(x.Stdout, "x")
			<-ctx.Done()
			close(over)
			return kubetest.Cut()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, _, err := stream(ctx, t, s, c, how, "a", "x", "run")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", how, err)
		}
		<-over
		s.Exec("run", kubetest.Prints("", "", kubetest.Stall()))
		go func() {
			s.Await(kubetest.Match{Op: "run"}, 2)
			s.Restart(0)
		}()
		if _, _, err := stream(t.Context(), t, s, c, how, "a", "x", "run"); err == nil && how == "websocket" {
			t.Errorf("%s: the server restarted and nobody noticed", how)
		}
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := kubetest.New(t, ns)
	c := client(t, s)
	pods := c.CoreV1().Pods(ns)
	a := running(t, s, c, "a")
	if _, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second one: %v", err)
	}
	if _, err := pods.Create(ctx, pod("A_"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a bad name: %v", err)
	}
	if _, err := c.CoreV1().Pods("nowhere").Create(ctx, pod("a"), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("no namespace: %v", err)
	}
	if p, err := pods.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"k":"v"},"labels":{"app":null}}}`), metav1.PatchOptions{}); err != nil || p.Annotations["k"] != "v" || p.Labels["app"] != "" || p.Status.Phase != corev1.PodRunning {
		t.Errorf("merge patch: %+v, %v", p.ObjectMeta, err)
	}
	if p, err := pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"app":"y"}}}`), metav1.PatchOptions{}); err != nil || p.Labels["app"] != "y" || p.UID != a.UID {
		t.Errorf("strategic patch: %+v, %v", p.ObjectMeta, err)
	}
	if _, err := pods.Update(ctx, a, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an old version: %v", err)
	}
	other, zero := types.UID("other"), int64(0)
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}}); !apierrors.IsConflict(err) {
		t.Errorf("another uid: %v", err)
	}
	s.DeletionTakes(-1)
	w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=a"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if p, err := pods.Get(ctx, "a", metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil {
		t.Errorf("a Pod that will not go: %v", err)
	}
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Errorf("delete: %v", err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		if e := <-w.ResultChan(); e.Type != want {
			t.Errorf("event %v, want %v", e.Type, want)
		}
	}
	s.Lives(kubetest.Steps(kubetest.Scheduled(), kubetest.Waiting("ImagePullBackOff", "no")))
	if _, err := pods.Create(ctx, pod("b"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Until("a Pod that waits", func() bool {
		p := s.Pods()[0]
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting.Reason == "ImagePullBackOff"
	})
}

func TestPagesAndWatches(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := kubetest.New(t, ns)
	c := client(t, s)
	pods := c.CoreV1().Pods(ns)
	for i := range 25 {
		s.Create("pods", func() *corev1.Pod { p := pod(fmt.Sprintf("p%02d", i)); p.Namespace = ns; return p }())
	}
	seen, pages, next := map[string]bool{}, 0, ""
	for {
		l, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=x", Limit: 10, Continue: next})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range l.Items {
			seen[p.Name] = true
		}
		if pages, next = pages+1, l.Continue; next == "" {
			break
		}
	}
	if len(seen) != 25 || pages != 3 {
		t.Errorf("%d Pods in %d pages", len(seen), pages)
	}
	l, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	s.Forgotten()
	s.Change("p00", kubetest.Scheduled())
	s.Forgotten()
	if _, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: l.ResourceVersion}); !apierrors.IsResourceExpired(err) {
		t.Errorf("an old version: %v", err)
	}
	s.On(kubetest.Match{Verb: "watch"}, 1, kubetest.ExpiredWatch())
	s.On(kubetest.Match{Verb: "watch"}, 1, kubetest.EndAfter(2))
	w, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("%+v", e)
	}
	w.Stop()
	if w, err = pods.Watch(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	n := 0
	for range w.ResultChan() {
		n++
	}
	if n != 2 {
		t.Errorf("%d events before the end", n)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := kubetest.New(t, ns)
	c := client(t, s)
	pods := c.CoreV1().Pods(ns)
	create := kubetest.Match{Verb: "create", Resource: "pods"}
	s.On(create, 1, kubetest.Fail(kubetest.QuotaConflict()))
	s.On(create, 1, kubetest.DoneThen(kubetest.Internal("lost")))
	if _, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("%v", err)
	}
	if _, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("%v", err)
	}
	if _, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("%v", err)
	}
	// client-go asks again by itself when a get was cut, and never a create.
	get := kubetest.Match{Verb: "get"}
	s.On(get, 1, kubetest.Reset())
	if _, err := pods.Get(ctx, "a", metav1.GetOptions{}); err != nil || s.Count(get) != 2 {
		t.Errorf("after a reset: %d, %v", s.Count(get), err)
	}
	s.On(create, 1, kubetest.DoneThenReset())
	if _, err := pods.Create(ctx, pod("b"), metav1.CreateOptions{}); err == nil || len(s.Pods()) != 2 {
		t.Errorf("done and cut: %v", err)
	}
	if got := s.Requests(create); len(got) != 4 || got[0].Name != "a" || !bytes.Contains(got[0].Body, []byte(`"sandbox"`)) {
		t.Errorf("%+v", got)
	}
	list := kubetest.Match{Verb: "list"}
	s.On(list, 1, kubetest.Silent())
	heard, leave := context.WithCancel(ctx)
	go func() { s.Await(list, 1); leave() }()
	if _, err := pods.List(heard, metav1.ListOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	s.Restart(500 * time.Millisecond)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := pods.List(short, metav1.ListOptions{}); err == nil {
		t.Errorf("a server that is down answered")
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := pods.List(ctx, metav1.ListOptions{}); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not come back")
		}
	}
}
