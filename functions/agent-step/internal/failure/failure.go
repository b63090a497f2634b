// Package failure says in words of our own why a server that an agent's author named
// gave no answer: an MCP server, another agent. The words are for people and for
// models; what the server itself said is for logs, and redacted by whoever has it.
package failure

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/dial"
	"tuluat.ai/harness/shared/harness"
)

// Unanswered says why a request that ctx bounds has no answer, or not all of one.
// cause is what it failed with; what of it is for logs is err.
func Unanswered(ctx context.Context, cause, err error) error {
	switch {
	case Stopped(ctx):
		return harness.Wrap(harness.Unavailable, err, "it was stopped by an operator")
	case errors.Is(cause, dial.ErrPrivate):
		return harness.Wrap(harness.Denied, err, dial.ErrPrivate.Error())
	case ctx.Err() != nil:
		return harness.Wrap(harness.Unavailable, err, "it did not answer in time")
	}
	return harness.Wrap(harness.Unavailable, err, "it cannot be reached, or the connection broke off")
}

// Stopped reports whether an operator ended what ctx bounds.
func Stopped(ctx context.Context) bool { return errors.Is(context.Cause(ctx), step.ErrStopped) }

// Access reports whether a status says that the headers are not good enough.
func Access(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// Status says what an answer is that is no success.
func Status(status int, err error) error {
	if Access(status) {
		return harness.Wrap(harness.Denied, err, fmt.Sprintf("it refuses access (%d): check headersSecretRef", status))
	}
	return harness.Wrap(harness.Unavailable, err, fmt.Sprintf("it answered %d", status))
}

// Redirected says that the answer is at another address.
func Redirected(err error) error {
	return harness.Wrap(harness.Denied, err, "it redirects to another address, which is not followed: write that one into url if it is right")
}

// TooLong says that an answer is over most bytes.
func TooLong(most int64, err error) error {
	return harness.Wrap(harness.Exhausted, err, fmt.Sprintf("its answer is longer than %d MiB", most>>20))
}

// Answered says that the server itself refused, with the code of an error of JSON-RPC.
func Answered(code int64, err error) error {
	return harness.Wrap(harness.Invalid, err, fmt.Sprintf("it answered with the error %d", code))
}
