package kubernetes

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// How long a state may last that may pass by itself. The whole start is bounded
// by the StartTimeout besides.
const (
	pullBudget     = 20 * time.Second // two attempts of the kubelet's
	scheduleBudget = 30 * time.Second
	createBudget   = 10 * time.Second

	exitNetworkOpen = 3 // of PID 1: see functions/sandbox-exec/runner
)

var errPatience = errors.New("a state that should have passed")

// far is later than any start.
const far = 24 * time.Hour

// patience looks at the states of one Pod that starts and says when to give up.
// None of the states below makes a Pod fail by itself: it would stay Pending for
// ever.
//
//	bad image name, bad configuration     -> at once
//	image cannot be pulled                -> after pullBudget
//	no node has room                      -> after scheduleBudget
//	container cannot be created           -> after createBudget
//	a container or the Pod has ended      -> at once
type patience struct {
	image, runner string
	begun         time.Time

	pending error // why to give up at deadline; nil when there is no reason to
	what    string
	since   time.Time
	budget  time.Duration
}

func newPatience(image, runner string, now time.Time) *patience {
	return &patience{image: image, runner: runner, begun: now}
}

// until is when to give up with pending.
func (p *patience) until() time.Time {
	if p.pending == nil {
		return p.begun.Add(far)
	}
	return p.since.Add(p.budget)
}

// judge returns a failure when this state is one, and notes one that must pass
// in time.
func (p *patience) judge(pod *corev1.Pod) error {
	if ended(pod) {
		return endedFailure(pod)
	}
	what, budget, pending := p.look(pod)
	switch {
	case pending == nil:
		p.pending, p.what = nil, ""
	case budget <= 0:
		return pending
	case what != p.what: // the clock runs on while the words of one trouble change
		p.what, p.since, p.budget, p.pending = what, time.Now(), budget, pending
	default:
		p.pending = pending
	}
	return nil
}

// look finds what keeps a Pod from running, if anything does.
func (p *patience) look(pod *corev1.Pod) (what string, budget time.Duration, failure error) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return "node", scheduleBudget, sandbox.Fail(harness.Exhausted, sandbox.ReasonCapacity, "no node of the cluster has room for the sandbox: "+clean(c.Message), nil)
		}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return "", 0, sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the runner could not be brought into the sandbox: "+terminated(t), nil)
		}
		if w := s.State.Waiting; w != nil {
			// The platform's own image: nothing an agent's author could mend.
			if what, budget, failure = waiting(w, p.runner, harness.Unavailable, "the platform's image of the runner"); failure != nil {
				return what, budget, failure
			}
		}
	}
	if s := ours(pod); s != nil && s.State.Waiting != nil {
		return waiting(s.State.Waiting, p.image, harness.Invalid, "the image")
	}
	return "", 0, nil
}

// waiting says what a container's reason to wait means. kind is of images that
// cannot be had.
func waiting(w *corev1.ContainerStateWaiting, image string, kind harness.Kind, name string) (what string, budget time.Duration, failure error) {
	said := clean(w.Message)
	fail := func(kind harness.Kind, reason sandbox.Reason, format string, args ...any) error {
		message := fmt.Sprintf(format, args...)
		if said != "" {
			message += ": " + said
		}
		return sandbox.Fail(kind, reason, message, errors.New(w.Reason))
	}
	switch w.Reason {
	case "InvalidImageName":
		return "", 0, fail(kind, sandbox.ReasonImage, "%s %q has no valid name", name, image)
	case "ErrImageNeverPull":
		return "", 0, fail(kind, sandbox.ReasonImage, "%s %q is not on the node and may not be pulled", name, image)
	case "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		if w.Reason == "ImagePullBackOff" && strings.HasPrefix(said, "Back-off") {
			// The kubelet repeats itself here; what the registry said follows, if at all.
			said = strings.TrimPrefix(said[strings.LastIndex(said, "\":")+1:], ":")
		}
		return "image", pullBudget, fail(kind, sandbox.ReasonImage, "%s %q cannot be had", name, image)
	case "CreateContainerConfigError":
		return "", 0, fail(harness.Invalid, sandbox.ReasonSpec, "a container cannot be made from %s %q", name, image)
	case "CreateContainerError", "RunContainerError", "PostStartHookError":
		return "container", createBudget, fail(harness.Unavailable, sandbox.ReasonStartFailed, "a container of %s %q cannot be started", name, image)
	}
	return "", 0, nil // ContainerCreating, PodInitializing
}

// endedFailure is a Pod that has ended before it took a command.
func endedFailure(pod *corev1.Pod) error {
	cause := errors.New(diagnosis(pod))
	status := ours(pod)
	var end *corev1.ContainerStateTerminated
	if status != nil {
		end = status.State.Terminated
	}
	switch {
	case end != nil && end.ExitCode == exitNetworkOpen:
		return sandbox.Fail(harness.Unavailable, sandbox.ReasonNetwork,
			"the sandbox's network is not shut, so nothing was run in it: the cluster must enforce NetworkPolicies in the namespace "+pod.Namespace, cause)
	case end != nil && end.Reason == "StartError":
		return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox's container cannot be started: "+clean(end.Message), cause)
	case end != nil && end.Reason == "OOMKilled":
		return sandbox.Fail(harness.Invalid, sandbox.ReasonMemory, "the sandbox has too little memory to start in", cause)
	case strings.HasPrefix(pod.Status.Reason, "OutOf"): // the kubelet's own admission: OutOfcpu, OutOfmemory, OutOfpods
		return sandbox.Fail(harness.Exhausted, sandbox.ReasonCapacity, "the node had no room for the sandbox: "+clean(pod.Status.Message), cause)
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the runner could not be brought into the sandbox: "+terminated(t), cause)
		}
	}
	return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox ended while it started: "+diagnosis(pod), cause)
}

func running(pod *corev1.Pod) bool {
	status := ours(pod)
	return status != nil && status.State.Running != nil
}
