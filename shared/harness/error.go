package harness

import (
	"errors"
	"fmt"
)

// Kind is the class of an Error: what a machine needs to know of it.
type Kind string

// The kinds of an Error.
const (
	Invalid     Kind = "INVALID"     // the input is wrong; trying again never helps
	NotFound    Kind = "NOT_FOUND"   // what it names does not exist
	Conflict    Kind = "CONFLICT"    // someone else was first
	Stale       Kind = "STALE"       // it is made for a version that is no longer the newest
	Denied      Kind = "DENIED"      // not allowed
	Exhausted   Kind = "EXHAUSTED"   // a limit of ours is used up
	Unavailable Kind = "UNAVAILABLE" // something we need does not answer; try again
	Internal    Kind = "INTERNAL"    // a fault of ours
)

// Error has a class for machines, a message for people, and a cause for the
// log. The message never holds a secret or the cause's text.
type Error struct {
	Kind    Kind
	Message string
	Err     error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an error of kind k without a cause.
func Errorf(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an error of kind k with a fixed message and a cause.
func Wrap(k Kind, err error, message string) error {
	return &Error{Kind: k, Message: message, Err: err}
}

// KindOf returns the kind of err: that of the outermost Error in its chain,
// else Internal. A nil err has no kind.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// MessageOf returns the text of err that people may see: the message of the
// outermost Error, or a fixed sentence for errors nobody classified.
func MessageOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Message
	}
	return "internal error"
}
