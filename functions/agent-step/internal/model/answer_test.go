package model_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
)

// given is a call as a provider sends it.
type given struct{ id, name, arguments string }

// answer renders an answer on a provider's wire.
func answer(provider harness.Provider, stop string, calls ...given) string {
	var parts []string
	for _, c := range calls {
		if provider == harness.ProviderOpenAI {
			parts = append(parts, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}`, c.id, c.name, c.arguments))
			continue
		}
		input := c.arguments
		if !json.Valid([]byte(input)) {
			input = fmt.Sprintf("%q", input)
		}
		parts = append(parts, fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":%s}`, c.id, c.name, input))
	}
	list := strings.Join(parts, ",")
	if provider == harness.ProviderOpenAI {
		return fmt.Sprintf(`{"model":"m","choices":[{"message":{"role":"assistant","content":null,"tool_calls":[%s]},"finish_reason":%q}]}`, list, stop)
	}
	return fmt.Sprintf(`{"type":"message","role":"assistant","model":"m","content":[%s],"stop_reason":%q}`, list, stop)
}

func complete(t *testing.T, provider harness.Provider, body string, req model.Request) model.Response {
	t.Helper()
	s := serve(t, says(http.StatusOK, body))
	res, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestEveryCallHasItsOwnID(t *testing.T) {
	history := model.Request{Turns: []model.Turn{
		{Role: model.RoleUser, Text: "go"},
		{Role: model.RoleAssistant, Calls: []model.Call{{ID: "call_0", Name: "executeShell", Arguments: "{}"}}},
		{Role: model.RoleTool, Results: []model.Result{{CallID: "call_0"}}},
	}}
	for _, provider := range providers {
		res := complete(t, provider, answer(provider, "tool_calls",
			given{"", "executeShell", "{}"},
			given{"fresh", "executeShell", "{}"},
			given{"fresh", "executeShell", "{}"},
			given{"call_0", "executeShell", "{}"},
			given{"functions.executeShell:3", "executeShell", "{}"},
			given{strings.Repeat("x", 41), "executeShell", "{}"},
		), history)
		seen := map[string]bool{"call_0": true}
		for i, call := range res.Calls {
			if call.ID == "" || seen[call.ID] {
				t.Errorf("%s: call %d has the id %q", provider, i, call.ID)
			}
			seen[call.ID] = true
		}
		if res.Calls[1].ID != "fresh" || res.Calls[1].GivenID != "" || res.Calls[3].GivenID != "call_0" {
			t.Errorf("%s: %+v", provider, res.Calls)
		}
		// What came back has to be good enough to be sent.
		next := model.Request{Turns: append(history.Turns[:3:3], model.Turn{Role: model.RoleAssistant, Calls: res.Calls}, model.Turn{Role: model.RoleTool})}
		for _, call := range res.Calls {
			next.Turns[4].Results = append(next.Turns[4].Results, model.Result{CallID: call.ID, Text: "done"})
		}
		complete(t, provider, answers[provider], next)
	}
}

func TestArgumentsAreKeptAsTheyAre(t *testing.T) {
	for _, test := range []struct{ arguments, malformed string }{
		{`{"command": "ls"}`, ""},
		{` {"a":1}`, ""},
		{``, "empty"},
		{`{"command": "ec`, "cut off"},
		{`{"command": `, "cut off"},
		{`{"command": ls}`, "not JSON"},
		{"{\"command\": \"a\nb\"}", "not JSON"},
		{`{"a":1}{"b":2}`, "more than one"},
		{`["ls"]`, "not an object"},
		{`null`, "not an object"},
	} {
		for _, provider := range providers {
			if provider == harness.ProviderAnthropic && (test.arguments == "" || test.arguments == "null" || strings.HasPrefix(test.arguments, " ")) {
				continue // cannot be told there, where the input is part of the JSON
			}
			res := complete(t, provider, answer(provider, "tool_calls", given{"call_1", "executeShell", test.arguments}), hello())
			call := res.Calls[0]
			if call.Arguments != test.arguments {
				t.Errorf("%s: %q became %q", provider, test.arguments, call.Arguments)
			}
			if (call.Malformed == "") != (test.malformed == "") || !strings.Contains(call.Malformed, test.malformed) {
				t.Errorf("%s: %q is malformed because %q", provider, test.arguments, call.Malformed)
			}
			if res.Stop != model.StopToolCalls {
				t.Errorf("%s: stop is %s", provider, res.Stop)
			}
		}
	}
}

func TestArgumentsThatAreAnObjectAlready(t *testing.T) {
	res := complete(t, harness.ProviderOpenAI,
		`{"choices":[{"message":{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"executeShell","arguments":{"command":"ls"}}}]}}]}`, hello())
	if call := res.Calls[0]; call.Arguments != `{"command":"ls"}` || call.Malformed != "" {
		t.Errorf("%+v", call)
	}
}

func TestStops(t *testing.T) {
	call := given{"call_1", "executeShell", `{"command":"rm -rf /tmp/x"}`}
	for _, test := range []struct {
		provider harness.Provider
		body     string
		want     model.Stop
	}{
		{harness.ProviderOpenAI, answer(harness.ProviderOpenAI, "length", call), model.StopTruncated},
		{harness.ProviderOpenAI, answer(harness.ProviderOpenAI, "length"), model.StopTruncated},
		{harness.ProviderOpenAI, answer(harness.ProviderOpenAI, "stop", call), model.StopToolCalls},
		{harness.ProviderOpenAI, answer(harness.ProviderOpenAI, "content_filter", call), model.StopRefused},
		{harness.ProviderOpenAI, `{"choices":[{"message":{"role":"assistant","refusal":"I will not"},"finish_reason":"stop"}]}`, model.StopRefused},
		{harness.ProviderOpenAI, `{"choices":[{"message":{"role":"assistant","content":[{"type":"thinking"},{"type":"text","text":"hi"}]}}]}`, model.StopEnd},
		{harness.ProviderAnthropic, answer(harness.ProviderAnthropic, "max_tokens", call), model.StopTruncated},
		{harness.ProviderAnthropic, answer(harness.ProviderAnthropic, "model_context_window_exceeded", call), model.StopTruncated},
		{harness.ProviderAnthropic, answer(harness.ProviderAnthropic, "max_tokens"), model.StopTruncated},
		{harness.ProviderAnthropic, answer(harness.ProviderAnthropic, "refusal"), model.StopRefused},
		{harness.ProviderAnthropic, answer(harness.ProviderAnthropic, "tool_use", call), model.StopToolCalls},
	} {
		if res := complete(t, test.provider, test.body, hello()); res.Stop != test.want {
			t.Errorf("%s is %s, want %s", test.body, res.Stop, test.want)
		}
	}
}

func TestUsageIsNeverFree(t *testing.T) {
	for _, provider := range providers {
		res := complete(t, provider, answer(provider, "tool_calls", given{"c", "executeShell", "{}"}), hello())
		if !res.Usage.Estimated || res.Usage.InputTokens == 0 || res.Usage.OutputTokens == 0 {
			t.Errorf("%s: %+v", provider, res.Usage)
		}
	}
}

// What a model thought has to come back to it in its place; another model must
// not see it.
func TestCarriedThoughts(t *testing.T) {
	bodies := map[harness.Provider]string{
		harness.ProviderAnthropic: `{"type":"message","role":"assistant","model":"m","stop_reason":"tool_use","content":[
			{"type":"thinking","thinking":"hmm","signature":"sig1"},{"type":"text","text":"so"},{"type":"redacted_thinking","data":"xx"},
			{"type":"tool_use","id":"t1","name":"executeShell","input":{"command":"ls"}}]}`,
		harness.ProviderOpenAI: `{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[
			{"id":"t0","type":"function","function":{"name":"executeShell","arguments":"{}"}},
			{"id":"t1","type":"function","function":{"name":"executeShell","arguments":"{}"},"extra_content":{"google":{"thought_signature":"sig1"}}}]},"finish_reason":"tool_calls"}]}`,
	}
	want := map[harness.Provider]string{
		harness.ProviderAnthropic: `[{"signature":"sig1","thinking":"hmm","type":"thinking"},{"text":"so","type":"text"},{"data":"xx","type":"redacted_thinking"},
			{"id":"t1","input":{"command":"ls"},"name":"executeShell","type":"tool_use"}]`,
		harness.ProviderOpenAI: `[{"id":"t0","function":{"arguments":"{}","name":"executeShell"},"type":"function"},
			{"id":"t1","function":{"arguments":"{}","name":"executeShell"},"type":"function","extra_content":{"google":{"thought_signature":"sig1"}}}]`,
	}
	for _, provider := range providers {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) { says(http.StatusOK, bodies[provider])(w, r) })
		client := newClient(t, provider, s.URL, model.Limits{})
		res, err := client.Complete(t.Context(), hello())
		if err != nil {
			t.Fatal(err)
		}
		next := hello()
		results := model.Turn{Role: model.RoleTool}
		for _, call := range res.Calls {
			results.Results = append(results.Results, model.Result{CallID: call.ID, Text: "ok"})
		}
		next.Turns = append(next.Turns, model.Turn{Role: model.RoleAssistant, Text: res.Text, Calls: res.Calls, Carry: res.Carry}, results)
		if _, err := client.Complete(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		var sent struct {
			Messages []struct {
				Content   json.RawMessage `json:"content"`
				ToolCalls json.RawMessage `json:"tool_calls"`
			}
		}
		if err := json.Unmarshal(s.requests()[1].body, &sent); err != nil {
			t.Fatal(err)
		}
		got := sent.Messages[1].Content
		if provider == harness.ProviderOpenAI {
			got = sent.Messages[1].ToolCalls
		}
		if diff := cmp.Diff(decode(t, want[provider]), decode(t, string(got))); diff != "" {
			t.Errorf("%s: %s", provider, diff)
		}
		next.Agent.Name = "another-model"
		if _, err := client.Complete(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(s.requests()[2].body), "sig1") {
			t.Errorf("%s: another model was sent the signature", provider)
		}
	}
}

func decode(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

func TestHistoriesThatAreNotPairedAreNotSent(t *testing.T) {
	user := model.Turn{Role: model.RoleUser, Text: "go"}
	calls := model.Turn{Role: model.RoleAssistant, Calls: []model.Call{{ID: "a", Name: "x", Arguments: "{}"}, {ID: "b", Name: "x", Arguments: "{}"}}}
	results := func(ids ...string) model.Turn {
		turn := model.Turn{Role: model.RoleTool}
		for _, id := range ids {
			turn.Results = append(turn.Results, model.Result{CallID: id, Text: "ok"})
		}
		return turn
	}
	twice := model.Turn{Role: model.RoleAssistant, Calls: []model.Call{{ID: "a", Name: "x"}, {ID: "a", Name: "x"}}}
	nameless := model.Turn{Role: model.RoleAssistant, Calls: []model.Call{{Name: "x"}}}
	for name, turns := range map[string][]model.Turn{
		"none":                      {},
		"a call without result":     {user, calls, results("a")},
		"no results at all":         {user, calls, user},
		"the last turn has calls":   {user, calls},
		"a result without call":     {user, calls, results("a", "b", "c")},
		"two results for a call":    {user, calls, results("a", "b", "b")},
		"results before their call": {user, results("a", "b"), calls},
		"text between":              {user, calls, results("a"), user, results("b")},
		"two calls with one id":     {user, twice, results("a")},
		"a call without id":         {user, nameless, results("")},
		"the model speaks first":    {{Role: model.RoleAssistant, Text: "hi"}, user},
		"the model speaks last":     {user, {Role: model.RoleAssistant, Text: "hi"}},
		"an unknown role":           {user, {Role: "system", Text: "hi"}, user},
	} {
		for _, provider := range providers {
			s := serve(t, says(http.StatusOK, answers[provider]))
			_, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), model.Request{Turns: turns})
			if err == nil {
				t.Errorf("%s: accepted", name)
				continue
			}
			if e := failure(t, err); e.Kind != harness.Invalid || e.Reason != model.ReasonHistory || len(s.requests()) != 0 {
				t.Errorf("%s: %s %s after %d requests", name, e.Kind, e.Reason, len(s.requests()))
			}
		}
	}
	for _, provider := range providers { // results in any order and any number of turns are fine
		complete(t, provider, answers[provider], model.Request{Turns: []model.Turn{user, calls, results("b"), results("a"), user}})
	}
}
