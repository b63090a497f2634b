package fake_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/scripts/internal/fake"
)

const (
	openAI    = "/v1/chat/completions"
	anthropic = "/v1/messages"
)

type reply struct {
	status int
	header http.Header
	body   []byte
}

func start(t *testing.T, o fake.ModelOptions) (*fake.Model, string) {
	t.Helper()
	model := fake.NewModel(o)
	server := httptest.NewServer(model)
	t.Cleanup(server.Close)
	return model, server.URL
}

func post(t *testing.T, url, body string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(url, anthropic) {
		req.Header.Set("Anthropic-Version", "2026-10-21")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return reply{}
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, text}
}

func (r reply) at(t *testing.T, path ...any) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	for _, step := range path {
		switch s := step.(type) {
		case string:
			object, _ := v.(map[string]any)
			v = object[s]
		case int:
			list, _ := v.([]any)
			if s >= len(list) {
				return nil
			}
			v = list[s]
		}
	}
	return v
}

const (
	openAITools    = `,"tools":[{"type":"function","function":{"name":"executeShell","parameters":{"type":"object"}}}]`
	anthropicTools = `,"tools":[{"name":"executeShell","input_schema":{"type":"object"}}]`
)

func openAIBody(messages string) string {
	return `{"model":"m","max_tokens":100,"messages":[` + messages + `]` + openAITools + `}`
}

func anthropicBody(messages string) string {
	return `{"model":"m","max_tokens":100,"messages":[` + messages + `]` + anthropicTools + `}`
}

func user(text string) string { return fmt.Sprintf(`{"role":"user","content":%q}`, text) }

func TestWhatItSays(t *testing.T) {
	_, url := start(t, fake.ModelOptions{})
	for say, hear := range map[string]string{
		"hello":               "deterministic stand-in",
		"help":                "run: COMMAND",
		"History":             "first thing you said",
		"count":               "sent 1 messages",
		"think: 0":            "thought for 0 seconds",
		"think: 31":           "0 to 30 seconds",
		"think: NaN":          "0 to 30 seconds",
		"think: much":         "0 to 30 seconds",
		"run twice: a":        "need ;;",
		"run:  ":              "no command",
		"use: nothing":        "I have no tool \"nothing\". I have: executeShell",
		"use: executeShell {": "no JSON object",
		"please sing":         "please sing",
		"running is great":    "running is great",
	} {
		if got, _ := post(t, url+openAI, openAIBody(user(say))).at(t, "choices", 0, "message", "content").(string); !strings.Contains(got, hear) {
			t.Errorf("%q: %q", say, got)
		}
		if got, _ := post(t, url+anthropic, anthropicBody(user(say))).at(t, "content", 0, "text").(string); !strings.Contains(got, hear) {
			t.Errorf("%q: %q", say, got)
		}
	}
	got, _ := post(t, url+openAI, `{"model":"m","messages":[`+user("run: ls")+`]}`).at(t, "choices", 0, "message", "content").(string)
	if !strings.Contains(got, "no executeShell tool") {
		t.Errorf("without tools: %q", got)
	}
}

func TestItRunsCommandsAndTellsTheirResults(t *testing.T) {
	_, url := start(t, fake.ModelOptions{})
	first := post(t, url+openAI, openAIBody(user("RUN: echo 'a \"b\"'")))
	call := first.at(t, "choices", 0, "message", "tool_calls", 0).(map[string]any)
	if want := `{"command":"echo 'a \"b\"'"}`; call["function"].(map[string]any)["arguments"] != want || first.at(t, "choices", 0, "finish_reason") != "tool_calls" {
		t.Fatalf("%s", first.body)
	}
	again := post(t, url+openAI, openAIBody(user("RUN: echo 'a \"b\"'")))
	if !bytes.Equal(first.body, again.body) {
		t.Errorf("not the same again:\n%s\n%s", first.body, again.body)
	}
	made, err := json.Marshal(call)
	if err != nil {
		t.Fatal(err)
	}
	told := post(t, url+openAI, openAIBody(user("RUN: echo 'a \"b\"'")+`,{"role":"assistant","tool_calls":[`+string(made)+`]},
		{"role":"tool","tool_call_id":"`+call["id"].(string)+`","content":"{\"stdout\":\"a\\n\",\"stderr\":\"oh\",\"exitCode\":3}"}`))
	if got := told.at(t, "choices", 0, "message", "content"); got != "a\noh\nexit code 3" {
		t.Errorf("%q", got)
	}
	two := post(t, url+anthropic, anthropicBody(user("run twice: a b ;; c")))
	if two.at(t, "content", 0, "input", "command") != "a b" || two.at(t, "content", 1, "input", "command") != "c" || two.at(t, "content", 0, "id") == two.at(t, "content", 1, "id") {
		t.Errorf("%s", two.body)
	}
	used := post(t, url+anthropic, anthropicBody(user(`use: executeShell {"command": "d"}`)))
	if used.at(t, "content", 0, "name") != "executeShell" || used.at(t, "content", 0, "input", "command") != "d" {
		t.Errorf("%s", used.body)
	}
	failed := post(t, url+anthropic, anthropicBody(user("run: x")+`,{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"executeShell","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":"no sandbox"}]}`))
	if got := failed.at(t, "content", 0, "text"); got != "It could not be done: no sandbox" {
		t.Errorf("%q", got)
	}
}

func TestItRemembers(t *testing.T) {
	_, url := start(t, fake.ModelOptions{})
	talk := user("one") + `,{"role":"assistant","content":"x"},` + user("two") + `,{"role":"assistant","content":"y"},`
	for _, body := range []reply{post(t, url+openAI, openAIBody(talk+user("what did I say?"))), post(t, url+anthropic, anthropicBody(talk+user("history")))} {
		if !bytes.Contains(body.body, []byte(`You said:\n1. one\n2. two`)) {
			t.Errorf("%s", body.body)
		}
	}
	if got := post(t, url+openAI, openAIBody(talk+user("count"))).at(t, "choices", 0, "message", "content"); got != "You have sent 3 messages in this conversation." {
		t.Errorf("%q", got)
	}
}

func TestKeysVersionsAndModels(t *testing.T) {
	_, url := start(t, fake.ModelOptions{Key: "good-key", Models: []string{"m"}})
	for _, test := range []struct {
		path, body string
		headers    []string
		status     int
	}{
		{openAI, openAIBody(user("x")), nil, 401},
		{openAI, openAIBody(user("x")), []string{"Authorization", "Bearer bad"}, 401},
		{openAI, openAIBody(user("x")), []string{"Authorization", "Bearer good-key"}, 200},
		{openAI, strings.Replace(openAIBody(user("x")), `"m"`, `"other"`, 1), []string{"Authorization", "Bearer good-key"}, 404},
		{anthropic, anthropicBody(user("x")), nil, 401},
		{anthropic, anthropicBody(user("x")), []string{"X-Api-Key", "good-key"}, 200},
		{anthropic, anthropicBody(user("x")), []string{"Authorization", "Bearer good-key"}, 200},
		{anthropic, anthropicBody(user("x")), []string{"X-Api-Key", "good-key", "Anthropic-Version", ""}, 400},
		{"/v2/elsewhere", "{}", nil, 404},
	} {
		if got := post(t, url+test.path, test.body, test.headers...); got.status != test.status || got.status != 200 && got.at(t, "error", "message") == nil {
			t.Errorf("%s %v: %d %s", test.path, test.headers, got.status, got.body)
		}
	}
}

func TestStreamsAreTheSameAnswer(t *testing.T) {
	_, url := start(t, fake.ModelOptions{})
	const say = "repeat these words, please"
	plain, _ := post(t, url+openAI, openAIBody(user(say))).at(t, "choices", 0, "message", "content").(string)
	var streamed strings.Builder
	lines := bufio.NewScanner(bytes.NewReader(post(t, url+openAI, strings.Replace(openAIBody(user(say)), `"model"`, `"stream":true,"model"`, 1)).body))
	last := ""
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		last = data
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if json.Unmarshal([]byte(data), &chunk) == nil && len(chunk.Choices) > 0 {
			streamed.WriteString(chunk.Choices[0].Delta.Content)
		}
	}
	if streamed.String() != plain || last != "[DONE]" {
		t.Errorf("%s", cmp.Diff(plain, streamed.String()))
	}
	events := post(t, url+anthropic, strings.Replace(anthropicBody(user("run: ls -l")), `"model"`, `"stream":true,"model"`, 1))
	var names []string
	for _, line := range strings.Split(string(events.body), "\n") {
		if name, ok := strings.CutPrefix(line, "event: "); ok && (len(names) == 0 || names[len(names)-1] != name) {
			names = append(names, name)
		}
	}
	want := []string{"message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
	if diff := cmp.Diff(want, names); diff != "" || events.header.Get("Content-Type") != "text/event-stream" {
		t.Error(diff)
	}
}

func TestModelsAreListed(t *testing.T) {
	_, url := start(t, fake.ModelOptions{Models: []string{"a", "b"}})
	for version, path := range map[string]string{"": "object", "2026-10-21": "type"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		if version != "" {
			req.Header.Set("Anthropic-Version", version)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if r := (reply{body: text}); r.at(t, "data", 1, "id") != "b" || r.at(t, "data", 1, path) != "model" {
			t.Errorf("%s", text)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestRequestsAreCountedPerSession(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	model, url := start(t, fake.ModelOptions{Keep: 3, Now: func() time.Time { return now }})
	for range 2 {
		post(t, url+openAI, openAIBody(user("x")), "Idempotency-Key", "ses_a/stp_1")
	}
	post(t, url+anthropic, anthropicBody(user("y")), "Idempotency-Key", "ses_b")
	post(t, url+openAI, openAIBody(user("z")))
	post(t, url+openAI, openAIBody(user("z")+`,{"role":"assistant","content":"hm"},`+user("more")))
	sessions := model.Sessions()
	if sessions["ses_a"] != 2 || sessions["ses_b"] != 1 || len(sessions) != 3 || model.Count() != 5 {
		t.Errorf("%v, %d in all", sessions, model.Count())
	}
	requests := model.Requests()
	if len(requests) != 3 || requests[0].Session != "ses_b" || requests[0].Wire != "anthropic" || requests[2].UserText != "more" || !requests[2].At.Equal(now) ||
		!bytes.Contains(requests[2].Body, []byte("more")) {
		t.Errorf("%+v", requests)
	}
}

const script = `
rules:
- match: {prefix: "wait"}
  nth: 1
  per: session
  respond: {status: 429, error: {code: rate_limit_exceeded, message: slow down}, headers: {Retry-After: date+90s}}
- match: {regexp: "^again"}
  nth: 2
  respond: {text: second time}
- match: {exact: forever}
  respond: {calls: [{name: executeShell, arguments: {command: "true"}}]}
- match: {of: user, exact: forever}
  respond: {calls: [{name: executeShell, arguments: {command: "true"}}]}
- match: {of: result, prefix: "exit code 1"}
  respond: {text: it failed, stop: length}
- match: {exact: raw}
  respond: {status: 502, body: "<html>", headers: {Content-Type: text/html}}
- match: {exact: late}
  respond: {delay: 30ms, text: late}
- match: {exact: broken}
  respond: {calls: [{name: x, arguments: '{"a', id: ""}, {name: y, arguments: {}, id: k}]}
`

func TestScripts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	loaded, err := fake.LoadScript(file)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	_, url := start(t, fake.ModelOptions{Script: loaded, Now: func() time.Time { return now }})
	ask := func(text, session string) reply {
		return post(t, url+openAI, openAIBody(user(text)), "Idempotency-Key", session)
	}
	content := []any{"choices", 0, "message", "content"}
	for _, session := range []string{"s1", "s2"} {
		got := ask("wait a bit", session)
		if got.status != 429 || got.header.Get("Retry-After") != "Fri, 02 Jan 2026 03:05:35 GMT" || got.at(t, "error", "code") != "rate_limit_exceeded" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
		if got := ask("wait a bit", session); got.status != 200 {
			t.Errorf("the second time: %d", got.status)
		}
	}
	if got := ask("again", "s"); got.at(t, content...) == "second time" {
		t.Error("the first time is the second")
	}
	if got := ask("again", "s"); got.at(t, content...) != "second time" {
		t.Errorf("%s", got.body)
	}
	calls := user("forever")
	for i := range 3 {
		got := post(t, url+openAI, openAIBody(calls))
		id, _ := got.at(t, "choices", 0, "message", "tool_calls", 0, "id").(string)
		if id == "" || strings.Contains(calls, id) {
			t.Fatalf("time %d: %s", i, got.body)
		}
		calls += fmt.Sprintf(`,{"role":"assistant","tool_calls":[{"id":%q,"type":"function","function":{"name":"executeShell","arguments":"{}"}}]},{"role":"tool","tool_call_id":%q,"content":"ok"}`, id, id)
	}
	failed := strings.Replace(calls, `"ok"}`, `"exit code 1"}`, 3)
	if got := post(t, url+openAI, openAIBody(strings.Replace(failed, "forever", "else", 1))); got.at(t, content...) != "it failed" || got.at(t, "choices", 0, "finish_reason") != "length" {
		t.Errorf("%s", got.body)
	}
	if got := ask("raw", "s"); got.status != 502 || string(got.body) != "<html>" || got.header.Get("Content-Type") != "text/html" {
		t.Errorf("%d %v %q", got.status, got.header, got.body)
	}
	begin := time.Now()
	if got := ask("late", "s"); got.at(t, content...) != "late" || time.Since(begin) < 30*time.Millisecond {
		t.Errorf("%s after %s", got.body, time.Since(begin))
	}
	got := ask("broken", "s")
	if got.at(t, "choices", 0, "message", "tool_calls", 0, "id") != nil || got.at(t, "choices", 0, "message", "tool_calls", 0, "function", "arguments") != `{"a` ||
		got.at(t, "choices", 0, "message", "tool_calls", 1, "id") != "k" {
		t.Errorf("%s", got.body)
	}
}

func TestScriptsThatCannotBeMeant(t *testing.T) {
	for text, says := range map[string]string{
		``:                     "rules are missing",
		`rules: [{macth: {}}]`: "macth",
		`rules: [{match: {exact: a, prefix: b}}]`: "only one",
		`rules: [{match: {regexp: "("}}]`:         "regexp",
		`rules: [{match: {of: tool}}]`:            "of is",
		`rules: [{respond: {delay: soon}}]`:       "delay",
		`rules: [{respond: {pace: soon}}]`:        "pace",
		`rules: [{respond: {status: 42}}]`:        "status",
		`rules: [{per: agent}]`:                   "per must",
		`rules: [null]`:                           "rules[0] is empty",
	} {
		if _, err := fake.ParseScript([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
