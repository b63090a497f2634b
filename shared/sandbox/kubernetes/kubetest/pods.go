package kubetest

import (
	"context"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Life is what becomes of one Pod after it was created. ctx ends when the object
// is gone, or with the server.
type Life func(ctx context.Context, p *Pod)

// Change is something that happens to a Pod.
type Change func(*corev1.Pod)

// Pod is one Pod on the server.
type Pod struct {
	Spec corev1.Pod // as it was created

	server   *Server
	ctx      context.Context
	stop     context.CancelFunc
	deleting chan struct{}
	process  *process // of a real one
}

// Lives gives the next Pods these lives in turn; the last is for all that follow.
func (s *Server) Lives(lives ...Life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives = lives
}

// Steps is a life in which one thing happens after the other, each seen by the
// watches, and then nothing more.
func Steps(changes ...Change) Life {
	return func(_ context.Context, p *Pod) {
		for _, c := range changes {
			p.Change(c)
		}
	}
}

// Later is a life that begins with its first changes, and after d has another.
func Later(now Life, d time.Duration, then Life) Life {
	return func(ctx context.Context, p *Pod) {
		now(ctx, p)
		if p.server.sleep(ctx, d) {
			then(ctx, p)
		}
	}
}

// Healthily is the life of a Pod whose image is there.
func Healthily() Life { return Steps(Scheduled(), Running()) }

// Change lets something happen to the Pod; nothing when it is gone.
func (p *Pod) Change(c Change) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(p.Spec.Namespace, p.Spec.Name, string(p.Spec.UID), c)
}

// Change lets something happen to the Pod of this name, in the first namespace
// that has one.
func (s *Server) Change(name string, c Change) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects["pods"] {
		if o.GetName() == name && s.change(o.GetNamespace(), name, string(o.GetUID()), c) {
			return
		}
	}
	s.t.Errorf("there is no Pod %s to change", name)
}

// change reports whether the Pod was there. s.mu is held.
func (s *Server) change(namespace, name, uid string, c Change) bool {
	o, ok := s.objects["pods"][key(namespace, name)]
	if !ok || string(o.GetUID()) != uid {
		return false
	}
	pod := o.DeepCopyObject().(*corev1.Pod)
	c(pod)
	k, _ := kindOf("pods")
	s.store(k, "pods", pod, "MODIFIED")
	return true
}

// Remove takes a Pod away at once, as a forced delete by someone else or the
// loss of a node does.
func (s *Server) Remove(name string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects["pods"] {
		if o.GetName() == name {
			s.remove(o.(*corev1.Pod))
			return
		}
	}
	s.t.Errorf("there is no Pod %s to remove", name)
}

// DeletionTakes sets how long a Pod lives on after its deletion was asked for,
// if its grace period is not 0. Negative: until it is asked for with 0.
func (s *Server) DeletionTakes(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deletion = d
}

// live begins a Pod's life. s.mu is held.
func (s *Server) live(pod *corev1.Pod) {
	p := &Pod{Spec: *pod.DeepCopy(), server: s, deleting: make(chan struct{})}
	p.ctx, p.stop = context.WithCancel(s.ctx)
	s.pods[string(pod.UID)] = p
	life := Healthily()
	if len(s.lives) > 0 {
		life = s.lives[0]
		if len(s.lives) > 1 {
			s.lives = s.lives[1:]
		}
	}
	s.work.Go(func() { life(p.ctx, p) })
}

// deletePod marks the Pod and ends it later, or now. s.mu is held.
func (s *Server) deletePod(k kind, pod *corev1.Pod, opts metav1.DeleteOptions) object {
	grace := int64(30)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if opts.GracePeriodSeconds != nil {
		grace = *opts.GracePeriodSeconds
	}
	over := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	if grace == 0 || pod.Spec.NodeName == "" || over {
		s.remove(pod)
		return pod.DeepCopy()
	}
	marked := pod.DeepCopy()
	end := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	again := marked.DeletionTimestamp != nil
	marked.DeletionTimestamp, marked.DeletionGracePeriodSeconds = &end, &grace
	s.store(k, "pods", marked, "MODIFIED")
	if again {
		return marked.DeepCopy()
	}
	p := s.pods[string(pod.UID)]
	if p != nil {
		close(p.deleting)
	}
	takes := s.deletion
	s.work.Go(func() {
		switch {
		case p != nil && p.process != nil:
			p.process.terminate(time.Duration(grace) * time.Second)
		case takes < 0 || !s.sleep(s.ctx, takes):
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if o, ok := s.objects["pods"][key(pod.Namespace, pod.Name)]; ok && o.GetUID() == pod.UID {
			s.remove(o.(*corev1.Pod))
		}
	})
	return marked.DeepCopy()
}

// remove ends the object, and what belongs to it goes as the garbage collector
// would have it. s.mu is held.
func (s *Server) remove(pod *corev1.Pod) {
	k, _ := kindOf("pods")
	s.store(k, "pods", pod.DeepCopy(), "DELETED")
	if p := s.pods[string(pod.UID)]; p != nil {
		p.stop()
		if p.process != nil {
			p.process.kill()
		}
		delete(s.pods, string(pod.UID))
	}
	for _, res := range []string{"networkpolicies", "persistentvolumeclaims", "configmaps"} {
		k, _ := kindOf(res)
		for _, o := range s.objects[res] {
			if slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == pod.UID }) {
				s.store(k, res, o.DeepCopyObject().(object), "DELETED")
			}
		}
	}
}

// podLog answers with nothing: a sandbox's PID 1 says why it ended in its
// termination message.
func (s *Server) podLog(c *Call) {
	k, _ := kindOf("pods")
	if _, err := s.get(k, "pods", c.Request); err != nil {
		s.answer(c, 0)(nil, err)
		return
	}
	c.w.Header().Set("Content-Type", "text/plain")
	_, _ = io.WriteString(c.w, "")
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) {
	c := corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now()}
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			pod.Status.Conditions[i] = c
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, c)
}

func statuses(of []corev1.Container, state corev1.ContainerState, ready bool) []corev1.ContainerStatus {
	all := make([]corev1.ContainerStatus, 0, len(of))
	for _, c := range of {
		started := state.Running != nil
		all = append(all, corev1.ContainerStatus{Name: c.Name, Image: c.Image, State: state, Ready: ready, Started: &started})
	}
	return all
}

// Scheduled gives the Pod a node, whose kubelet makes its containers.
func Scheduled() Change {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = "node-1"
		now := metav1.Now()
		pod.Status.StartTime = &now
		condition(pod, corev1.PodScheduled, corev1.ConditionTrue, "", "")
		waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		if len(pod.Spec.InitContainers) == 0 {
			waiting.Waiting.Reason = "ContainerCreating"
		}
		pod.Status.InitContainerStatuses = statuses(pod.Spec.InitContainers, waiting, false)
		pod.Status.ContainerStatuses = statuses(pod.Spec.Containers, waiting, false)
	}
}

// Unschedulable is a Pod that no node can take.
func Unschedulable(message string) Change {
	return func(pod *corev1.Pod) {
		condition(pod, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)
	}
}

// Waiting is a container that cannot start, and why; the init containers are done.
func Waiting(reason, message string) Change {
	return func(pod *corev1.Pod) {
		initialized(pod)
		pod.Status.ContainerStatuses = statuses(pod.Spec.Containers, corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}, false)
	}
}

// InitWaiting is an init container that cannot start, and why.
func InitWaiting(reason, message string) Change {
	return func(pod *corev1.Pod) {
		pod.Status.InitContainerStatuses = statuses(pod.Spec.InitContainers, corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}, false)
	}
}

// InitFailed is an init container that ended with an error, and with it the Pod.
func InitFailed(code int32, reason, message string) Change {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodFailed
		pod.Status.InitContainerStatuses = statuses(pod.Spec.InitContainers, corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, FinishedAt: metav1.Now()},
		}, false)
	}
}

func initialized(pod *corev1.Pod) {
	condition(pod, corev1.PodInitialized, corev1.ConditionTrue, "", "")
	pod.Status.InitContainerStatuses = statuses(pod.Spec.InitContainers, corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.Now()},
	}, true)
}

// Running is a Pod whose containers run and are ready.
func Running() Change {
	return func(pod *corev1.Pod) {
		initialized(pod)
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIP = "10.244.0.7"
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		pod.Status.HostIP = "10.0.0.1"
		condition(pod, corev1.ContainersReady, corev1.ConditionTrue, "", "")
		condition(pod, corev1.PodReady, corev1.ConditionTrue, "", "")
		pod.Status.ContainerStatuses = statuses(pod.Spec.Containers, corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()},
		}, true)
	}
}

// Unready is a Pod that runs and whose probe does not answer yet.
func Unready() Change {
	return func(pod *corev1.Pod) {
		condition(pod, corev1.ContainersReady, corev1.ConditionFalse, "ContainersNotReady", "")
		condition(pod, corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", "")
		for i := range pod.Status.ContainerStatuses {
			pod.Status.ContainerStatuses[i].Ready = false
		}
	}
}

// Terminated is a Pod whose container has ended: reason as in "Error",
// "Completed" or "OOMKilled".
func Terminated(code int32, reason, message string) Change {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodFailed
		if code == 0 {
			pod.Status.Phase = corev1.PodSucceeded
		}
		condition(pod, corev1.PodReady, corev1.ConditionFalse, "PodFailed", "")
		pod.Status.ContainerStatuses = statuses(pod.Spec.Containers, corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, FinishedAt: metav1.Now()},
		}, false)
	}
}

// Ended is a Pod that the kubelet ended: reason "Evicted" or "DeadlineExceeded".
// Its containers' states are lost.
func Ended(reason, message string) Change {
	return func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, reason, message
		condition(pod, corev1.PodReady, corev1.ConditionFalse, "PodFailed", "")
		state := corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated"},
		}
		if reason == "Evicted" { // as Kubernetes 1.35 shows it
			state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		}
		pod.Status.ContainerStatuses = statuses(pod.Spec.Containers, state, false)
	}
}
