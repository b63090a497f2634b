package sandbox

import (
	"context"
	"errors"

	"tuluat.ai/harness/shared/harness"
)

// Exec runs one command; see package doc.
func Exec(ctx context.Context, d Driver, sb Sandbox, req Request, sink Sink) (Result, error) {
	return Result{}, errors.ErrUnsupported
}

// Cancel ends the command with this id.
func Cancel(ctx context.Context, d Driver, sb Sandbox, id harness.ExecutionID, nonce string) error {
	return errors.ErrUnsupported
}
