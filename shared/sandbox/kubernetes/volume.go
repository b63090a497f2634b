package kubernetes

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// volumeGrace is how old a volume must be before the sweep asks whose it is:
// time for a start to be done with it.
const volumeGrace = 5 * time.Minute

const volumeSelector = labelManaged + "=" + manager + "," + labelPart + "=workspace"

func persistent(spec harness.SandboxSpec) bool { return spec.Workdir == "persistent" }

// claimName is the same for every sandbox of a session.
func claimName(sb sandbox.Sandbox) string { return "workspace-" + hash(string(sb.Session)) }

// claim is the volume of a session's files. It has no owner, since it outlives
// every Pod; its annotation says to whom it belongs.
func (d *Driver) claim(sb sandbox.Sandbox) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: claimName(sb), Namespace: d.Namespace,
			Labels: map[string]string{
				labelManaged: manager, labelPart: "workspace",
				labelAgent: labelValue(string(sb.Agent)), labelSession: labelValue(string(sb.Session)),
			},
			Annotations: map[string]string{labelAgent: string(sb.Agent), labelSession: string(sb.Session)},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size(sb.Spec.VolumeBytes)}},
		},
	}
	if d.StorageClass != "" {
		c.Spec.StorageClassName = &d.StorageClass
	}
	return c
}

// ensureVolume makes the session's volume, or finds the one there is.
func (d *Driver) ensureVolume(ctx context.Context, sb sandbox.Sandbox) error {
	if !persistent(sb.Spec) {
		return nil
	}
	want := d.claim(sb)
	claims := d.core.PersistentVolumeClaims(d.Namespace)
	_, err := claims.Create(ctx, want, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			return createFailure(ctx, err, "persistentvolumeclaims", d.Namespace)
		}
		return nil
	}
	// The name is a hash of the session alone, so it is this session's.
	there, err := claims.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && there.DeletionTimestamp != nil:
		// A Pod of it would wait for ever, and be told that no node has room.
		return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the volume of the conversation's files is being removed", err)
	case err != nil:
		err = translate(err, "get", "persistentvolumeclaims", d.Namespace, "the volume of the conversation's files could not be looked at")
		return sandbox.Fail(harness.KindOf(err), sandbox.ReasonStartFailed, harness.MessageOf(err), err)
	}
	has, wants := there.Spec.Resources.Requests[corev1.ResourceStorage], want.Spec.Resources.Requests[corev1.ResourceStorage]
	if wants.Cmp(has) > 0 {
		// Not every class of storage lets a volume grow, and its files are worth more.
		d.Log.Warn("the session's volume is smaller than its agent asks for now and stays as it is; a new session gets the new size",
			"session", string(sb.Session), "agent", string(sb.Agent), "has", has.String(), "wants", wants.String())
	}
	return nil
}

// SweepVolumes removes the volumes of sessions that have ended. The cluster
// keeps one that a Pod still uses until that has gone.
func (d *Driver) SweepVolumes(ctx context.Context, ended func(context.Context, []harness.SessionID) ([]harness.SessionID, error)) (removed int, err error) {
	var failures error
	claims := d.core.PersistentVolumeClaims(d.Namespace)
	err = pages(func(o metav1.ListOptions) (string, error) {
		o.LabelSelector = volumeSelector
		list, err := claims.List(ctx, o)
		if err != nil {
			return "", translate(err, "list", "persistentvolumeclaims", d.Namespace, "the volumes could not be listed")
		}
		of := d.volumesOf(list.Items)
		if len(of) == 0 {
			return list.Continue, nil
		}
		over, err := ended(ctx, slices.Sorted(maps.Keys(of)))
		if err != nil {
			return "", err
		}
		for _, session := range over {
			c, ok := of[session]
			if !ok {
				continue
			}
			err := claims.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}})
			switch {
			case err == nil:
				removed++
			case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
				failures = errors.Join(failures, translate(err, "delete", "persistentvolumeclaims", d.Namespace, "a volume could not be removed"))
			}
		}
		return list.Continue, nil
	})
	return removed, errors.Join(failures, err)
}

// volumesOf returns the volumes that may be removed, by their session. Nobody
// can say whose one without its annotation is, so that one stays.
func (d *Driver) volumesOf(items []corev1.PersistentVolumeClaim) map[harness.SessionID]*corev1.PersistentVolumeClaim {
	of := map[harness.SessionID]*corev1.PersistentVolumeClaim{}
	for i := range items {
		c := &items[i]
		session := harness.SessionID(c.Annotations[labelSession])
		switch {
		case c.DeletionTimestamp != nil || d.now().Sub(c.CreationTimestamp.Time) < volumeGrace:
		case c.Name != claimName(sandbox.Sandbox{Session: session}):
			d.Log.Warn("a volume whose session nobody can say is left alone: its annotation is gone or another's", "volume", c.Name, "session", string(session))
		default:
			of[session] = c
		}
	}
	return of
}
