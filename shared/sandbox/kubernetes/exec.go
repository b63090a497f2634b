package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	exitcode "k8s.io/client-go/util/exec"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

const (
	// freshFor is how long after its start a container may not be found by the
	// node that runs it.
	freshFor   = 5 * time.Second
	freshPause = 250 * time.Millisecond

	// lastWords is how long a stream may go on after its Pod has ended: what PID 1
	// said last is on its way.
	lastWords = 500 * time.Millisecond

	// watchAfter keeps the many short execs from costing a watch each. What
	// happens to the Pod meanwhile is told by the watch when it begins.
	watchAfter = 500 * time.Millisecond
)

// Stream runs the runner in the Pod.
func (d *Driver) Stream(ctx context.Context, sb sandbox.Sandbox, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if !validName.MatchString(sb.Name) || sb.UID == "" {
		return sandbox.ErrGone
	}
	// Exec finds a Pod by name, so the identity is looked at first.
	pod, err := d.get(ctx, sb.Name, sb.UID)
	if err != nil {
		return err
	}
	if ended(pod) {
		return sandbox.ErrGone
	}
	_, err = d.beside(ctx, pod, argv, stdin, stdout, stderr)
	if err == nil || errors.Is(err, sandbox.ErrGone) || ctx.Err() != nil {
		return err
	}
	// The stream broke. If that is because the Pod is no more, say so.
	now, gone := d.get(ctx, sb.Name, sb.UID)
	if errors.Is(gone, sandbox.ErrGone) || gone == nil && ended(now) {
		return errors.Join(sandbox.ErrGone, err)
	}
	return err
}

// beside runs the runner in the Pod and watches the Pod beside it: a stream may
// freeze when its Pod goes, or reach another of the same name. It returns the
// last state seen, nil when there was none after the given one. Nothing of it
// goes on when it returns; stdin must not block for ever.
func (d *Driver) beside(ctx context.Context, pod *corev1.Pod, argv []string, stdin io.Reader, stdout, stderr io.Writer) (last *corev1.Pod, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watcher sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	watcher.Go(func() {
		select {
		case <-watching.Done():
			return
		case <-time.After(watchAfter):
		}
		err := d.follow(watching, pod, func(now *corev1.Pod) bool { last = now; return ended(now) })
		switch {
		case watching.Err() != nil:
			return
		case err == nil: // it has ended and is still there
			select {
			case <-watching.Done():
				return
			case <-time.After(lastWords):
			}
			cancel(sandbox.ErrGone)
		case errors.Is(err, sandbox.ErrGone):
			cancel(sandbox.ErrGone)
		}
	})
	err = d.exec(ctx, pod, argv, stdin, stdout, stderr)
	cause := context.Cause(ctx)
	stop()
	cancel(nil)
	watcher.Wait()
	if err != nil && errors.Is(cause, sandbox.ErrGone) {
		return last, errors.Join(sandbox.ErrGone, err)
	}
	return last, err
}

// exec runs the runner in the Pod. A nil error says only that the stream ended.
func (d *Driver) exec(ctx context.Context, pod *corev1.Pod, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	target := d.execURL(pod.Name, argv, stdin != nil)
	var source *replay
	if stdin != nil {
		source = &replay{r: stdin}
	}
	begun := time.Now()
	for {
		used, err := d.try(ctx, target, source, stdout, stderr)
		if err == nil {
			return nil
		}
		// Only what proves that nothing was started may be tried again: no byte
		// came back, and the container is so young that its node may not know it. That
		// age is by another machine's clock, so our own bounds the tries as well.
		if ctx.Err() != nil || used || !fresh(pod) || time.Since(begun) >= freshFor || !unanswered(err) || !source.rewind() {
			return execFailure(ctx, err, d.Namespace)
		}
		select {
		case <-ctx.Done():
			return execFailure(ctx, err, d.Namespace)
		case <-time.After(freshPause):
		}
	}
}

// try runs one exec and reports whether anything came back.
func (d *Driver) try(ctx context.Context, target *url.URL, source *replay, stdout, stderr io.Writer) (used bool, err error) {
	ends := &ends{}
	options := remotecommand.StreamOptions{Stdout: ends.writer(stdout), Stderr: ends.writer(stderr)}
	if source != nil {
		options.Stdin = ends.reader(source)
	}
	err = d.upgrade(ctx, target, options)
	return ends.close(), err
}

func (d *Driver) execURL(name string, argv []string, stdin bool) *url.URL {
	return d.core.RESTClient().Post().Namespace(d.Namespace).Resource("pods").Name(name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: append([]string{runnerPath}, argv...), Stdin: stdin, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
}

// upgrade streams over WebSocket or, when that is not to be had on the way to the
// API server, over SPDY. Executors are made anew each time: they hold a
// connection's state.
func (d *Driver) upgrade(ctx context.Context, target *url.URL, options remotecommand.StreamOptions) error {
	err := d.socket(ctx, target, options)
	if err == nil || !noWebSocket(err) {
		return err
	}
	spdy, buildErr := remotecommand.NewSPDYExecutor(d.Config, http.MethodPost, target)
	if buildErr != nil {
		return errors.Join(err, buildErr)
	}
	return spdy.StreamWithContext(ctx, options)
}

// settle is how long a stream is left alone after its upgrade.
const settle = 100 * time.Millisecond

// socket streams over WebSocket. When a context ends in the moment in which the
// streams are set up, client-go closes the connection before it reads from it and
// its copying goroutines stay for ever. So the upgrade has the caller's context,
// and the streams one that ends no earlier than settle after the upgrade.
func (d *Driver) socket(ctx context.Context, target *url.URL, options remotecommand.StreamOptions) error {
	streaming, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	upgraded := make(chan struct{})
	config := rest.CopyConfig(d.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req.WithContext(ctx))
			if err == nil {
				close(upgraded)
			}
			return resp, err
		})
	})
	executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, target.String())
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	var ender sync.WaitGroup
	ender.Go(func() {
		select {
		case <-upgraded:
		case <-ended:
			return
		}
		select {
		case <-time.After(settle):
		case <-ended:
			return
		}
		select {
		case <-ctx.Done():
			end()
		case <-ended:
		}
	})
	err = executor.StreamWithContext(streaming, options)
	close(ended)
	ender.Wait()
	return err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// noWebSocket reports that the upgrade failed, before any byte, because someone
// on the way does not speak WebSocket. An answer of the API server itself is no
// such thing: it would be the same on any transport.
func noWebSocket(err error) bool {
	if httpstream.IsHTTPSProxyError(err) {
		return true
	}
	if !httpstream.IsUpgradeFailure(err) {
		return false
	}
	status, answered := answer(err)
	if !answered {
		return true
	}
	switch code := status.ErrStatus.Code; code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code < http.StatusInternalServerError
	}
}

// fresh reports that the Pod's container has started a moment ago.
func fresh(pod *corev1.Pod) bool {
	status := ours(pod)
	return status != nil && status.State.Running != nil && time.Since(status.State.Running.StartedAt.Time) < freshFor
}

// unanswered reports that the runner was not reached: an exit code is its own
// answer, and a refusal of the API server stays one.
func unanswered(err error) bool {
	if _, ok := errors.AsType[exitcode.CodeExitError](err); ok {
		return false
	}
	return !refused(err)
}

// answer returns what the API server itself said. The failure of an upgrade has
// it as its cause, which errors.As does not look into.
func answer(err error) (*apierrors.StatusError, bool) {
	if upgrade, ok := errors.AsType[*httpstream.UpgradeFailureError](err); ok {
		err = upgrade.Cause
	}
	return errors.AsType[*apierrors.StatusError](err)
}

// refused reports that the API server does not let us exec.
func refused(err error) bool {
	status, ok := answer(err)
	return ok && (status.ErrStatus.Code == http.StatusForbidden || status.ErrStatus.Code == http.StatusUnauthorized)
}

// execFailure is a stream that broke, or never came to be.
func execFailure(ctx context.Context, err error, namespace string) error {
	if ctx.Err() != nil {
		return harness.Wrap(harness.Unavailable, errors.Join(err, context.Cause(ctx)), "the call to the sandbox was given up")
	}
	if refused(err) {
		return harness.Wrap(harness.Denied, err, fmt.Sprintf("this function may not run commands in sandboxes: grant it the verbs get and create on pods/exec in the namespace %s", namespace))
	}
	return harness.Wrap(harness.Unavailable, err, "the sandbox could not be reached")
}
