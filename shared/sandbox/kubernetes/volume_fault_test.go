package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/kubernetes"
	"tuluat.ai/harness/shared/sandbox/kubernetes/kubetest"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

var claims = kubetest.Match{Resource: "persistentvolumeclaims"}

func persistentSandbox(session harness.SessionID) sandbox.Sandbox {
	spec := sandboxtest.Spec()
	spec.Workdir = "persistent"
	sb := sandboxtest.New(spec)
	sb.Session = session
	return sb
}

// volume starts and ends a sandbox of the session, and returns the volume that
// stays, made as long ago as age.
func (b *bench) volume(session harness.SessionID, age time.Duration) corev1.PersistentVolumeClaim {
	b.t.Helper()
	sb := persistentSandbox(session)
	uid, err := b.driver.Start(b.t.Context(), sb)
	if err != nil {
		b.t.Fatal(err)
	}
	sb.UID = uid
	if err := b.driver.Terminate(b.t.Context(), sb); err != nil {
		b.t.Fatal(err)
	}
	all := b.Claims()
	i := slices.IndexFunc(all, func(c corev1.PersistentVolumeClaim) bool {
		return c.Annotations["tuluat.ai/session"] == string(session)
	})
	if i < 0 {
		b.t.Fatalf("no volume of %s", session)
	}
	c := all[i]
	c.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
	b.Create("persistentvolumeclaims", &c)
	return c
}

// sessions are those whose volumes exist.
func (b *bench) sessions() []string {
	all := []string{}
	for _, c := range b.Claims() {
		all = append(all, c.Annotations["tuluat.ai/session"])
	}
	slices.Sort(all)
	return all
}

// A volume stays as long as its session is open, however old it is, and no longer.
func TestSweepVolumes(t *testing.T) {
	b := newBench(t)
	b.volume("ses_open", 90*24*time.Hour)
	b.volume("ses_ended", 6*time.Minute)
	b.volume("ses_other", 6*time.Minute)
	b.volume("ses_young", 4*time.Minute)
	lost := b.volume("ses_lost", time.Hour)
	delete(lost.Annotations, "tuluat.ai/session")
	b.Create("persistentvolumeclaims", &lost)
	foreign := lost.DeepCopy()
	foreign.Name, foreign.UID, foreign.Labels, foreign.Annotations = "theirs", "", nil, map[string]string{"tuluat.ai/session": "ses_ended"}
	b.Create("persistentvolumeclaims", foreign)
	var asked []int
	ended := func(_ context.Context, ids []harness.SessionID) ([]harness.SessionID, error) {
		asked = append(asked, len(ids))
		return []harness.SessionID{"ses_ended", "ses_other", "ses_young", "ses_never_asked"}, nil
	}
	b.On(kubetest.Match{Verb: "delete", Resource: "persistentvolumeclaims"}, 1, kubetest.Fail(kubetest.Internal("x")))
	if n, err := b.driver.SweepVolumes(t.Context(), ended); n != 1 || err == nil {
		t.Errorf("with one failure: %d, %v", n, err)
	}
	if n, err := b.driver.SweepVolumes(t.Context(), ended); n != 1 || err != nil {
		t.Errorf("then: %d, %v", n, err)
	}
	if n, err := b.driver.SweepVolumes(t.Context(), ended); n != 0 || err != nil {
		t.Errorf("then: %d, %v", n, err)
	}
	if diff := cmp.Diff([]string{"", "ses_ended", "ses_open", "ses_young"}, b.sessions()); diff != "" { // ses_ended: the one that is not ours
		t.Error(diff)
	}
	if diff := cmp.Diff([]int{3, 2, 1}, asked); diff != "" { // not of those that are young, nobody's or not ours
		t.Error(diff)
	}
	// Nobody who can say: nothing is removed.
	down := errors.New("down")
	if n, err := b.driver.SweepVolumes(t.Context(), func(context.Context, []harness.SessionID) ([]harness.SessionID, error) { return nil, down }); n != 0 || !errors.Is(err, down) {
		t.Errorf("without rows: %d, %v", n, err)
	}
}

// A volume that goes cannot be had again: the start says so at once, and the next
// one makes another.
func TestStartWhileItsVolumeGoes(t *testing.T) {
	b := newBench(t)
	c := b.volume("ses_1", time.Hour)
	c.DeletionTimestamp = new(metav1.Now())
	b.Create("persistentvolumeclaims", &c)
	_, err := b.driver.Start(t.Context(), persistentSandbox("ses_1"))
	if said := b.fails(err, harness.Unavailable, sandbox.ReasonStartFailed); !strings.Contains(said, "is being removed") {
		t.Errorf("it says %q", said)
	}
	b.noPod()
	// It goes between two questions.
	b.On(kubetest.Match{Verb: "get", Resource: "persistentvolumeclaims"}, 1, kubetest.Fail(kubetest.Unavailable()))
	_, err = b.driver.Start(t.Context(), persistentSandbox("ses_1"))
	b.fails(err, harness.Unavailable, sandbox.ReasonStartFailed)
	if n, err := b.driver.SweepVolumes(t.Context(), func(_ context.Context, ids []harness.SessionID) ([]harness.SessionID, error) { return ids, nil }); n != 0 || err != nil {
		t.Errorf("it was removed twice: %d, %v", n, err)
	}
}

// The volume keeps its size, and that it does is told.
func TestStartWithALargerVolume(t *testing.T) {
	var log bytes.Buffer
	b := newBench(t, func(o *kubernetes.Options) { o.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
	b.volume("ses_1", 0)
	for _, grown := range []int64{0, -1, 1} {
		sb := persistentSandbox("ses_1")
		sb.Spec.VolumeBytes += grown << 20
		if _, err := b.driver.Start(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(log.String(), "smaller than its agent asks for"); told != (grown > 0) {
			t.Errorf("grown by %d MiB: the log says %q", grown, log.String())
		}
	}
	if !strings.Contains(log.String(), `"session":"ses_1"`) || b.Count(claims) == 0 {
		t.Errorf("the log says %q", log.String())
	}
	if got := b.Claims()[0].Spec.Resources.Requests[corev1.ResourceStorage]; got.Cmp(*resource.NewQuantity(sandboxtest.Spec().VolumeBytes, resource.BinarySI)) != 0 {
		t.Errorf("its size is %s", &got)
	}
}
