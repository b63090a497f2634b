package model_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
)

// streams answers with server-sent events, one write each; what stands first in an
// event of Anthropic's is its type.
func streams(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range events {
			var head struct{ Type string }
			e = strings.Join(strings.Fields(e), " ")
			if rest, raw := strings.CutPrefix(e, "broken "); raw {
				e = "event: content_block_delta\ndata: " + rest
			} else if json.Unmarshal([]byte(e), &head) == nil && head.Type != "" {
				e = "event: " + head.Type + "\ndata: " + e
			} else {
				e = "data: " + e
			}
			_, _ = io.WriteString(w, e+"\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func chunk(choice string) string {
	return `{"id":"c","object":"chat.completion.chunk","model":"thinker-1-0301","choices":[` + choice + `]}`
}

func delta(d string) string { return chunk(`{"index":0,"delta":` + d + `,"finish_reason":null}`) }

// said are the events of an answer that says "hello", without its end.
var said = map[harness.Provider][]string{
	harness.ProviderOpenAI: {delta(`{"role":"assistant","content":""}`), delta(`{"content":"hel"}`), delta(`{"content":"lo"}`)},
	harness.ProviderAnthropic: {
		`{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"thinker-1-0301","content":[],"stop_reason":null,
			"usage":{"input_tokens":5,"cache_creation_input_tokens":4,"cache_read_input_tokens":2,"output_tokens":1}}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
		`{"type":"ping"}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hel"}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"lo"}}`,
	},
}

var ends = map[harness.Provider][]string{
	harness.ProviderOpenAI: {
		chunk(`{"index":0,"delta":{},"finish_reason":"stop"}`),
		`{"id":"c","object":"chat.completion.chunk","model":"thinker-1-0301","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}}`, `[DONE]`,
	},
	harness.ProviderAnthropic: {
		`{"type":"content_block_stop","index":0}`,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":3}}`, `{"type":"message_stop"}`,
	},
}

// growing asks and keeps what it was told meanwhile, each text once.
func growing(texts *[]string) model.Request {
	req := hello()
	req.Partial = func(text string) {
		if n := len(*texts); text != "" && (n == 0 || (*texts)[n-1] != text) {
			*texts = append(*texts, text)
		}
	}
	return req
}

func streamed(t *testing.T, provider harness.Provider, answer http.HandlerFunc, limits model.Limits) (model.Response, []string, error) {
	t.Helper()
	s := serve(t, answer)
	var texts []string
	res, err := newClient(t, provider, s.URL, limits).Complete(t.Context(), growing(&texts))
	if len(s.requests()) > 1 {
		t.Errorf("%d requests were sent", len(s.requests()))
	}
	return res, texts, err
}

// An answer in pieces is the answer that comes whole, and its text is seen growing.
func TestAnAnswerThatGrows(t *testing.T) {
	for _, provider := range providers {
		s := serve(t, streams(append(slices.Clone(said[provider]), ends[provider]...)...))
		var texts []string
		res, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), growing(&texts))
		if err != nil {
			t.Fatal(err)
		}
		if want := complete(t, provider, answers[provider], hello()); cmp.Diff(want, res) != "" {
			t.Errorf("%s: %s", provider, cmp.Diff(want, res))
		}
		if diff := cmp.Diff([]string{"hel", "hello"}, texts); diff != "" {
			t.Errorf("%s: %s", provider, diff)
		}
		var sent struct {
			Stream        bool `json:"stream"`
			StreamOptions struct {
				IncludeUsage bool `json:"include_usage"`
			} `json:"stream_options"`
		}
		if err := json.Unmarshal(s.requests()[0].body, &sent); err != nil {
			t.Fatal(err)
		}
		if !sent.Stream || sent.StreamOptions.IncludeUsage != (provider == harness.ProviderOpenAI) {
			t.Errorf("%s: it was asked with %+v", provider, sent)
		}
	}
}

// What a provider sends in pieces comes to what it would have sent whole: calls,
// their broken arguments, thoughts and signatures, the ways to stop.
func TestPiecesAreTheWhole(t *testing.T) {
	for name, test := range map[string]struct {
		provider harness.Provider
		whole    string
		events   []string
	}{
		"calls in pieces": {
			harness.ProviderOpenAI,
			`{"model":"m","choices":[{"message":{"role":"assistant","content":"so","tool_calls":[
				{"id":"a","type":"function","function":{"name":"executeShell","arguments":"{\"command\":\"ls\"}"}},
				{"id":"b","type":"function","function":{"name":"executeShell","arguments":"{\"comm"},"extra_content":{"google":{"thought_signature":"s"}}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`,
			[]string{
				`{"model":"m","choices":[{"index":0,"delta":{"content":"so"}}]}`,
				`{"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"executeShell","arguments":""}}]}}]}`,
				`{"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"comm"}}]}}]}`,
				`{"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"executeShell","arguments":"{\"co"},"extra_content":{"google":{"thought_signature":"s"}}}]}}]}`,
				`{"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"and\":\"ls\"}"}},{"index":1,"function":{"arguments":"mm"}}]}}]}`,
				`{"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`,
				`{"model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, `[DONE]`,
			},
		},
		"calls without an index, each of another chunk's id": {
			harness.ProviderOpenAI,
			answer(harness.ProviderOpenAI, "tool_calls", given{"a", "executeShell", `{"command":"a"}`}, given{"b", "executeShell", `{"command":"b"}`}),
			[]string{
				`{"id":"1","model":"m","choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"executeShell","arguments":"{\"command\":\"a\"}"}}]}}]}`,
				`{"id":"2","model":"m","choices":[{"delta":{"tool_calls":[{"id":"b","function":{"name":"executeShell","arguments":"{\"command\":\"b\"}"}}]}}]}`,
				`{"id":"3","model":"m","choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}`,
			},
		},
		"an object for arguments": {
			harness.ProviderOpenAI,
			`{"model":"m","choices":[{"message":{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"executeShell","arguments":{"command":"ls"}}}]},"finish_reason":"tool_calls"}]}`,
			[]string{
				`{"model":"m","choices":[{"delta":{"tool_calls":[{"id":"c","function":{"name":"executeShell","arguments":{"command":"ls"}}}]}}]}`,
				`{"model":"m","choices":[{"delta":{},"finish_reason":"tool_calls"}]}`,
			},
		},
		"text in parts, cut off": {
			harness.ProviderOpenAI,
			`{"model":"m","choices":[{"message":{"role":"assistant","content":"hi there"},"finish_reason":"length"}]}`,
			[]string{
				`{"model":"m","choices":[{"delta":{"content":[{"type":"thinking"},{"type":"text","text":"hi "}]}}]}`,
				`{"model":"m","choices":[{"delta":{"content":"there"},"finish_reason":"length"}]}`,
			},
		},
		"a refusal": {
			harness.ProviderOpenAI,
			`{"model":"m","choices":[{"message":{"role":"assistant","refusal":"I will not"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`,
			[]string{
				`{"model":"m","choices":[{"delta":{"refusal":"I will"}}]}`, `{"model":"m","choices":[{"delta":{"refusal":" not"}}]}`,
				`{"model":"m","choices":[{"delta":{},"finish_reason":"stop"}]}`, `{"model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}`,
			},
		},
		"thoughts and calls": {
			harness.ProviderAnthropic,
			`{"type":"message","role":"assistant","model":"m","stop_reason":"tool_use","usage":{"input_tokens":7,"output_tokens":9},"content":[
				{"type":"thinking","thinking":"hmm so","signature":"sig1"},{"type":"text","text":"so"},
				{"type":"tool_use","id":"t1","name":"executeShell","input":{"command":"ls"}},{"type":"tool_use","id":"t2","name":"other","input":{}}]}`,
			[]string{
				`{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":7,"output_tokens":1}}}`,
				`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hmm"}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":" so"}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig1"}}`, `{"type":"content_block_stop","index":0}`,
				`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"so"}}`, `{"type":"content_block_stop","index":1}`,
				`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t1","name":"executeShell","input":{}}}`,
				`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"comma"}}`, `{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"nd\":\"ls\"}"}}`,
				`{"type":"content_block_stop","index":2}`,
				`{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"t2","name":"other","input":{}}}`, `{"type":"content_block_stop","index":3}`,
				`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":9}}`, `{"type":"message_stop"}`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := complete(t, test.provider, test.whole, hello())
			got, _, err := streamed(t, test.provider, streams(test.events...), model.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if want.Usage.Estimated { // by the length of what came
				if !got.Usage.Estimated || got.Usage.OutputTokens == 0 || got.Usage.OutputTokens > 2*want.Usage.OutputTokens+50 {
					t.Errorf("usage is %+v, whole it is %+v", got.Usage, want.Usage)
				}
				want.Usage = got.Usage
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A call whose arguments are cut off by the token limit is kept as it came, and
// the answer may not be believed.
func TestACallCutOffInAStream(t *testing.T) {
	res, _, err := streamed(t, harness.ProviderAnthropic, streams(
		said[harness.ProviderAnthropic][0], `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t1","name":"executeShell","input":{}}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"comma"}}`, `{"type":"content_block_stop","index":0}`,
		`{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":9}}`, `{"type":"message_stop"}`), model.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if call := res.Calls[0]; res.Stop != model.StopTruncated || call.Arguments != `{"comma` || !strings.Contains(call.Malformed, "cut off") {
		t.Errorf("got %s %+v", res.Stop, call)
	}
}

// Servers that know of no streams answer whole.
func TestAServerThatDoesNotStream(t *testing.T) {
	for _, provider := range providers {
		for _, kind := range []string{"application/json", "text/event-stream"} {
			res, _, err := streamed(t, provider, says(http.StatusOK, "\n "+answers[provider], "Content-Type", kind), model.Limits{})
			if err != nil || res.Text != "hello" || res.Usage.InputTokens != 11 {
				t.Errorf("%s as %s: %+v %v", provider, kind, res, err)
			}
		}
	}
}

// A stream that does not end well is no answer, whatever it has said.
func TestStreamsThatBreak(t *testing.T) {
	short, long := 100*time.Millisecond, 20*time.Second
	stall := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	plain := func(http.ResponseWriter, *http.Request) {}
	failing := map[harness.Provider]func(kind, code string) string{
		harness.ProviderOpenAI: func(kind, code string) string {
			return fmt.Sprintf(`{"error":{"message":"with %s","type":%q,"code":%q}}`, openAIKey.Reveal(), kind, code)
		},
		harness.ProviderAnthropic: func(kind, code string) string {
			return fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":"with %s","details":{"error_code":%q}}}`, kind, anthropicKey.Reveal(), code)
		},
	}
	for _, test := range []struct {
		name       string
		events     func(harness.Provider) []string
		end        http.HandlerFunc
		limits     model.Limits
		kind       harness.Kind
		reason     model.Reason
		anthropics bool // only there
	}{
		{"the connection is cut", func(p harness.Provider) []string { return said[p] }, abort, model.Limits{}, harness.Unavailable, model.ReasonUnreachable, false},
		{"it ends before its end", func(p harness.Provider) []string { return said[p] }, plain, model.Limits{}, harness.Unavailable, model.ReasonUnreachable, false},
		{"it stalls", func(p harness.Provider) []string { return said[p] }, stall, model.Limits{Header: long, IdleRead: short, Total: long}, harness.Unavailable, model.ReasonTimeout, false},
		{"it says nothing", func(p harness.Provider) []string { return said[p][:1] }, stall, model.Limits{Header: short, IdleRead: long, Total: long}, harness.Unavailable, model.ReasonTimeout, false},
		{"the total is over", func(p harness.Provider) []string { return said[p] }, stall, model.Limits{Header: long, IdleRead: long, Total: 3 * short}, harness.Unavailable, model.ReasonTimeout, false},
		{"it is too large", func(p harness.Provider) []string { return append(slices.Clone(said[p]), ends[p]...) }, plain, model.Limits{ResponseBytes: 100}, harness.Invalid, model.ReasonTooLarge, false},
		{"overloaded in the middle", func(p harness.Provider) []string {
			return append(slices.Clone(said[p]), failing[p]("overloaded_error", ""))
		}, plain, model.Limits{}, harness.Unavailable, model.ReasonOverloaded, false},
		{"a rate limit in the middle", func(p harness.Provider) []string {
			return append(slices.Clone(said[p]), failing[p]("rate_limit_error", ""))
		}, plain, model.Limits{}, harness.Unavailable, model.ReasonRateLimited, false},
		{"no credit in the middle", func(p harness.Provider) []string {
			return append(slices.Clone(said[p]), failing[p]("x", "insufficient_quota"))
		}, plain, model.Limits{}, harness.Exhausted, model.ReasonNoCredit, false},
		{"no JSON in the middle", func(p harness.Provider) []string {
			return append(slices.Clone(said[p]), `broken {"type":"content_block_delta",`)
		}, plain, model.Limits{}, harness.Unavailable, model.ReasonNotAnswer, false},
		{"blocks out of order", func(p harness.Provider) []string {
			return append(slices.Clone(said[p]), `{"type":"content_block_delta","index":7,"delta":{"type":"text_delta","text":"x"}}`)
		}, plain, model.Limits{}, harness.Unavailable, model.ReasonNotAnswer, true},
		{"nothing at all", func(harness.Provider) []string { return nil }, plain, model.Limits{}, harness.Unavailable, model.ReasonNotAnswer, false},
	} {
		for _, provider := range providers {
			if test.anthropics && provider != harness.ProviderAnthropic {
				continue
			}
			t.Run(test.name+"/"+string(provider), func(t *testing.T) {
				_, _, err := streamed(t, provider, func(w http.ResponseWriter, r *http.Request) {
					streams(test.events(provider)...)(w, r)
					test.end(w, r)
				}, test.limits)
				if e := failure(t, err); e.Kind != test.kind || e.Reason != test.reason {
					t.Errorf("got %s %s, want %s %s: %v", e.Kind, e.Reason, test.kind, test.reason, err)
				}
			})
		}
	}
}

// Before a stream begins, a refusal is one as without.
func TestARefusedStream(t *testing.T) {
	for _, provider := range providers {
		_, _, err := streamed(t, provider, says(429, `{"error":{"message":"m"}}`, "Retry-After", "7"), model.Limits{})
		if e := failure(t, err); e.Reason != model.ReasonRateLimited || e.RetryAfter != 7*time.Second || e.Status != 429 {
			t.Errorf("%s: %+v", provider, e)
		}
	}
}

func TestTheCallerMayStopAStream(t *testing.T) {
	for _, provider := range providers {
		ctx, cancel := context.WithCancelCause(t.Context())
		stopping := errors.New("stopping")
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			streams(said[provider]...)(w, r)
			<-r.Context().Done()
		})
		req := hello()
		req.Partial = func(text string) {
			if text == "hello" {
				cancel(stopping)
			}
		}
		_, err := newClient(t, provider, s.URL, model.Limits{}).Complete(ctx, req)
		if e := failure(t, err); e.Reason != model.ReasonInterrupted || !errors.Is(err, stopping) {
			t.Errorf("%s: got %s: %v", provider, e.Reason, err)
		}
	}
}

// Who is slow to take a text does not make the model late.
func TestPartialMayTakeItsTime(t *testing.T) {
	for _, provider := range providers {
		s := serve(t, streams(append(slices.Clone(said[provider]), ends[provider]...)...))
		req := hello()
		req.Partial = func(string) { time.Sleep(150 * time.Millisecond) }
		if _, err := newClient(t, provider, s.URL, model.Limits{IdleRead: 100 * time.Millisecond}).Complete(t.Context(), req); err != nil {
			t.Errorf("%s: %v", provider, err)
		}
	}
}
