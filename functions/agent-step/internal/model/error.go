package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Reason tells failures of a call apart for machines, finer than a Kind does.
type Reason string

// The reasons of an Error.
const (
	ReasonRateLimited  Reason = "RATE_LIMITED"
	ReasonOverloaded   Reason = "OVERLOADED"    // 5xx, 529, 408, 409
	ReasonTimeout      Reason = "TIMEOUT"       // one of our deadlines
	ReasonUnreachable  Reason = "UNREACHABLE"   // no connection, or it broke
	ReasonInterrupted  Reason = "INTERRUPTED"   // the caller's context ended
	ReasonKeyRejected  Reason = "KEY_REJECTED"  // 401, 403
	ReasonNoCredit     Reason = "NO_CREDIT"     // the account's money or quota is used up
	ReasonNotFound     Reason = "NOT_FOUND"     // no such model, or no such address
	ReasonContextFull  Reason = "CONTEXT_FULL"  // the history is longer than the model or its server takes
	ReasonNotAccepted  Reason = "NOT_ACCEPTED"  // the provider refused the request for another cause
	ReasonNotAnswer    Reason = "NOT_AN_ANSWER" // a success that is not JSON or not of the provider's shape
	ReasonTooLarge     Reason = "TOO_LARGE"     // the answer is larger than Limits.ResponseBytes
	ReasonEmpty        Reason = "EMPTY"         // no text, no calls, nothing refused
	ReasonHistory      Reason = "HISTORY"       // Request.Turns are not well paired
	ReasonUnconfigured Reason = "UNCONFIGURED"  // the agent asks for a provider without key or address
)

// Error is a call that gave no Response. errors.As finds it, and the
// harness.Error it stands for.
type Error struct {
	Kind       harness.Kind
	Reason     Reason
	Message    string        // for people; fixed words, never a provider's text
	Status     int           // HTTP status, 0 without one
	RetryAfter time.Duration // not before; 0 when the provider said nothing
	Err        error         // for the log; keys are cut out of it
}

func (e *Error) Error() string {
	text := e.Message
	if e.Status != 0 {
		text += " (HTTP " + strconv.Itoa(e.Status) + ")"
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns e as a harness.Error, so that harness.KindOf and
// harness.MessageOf answer for it.
func (e *Error) Unwrap() error {
	return &harness.Error{Kind: e.Kind, Message: e.Message, Err: e.Err}
}

// ReasonOf is the reason of err; of one that is no Error, that it was not accepted.
func ReasonOf(err error) Reason {
	if failure, ok := errors.AsType[*Error](err); ok && failure.Reason != "" {
		return failure.Reason
	}
	return ReasonNotAccepted
}

// names are the variables an operator has to look at.
type names struct{ key, baseURL string }

// detail is what a provider says about a refusal.
type detail struct{ Message, Type, Code string }

// parseDetail reads the error out of a body, in the shapes seen in the wild:
// {"error":{…}}, {"error":"text"}, the same fields at the top, and Anthropic's
// code under "details". It reports false when there is none.
func parseDetail(body []byte) (detail, bool) {
	type fields struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Code    json.RawMessage `json:"code"`
		Details struct {
			ErrorCode string `json:"error_code"`
		} `json:"details"`
	}
	var envelope struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &envelope) != nil {
		return detail{}, false
	}
	source, wrapped := body, len(envelope.Error) > 0 && string(envelope.Error) != "null"
	if wrapped {
		source = envelope.Error
		var text string
		if json.Unmarshal(source, &text) == nil {
			return detail{Message: text}, true
		}
	}
	var f fields
	if json.Unmarshal(source, &f) != nil {
		return detail{}, wrapped
	}
	code := f.Details.ErrorCode
	if code == "" {
		code = strings.Trim(string(f.Code), `"`)
	}
	if code == "null" {
		code = ""
	}
	return detail{Message: f.Message, Type: f.Type, Code: code}, wrapped || f.Message != ""
}

// The providers' codes, and types where they use those as codes, that say
// more than the status does.
func codeReason(d detail) Reason {
	for _, code := range []string{d.Code, d.Type} {
		switch code {
		case "context_length_exceeded", "exceed_context_size_error", "request_too_large", "request_body_too_large_after_decoding":
			return ReasonContextFull
		case "insufficient_quota", "billing_hard_limit_reached", "billing_error", "contract_spend_limit_reached", "enforced_spend_limit_reached",
			"linked_organization_spend_limit_reached", "linked_organization_billing_unavailable":
			return ReasonNoCredit
		case "model_not_found":
			return ReasonNotFound
		case "invalid_api_key":
			return ReasonKeyRejected
		}
	}
	return ""
}

func statusReason(status int) Reason {
	switch status {
	case http.StatusTooManyRequests:
		return ReasonRateLimited
	case http.StatusUnauthorized, http.StatusForbidden:
		return ReasonKeyRejected
	case http.StatusPaymentRequired:
		return ReasonNoCredit
	case http.StatusNotFound:
		return ReasonNotFound
	case http.StatusRequestEntityTooLarge:
		return ReasonContextFull
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly:
		return ReasonOverloaded
	}
	if status >= 500 {
		return ReasonOverloaded
	}
	return ReasonNotAccepted
}

// refused translates an answer that is not a success.
func refused(status int, header http.Header, body []byte, n names, model string, redact func(string) string, now time.Time) *Error {
	d, _ := parseDetail(body)
	reason := codeReason(d)
	if reason == "" {
		reason = statusReason(status)
	}
	e := &Error{Reason: reason, Status: status}
	switch reason {
	case ReasonRateLimited:
		e.Kind, e.Message = harness.Unavailable, "the model provider is limiting requests"
	case ReasonOverloaded:
		e.Kind, e.Message = harness.Unavailable, "the model provider has a problem"
	case ReasonKeyRejected:
		e.Kind, e.Message = harness.Denied, "the model key was rejected: check "+n.key
		if status == http.StatusForbidden {
			e.Message = "the model key may not do this: check " + n.key + " and what it is allowed to use"
		}
	case ReasonNoCredit:
		e.Kind, e.Message = harness.Exhausted, "the model account has no credit left or has reached its spending limit"
	case ReasonNotFound:
		e.Kind, e.Message = harness.Invalid, fmt.Sprintf("the model %q was not found: check MODEL_NAME and %s", model, n.baseURL)
	case ReasonContextFull:
		e.Kind, e.Message = harness.Invalid, "the conversation is longer than the model can read"
	default:
		e.Kind, e.Message = harness.Invalid, "the model provider did not accept the request"
		if status >= 300 && status < 400 {
			e.Message = "the model server redirects, which is not followed: set " + n.baseURL + " to the final address"
		}
	}
	if e.Kind == harness.Unavailable {
		e.RetryAfter = retryAfter(header, now)
	}
	if reason != ReasonKeyRejected && d != (detail{}) { // that text quotes parts of the key
		e.Err = fmt.Errorf("the provider says %q (type %q, code %q)", redact(cut(d.Message)), redact(cut(d.Type)), redact(cut(d.Code)))
	}
	return e
}

// maxRetryAfter bounds what a header may ask for.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads how long to wait from the headers, in either form. A date
// is measured against the server's own clock where it tells it. What cannot be
// read is no wish.
func retryAfter(header http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(header.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return bounded(ms / 1000)
	}
	value := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		return bounded(seconds)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	return bounded(at.Sub(now).Seconds())
}

func bounded(seconds float64) time.Duration {
	if !(seconds > 0) { // also NaN
		return 0
	}
	return time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
}

// The causes with which a call's context is cancelled.
var (
	errHeader   = errors.New("no answer began within the header deadline")
	errIdle     = errors.New("the answer stopped arriving")
	errTotal    = errors.New("the answer was not complete within the total deadline")
	errTooLarge = errors.New("the answer is too large")
)

// broken translates a failure to exchange bytes. cause is why the context
// ended, nil when it did not.
func broken(cause, err error, n names, redact func(string) string) *Error {
	switch {
	case errors.Is(cause, errHeader), errors.Is(cause, errIdle), errors.Is(cause, errTotal):
		return &Error{Kind: harness.Unavailable, Reason: ReasonTimeout, Message: "the model did not answer in time", Err: cause}
	case cause != nil:
		return &Error{Kind: harness.Unavailable, Reason: ReasonInterrupted, Message: "the question to the model was interrupted", Err: cause}
	case errors.Is(err, errTooLarge):
		return &Error{Kind: harness.Invalid, Reason: ReasonTooLarge, Message: "the model's answer is too large", Err: err}
	}
	return &Error{
		Kind: harness.Unavailable, Reason: ReasonUnreachable,
		Message: "the model server cannot be reached: check " + n.baseURL, Err: errors.New(redact(cut(err.Error()))),
	}
}

func cut(text string) string {
	const most = 300
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
