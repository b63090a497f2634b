package kubernetes_test

import (
	"bytes"
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

// names are those of objects, with what is known of whose each is.
func names(all []sandbox.Object) []string {
	said := []string{}
	for _, o := range all {
		text := string(o.Session) + " " + string(o.Agent)
		if o.Going {
			text += " going"
		}
		said = append(said, text)
	}
	slices.Sort(said)
	return said
}

// Volumes are listed with their session, those of others are not, and one is removed
// by its identity.
func TestVolumesAreListedAndRemoved(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	if name := b.driver.VolumeOf(sandbox.Sandbox{Session: "ses_1", Spec: sandboxtest.Spec()}); name != "" {
		t.Errorf("a sandbox without a volume has %s", name)
	}
	first := b.volume("ses_open", 90*24*time.Hour)
	if name := b.driver.VolumeOf(persistentSandbox("ses_open")); name != first.Name {
		t.Errorf("the volume is said to be %s, and is %s", name, first.Name)
	}
	going := b.volume("ses_going", time.Hour)
	going.DeletionTimestamp = new(metav1.Now())
	b.Create("persistentvolumeclaims", &going)
	lost := b.volume("ses_lost", time.Hour)
	lost.Annotations["tuluat.ai/session"] = "ses_open"
	b.Create("persistentvolumeclaims", &lost)
	foreign := lost.DeepCopy()
	foreign.Name, foreign.UID, foreign.Labels = "theirs", "", nil
	b.Create("persistentvolumeclaims", foreign)
	all, err := b.driver.Objects(ctx, harness.ObjectVolume)
	if err != nil {
		t.Fatal(err)
	}
	agent := string(persistentSandbox("x").Agent)
	if diff := cmp.Diff([]string{" " + agent, "ses_going " + agent + " going", "ses_open " + agent}, names(all)); diff != "" {
		t.Error(diff)
	}
	b.On(kubetest.Match{Verb: "delete", Resource: "persistentvolumeclaims"}, 1, kubetest.Fail(kubetest.Internal("x")))
	open := sandbox.Object{Name: first.Name, UID: string(first.UID)}
	if err := b.driver.Remove(ctx, harness.ObjectVolume, open); err == nil {
		t.Error("a failure is not told")
	}
	if err := b.driver.Remove(ctx, harness.ObjectVolume, sandbox.Object{Name: first.Name, UID: "another"}); err != nil || len(b.Claims()) != 4 {
		t.Errorf("one of another identity: %v, %d are left", err, len(b.Claims()))
	}
	for range 2 { // the second finds nothing
		if err := b.driver.Remove(ctx, harness.ObjectVolume, open); err != nil || len(b.Claims()) != 3 {
			t.Errorf("%v, %d are left", err, len(b.Claims()))
		}
	}
	b.On(kubetest.Match{Verb: "list", Resource: "persistentvolumeclaims"}, 1, kubetest.Fail(kubetest.Unavailable()))
	if _, err := b.driver.Objects(ctx, harness.ObjectVolume); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("a list that fails: %v", err)
	}
}

// Policies of allow-lists are listed with the name of their sandbox, by pages, and
// those that the namespace came with are not.
func TestPoliciesAreListedAndRemoved(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	spec := sandboxtest.Spec()
	spec.Egress, spec.EgressAllow = harness.EgressAllowlist, []harness.EgressRule{{CIDR: "203.0.113.0/24"}}
	sb := sandboxtest.New(spec)
	if _, err := b.driver.Start(ctx, sb); err != nil {
		t.Fatal(err)
	}
	theirs := b.Policies()[0]
	theirs.Name, theirs.UID, theirs.ResourceVersion, theirs.OwnerReferences = "deny-all", "", "", nil
	theirs.Labels = map[string]string{"app.kubernetes.io/part-of": "tuluat-harness"}
	b.Create("networkpolicies", &theirs)
	all, err := b.driver.Objects(ctx, harness.ObjectNetworkPolicy)
	if err != nil || len(all) != 1 || all[0].Name != sb.Name || all[0].UID == "" || all[0].CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := b.driver.Remove(ctx, harness.ObjectNetworkPolicy, all[0]); err != nil || len(b.Policies()) != 1 {
		t.Errorf("%v, %d are left", err, len(b.Policies()))
	}
	for _, kind := range []harness.ObjectKind{harness.ObjectSandbox, harness.ObjectArchive} {
		_, err := b.driver.Objects(ctx, kind)
		if err == nil || b.driver.Remove(ctx, kind, all[0]) == nil {
			t.Errorf("%s is none of these", kind)
		}
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
	if all, err := b.driver.Objects(t.Context(), harness.ObjectVolume); err != nil || len(all) != 1 || !all[0].Going {
		t.Errorf("it is not said to go: %+v, %v", all, err)
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
