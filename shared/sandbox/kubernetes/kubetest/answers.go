package kubetest

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Call is one request that is being answered.
type Call struct {
	Request *Request

	server     *Server
	w          http.ResponseWriter
	r          *http.Request
	watchLimit int // events after which a watch ends; 0 means none
}

// Serve answers as a healthy server does.
func (c *Call) Serve() { c.server.handle(c) }

// Answer answers one request.
type Answer func(*Call)

type rule struct {
	match  Match
	left   int // answers; negative: without end
	answer Answer
}

// On lets answer answer the next times requests that match, or all of them when
// times is negative. Of several rules the one that was set first and is not used
// up counts.
func (s *Server) On(m Match, times int, answer Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, &rule{match: m, left: times, answer: answer})
}

// Forget removes every rule set with [Server.On].
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// ruleFor returns the answer for req, or nil. s.mu is held.
func (s *Server) ruleFor(req *Request) Answer {
	for _, r := range s.rules {
		if r.left != 0 && r.match.fits(req) {
			if r.left > 0 {
				r.left--
			}
			return r.answer
		}
	}
	return nil
}

// Fail answers with an error and does nothing.
func Fail(status metav1.Status) Answer {
	return func(c *Call) { writeStatus(c.w, status) }
}

// FailPlain answers with a code and a text that is no Status, as a proxy does.
func FailPlain(code int, text string) Answer {
	return func(c *Call) { http.Error(c.w, text, code) }
}

// DoneThen does what was asked and answers with an error nevertheless.
func DoneThen(status metav1.Status) Answer {
	return func(c *Call) {
		c.quietly()
		writeStatus(c.w, status)
	}
}

// DoneThenReset does what was asked and cuts the connection instead of saying so.
func DoneThenReset() Answer {
	return func(c *Call) {
		c.quietly()
		reset(wire(c.r))
		panic(http.ErrAbortHandler)
	}
}

// quietly does what was asked and drops the answer.
func (c *Call) quietly() {
	inner := *c
	inner.w = httptest.NewRecorder()
	inner.Serve()
}

// Reset cuts the connection; nothing is done.
func Reset() Answer {
	return func(c *Call) {
		reset(wire(c.r))
		panic(http.ErrAbortHandler)
	}
}

// Slow waits before it answers, or until the client has gone: then nothing is
// done.
func Slow(d time.Duration, then Answer) Answer {
	return func(c *Call) {
		if c.server.sleep(c.r.Context(), d) {
			then(c)
		}
	}
}

// Healthy answers as if there were no rule.
func Healthy() Answer { return (*Call).Serve }

// Silent accepts the request, and never says anything more: a watch that does
// not work, or a server that hangs.
func Silent() Answer {
	return func(c *Call) {
		if c.Request.Verb == "watch" {
			c.w.Header().Set("Content-Type", "application/json")
			c.w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(c.w).Flush()
		}
		select {
		case <-c.r.Context().Done():
		case <-c.server.ctx.Done():
		}
	}
}

// EndAfter ends a watch after so many events.
func EndAfter(events int) Answer {
	return func(c *Call) {
		c.watchLimit = events
		c.Serve()
	}
}

// ExpiredWatch answers a watch with an ERROR event that its version is too old.
func ExpiredWatch() Answer {
	return func(c *Call) {
		c.w.Header().Set("Content-Type", "application/json")
		_ = writeEvent(c.w, "ERROR", Expired()) // to a client that has gone: it asks again
	}
}

func writeStatus(w http.ResponseWriter, status metav1.Status) {
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(mustJSON(status))
}

func forbidden(resource, name, why string) metav1.Status {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, fmt.Errorf("%s", why)).Status()
}

// QuotaConflict is what the quota's bookkeeping answers when two creates meet.
func QuotaConflict() metav1.Status {
	return apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "sandbox",
		fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again")).Status()
}

// QuotaExceeded is the answer when there is no room in the namespace's quota.
func QuotaExceeded(pod string) metav1.Status {
	return forbidden("pods", pod, "exceeded quota: sandbox, requested: limits.cpu=1, used: limits.cpu=8, limited: limits.cpu=8")
}

// LimitRange is the answer when a container asks for more than one may have.
func LimitRange(pod string) metav1.Status {
	return forbidden("pods", pod, "maximum memory usage per Container is 1Gi, but limit is 8Gi")
}

// PodSecurity is the answer to a Pod that the namespace's standard forbids.
func PodSecurity(pod string) metav1.Status {
	return forbidden("pods", pod, `violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "sandbox" must set securityContext.allowPrivilegeEscalation=false)`)
}

// NoRuntimeClass is the answer to a Pod of a RuntimeClass that does not exist.
func NoRuntimeClass(pod, class string) metav1.Status {
	return forbidden("pods", pod, fmt.Sprintf("pod rejected: RuntimeClass %q not found", class))
}

// NoRight is the answer to a client that has no right to do it.
func NoRight(verb, resource, name string) metav1.Status {
	st := forbidden(resource, name, fmt.Sprintf("User %q cannot %s resource %q in API group %q in the namespace %q",
		"system:serviceaccount:functions:exec", verb, resource, "", "sandboxes"))
	st.Details.Kind = "pods"
	return st
}

// NamespaceTerminating is the answer to a create in a namespace that is going.
func NamespaceTerminating(pod, namespace string) metav1.Status {
	st := forbidden("pods", pod, "unable to create new content in namespace "+namespace+" because it is being terminated")
	st.Details.Causes = []metav1.StatusCause{{
		Type: "NamespaceTerminating", Message: "namespace " + namespace + " is being terminated", Field: "metadata.namespace",
	}}
	return st
}

// Internal is a failure of the server itself.
func Internal(why string) metav1.Status {
	return apierrors.NewInternalError(fmt.Errorf("%s", why)).Status()
}

// Unavailable is the answer of a server that is starting or stopping.
func Unavailable() metav1.Status {
	return apierrors.NewServiceUnavailable("apiserver is shutting down").Status()
}

// TooMany is the answer of a server under load.
func TooMany(retryAfterSeconds int) metav1.Status {
	return apierrors.NewTooManyRequests("too many requests, please try again later", retryAfterSeconds).Status()
}

// Expired is the answer to a version or continue token that is too old.
func Expired() metav1.Status {
	return apierrors.NewResourceExpired("too old resource version: 1 (2)").Status()
}

func notFoundPath() metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "the server could not find the requested resource"}
}

// quiet is for what net/http says about connections that a test has cut.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
