package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

const (
	discardBound = 10 * time.Second // for a Pod that did not come up to be deleted
	eventsBound  = 2 * time.Second  // for the cluster's words on it

	quotaTries = 5                      // of a creation that meets another in the books of a quota
	quotaPause = 100 * time.Millisecond // between them, and as much again by chance

	pingWait  = 20 * time.Second // of one question whether PID 1 takes commands
	pingSlack = 5 * time.Second  // for the question itself
	pingPause = 50 * time.Millisecond
)

var errStart = errors.New("start of a sandbox")

// Start makes the sandbox.
func (d *Driver) Start(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	image, err := d.check(sb)
	if err != nil {
		return "", err
	}
	caller := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, d.StartTimeout, errStart)
	defer cancel()
	if err := d.ensureVolume(ctx, sb); err != nil {
		return "", err
	}
	pod, found, err := d.create(ctx, sb, image)
	if err != nil {
		return "", err
	}
	if found && ended(pod) {
		return "", sandbox.Fail(harness.NotFound, sandbox.ReasonEnded, "this sandbox has ended; a new one needs a new name", errors.New(diagnosis(pod)))
	}
	err = d.open(ctx, sb, pod)
	if err == nil {
		err = d.await(ctx, sb, pod, image)
	}
	switch {
	case err == nil:
		return string(pod.UID), nil
	case caller.Err() != nil:
		// Whoever goes on with this sandbox calls Start or Terminate, perhaps
		// already: the Pod is theirs.
		return "", err
	default:
		return "", errors.Join(err, d.discard(ctx, pod))
	}
}

// check refuses what no cluster can make, and returns the image.
func (d *Driver) check(sb sandbox.Sandbox) (image string, err error) {
	bad := func(format string, args ...any) (string, error) {
		return "", sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, fmt.Sprintf(format, args...), nil)
	}
	switch {
	case !validName.MatchString(sb.Name):
		return bad("%q cannot name a sandbox", sb.Name)
	case sb.ID == "":
		return bad("a sandbox needs an id")
	case sb.Spec.MemoryBytes <= 0 || sb.Spec.CPUMillis <= 0 || sb.Spec.VolumeBytes <= 0:
		return bad("a sandbox needs a limit of cpu, memory and volume")
	case persistent(sb.Spec) && sb.Session == "":
		return bad("a persistent workdir needs a session")
	case !sb.ExpiresAt.After(d.now()):
		return bad("the sandbox would end before it starts")
	case d.RunnerImage == "":
		return bad("no image of the runner is configured (SANDBOX_RUNNER_IMAGE)")
	}
	if _, err := rules(sb.Spec); err != nil {
		return "", err
	}
	return d.image(sb.Spec)
}

// create makes the Pod, or finds the one that an earlier call has made.
func (d *Driver) create(ctx context.Context, sb sandbox.Sandbox, image string) (pod *corev1.Pod, found bool, err error) {
	want := d.pod(sb, image, d.now())
	for try := 1; ; try++ {
		pod, err = d.pods().Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			return pod, false, nil
		}
		if !busyQuota(err) || try == quotaTries {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(quotaPause + rand.N(quotaPause)):
		}
	}
	switch {
	case apierrors.IsAlreadyExists(err):
	case busyQuota(err):
		return nil, false, sandbox.Fail(harness.Exhausted, sandbox.ReasonCapacity, "the cluster's quota for sandboxes is too busy", err)
	case unsure(err) && ctx.Err() == nil:
		there, lookErr := d.get(ctx, sb.Name, "")
		if lookErr == nil && there.Labels[labelManaged] == manager && there.Annotations[labelSandbox] == string(sb.ID) && there.DeletionTimestamp == nil {
			return there, true, nil
		}
		return nil, false, createFailure(ctx, err, "pods", d.Namespace)
	default:
		if unsure(err) {
			err = errors.Join(err, d.discardNamed(ctx, sb))
		}
		return nil, false, createFailure(ctx, err, "pods", d.Namespace)
	}
	pod, err = d.get(ctx, sb.Name, "")
	switch {
	case errors.Is(err, sandbox.ErrGone):
		return nil, false, sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox was removed while it started", err)
	case err != nil:
		return nil, false, sandbox.Fail(harness.KindOf(err), sandbox.ReasonStartFailed, harness.MessageOf(err), err)
	case pod.Labels[labelManaged] != manager || pod.Annotations[labelSandbox] != string(sb.ID):
		return nil, false, sandbox.Fail(harness.Conflict, sandbox.ReasonTaken, "another sandbox has this name", nil)
	case pod.DeletionTimestamp != nil:
		return nil, false, sandbox.Fail(harness.NotFound, sandbox.ReasonEnded, "this sandbox is being removed; a new one needs a new name", nil)
	}
	return pod, true, nil
}

// unsure reports that a creation has no answer, or one that does not prove that
// nothing was made.
func unsure(err error) bool {
	status, answered := errors.AsType[*apierrors.StatusError](err)
	return !answered || status.ErrStatus.Code >= http.StatusInternalServerError
}

// await returns when the sandbox takes commands. Its errors say why it never
// will, in the cluster's words.
func (d *Driver) await(ctx context.Context, sb sandbox.Sandbox, pod *corev1.Pod, image string) error {
	waiting := newPatience(image, d.RunnerImage, d.now())
	for {
		if failure := waiting.judge(pod); failure != nil {
			return failure
		}
		if running(pod) {
			return d.ping(ctx, sb, pod)
		}
		round, cancel := context.WithDeadlineCause(ctx, waiting.until(), errPatience)
		err := d.follow(round, pod, func(next *corev1.Pod) bool { pod = next; return true })
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, sandbox.ErrGone):
			return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox was removed while it started", err)
		case ctx.Err() == nil && errors.Is(err, errPatience):
			return waiting.pending
		case waiting.pending != nil:
			return waiting.pending
		default:
			return d.tooLate(ctx, pod)
		}
	}
}

// ping returns when PID 1 takes commands: the container runs, and its network is
// proved to be shut.
func (d *Driver) ping(ctx context.Context, sb sandbox.Sandbox, pod *corev1.Pod) error {
	waiting := newPatience("", "", d.now())
	for {
		ask, cancel := context.WithTimeout(ctx, pingWait+pingSlack)
		last, err := d.beside(ask, pod, []string{"ping", "--wait", pingWait.String()}, nil, io.Discard, io.Discard)
		cancel()
		if err == nil {
			return nil
		}
		if last != nil {
			pod = last
		}
		if failure := waiting.judge(pod); failure != nil {
			return failure
		}
		if harness.KindOf(err) == harness.Denied {
			return sandbox.Fail(harness.Denied, sandbox.ReasonRefused, harness.MessageOf(err), err)
		}
		if errors.Is(err, sandbox.ErrGone) && !ended(pod) {
			return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox was removed while it started", err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(d.tooLate(ctx, pod), err)
		case <-time.After(pingPause):
		}
		now, err := d.get(ctx, pod.Name, string(pod.UID)) // a PID 1 that has just ended is why nobody answers
		if errors.Is(err, sandbox.ErrGone) {
			return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox was removed while it started", err)
		}
		if err == nil {
			pod = now
		}
		if failure := waiting.judge(pod); failure != nil {
			return failure
		}
	}
}

// tooLate is a start that took longer than it may, with what the cluster has
// said of it.
func (d *Driver) tooLate(ctx context.Context, pod *corev1.Pod) error {
	if !errors.Is(context.Cause(ctx), errStart) { // the caller has no more time
		return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartTimeout, "the sandbox did not come up in the time there was", context.Cause(ctx))
	}
	message := fmt.Sprintf("the sandbox did not come up within %s", d.StartTimeout)
	if said := d.warnings(ctx, pod); said != "" {
		message += ": " + said
	}
	return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartTimeout, message, errors.New(diagnosis(pod)))
}

// warnings are the last events of a Pod that warn of something. Without them a
// start that hangs is only slow; they are never worth another failure.
func (d *Driver) warnings(ctx context.Context, pod *corev1.Pod) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventsBound)
	defer cancel()
	list, err := d.core.Events(d.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(pod.UID) + ",type=" + corev1.EventTypeWarning, Limit: 20,
	})
	if err != nil {
		return ""
	}
	said := make([]string, 0, len(list.Items))
	for _, e := range list.Items {
		said = append(said, e.Reason+": "+e.Message)
	}
	return clean(strings.Join(said[max(0, len(said)-3):], "; "))
}

// discard deletes a Pod that did not come up, so that it holds no place. What it
// cannot delete now is found by Terminate and List.
func (d *Driver) discard(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), discardBound, errors.New("removal of a sandbox that did not start"))
	defer cancel()
	err := d.pods().Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID}, // no command ran in it: there is nothing to wait for
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return translate(err, "delete", "pods", d.Namespace, "and it could not be removed")
	}
	return nil
}

// discardNamed is for a creation whose answer never came.
func (d *Driver) discardNamed(ctx context.Context, sb sandbox.Sandbox) error {
	look, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), discardBound, errors.New("removal of a sandbox that did not start"))
	defer cancel()
	pod, err := d.get(look, sb.Name, "")
	if errors.Is(err, sandbox.ErrGone) || err == nil && pod.Annotations[labelSandbox] != string(sb.ID) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.discard(ctx, pod)
}
