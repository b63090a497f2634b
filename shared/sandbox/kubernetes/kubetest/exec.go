package kubetest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// farewell is how long an ending waits for the client to hang up first.
const farewell = 2 * time.Second

// Exec is one exec that was let in.
type Exec struct {
	Pod            *corev1.Pod // as it stands
	Container      string
	Argv           []string
	Protocol       string    // "websocket" or "spdy"
	Stdin          io.Reader // nil when the client sends none; ends when the client says so
	Stdout, Stderr io.Writer // fail once the client has gone

	server *Server
	pod    *Pod
}

// Script is what an exec does in the Pod. ctx ends when the client has gone, or
// with the server.
type Script func(ctx context.Context, x *Exec) Ending

// Ending is how a stream ends.
type Ending struct {
	how    how
	code   int
	status metav1.Status
}

type how int

const (
	byStatus how = iota // a status, then a normal end
	byClose             // no status, then a WebSocket close code, or the end of all SPDY streams
	byCut               // no status, no close frame: the connection ends
	byReset             // the same by a TCP reset
	byStall             // nothing, until the client goes
)

// Exit ends with the process's exit code.
func Exit(code int) Ending {
	st := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		st = metav1.Status{
			Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: fmt.Sprintf("command terminated with non-zero exit code: %d", code),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: strconv.Itoa(code)}}},
		}
	}
	return Ending{how: byStatus, status: st}
}

// Says ends with a status of the test's own.
func Says(st metav1.Status) Ending { return Ending{how: byStatus, status: st} }

// Close ends without a status by this WebSocket close code: 1000 is what a client
// takes for success, 1001 a server that goes. Over SPDY all streams end.
func Close(code int) Ending { return Ending{how: byClose, code: code} }

// Cut ends without a status and without a close frame: a client sees 1006. Over
// SPDY the connection ends.
func Cut() Ending { return Ending{how: byCut} }

// Broken ends with a TCP reset.
func Broken() Ending { return Ending{how: byReset} }

// Stall says nothing more, and keeps the connection until the client goes.
func Stall() Ending { return Ending{how: byStall} }

// Exec gives the next execs of the runner's word op ("run", "status", "output",
// "ping", ...) these scripts in turn, and then the general one again. An empty op
// means any word that has no scripts of its own.
func (s *Server) Exec(op string, scripts ...Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[op] = append(s.scripts[op], scripts...)
}

// Otherwise sets what execs do that [Server.Exec] has no script for.
func (s *Server) Otherwise(script Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fallback = script
}

// SPDYSpeaks sets the protocols of SPDY execs; v5 and v4 at first.
func (s *Server) SPDYSpeaks(protocols ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spdy = protocols
}

// scriptFor takes the next script. s.mu is held.
func (s *Server) scriptFor(op string) Script {
	for _, name := range []string{op, ""} {
		if queue := s.scripts[name]; len(queue) > 0 {
			s.scripts[name] = queue[1:]
			return queue[0]
		}
	}
	return s.fallback
}

func (s *Server) exec(c *Call) {
	req := c.Request
	s.mu.Lock()
	o, ok := s.objects["pods"][key(req.Namespace, req.Name)]
	if !ok {
		s.mu.Unlock()
		k, _ := kindOf("pods")
		writeStatus(c.w, apierrors.NewNotFound(resource(k, "pods"), req.Name).Status())
		return
	}
	pod := o.DeepCopyObject().(*corev1.Pod)
	script, live, protocols := s.scriptFor(operation(req.Argv)), s.pods[string(pod.UID)], s.spdy
	s.mu.Unlock()
	q := req.Query
	x := &Exec{Pod: pod, Container: q.Get("container"), Argv: req.Argv, server: s, pod: live}
	if x.Container == "" && len(pod.Spec.Containers) > 0 {
		x.Container = pod.Spec.Containers[0].Name
	}
	switch {
	case !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == x.Container }):
		writeStatus(c.w, apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", x.Container, pod.Name)).Status())
		return
	case pod.Spec.NodeName == "":
		writeStatus(c.w, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name)).Status())
		return
	case !slices.ContainsFunc(pod.Status.ContainerStatuses, func(st corev1.ContainerStatus) bool { return st.Name == x.Container && st.State.Running != nil }):
		NoContainer(x.Container)(c)
		return
	}
	switch {
	case strings.EqualFold(req.Upgrade, "websocket"):
		x.Protocol = "websocket"
		serveWebSocket(c, x, script)
	case strings.EqualFold(req.Upgrade, "SPDY/3.1"):
		x.Protocol = "spdy"
		serveSPDY(c, x, script, protocols)
	default:
		writeStatus(c.w, apierrors.NewBadRequest("Upgrade request required").Status())
	}
}

// flag reads a stream's parameter of an exec.
func flag(c *Call, name string) bool {
	on, _ := strconv.ParseBool(c.Request.Query.Get(name))
	return on
}

// wait returns when the client has gone, but after d at the latest.
func wait(gone <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	}
}

// NoContainer is the kubelet's answer to an exec whose container is not there
// yet, or not any more: the upgrade itself is refused. A WebSocket client was let
// in by then, and is told by a status.
func NoContainer(name string) Answer {
	why := fmt.Sprintf("container not found (%q)", name)
	return func(c *Call) {
		if !toldByStatus(c, "unable to upgrade connection: "+why) {
			http.Error(c.w, why, http.StatusNotFound)
		}
	}
}

// NoNode is the answer to an exec when the server cannot reach the Pod's node.
func NoNode() Answer {
	const why = "dial tcp 10.0.0.1:10250: connect: connection refused"
	return func(c *Call) {
		if !toldByStatus(c, "error sending request: Post \"https://10.0.0.1:10250/exec\": "+why) {
			writeStatus(c.w, Internal("error dialing backend: "+why))
		}
	}
}

// toldByStatus tells a WebSocket client and reports whether it was one.
func toldByStatus(c *Call, why string) bool {
	if !strings.EqualFold(c.Request.Upgrade, "websocket") {
		return false
	}
	serveWebSocket(c, &Exec{}, func(context.Context, *Exec) Ending { return Says(Internal(why)) })
	return true
}
