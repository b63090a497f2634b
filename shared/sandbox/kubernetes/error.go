package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// translate returns what an error of the API server means for us: Denied when
// our role lacks the verb, else Unavailable.
func translate(err error, verb, resource, namespace, what string) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return harness.Wrap(harness.Denied, err, fmt.Sprintf("%s: grant this function the verb %s on %s in the namespace %s", what, verb, resource, namespace))
	}
	return harness.Wrap(harness.Unavailable, err, what)
}

// overQuota is how the API server's quota says no. It is a 403 whose reason and
// details are those of every other refusal, so the text is all there is.
const overQuota = "exceeded quota:"

// createFailure is why an object could not be created. The API server's own
// words are in the message: whoever wrote the agent has to do something with
// them.
func createFailure(ctx context.Context, err error, resource, namespace string) error {
	said := words(err)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, fmt.Sprintf("the namespace %s is being removed", namespace), err)
	case apierrors.IsForbidden(err) && strings.Contains(said, overQuota):
		return sandbox.Fail(harness.Exhausted, sandbox.ReasonCapacity, "the cluster's quota for sandboxes is used up: "+said, err)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		// Pod Security, limit ranges, a runtime class that is not there, our role.
		return sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, "the cluster refuses the sandbox: "+said, err)
	case apierrors.IsUnauthorized(err):
		return sandbox.Fail(harness.Denied, sandbox.ReasonRefused, "the cluster does not know this function", err)
	case apierrors.IsNotFound(err):
		return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, fmt.Sprintf("%s cannot be made in the namespace %s: does it exist?", resource, namespace), err)
	case ctx.Err() != nil:
		return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartTimeout, "the cluster did not answer in time", errors.Join(err, context.Cause(ctx)))
	}
	return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox could not be made", err)
}

// busyQuota reports a conflict over the books of a quota, which two creations at
// once may have: trying again at once is what the API server expects.
func busyQuota(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsConflict(err) && status.ErrStatus.Details != nil && status.ErrStatus.Details.Kind == "resourcequotas"
}

const maxWords = 500 // bytes of the platform's words in a message

// words returns what the API server said, for people; empty when it did not
// answer.
func words(err error) string {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return clean(status.ErrStatus.Message)
	}
	return ""
}

// clean makes a text of the platform fit for a message.
func clean(text string) string {
	text = strings.Join(strings.Fields(harness.CleanText(text)), " ")
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "") + "…"
	}
	return text
}
