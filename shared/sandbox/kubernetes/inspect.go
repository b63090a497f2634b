package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/sandbox"
)

// Inspect reads the Pod once.
func (d *Driver) Inspect(ctx context.Context, sb sandbox.Sandbox) (sandbox.Condition, error) {
	if !validName.MatchString(sb.Name) || sb.UID == "" {
		return sandbox.Condition{Reason: "removed"}, nil
	}
	pod, err := d.get(ctx, sb.Name, sb.UID)
	if errors.Is(err, sandbox.ErrGone) {
		return sandbox.Condition{Reason: "removed"}, nil
	}
	if err != nil {
		return sandbox.Condition{}, err
	}
	return condition(pod), nil
}

func condition(pod *corev1.Pod) sandbox.Condition {
	if !ended(pod) {
		if pod.DeletionTimestamp != nil {
			return sandbox.Condition{Reason: "the sandbox is being removed"}
		}
		return sandbox.Condition{Exists: true}
	}
	c := sandbox.Condition{Reason: diagnosis(pod), Evicted: evicted(pod)}
	if status := ours(pod); status != nil && status.State.Terminated != nil && status.State.Terminated.Reason == "OOMKilled" {
		c.OOMKills = 1
	}
	return c
}

// evicted reports that a Pod was ended for the disk it used itself. When a node
// runs short of something the kubelet evicts as well, whoever is to blame; those
// Pods carry a condition that says so.
func evicted(pod *corev1.Pod) bool {
	if pod.Status.Reason != "Evicted" {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	return true
}

// diagnosis is all that the API server knows of a Pod's state, for people.
func diagnosis(pod *corev1.Pod) string {
	said := []string{string(pod.Status.Phase)}
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		said = append(said, strings.TrimSpace(pod.Status.Reason+" "+pod.Status.Message))
	}
	all := append(append([]corev1.ContainerStatus{}, pod.Status.InitContainerStatuses...), pod.Status.ContainerStatuses...)
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	for _, s := range all {
		switch {
		case s.State.Waiting != nil && !ended: // the kubelet says it of an evicted Pod too, whose containers wait for nothing
			said = append(said, fmt.Sprintf("%s waits: %s %s", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message))
		case s.State.Terminated != nil && (s.Name == container || s.State.Terminated.ExitCode != 0):
			said = append(said, fmt.Sprintf("%s ended: %s", s.Name, terminated(s.State.Terminated)))
		}
	}
	return clean(strings.Join(said, "; "))
}

// terminated is why a container ended. PID 1 says it as the last line of its
// log, which the kubelet keeps.
func terminated(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("%s, exit code %d", t.Reason, t.ExitCode)
	message := bytes.TrimSpace([]byte(t.Message))
	var last struct{ Reason, Error string }
	err := json.Unmarshal(message[bytes.LastIndexByte(message, '\n')+1:], &last)
	switch {
	case err == nil && last.Reason != "":
		text += ": " + strings.TrimSpace(last.Reason+" "+last.Error)
	case err == nil: // a line of its log, that says nothing of the end
	case len(message) > 0:
		text += ": " + string(message)
	}
	return clean(text)
}

const pageSize = 250

// pages calls list for one page after the other. A list that takes longer than
// the API server remembers begins again, once.
func pages(list func(metav1.ListOptions) (next string, err error)) error {
	o := metav1.ListOptions{Limit: pageSize}
	again := true
	for {
		next, err := list(o)
		switch {
		case apierrors.IsResourceExpired(err) && o.Continue != "" && again:
			o.Continue, again = "", false
		case err != nil || next == "":
			return err
		default:
			o.Continue = next
		}
	}
}

// endedAt is when a Pod stopped to take commands; zero when it takes some. One
// that the platform ended without a word of its container counts from the last
// change of its conditions: too late rather than too early, since whoever waits
// for its last words still needs it.
func endedAt(pod *corev1.Pod) time.Time {
	if !ended(pod) {
		return time.Time{}
	}
	if s := ours(pod); s != nil && s.State.Terminated != nil && !s.State.Terminated.FinishedAt.IsZero() {
		return s.State.Terminated.FinishedAt.Time
	}
	last := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.LastTransitionTime.After(last) {
			last = c.LastTransitionTime.Time
		}
	}
	return last
}

// List returns every Pod of ours.
func (d *Driver) List(ctx context.Context) ([]sandbox.Found, error) {
	found := []sandbox.Found{}
	seen := map[string]bool{} // a list that began again tells some twice
	err := pages(func(o metav1.ListOptions) (string, error) {
		o.LabelSelector = selector
		list, err := d.pods().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			p := &list.Items[i]
			if !seen[string(p.UID)] {
				seen[string(p.UID)] = true
				found = append(found, sandbox.Found{Name: p.Name, UID: string(p.UID), CreatedAt: p.CreationTimestamp.Time, EndedAt: endedAt(p)})
			}
		}
		return list.Continue, nil
	})
	if err != nil {
		return nil, translate(err, "list", "pods", d.Namespace, "the sandboxes could not be listed")
	}
	return found, nil
}
