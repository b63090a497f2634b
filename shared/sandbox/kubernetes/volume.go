package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// VolumeKeep is how long the volume of a session's files stays after the life of
// the last sandbox that had it. Every start sets that time anew.
const VolumeKeep = 7 * 24 * time.Hour

const volumeSelector = labelManaged + "=" + manager + "," + labelPart + "=workspace"

func persistent(spec harness.SandboxSpec) bool { return spec.Workdir == "persistent" }

// claimName is the same for every sandbox of a session.
func claimName(sb sandbox.Sandbox) string { return "workspace-" + hash(string(sb.Session)) }

// claim is the volume of a session's files. It has no owner, since it outlives
// every Pod.
func (d *Driver) claim(sb sandbox.Sandbox) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: claimName(sb), Namespace: d.Namespace,
			Labels: map[string]string{
				labelManaged: manager, labelPart: "workspace",
				labelAgent: labelValue(string(sb.Agent)), labelSession: labelValue(string(sb.Session)),
			},
			Annotations: map[string]string{
				labelAgent: string(sb.Agent), labelSession: string(sb.Session),
				annotationExpires: sb.ExpiresAt.Add(VolumeKeep).UTC().Format(time.RFC3339),
			},
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

// ensureVolume makes the session's volume, or keeps the one there is for longer.
func (d *Driver) ensureVolume(ctx context.Context, sb sandbox.Sandbox) error {
	if !persistent(sb.Spec) {
		return nil
	}
	want := d.claim(sb)
	claims := d.core.PersistentVolumeClaims(d.Namespace)
	_, err := claims.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// The name is a hash of the session alone, so it is this session's.
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotationExpires, want.Annotations[annotationExpires])
		_, err = claims.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return createFailure(ctx, err, "persistentvolumeclaims", d.Namespace)
	}
	return nil
}

// SweepVolumes removes the volumes of sessions that are past their time. The
// cluster keeps one that a Pod still uses until that has gone.
func (d *Driver) SweepVolumes(ctx context.Context, now time.Time) (removed int, err error) {
	var failures error
	claims := d.core.PersistentVolumeClaims(d.Namespace)
	err = pages(func(o metav1.ListOptions) (string, error) {
		o.LabelSelector = volumeSelector
		list, err := claims.List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			c := &list.Items[i]
			until, err := time.Parse(time.RFC3339, c.Annotations[annotationExpires])
			if err != nil {
				until = c.CreationTimestamp.Add(VolumeKeep) // someone took the annotation away
			}
			if now.Before(until) || c.DeletionTimestamp != nil {
				continue
			}
			// With the version that was read: a start that keeps it for longer wins.
			err = claims.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion}})
			switch {
			case err == nil:
				removed++
			case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
				failures = errors.Join(failures, translate(err, "delete", "persistentvolumeclaims", d.Namespace, "a volume could not be removed"))
			}
		}
		return list.Continue, nil
	})
	if err != nil {
		failures = errors.Join(failures, translate(err, "list", "persistentvolumeclaims", d.Namespace, "the volumes could not be listed"))
	}
	return removed, failures
}
