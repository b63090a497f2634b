package model_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	openAIKey    = harness.Secret("sk-openai-5f1c9d2ab7")
	anthropicKey = harness.Secret("sk-ant-77aa31c09e42")
)

var providers = []harness.Provider{harness.ProviderOpenAI, harness.ProviderAnthropic}

// server answers every request with what answer says and keeps the requests.
type server struct {
	*httptest.Server

	mu       sync.Mutex
	received []received
}

type received struct {
	path   string
	header http.Header
	body   []byte
}

// requests returns what came in so far; a call that was given up may still be
// on its way.
func (s *server) requests() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.received)
}

func serve(t *testing.T, answer http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is cut off fails where it is compared
		s.mu.Lock()
		s.received = append(s.received, received{r.URL.Path, r.Header.Clone(), body})
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func says(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func newClient(t *testing.T, provider harness.Provider, url string, limits model.Limits) *model.Client {
	t.Helper()
	client, err := model.New(model.Config{
		Provider: provider, Name: "thinker-1", Limits: limits,
		OpenAIBaseURL: url, OpenAIKey: openAIKey, AnthropicBaseURL: url, AnthropicKey: anthropicKey,
		Now: func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

var answers = map[harness.Provider]string{
	harness.ProviderOpenAI: `{"id":"c","object":"chat.completion","model":"thinker-1-0301","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},
		"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}}`,
	harness.ProviderAnthropic: `{"id":"m","type":"message","role":"assistant","model":"thinker-1-0301","content":[{"type":"text","text":"hel"},{"type":"text","text":"lo"}],
		"stop_reason":"end_turn","usage":{"input_tokens":5,"cache_creation_input_tokens":4,"cache_read_input_tokens":2,"output_tokens":3}}`,
}

var shell = model.Tool{
	Name: harness.ToolExecuteShell, Description: "Runs a command.",
	Parameters: map[string]any{
		"type": "object", "properties": map[string]any{"command": map[string]any{"type": "string"}},
		"required": []string{"command"}, "additionalProperties": false,
	},
}

func hello() model.Request {
	return model.Request{Turns: []model.Turn{{Role: model.RoleUser, Text: "hello"}}}
}

// everything holds each thing a request can hold, in the forms that providers
// refuse when they are passed on as they are.
func everything() model.Request {
	warm := 0.5
	return model.Request{
		Agent:  harness.ModelSpec{MaxTokens: 512, Temperature: &warm},
		System: "You are terse.",
		Tools:  []model.Tool{shell},
		Turns: []model.Turn{
			{Role: model.RoleUser, Text: "list <files> & more"},
			{Role: model.RoleAssistant, Text: "Two things.", Calls: []model.Call{
				{ID: "call_a", Name: "executeShell", Arguments: `{"command":"ls"}`},
				{ID: "call_b", Name: "functions.executeShell:1", Arguments: `{"command":"ec`, Malformed: "cut off"},
			}},
			{Role: model.RoleTool, Results: []model.Result{{CallID: "call_b", Text: "the arguments are cut off", Failed: true}}},
			{Role: model.RoleTool, Results: []model.Result{{CallID: "call_a", Text: "a.txt"}}},
			{Role: model.RoleUser, Text: "and?"},
			{Role: model.RoleUser, Text: "   "},
			{Role: model.RoleAssistant, Text: "One more.", Calls: nil},
			{Role: model.RoleAssistant, Calls: []model.Call{{ID: "call_c", Name: "executeShell", Arguments: ""}}},
			{Role: model.RoleTool, Results: []model.Result{{CallID: "call_c", Text: ""}}},
		},
		IdempotencyKey: "ses_1/stp_2",
	}
}

func TestRequestsAreGolden(t *testing.T) {
	for _, provider := range providers {
		t.Run(string(provider), func(t *testing.T) {
			s := serve(t, says(http.StatusOK, answers[provider]))
			res, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), everything())
			if err != nil {
				t.Fatal(err)
			}
			want := model.Response{Text: "hello", Stop: model.StopEnd, Usage: model.Usage{InputTokens: 11, OutputTokens: 3}, Model: "thinker-1-0301"}
			if provider == harness.ProviderAnthropic {
				want.Usage.CacheReadTokens, want.Usage.CacheWriteTokens = 2, 4
			}
			if diff := cmp.Diff(want, res); diff != "" {
				t.Error(diff)
			}
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, s.requests()[0].body, "", "  "); err != nil {
				t.Fatal(err)
			}
			pretty.WriteByte('\n')
			golden := filepath.Join("testdata", string(provider)+"_request.json")
			if *update {
				if err := os.WriteFile(golden, pretty.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(text), pretty.String()); diff != "" {
				t.Error(diff)
			}
			if got := s.requests()[0].header.Get("Idempotency-Key"); got != "ses_1/stp_2" {
				t.Errorf("Idempotency-Key is %q", got)
			}
		})
	}
}

func TestKeysGoWhereTheyBelong(t *testing.T) {
	for _, provider := range providers {
		s := serve(t, says(http.StatusOK, answers[provider]))
		if _, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), hello()); err != nil {
			t.Fatal(err)
		}
		path, key := "/v1/chat/completions", openAIKey
		if provider == harness.ProviderAnthropic {
			path, key = "/v1/messages", anthropicKey
			if s.requests()[0].header.Get("X-Api-Key") != key.Reveal() || s.requests()[0].header.Get("Anthropic-Version") == "" {
				t.Errorf("headers: %v", s.requests()[0].header)
			}
		}
		if s.requests()[0].path != path || s.requests()[0].header.Get("Authorization") != "Bearer "+key.Reveal() {
			t.Errorf("%s: path %q, authorization %q", provider, s.requests()[0].path, s.requests()[0].header.Get("Authorization"))
		}
	}
}

// The variables of the SDKs must not reach a client: its configuration is all
// there is.
func TestEnvironmentIsNotRead(t *testing.T) {
	for _, name := range []string{"OPENAI_API_KEY", "OPENAI_ORG_ID", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"} {
		t.Setenv(name, "from-the-environment")
	}
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/")
	t.Setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1/")
	for _, provider := range providers {
		s := serve(t, says(http.StatusOK, answers[provider]))
		client, err := model.New(model.Config{Provider: provider, Name: "m", OpenAIBaseURL: s.URL, AnthropicBaseURL: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Complete(t.Context(), hello()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"Authorization", "X-Api-Key", "OpenAI-Organization"} {
			if got := s.requests()[0].header.Get(name); got != "" {
				t.Errorf("%s: %s is %q", provider, name, got)
			}
		}
	}
}

// transport answers without a network, so that a request to a provider's own
// address can be seen.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTheLimitHasTheNameTheServerKnows(t *testing.T) {
	for base, field := range map[string]string{
		"":                               "max_completion_tokens",
		"https://eu.api.openai.com/v1":   "max_completion_tokens",
		"https://api.mistral.ai/v1":      "max_tokens",
		"http://localhost:11434":         "max_tokens",
		"https://api.openai.com.evil/v1": "max_tokens",
	} {
		var sent map[string]any
		client, err := model.New(model.Config{
			Provider: harness.ProviderOpenAI, Name: "m", OpenAIBaseURL: base, OpenAIKey: openAIKey,
			HTTPClient: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
					return nil, err
				}
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(bytes.NewBufferString(answers[harness.ProviderOpenAI])), Request: r}, nil
			})},
		})
		if err != nil {
			t.Fatal(err)
		}
		req := hello()
		req.Agent.MaxTokens = 77
		if _, err := client.Complete(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if got := sent[field]; got != 77.0 {
			t.Errorf("%q: %s is %v", base, field, got)
		}
		if (sent["max_tokens"] != nil) == (sent["max_completion_tokens"] != nil) {
			t.Errorf("%q: both or none of the limits: %v", base, sent)
		}
	}
}

func TestNewReportsEveryProblem(t *testing.T) {
	_, err := model.New(model.Config{Provider: "bard", OpenAIBaseURL: "ftp://x", AnthropicBaseURL: "https://user:hunter2@host"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"MODEL_PROVIDER", "MODEL_NAME", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"} {
		if !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%s is not in %q", want, err)
		}
	}
	if bytes.Contains([]byte(err.Error()), []byte("hunter2")) {
		t.Errorf("a password is in %q", err)
	}
	if _, err := model.New(model.Config{Provider: harness.ProviderAnthropic, Name: "m", OpenAIKey: openAIKey}); err == nil {
		t.Error("a default provider without key and address was accepted")
	}
}

func TestAgentsChooseTheirModel(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		provider := harness.ProviderOpenAI
		if r.URL.Path == "/v1/messages" {
			provider = harness.ProviderAnthropic
		}
		says(http.StatusOK, answers[provider])(w, r)
	})
	client, err := model.New(model.Config{Provider: harness.ProviderOpenAI, Name: "default", OpenAIBaseURL: s.URL, AnthropicBaseURL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, test := range []struct {
		spec       harness.ModelSpec
		path, name string
	}{
		{harness.ModelSpec{}, "/v1/chat/completions", "default"},
		{harness.ModelSpec{Name: "big"}, "/v1/chat/completions", "big"},
		{harness.ModelSpec{Provider: harness.ProviderAnthropic, Name: "other"}, "/v1/messages", "other"},
	} {
		req := hello()
		req.Agent = test.spec
		if _, err := client.Complete(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		all := s.requests()
		last := all[len(all)-1]
		var sent struct{ Model string }
		if err := json.Unmarshal(last.body, &sent); err != nil {
			t.Fatal(err)
		}
		if got := last.path; got != test.path || sent.Model != test.name {
			t.Errorf("%+v went to %s as %q", test.spec, got, sent.Model)
		}
	}
	for _, spec := range []harness.ModelSpec{{Provider: harness.ProviderAnthropic}, {Provider: "bard", Name: "x"}} {
		req := hello()
		req.Agent = spec
		if _, err := client.Complete(t.Context(), req); harness.KindOf(err) != harness.Invalid {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}
