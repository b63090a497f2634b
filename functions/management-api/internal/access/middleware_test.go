package access_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
)

// door is the middleware in front of a handler that says what reached it.
type door struct {
	*httptest.Server
	logs strings.Builder
	now  *clock
}

type reached struct {
	caller, body, id string
	known            bool
}

func newDoor(t *testing.T, a access.Access, limits access.Limits, saw func(reached)) *door {
	t.Helper()
	d := &door{now: newClock()}
	pass := access.Middleware(access.Options{
		Access: a, Limits: limits, Log: slog.New(slog.NewTextHandler(&d.logs, nil)), Open: []string{"/docs"},
		Now: time.Now,
	})
	if limits.PerSecond > 0 {
		pass = access.Middleware(access.Options{Access: a, Limits: limits, Log: slog.New(slog.DiscardHandler), Now: d.now.Now})
	}
	d.Server = httptest.NewServer(pass(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		caller, known := access.From(r.Context())
		saw(reached{caller.Name, string(body), access.RequestID(r.Context()), known})
	})))
	t.Cleanup(d.Close)
	return d
}

func (d *door) send(t *testing.T, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, d.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	response, err := d.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

func static(t *testing.T) *access.Static {
	t.Helper()
	s, err := access.NewStatic(harness.Secret(adminToken + "\n" + viewerToken + " eve viewer\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNobodyComesInWithoutAToken(t *testing.T) {
	d := newDoor(t, static(t), access.Limits{}, func(r reached) { t.Errorf("reached by %+v", r) })
	for name, headers := range map[string][]string{
		"no header": {}, "no scheme": {"Authorization", adminToken}, "basic": {"Authorization", "Basic " + adminToken}, "empty": {"Authorization", "Bearer "},
		"two": {"Authorization", "Bearer " + adminToken, "Authorization", "Bearer " + viewerToken}, "wrong": {"Authorization", "Bearer " + adminToken + "x"},
		"two in one": {"Authorization", "Bearer " + adminToken + " " + viewerToken}, "long": {"Authorization", "Bearer " + strings.Repeat("x", 17<<10)},
		"odd": {"Authorization", "Bearer \x80" + adminToken}, "cookie": {"Cookie", "token=" + adminToken}, "query": {"X", "y"},
	} {
		response, body := d.send(t, http.MethodGet, "/api/v1/sessions?access_token="+adminToken, "", headers...)
		if response.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(response.Header.Get("WWW-Authenticate"), `Bearer realm="tuluat"`) ||
			response.Header.Get("Content-Type") != "application/problem+json" || response.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %v", name, response.StatusCode, response.Header)
		}
		noToken(t, adminToken, body)
	}
	// An open path is open for looking only.
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		if response, _ := d.send(t, method, "/docs", ""); response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s /docs: %d", method, response.StatusCode)
		}
	}
	for _, path := range []string{"/docs/", "/docs/../api/v1/sessions", "//docs"} {
		if response, _ := d.send(t, http.MethodGet, path, ""); response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, response.StatusCode)
		}
	}
	noToken(t, adminToken, d.logs.String())
}

func TestWhatReachesTheHandler(t *testing.T) {
	var got reached
	d := newDoor(t, static(t), access.Limits{PerSecond: 1000, Burst: 1000}, func(r reached) { got = r })
	response, _ := d.send(t, http.MethodPost, "/", "a body", "Authorization", "bearer "+viewerToken, "X-Request-Id", "mine-1")
	if diff := cmp.Diff(reached{"eve", "a body", "mine-1", true}, got, cmp.AllowUnexported(reached{})); diff != "" || response.Header.Get("X-Request-Id") != "mine-1" {
		t.Errorf("%s%v", diff, response.Header)
	}
	for _, odd := range []string{"", "with space", "new\tline", strings.Repeat("x", 129), `"quoted"`} {
		response, _ = d.send(t, http.MethodGet, "/", "", "Authorization", "Bearer "+adminToken, "X-Request-Id", odd)
		if !strings.HasPrefix(got.id, "req_") || response.Header.Get("X-Request-Id") != got.id || got.caller != "local" {
			t.Errorf("%q: %+v", odd, got)
		}
	}
	open := newDoor(t, static(t), access.Limits{}, func(r reached) { got = r })
	if response, _ = open.send(t, http.MethodGet, "/docs", ""); response.StatusCode != http.StatusOK || got.known || got.id == "" {
		t.Errorf("the open path: %d %+v", response.StatusCode, got)
	}
}

func TestBodiesHaveAnEnd(t *testing.T) {
	size := -1
	d := newDoor(t, static(t), access.Limits{PerSecond: 1000, Burst: 1000}, func(r reached) { size = len(r.body) })
	auth := []string{"Authorization", "Bearer " + adminToken}
	if response, _ := d.send(t, http.MethodPost, "/", strings.Repeat("x", 1<<20), auth...); response.StatusCode != http.StatusOK || size != 1<<20 {
		t.Errorf("1 MiB: %d, %d bytes", response.StatusCode, size)
	}
	size = -1
	if response, _ := d.send(t, http.MethodPost, "/", strings.Repeat("x", 1<<20+1), auth...); response.StatusCode != http.StatusRequestEntityTooLarge || size >= 0 {
		t.Errorf("1 MiB and a byte: %d, %d bytes", response.StatusCode, size)
	}
	// Without a length in advance, too.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL, io.LimitReader(neverending('x'), 10<<20))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	response, err := d.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge || size >= 0 {
		t.Errorf("10 MiB in chunks: %d, %d bytes", response.StatusCode, size)
	}
}

type neverending byte

func (b neverending) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func TestEveryCallerHasARate(t *testing.T) {
	count := 0
	d := newDoor(t, static(t), access.Limits{PerSecond: 0.5, Burst: 3}, func(reached) { count++ })
	get := func(token string) *http.Response {
		response, _ := d.send(t, http.MethodGet, "/", "", "Authorization", "Bearer "+token)
		return response
	}
	for range 3 {
		if r := get(adminToken); r.StatusCode != http.StatusOK {
			t.Fatalf("within the burst: %d", r.StatusCode)
		}
	}
	r := get(adminToken)
	if r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") != "2" || count != 3 {
		t.Errorf("beyond it: %d %v, %d came through", r.StatusCode, r.Header, count)
	}
	if r := get(viewerToken); r.StatusCode != http.StatusOK {
		t.Errorf("another caller: %d", r.StatusCode)
	}
	d.now.pass(2 * time.Second)
	if r := get(adminToken); r.StatusCode != http.StatusOK {
		t.Errorf("after Retry-After: %d", r.StatusCode)
	}
	if r := get(adminToken); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("and at once again: %d", r.StatusCode)
	}
}

func TestManyCallersCostNoMemory(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	if kept, waits := access.Limited(access.Limits{PerSecond: 1, Burst: 1}, 10_000, now); kept > 1024 || !waits {
		t.Errorf("%d callers are kept; the last one has a rate: %v", kept, waits)
	}
}

type failing struct{ err error }

func (f failing) Identify(context.Context, string) (access.Caller, error) {
	return access.Caller{}, f.err
}

func (f failing) Allow(context.Context, access.Caller, access.Right) (bool, error) {
	return false, f.err
}

// The API server away is 503, never open, and never says more than that.
func TestAwayIsUnavailable(t *testing.T) {
	d := newDoor(t, failing{harness.Errorf(harness.Unavailable, "callers are not known")}, access.Limits{}, func(r reached) { t.Errorf("reached by %+v", r) })
	response, body := d.send(t, http.MethodGet, "/", "", "Authorization", "Bearer "+adminToken)
	if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "callers are not known") {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	if logs := d.logs.String(); !strings.Contains(logs, "a caller cannot be identified") || !strings.Contains(logs, response.Header.Get("X-Request-Id")) {
		t.Errorf("the log: %s", logs)
	}
	noToken(t, adminToken, d.logs.String(), body)
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	s := static(t)
	eve, err := s.Identify(t.Context(), viewerToken)
	if err != nil {
		t.Fatal(err)
	}
	right := access.Right{Verb: access.Cancel, Resource: access.Sessions, Name: "ses_1"}
	if err := access.Check(t.Context(), s, right); harness.KindOf(err) != harness.Denied {
		t.Errorf("nobody: %v", err)
	}
	if err := access.Check(access.With(t.Context(), eve), s, right); harness.KindOf(err) != harness.Denied || harness.MessageOf(err) != "eve may not cancel sessions.tuluat.ai" {
		t.Errorf("eve: %v", err)
	}
	if err := access.Check(access.With(t.Context(), eve), failing{harness.Errorf(harness.Unavailable, "x")}, right); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("away: %v", err)
	}
	if err := access.Check(access.With(t.Context(), eve), s, access.Right{Verb: access.Get, Resource: access.Sessions}); err != nil {
		t.Errorf("allowed: %v", err)
	}
}
