package kubernetes

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"tuluat.ai/harness/shared/sandbox"
)

const (
	rewatch = 200 * time.Millisecond // between two watches of one Pod; doubles up to a few seconds

	// A watch that says nothing may have nothing to say, or be dead: the Pod itself
	// is looked at after firstLook, and then at twice that interval up to maxLook.
	firstLook = 2 * time.Second
	maxLook   = 30 * time.Second
	lookBound = 10 * time.Second // of one such look
)

// get returns the Pod of this uid, or ErrGone. An empty uid is any.
func (d *Driver) get(ctx context.Context, name, uid string) (*corev1.Pod, error) {
	pod, err := d.pods().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, sandbox.ErrGone
	case err != nil:
		return nil, translate(err, "get", "pods", d.Namespace, "the sandbox could not be looked at")
	case uid != "" && string(pod.UID) != uid:
		return nil, sandbox.ErrGone
	}
	return pod, nil
}

// follow calls see with every state of a Pod after the given one, until see
// returns true, the Pod is gone (ErrGone) or ctx ends (its cause). A watch that
// breaks off is begun again, one that is silent is not relied on; an API server
// that is away is waited for.
func (d *Driver) follow(ctx context.Context, pod *corev1.Pod, see func(*corev1.Pod) bool) error {
	f := &following{driver: d, name: pod.Name, uid: string(pod.UID), version: pod.ResourceVersion, see: see, silence: firstLook}
	for pause := rewatch; ; pause = min(2*pause, 5*time.Second) {
		was := f.version
		if over, err := f.watch(ctx); over || err != nil {
			return err
		}
		if f.version != was {
			pause = rewatch
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		// What happened meanwhile, or was too long ago for a watch to tell.
		if over, err := f.look(ctx); over || err != nil {
			return err
		}
	}
}

// following is one call of follow.
type following struct {
	driver    *Driver
	name, uid string
	version   string // the last one seen
	see       func(*corev1.Pod) bool
	silence   time.Duration // of the watch, until the next look
}

// look reads the Pod itself. That the API server does not answer is no failure.
func (f *following) look(ctx context.Context) (over bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	now, err := f.driver.get(ctx, f.name, f.uid)
	switch {
	case errors.Is(err, sandbox.ErrGone):
		return true, err
	case err != nil:
		return false, nil
	}
	f.version = now.ResourceVersion
	return f.see(now), nil
}

// watch passes states to see until that is over or the watch is.
func (f *following) watch(ctx context.Context) (over bool, err error) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(f.silence, cancel) // until the watch itself is answered
	w, err := f.driver.pods().Watch(watching, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, f.name).String(), ResourceVersion: f.version,
	})
	answered := silent.Stop()
	if err != nil || !answered {
		if err == nil {
			w.Stop()
		}
		return false, nil
	}
	defer w.Stop()
	tick := time.NewTimer(f.silence)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-tick.C:
			if over, err := f.look(ctx); over || err != nil {
				return over, err
			}
			f.silence = min(2*f.silence, maxLook)
		case e, ok := <-w.ResultChan():
			pod, isPod := e.Object.(*corev1.Pod)
			if !ok || !isPod { // closed, or an error: the version is too old
				return false, nil
			}
			if string(pod.UID) != f.uid || e.Type == watch.Deleted {
				return false, sandbox.ErrGone
			}
			f.version = pod.ResourceVersion
			if f.see(pod) {
				return true, nil
			}
		}
		tick.Reset(f.silence)
	}
}

// ended reports that a Pod takes no commands any more.
func ended(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	status := ours(pod)
	return status != nil && status.State.Terminated != nil
}

// ours is the status of the sandbox's own container, nil when there is none yet.
func ours(pod *corev1.Pod) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == container {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}
