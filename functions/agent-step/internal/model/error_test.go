package model_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
)

func failure(t *testing.T, err error) *model.Error {
	t.Helper()
	e, ok := errors.AsType[*model.Error](err)
	if !ok {
		t.Fatalf("not a *model.Error: %v", err)
	}
	if harness.KindOf(err) != e.Kind || harness.MessageOf(err) != e.Message {
		t.Errorf("as a harness.Error it is %s %q", harness.KindOf(err), harness.MessageOf(err))
	}
	for _, key := range []harness.Secret{openAIKey, anthropicKey} {
		if strings.Contains(err.Error(), key.Reveal()) || strings.Contains(e.Message, key.Reveal()) {
			t.Errorf("a key is in %q", err)
		}
	}
	return e
}

func TestRefusalsAreToldApart(t *testing.T) {
	openAIError := func(code string) string {
		return `{"error":{"message":"said by the provider with ` + openAIKey.Reveal() + ` and ` + anthropicKey.Reveal() + `","type":"t","param":null,"code":` + code + `}}`
	}
	for _, test := range []struct {
		name       string
		status     int
		body       string
		headers    []string
		kind       harness.Kind
		reason     model.Reason
		retryAfter time.Duration
		words      string
	}{
		{"rate limit in seconds", 429, openAIError(`"rate_limit_exceeded"`), []string{"Retry-After", "7"}, harness.Unavailable, model.ReasonRateLimited, 7 * time.Second, ""},
		{"rate limit in parts of a second", 429, openAIError("null"), []string{"Retry-After", "0.25"}, harness.Unavailable, model.ReasonRateLimited, 250 * time.Millisecond, ""},
		{"rate limit in milliseconds", 429, openAIError("null"), []string{"Retry-After-Ms", "1500", "Retry-After", "9"}, harness.Unavailable, model.ReasonRateLimited, 1500 * time.Millisecond, ""},
		{"rate limit until a date, by the server's clock", 429, "", []string{"Date", "Sun, 01 Mar 2026 08:00:00 GMT", "Retry-After", "Sun, 01 Mar 2026 08:01:30 GMT"}, harness.Unavailable, model.ReasonRateLimited, 90 * time.Second, ""},
		{"rate limit until a date long past", 429, "", []string{"Retry-After", "Sun, 01 Mar 2020 08:01:30 GMT"}, harness.Unavailable, model.ReasonRateLimited, 0, ""},
		{"rate limit without sense", 429, "", []string{"Retry-After", "soon"}, harness.Unavailable, model.ReasonRateLimited, 0, ""},
		{"rate limit below zero", 429, "", []string{"Retry-After", "-5"}, harness.Unavailable, model.ReasonRateLimited, 0, ""},
		{"rate limit for ever", 429, "", []string{"Retry-After", "1e300"}, harness.Unavailable, model.ReasonRateLimited, 24 * time.Hour, ""},
		{"rate limit not a number", 429, "", []string{"Retry-After", "NaN"}, harness.Unavailable, model.ReasonRateLimited, 0, ""},
		{"no credit by code", 429, openAIError(`"insufficient_quota"`), []string{"Retry-After", "7"}, harness.Exhausted, model.ReasonNoCredit, 0, "credit"},
		{"no credit by status", 402, "", nil, harness.Exhausted, model.ReasonNoCredit, 0, "credit"},
		{"500 with HTML", 500, "<html>oops</html>", nil, harness.Unavailable, model.ReasonOverloaded, 0, ""},
		{"503 with Retry-After", 503, "", []string{"Retry-After", "3"}, harness.Unavailable, model.ReasonOverloaded, 3 * time.Second, ""},
		{"529", 529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, nil, harness.Unavailable, model.ReasonOverloaded, 0, ""},
		{"408", 408, "", nil, harness.Unavailable, model.ReasonOverloaded, 0, ""},
		{"401", 401, openAIError(`"invalid_api_key"`), nil, harness.Denied, model.ReasonKeyRejected, 0, "_API_KEY"},
		{"403", 403, "{}", nil, harness.Denied, model.ReasonKeyRejected, 0, "_API_KEY"},
		{"404", 404, openAIError(`"model_not_found"`), nil, harness.Invalid, model.ReasonNotFound, 0, "thinker-1"},
		{"413", 413, "", nil, harness.Invalid, model.ReasonContextFull, 0, "longer"},
		{"400", 400, openAIError("null"), nil, harness.Invalid, model.ReasonNotAccepted, 0, "not accept"},
		{"400 that only reads like an overflow", 400, `{"error":{"message":"context_length_exceeded","code":null}}`, nil, harness.Invalid, model.ReasonNotAccepted, 0, ""},
		{"400 context by code", 400, openAIError(`"context_length_exceeded"`), nil, harness.Invalid, model.ReasonContextFull, 0, "longer"},
		{"400 context by type", 400, `{"error":{"code":400,"message":"m","type":"exceed_context_size_error"}}`, nil, harness.Invalid, model.ReasonContextFull, 0, ""},
		{"413 by Anthropic's code", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"m","details":{"error_code":"request_body_too_large_after_decoding"}}}`, nil, harness.Invalid, model.ReasonContextFull, 0, ""},
		{"422", 422, `{"detail":[{"msg":"extra"}]}`, nil, harness.Invalid, model.ReasonNotAccepted, 0, ""},
		{"redirect", 307, "", []string{"Location", "https://elsewhere.example/"}, harness.Invalid, model.ReasonNotAccepted, 0, "_BASE_URL"},
	} {
		for _, provider := range providers {
			t.Run(test.name+"/"+string(provider), func(t *testing.T) {
				s := serve(t, says(test.status, test.body, test.headers...))
				_, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), hello())
				e := failure(t, err)
				if e.Kind != test.kind || e.Reason != test.reason || e.RetryAfter != test.retryAfter || e.Status != test.status {
					t.Errorf("got %s %s after %s, status %d: %v", e.Kind, e.Reason, e.RetryAfter, e.Status, err)
				}
				if !strings.Contains(e.Message, test.words) {
					t.Errorf("%q does not say %q", e.Message, test.words)
				}
				if len(s.requests()) != 1 {
					t.Errorf("%d requests were sent", len(s.requests()))
				}
			})
		}
	}
}

func TestKeysStayOutOfWhatTheProviderSays(t *testing.T) {
	s := serve(t, says(400, `{"error":{"message":"bad: `+openAIKey.Reveal()+`"}}`))
	_, err := newClient(t, harness.ProviderOpenAI, s.URL, model.Limits{}).Complete(t.Context(), hello())
	if e := failure(t, err); !strings.Contains(e.Error(), "bad: [secret]") {
		t.Errorf("the provider's words are lost: %v", e)
	}
	s = serve(t, says(401, `{"error":{"message":"Incorrect API key provided: sk-o****2ab7"}}`))
	_, err = newClient(t, harness.ProviderOpenAI, s.URL, model.Limits{}).Complete(t.Context(), hello())
	if e := failure(t, err); strings.Contains(e.Error(), "2ab7") {
		t.Errorf("parts of the key are in %q", e)
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	hugeText := `{"filler":"` + strings.Repeat("x", 5000) + `"}`
	for _, test := range []struct {
		name   string
		body   map[harness.Provider]string
		kind   harness.Kind
		reason model.Reason
	}{
		{"nothing at all", both(""), harness.Unavailable, model.ReasonNotAnswer},
		{"a web page", both("<html>hello</html>"), harness.Unavailable, model.ReasonNotAnswer},
		{"half an answer", both(`{"choices":[{"mess`), harness.Unavailable, model.ReasonNotAnswer},
		{"a list", both(`[1,2]`), harness.Unavailable, model.ReasonNotAnswer},
		{"another program's JSON", map[harness.Provider]string{harness.ProviderOpenAI: `{"ok":true}`, harness.ProviderAnthropic: `{"ok":true}`}, harness.Unavailable, ""},
		{"an upstream's error inside", both(`{"error":{"message":"m","type":"t","code":502}}`), harness.Unavailable, model.ReasonOverloaded},
		{"too much", both(hugeText), harness.Invalid, model.ReasonTooLarge},
		{"empty", map[harness.Provider]string{
			harness.ProviderOpenAI:    `{"choices":[{"message":{"role":"assistant","content":null},"finish_reason":"stop"}]}`,
			harness.ProviderAnthropic: `{"type":"message","role":"assistant","content":[],"stop_reason":"end_turn"}`,
		}, harness.Unavailable, model.ReasonEmpty},
	} {
		for _, provider := range providers {
			t.Run(test.name+"/"+string(provider), func(t *testing.T) {
				s := serve(t, says(http.StatusOK, test.body[provider]))
				_, err := newClient(t, provider, s.URL, model.Limits{ResponseBytes: 4096}).Complete(t.Context(), hello())
				if e := failure(t, err); e.Kind != test.kind || test.reason != "" && e.Reason != test.reason {
					t.Errorf("got %s %s: %v", e.Kind, e.Reason, err)
				}
			})
		}
	}
}

func both(body string) map[harness.Provider]string {
	return map[harness.Provider]string{harness.ProviderOpenAI: body, harness.ProviderAnthropic: body}
}

func TestJSONIsTakenWhateverItIsCalled(t *testing.T) {
	for _, provider := range providers {
		s := serve(t, says(http.StatusOK, answers[provider], "Content-Type", "text/plain"))
		if _, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), hello()); err != nil {
			t.Errorf("%s: %v", provider, err)
		}
	}
}

func TestDeadlines(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	stall := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"choices":[`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	short, long := 50*time.Millisecond, 20*time.Second
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		limits model.Limits
		reason model.Reason
		words  string
	}{
		{"no answer begins", hang, model.Limits{Header: short, IdleRead: long, Total: long}, model.ReasonTimeout, "header"},
		{"the answer stalls", stall, model.Limits{Header: long, IdleRead: short, Total: long}, model.ReasonTimeout, "stopped arriving"},
		{"the answer drips", drip, model.Limits{Header: long, IdleRead: long, Total: 10 * short}, model.ReasonTimeout, "total"},
		{"the total ends before an answer begins", hang, model.Limits{Header: long, IdleRead: long, Total: short}, model.ReasonTimeout, "total"},
		{"the connection is cut", cut, model.Limits{}, model.ReasonUnreachable, ""},
	} {
		for _, provider := range providers {
			t.Run(test.name+"/"+string(provider), func(t *testing.T) {
				s := serve(t, test.answer)
				_, err := newClient(t, provider, s.URL, test.limits).Complete(t.Context(), hello())
				e := failure(t, err)
				if e.Kind != harness.Unavailable || e.Reason != test.reason || !strings.Contains(err.Error(), test.words) {
					t.Errorf("got %s %s: %v", e.Kind, e.Reason, err)
				}
				if len(s.requests()) > 1 {
					t.Errorf("%d requests were sent", len(s.requests()))
				}
			})
		}
	}
}

func TestNobodyListens(t *testing.T) {
	s := serve(t, says(200, ""))
	s.Close()
	for _, provider := range providers {
		_, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), hello())
		if e := failure(t, err); e.Kind != harness.Unavailable || e.Reason != model.ReasonUnreachable || !strings.Contains(e.Message, "_BASE_URL") {
			t.Errorf("got %s %s: %v", e.Kind, e.Reason, err)
		}
	}
}

func TestTheCallerMayStop(t *testing.T) {
	for _, provider := range providers {
		ctx, cancel := context.WithCancelCause(t.Context())
		stopping := errors.New("stopping")
		s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			cancel(stopping)
			<-r.Context().Done()
		})
		_, err := newClient(t, provider, s.URL, model.Limits{}).Complete(ctx, hello())
		if e := failure(t, err); e.Kind != harness.Unavailable || e.Reason != model.ReasonInterrupted || !errors.Is(err, stopping) {
			t.Errorf("got %s %s: %v", e.Kind, e.Reason, err)
		}
	}
}

func TestRedirectsDoNotCarryTheKey(t *testing.T) {
	for _, provider := range providers {
		elsewhere := serve(t, says(200, answers[provider]))
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusPermanentRedirect)
		})
		_, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), hello())
		if e := failure(t, err); e.Status != http.StatusPermanentRedirect {
			t.Errorf("%s: %v", provider, err)
		}
		if len(elsewhere.requests()) != 0 {
			t.Errorf("%s: the redirect was followed", provider)
		}
	}
}
