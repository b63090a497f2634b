package access

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

// Options say how requests are let in.
type Options struct {
	Access Access
	Limits Limits
	Log    *slog.Logger
	Now    func() time.Time

	// Open are exact paths that need no token: GET and HEAD of them have no Caller.
	Open []string
	// Problem answers a request that is not let in; nil is function.WriteProblem.
	// RequestID of the request's context is set, its headers are too.
	Problem func(w http.ResponseWriter, r *http.Request, status int, detail string)
}

const (
	// requestHeader is the id of a request, of the caller or made up here. It is in
	// every answer, in the audit log and in our log.
	requestHeader = "X-Request-Id"
	maxRequestID  = 128

	maxBody  = 1 << 20 // bytes
	bodyTime = 20 * time.Second

	// maxToken is far more than any token has; a longer one is nobody's.
	maxToken = 16 << 10
)

// Middleware lets requests of known callers through, with the Caller, a request
// id and the whole body, which is at most 1 MiB. Others are answered 401, 413,
// 429 or 503; whether the caller may do what is asked is Check's matter.
func Middleware(o Options) func(http.Handler) http.Handler {
	if o.Problem == nil {
		o.Problem = func(w http.ResponseWriter, _ *http.Request, status int, detail string) {
			function.WriteProblem(w, status, detail)
		}
	}
	limiter := newLimiter(o.Limits)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := requestID(r, o.Now())
			w.Header().Set(requestHeader, id)
			r = r.WithContext(context.WithValue(r.Context(), requestKey, id))
			if (r.Method == http.MethodGet || r.Method == http.MethodHead) && slices.Contains(o.Open, r.URL.Path) {
				next.ServeHTTP(w, r)
				return
			}
			caller, ok := o.identify(w, r)
			if !ok {
				return
			}
			if wait := limiter.take(caller.Name, o.Now()); wait > 0 {
				seconds := int64((wait + time.Second - 1) / time.Second)
				w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
				o.Problem(w, r, http.StatusTooManyRequests, "too many requests: try again after the time that Retry-After says")
				return
			}
			r = r.WithContext(With(r.Context(), caller))
			if status, detail := readBody(w, r); status != 0 {
				o.Problem(w, r, status, detail)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// identify answers the request itself unless the caller is known.
func (o Options) identify(w http.ResponseWriter, r *http.Request) (Caller, bool) {
	unauthorised := func(challenge, detail string) (Caller, bool) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tuluat"`+challenge)
		o.Problem(w, r, http.StatusUnauthorized, detail)
		return Caller{}, false
	}
	token, ok := bearer(r.Header.Values("Authorization"))
	if !ok {
		return unauthorised("", "the header Authorization: Bearer TOKEN is needed")
	}
	caller, err := o.Access.Identify(r.Context(), token)
	switch {
	case err == nil:
		return caller, true
	case harness.KindOf(err) == harness.Denied:
		return unauthorised(`, error="invalid_token"`, harness.MessageOf(err))
	}
	if r.Context().Err() == nil {
		o.Log.Error("a caller cannot be identified", "request", RequestID(r.Context()), "kind", string(harness.KindOf(err)), "err", err)
	}
	o.Problem(w, r, http.StatusServiceUnavailable, harness.MessageOf(err))
	return Caller{}, false
}

// bearer returns the token of the one Authorization header, in the characters
// that RFC 6750 allows.
func bearer(headers []string) (string, bool) {
	if len(headers) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(headers[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	if token = strings.TrimLeft(token, " "); token == "" || len(token) > maxToken {
		return "", false
	}
	body := strings.TrimRight(token, "=")
	odd := strings.ContainsFunc(body, func(c rune) bool { return !alphanumeric(c) && !strings.ContainsRune("-._~+/", c) })
	return token, body != "" && !odd
}

func alphanumeric(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// requestID is the caller's own id where it can be logged as it is.
func requestID(r *http.Request, now time.Time) string {
	id := r.Header.Get(requestHeader)
	odd := strings.ContainsFunc(id, func(c rune) bool { return !alphanumeric(c) && !strings.ContainsRune("-._:", c) })
	if id == "" || len(id) > maxRequestID || odd {
		return harness.NewID("req", now)
	}
	return id
}

// readBody replaces the body by what was read of it, or returns what to answer.
// A body that comes slower than bodyTime is not waited for.
func readBody(w http.ResponseWriter, r *http.Request) (status int, detail string) {
	const tooLong = "a body has at most 1048576 bytes"
	if r.ContentLength > maxBody {
		return http.StatusRequestEntityTooLarge, tooLong
	}
	if r.Body == nil || r.Body == http.NoBody {
		return 0, ""
	}
	// A writer that has no deadlines (of a test) reads from memory.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime)) // the kernel's clock, not a test's
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{})
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return http.StatusRequestEntityTooLarge, tooLong
	}
	if err != nil {
		return http.StatusBadRequest, "the body broke off"
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return 0, ""
}
