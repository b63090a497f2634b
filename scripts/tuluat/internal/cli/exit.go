package cli

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/scripts/tuluat/internal/hook"
	"tuluat.ai/harness/shared/harness"
)

// The exit codes.
const (
	exitOK        = 0
	exitError     = 1
	exitUsage     = 2
	exitNotFound  = 3
	exitTimeout   = 4
	exitDenied    = 5
	exitConflict  = 6
	exitInterrupt = 130
)

// locatedError is an error of talking to a hook.
type locatedError struct {
	err       error
	url, hook string
	hooks     []string // known here
}

func (e *locatedError) Error() string { return e.err.Error() }

func (e *locatedError) Unwrap() error { return e.err }

// timeoutError says that an answer did not come in time.
type timeoutError struct {
	after time.Duration
	why   string // what else it may be, and what to do about it; empty: the agent is at work
}

func (e *timeoutError) Error() string {
	text := fmt.Sprintf("no answer within %s; the agent goes on, and `tuluat chat` shows its answer", e.after)
	if e.why != "" {
		text += "; or " + e.why
	}
	return text
}

func exitCode(err error) int {
	if _, ok := errors.AsType[*timeoutError](err); ok {
		return exitTimeout
	}
	if late, ok := errors.AsType[*notReadyError](err); ok {
		if late.final {
			return exitError
		}
		return exitTimeout
	}
	if _, ok := errors.AsType[*conflictError](err); ok {
		return exitConflict
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if p, ok := errors.AsType[*api.Problem](err); ok {
		switch p.Status {
		case http.StatusNotFound:
			return exitNotFound
		case http.StatusUnauthorized, http.StatusForbidden:
			return exitDenied
		case http.StatusConflict, http.StatusPreconditionFailed, http.StatusPreconditionRequired:
			return exitConflict
		}
		return exitError
	}
	if p, ok := errors.AsType[*hook.Problem](err); ok && p.Status == http.StatusNotFound {
		return exitNotFound
	}
	if e, ok := errors.AsType[*harness.Error](err); ok && e.Kind == harness.NotFound {
		return exitNotFound
	}
	return exitError
}

// explain says what happened and what to do about it.
func explain(err error) string {
	if managed, ok := errors.AsType[*managedError](err); ok {
		return explainManaged(managed)
	}
	at, ok := errors.AsType[*locatedError](err)
	if !ok {
		return err.Error()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Sprintf("nothing listens at %s: start it with `make dev`", at.url)
	}
	p, ok := errors.AsType[*hook.Problem](err)
	if !ok {
		return fmt.Sprintf("%s: %s", at.url, err)
	}
	switch p.Status {
	case http.StatusUnauthorized:
		return fmt.Sprintf("hook %q does not accept the signature (%s): the secret does not fit, the clocks differ, or another agent holds this hook (the console of `make dev` says so)", at.hook, p.Detail)
	case http.StatusNotFound:
		known := "none"
		if len(at.hooks) > 0 {
			known = strings.Join(at.hooks, ", ")
		}
		return fmt.Sprintf("there is no hook %q at %s; hooks known here: %s", at.hook, at.url, known)
	case http.StatusServiceUnavailable:
		return fmt.Sprintf("%s cannot take messages now (%s): try again", at.url, p.Detail)
	}
	return err.Error()
}
