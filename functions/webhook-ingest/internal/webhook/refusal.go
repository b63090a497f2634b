package webhook

import (
	"errors"
	"log/slog"
	"net/http"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

// refusal is an answer that is not a success. Its detail is one of our own
// sentences: it repeats nothing that the caller sent.
type refusal struct {
	status int
	detail string
}

func (r *refusal) Error() string { return r.detail }

func refuse(status int, detail string) error { return &refusal{status: status, detail: detail} }

var errUnknownHook = refuse(http.StatusNotFound, "there is no such hook")

// writeError answers with err and logs what is not the caller's doing.
func writeError(w http.ResponseWriter, log *slog.Logger, hook string, err error) int {
	if r, ok := errors.AsType[*refusal](err); ok {
		log.Debug("request refused", "status", r.status, "err", r.detail)
		function.WriteProblem(w, r.status, r.detail)
		return r.status
	}
	status := function.RESTStatus(err)
	if status >= http.StatusInternalServerError {
		log.Error("request failed", "hook", hook, "kind", string(harness.KindOf(err)), "err", err)
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	function.WriteProblem(w, status, harness.MessageOf(err))
	return status
}
