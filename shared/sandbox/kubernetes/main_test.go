package kubernetes_test

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/kubernetes"
	"tuluat.ai/harness/shared/sandbox/kubernetes/kubetest"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil                   //nolint:reassign // client-go says there what these tests do to its streams
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // and there
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // these tests mostly wait
		panic(err)
	}
	code := m.Run()
	built.remove()
	if err := kubetest.Leaks(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// built is the runner's binary, made when the first test needs it.
var built runnerBinary

type runnerBinary struct {
	once sync.Once
	path string
	gone func()
	err  error
}

func (b *runnerBinary) build(t *testing.T) string {
	t.Helper()
	b.once.Do(func() {
		b.path, b.gone, b.err = kubetest.BuildRunner(filepath.Join("..", "..", "..", "functions", "sandbox-exec"))
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

func (b *runnerBinary) remove() {
	if b.gone != nil {
		b.gone()
	}
}

const (
	namespace    = "sandboxes"
	image        = "registry.example/python:3"
	startTimeout = 30 * time.Second // of starts that come to an end by themselves
	shortTimeout = 2 * time.Second  // of those that do not
)

// bench is a driver with a server of its own.
type bench struct {
	*kubetest.Server
	t      *testing.T
	driver *kubernetes.Driver
}

func newBench(t *testing.T, change ...func(*kubernetes.Options)) *bench {
	t.Helper()
	t.Parallel()
	images := t.TempDir()
	for _, name := range []string{"default", "python"} {
		if err := os.WriteFile(filepath.Join(images, name), []byte(image+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := kubetest.New(t, namespace)
	o := kubernetes.Options{
		Config: s.Config(), Namespace: namespace, RunnerImage: "registry.example/runner:1", ImagesDir: images, StartTimeout: startTimeout,
	}
	for _, c := range change {
		c(&o)
	}
	d, err := kubernetes.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{Server: s, t: t, driver: d}
}

// real lets the bench's Pods run on this machine with the real runner.
func (b *bench) real() *kubetest.Machine {
	b.t.Helper()
	m := kubetest.NewMachine(b.t, built.build(b.t))
	m.Use(b.Server)
	return m
}

// start returns a sandbox that takes commands.
func (b *bench) start() sandbox.Sandbox {
	b.t.Helper()
	sb := sandboxtest.New(sandboxtest.Spec())
	uid, err := b.driver.Start(b.t.Context(), sb)
	if err != nil {
		b.t.Fatalf("start: %v", err)
	}
	sb.UID = uid
	return sb
}

// fails checks that a start fails for this reason, and returns the message for
// people.
func (b *bench) fails(err error, kind harness.Kind, reason sandbox.Reason) string {
	b.t.Helper()
	if sandbox.ReasonOf(err) != reason || harness.KindOf(err) != kind {
		b.t.Errorf("got %s %s: %v; want %s %s", harness.KindOf(err), sandbox.ReasonOf(err), err, kind, reason)
	}
	return harness.MessageOf(err)
}

// noPod checks that nothing is left.
func (b *bench) noPod() {
	b.t.Helper()
	for _, p := range b.Pods() {
		b.t.Errorf("a Pod is left: %s, to be deleted: %v", p.Name, p.DeletionTimestamp)
	}
}

var (
	creates = kubetest.Match{Verb: "create", Resource: "pods"}
	deletes = kubetest.Match{Verb: "delete", Resource: "pods"}
	watches = kubetest.Match{Verb: "watch", Resource: "pods"}
	gets    = kubetest.Match{Verb: "get", Resource: "pods"}
	lists   = kubetest.Match{Verb: "list", Resource: "pods"}
	execs   = kubetest.Match{Resource: "pods/exec"}
)

// word is the execs of one of the runner's words.
func word(op string) kubetest.Match { return kubetest.Match{Resource: "pods/exec", Op: op} }

// leftIsFound checks that what a start that failed has left, if anything, is known
// to List and removed by Terminate without its uid.
func (b *bench) leftIsFound(sb sandbox.Sandbox) {
	b.t.Helper()
	found, err := b.driver.List(b.t.Context())
	if err != nil || len(found) != len(b.Pods()) {
		b.t.Errorf("List finds %+v, %v; there are %d Pods", found, err, len(b.Pods()))
	}
	sb.UID = ""
	if err := b.driver.Terminate(b.t.Context(), sb); err != nil {
		b.t.Errorf("terminate: %v", err)
	}
	b.noPod()
}
