package kubernetes

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// forceAfter is how long a Pod may outlive its grace period until it is deleted
// by force. Force does not end a container on a node that cannot be reached; it
// only makes the cluster forget it.
const forceAfter = 10 * time.Second

var errForce = errors.New("the grace period is over")

// Terminate removes the Pod, and what it owns with it.
func (d *Driver) Terminate(ctx context.Context, sb sandbox.Sandbox) error {
	if !validName.MatchString(sb.Name) {
		return nil // nothing can have this name
	}
	uid := types.UID(sb.UID)
	if uid == "" { // its start never finished; only one of ours is meant
		pod, err := d.get(ctx, sb.Name, "")
		if errors.Is(err, sandbox.ErrGone) || err == nil && (pod.Labels[labelManaged] != manager || sb.ID != "" && pod.Annotations[labelSandbox] != string(sb.ID)) {
			return nil
		}
		if err != nil {
			return err
		}
		uid = pod.UID
	}
	grace := int64(graceSeconds)
	for {
		gone, err := d.delete(ctx, sb.Name, uid, grace)
		if gone || err != nil {
			return err
		}
		pod, err := d.get(ctx, sb.Name, string(uid))
		if errors.Is(err, sandbox.ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		round, cancel := context.WithDeadlineCause(ctx, force(pod), errForce)
		err = d.follow(round, pod, func(*corev1.Pod) bool { return false })
		cancel()
		switch {
		case errors.Is(err, sandbox.ErrGone):
			return nil
		case ctx.Err() == nil && grace > 0:
			grace = 0
		default:
			return harness.Wrap(harness.Unavailable, err, "the sandbox could not be proved gone")
		}
	}
}

// force is when a Pod that is being deleted has had its time, whoever asked for
// its deletion first.
func force(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil { // a finalizer of someone else's, or a server that takes its time
		return time.Now().Add(graceSeconds*time.Second + forceAfter)
	}
	return pod.DeletionTimestamp.Add(forceAfter) // the timestamp has the grace period in it
}

// delete asks for the removal of the Pod with this uid and reports whether there
// is none.
func (d *Driver) delete(ctx context.Context, name string, uid types.UID, grace int64) (gone bool, err error) {
	err = d.pods().Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &uid}})
	switch {
	case err == nil:
		return false, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // a conflict is with the uid: this is another one
		return true, nil
	}
	return false, translate(err, "delete", "pods", d.Namespace, "the sandbox could not be proved gone")
}
