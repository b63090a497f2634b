package kubernetes_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/kubernetes/kubetest"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

// K43: another Pod of the same name is left alone, and ours is proved absent.
func TestTerminateAnotherPod(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	b.Remove(sb.Name)
	other := sandboxtest.New(sandboxtest.Spec())
	other.Name = sb.Name
	uid, err := b.driver.Start(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.driver.Terminate(t.Context(), sb); err != nil {
		t.Errorf("%v", err)
	}
	sb.UID = ""
	if err := b.driver.Terminate(t.Context(), sb); err != nil {
		t.Errorf("without its uid: %v", err)
	}
	if pods := b.Pods(); len(pods) != 1 || string(pods[0].UID) != uid || pods[0].DeletionTimestamp != nil {
		t.Errorf("%+v", pods)
	}
	for _, r := range b.Requests(deletes) {
		if !bytes.Contains(r.Body, []byte(`"uid"`)) {
			t.Errorf("a delete without a precondition: %s", r.Body)
		}
	}
}

// A Pod that takes its grace period is waited for; nil means that it is gone.
func TestTerminateWaits(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	b.DeletionTakes(time.Second)
	begun := time.Now()
	if err := b.driver.Terminate(t.Context(), sb); err != nil {
		t.Errorf("%v", err)
	}
	b.noPod()
	if took := time.Since(begun); took < time.Second || took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if n := b.Count(deletes); n != 1 {
		t.Errorf("%d deletes", n)
	}
}

// K45: a Pod whose node does not answer is forced away, after its grace.
func TestTerminateForces(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	b.DeletionTakes(-1)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := b.driver.Terminate(short, sb); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("not gone, and %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	if err := b.driver.Terminate(ctx, sb); err != nil {
		t.Errorf("%v", err)
	}
	b.noPod()
}

// An answer that proves nothing is no proof of absence; trying again finds out.
func TestTerminateUnproved(t *testing.T) {
	for name, answer := range map[string]kubetest.Answer{
		"500": kubetest.Fail(kubetest.Internal("x")), "503": kubetest.Fail(kubetest.Unavailable()), "reset": kubetest.Reset(),
		"done, and 500": kubetest.DoneThen(kubetest.Internal("x")), "done, and cut": kubetest.DoneThenReset(),
		"no right": kubetest.Fail(kubetest.NoRight("delete", "pods", "x")), "never": kubetest.Silent(),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			b.On(deletes, 1, answer)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			err := b.driver.Terminate(ctx, sb)
			cancel()
			if err == nil {
				b.noPod()
			} else if k := harness.KindOf(err); k != harness.Unavailable && k != harness.Denied {
				t.Errorf("%v", err)
			}
			if err := b.driver.Terminate(t.Context(), sb); err != nil {
				t.Errorf("again: %v", err)
			}
			b.noPod()
		})
	}
}

// A watch that is of no use delays the proof; it does not prevent it.
func TestTerminateWithoutWatch(t *testing.T) {
	for name, answer := range map[string]kubetest.Answer{
		"ends early": kubetest.EndAfter(1), "expired event": kubetest.ExpiredWatch(), "410": kubetest.Fail(kubetest.Expired()),
		"never answers": kubetest.Slow(time.Hour, kubetest.Healthy()), "never sends": kubetest.Silent(),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			b.On(watches, -1, answer)
			b.DeletionTakes(time.Second)
			begun := time.Now()
			if err := b.driver.Terminate(t.Context(), sb); err != nil {
				t.Errorf("%v", err)
			}
			b.noPod()
			if took := time.Since(begun); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// Two who end the same sandbox both learn that it is gone.
func TestTerminateTwice(t *testing.T) {
	b := newBench(t)
	sb := b.start()
	b.DeletionTakes(300 * time.Millisecond)
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() { ended <- b.driver.Terminate(t.Context(), sb) }()
	}
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Errorf("%v", err)
		}
	}
	b.noPod()
}

// A sandbox of a list of destinations leaves no policy, one that has ended no Pod.
func TestTerminateLeavesNothing(t *testing.T) {
	b := newBench(t)
	spec := sandboxtest.Spec()
	spec.Egress = harness.EgressAllowlist
	spec.EgressAllow = []harness.EgressRule{{CIDR: "203.0.113.0/24", Ports: []int{443}}}
	sb := sandboxtest.New(spec)
	uid, err := b.driver.Start(t.Context(), sb)
	if err != nil {
		t.Fatal(err)
	}
	sb.UID = uid
	if n := len(b.Policies()); n != 1 {
		t.Errorf("%d policies", n)
	}
	b.Change(sb.Name, kubetest.Ended("Evicted", "x")) // B11, B14: the object stays until someone removes it
	if found, err := b.driver.List(t.Context()); err != nil || len(found) != 1 || found[0].EndedAt.IsZero() {
		t.Errorf("%+v, %v", found, err)
	}
	if err := b.driver.Terminate(t.Context(), sb); err != nil {
		t.Errorf("%v", err)
	}
	b.noPod()
	if n := len(b.Policies()); n != 0 {
		t.Errorf("%d policies are left", n)
	}
}

// K41: everything is listed, by pages, also when pages run out of date.
func TestListPages(t *testing.T) {
	const many = 1200
	for name, expires := range map[string]bool{"in time": false, "expired": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			sb := b.start()
			model := b.Pods()[0]
			for i := range many - 1 {
				p := model.DeepCopy()
				p.Name, p.UID, p.ResourceVersion = fmt.Sprintf("p-%04d", i), "", ""
				b.Create("pods", p)
			}
			b.Create("pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "another", Namespace: namespace}})
			if expires {
				b.On(kubetest.Match{Verb: "list", Resource: "pods"}, 2, kubetest.Healthy())
				b.On(kubetest.Match{Verb: "list", Resource: "pods"}, 1, kubetest.Fail(kubetest.Expired()))
			}
			found, err := b.driver.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			names := map[string]bool{}
			for _, f := range found {
				names[f.Name] = true
				if f.UID == "" || f.CreatedAt.IsZero() {
					t.Errorf("%+v", f)
				}
			}
			if len(found) != many || len(names) != many || !names[sb.Name] || names["another"] {
				t.Errorf("%d found, %d names", len(found), len(names))
			}
			for _, r := range b.Requests(lists) {
				if r.Query.Get("limit") == "" {
					t.Errorf("a list without a limit: %v", r.Query)
				}
			}
			if n := b.Count(lists); n < 3 || n > 15 {
				t.Errorf("%d pages", n)
			}
		})
	}
	t.Run("fails", func(t *testing.T) {
		b := newBench(t)
		b.On(lists, -1, kubetest.Fail(kubetest.Internal("x")))
		if _, err := b.driver.List(t.Context()); harness.KindOf(err) != harness.Unavailable {
			t.Errorf("%v", err)
		}
	})
}
