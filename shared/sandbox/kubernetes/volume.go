package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

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

// VolumeOf implements sandbox.Keeper.
func (d *Driver) VolumeOf(sb sandbox.Sandbox) string {
	if !persistent(sb.Spec) {
		return ""
	}
	return claimName(sb)
}

// volumes lists the volumes of sessions.
func (d *Driver) volumes(ctx context.Context) ([]sandbox.Object, error) {
	var all []sandbox.Object
	err := pages(func(o metav1.ListOptions) (string, error) {
		o.LabelSelector = volumeSelector
		list, err := d.core.PersistentVolumeClaims(d.Namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			c := &list.Items[i]
			v := object(c)
			if c.Name != claimName(sandbox.Sandbox{Session: v.Session}) {
				d.Log.Warn("a volume whose session nobody can say: its annotation is gone or another's", "volume", c.Name, "session", string(v.Session))
				v.Session = ""
			}
			all = append(all, v)
		}
		return list.Continue, nil
	})
	if err != nil {
		return nil, translate(err, "list", "persistentvolumeclaims", d.Namespace, "the volumes could not be listed")
	}
	return once(all), nil
}
