package kubernetes

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// Objects implements sandbox.Keeper.
func (d *Driver) Objects(ctx context.Context, kind harness.ObjectKind) ([]sandbox.Object, error) {
	switch kind {
	case harness.ObjectVolume:
		return d.volumes(ctx)
	case harness.ObjectNetworkPolicy:
		return d.networkPolicies(ctx)
	default:
		return nil, harness.Errorf(harness.Internal, "%s is no kind of object beside sandboxes", kind)
	}
}

// Remove implements sandbox.Keeper.
func (d *Driver) Remove(ctx context.Context, kind harness.ObjectKind, o sandbox.Object) error {
	uid, resource := types.UID(o.UID), "persistentvolumeclaims"
	same := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	var err error
	switch kind {
	case harness.ObjectVolume:
		err = d.core.PersistentVolumeClaims(d.Namespace).Delete(ctx, o.Name, same)
	case harness.ObjectNetworkPolicy:
		resource = "networkpolicies"
		err = d.policies.Delete(ctx, o.Name, same)
	default:
		return harness.Errorf(harness.Internal, "%s is no kind of object beside sandboxes", kind)
	}
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict is with the uid: this is another one
		return nil
	}
	return translate(err, "delete", resource, d.Namespace, "an object beside sandboxes could not be removed")
}

// networkPolicies lists those that belong to one sandbox each. They have its name.
func (d *Driver) networkPolicies(ctx context.Context) ([]sandbox.Object, error) {
	var all []sandbox.Object
	err := pages(func(o metav1.ListOptions) (string, error) {
		o.LabelSelector = selector
		list, err := d.policies.List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			all = append(all, object(&list.Items[i]))
		}
		return list.Continue, nil
	})
	if err != nil {
		return nil, translate(err, "list", "networkpolicies", d.Namespace, "the network policies could not be listed")
	}
	return once(all), nil
}

func object(o metav1.Object) sandbox.Object {
	said := o.GetAnnotations()
	return sandbox.Object{
		Name: o.GetName(), UID: string(o.GetUID()), Agent: harness.AgentName(said[labelAgent]), Session: harness.SessionID(said[labelSession]),
		CreatedAt: o.GetCreationTimestamp().Time, Going: o.GetDeletionTimestamp() != nil,
	}
}

// once leaves out what a list that began again tells twice.
func once(all []sandbox.Object) []sandbox.Object {
	seen, different := map[string]bool{}, all[:0]
	for _, o := range all {
		if !seen[o.UID] {
			seen[o.UID] = true
			different = append(different, o)
		}
	}
	return different
}
