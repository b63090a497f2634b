package function

import (
	"encoding/json"
	"net/http"

	"tuluat.ai/harness/shared/harness"
)

// The two tables differ because brokers retry 404, 408, 409 and 429: a delivery
// never answers one of them.

// DeliveryStatus is what a broker is told of err: 202 done, 503 try again, 400
// never again (the dead letter sink takes it).
func DeliveryStatus(err error) int {
	switch harness.KindOf(err) {
	case "":
		return http.StatusAccepted
	case harness.Unavailable, harness.Internal:
		return http.StatusServiceUnavailable
	default:
		return http.StatusBadRequest
	}
}

// RESTStatus is what a caller of an API is told of err.
func RESTStatus(err error) int {
	switch harness.KindOf(err) {
	case "":
		return http.StatusOK
	case harness.Invalid:
		return http.StatusBadRequest
	case harness.Denied:
		return http.StatusForbidden
	case harness.NotFound:
		return http.StatusNotFound
	case harness.Conflict:
		return http.StatusConflict
	case harness.Stale:
		return http.StatusPreconditionFailed
	case harness.Exhausted:
		return http.StatusTooManyRequests
	case harness.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// Problem is an RFC 9457 problem.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// WriteProblem answers with status and a message for people. detail must not
// repeat what the caller sent.
func WriteProblem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// The client may be gone; there is nobody else to tell.
	_ = json.NewEncoder(w).Encode(Problem{Title: http.StatusText(status), Status: status, Detail: detail})
}
