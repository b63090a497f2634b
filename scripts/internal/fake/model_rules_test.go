package fake_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/scripts/internal/fake"
)

// pixel is a whole image.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

const (
	called   = `{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"executeShell","arguments":"{}"}}]}`
	answered = `{"role":"tool","tool_call_id":"a","content":"ok"}`
	used     = `{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"executeShell","input":{}}]}`
	resulted = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"ok"}]}`
	marked   = `{"type":"text","text":"t","cache_control":{"type":"ephemeral"}}`
)

// with puts fields into a request; those it has twice count as said last.
func with(body, fields string) string { return strings.TrimSuffix(body, "}") + "," + fields + "}" }

func functions(definitions ...string) string {
	return `"tools":[` + strings.Join(definitions, ",") + `]`
}

func function(name, description, parameters string) string {
	return fmt.Sprintf(`{"type":"function","function":{"name":%q,"description":%q,"parameters":%s}}`, name, description, parameters)
}

func tool(name, schema string) string {
	return fmt.Sprintf(`{"name":%q,"input_schema":%s}`, name, schema)
}

func said(blocks ...string) string {
	return `{"role":"user","content":[` + strings.Join(blocks, ",") + `]}`
}

func thinks(blocks string) string {
	return `{"role":"assistant","content":[` + blocks + `,{"type":"tool_use","id":"a","name":"executeShell","input":{}}]}`
}

// broken are requests that break one rule each, on one wire or the other.
func broken() []struct{ path, rule, body, says string } {
	plain, text := `{"model":"m","max_tokens":100,"messages":[`+user("x")+`]}`, user("x")+","
	object := `{"type":"object"}`
	var many []string
	for i := range 129 {
		many = append(many, function(fmt.Sprint("f", i), "d", object))
	}
	return []struct{ path, rule, body, says string }{
		{"/v1/elsewhere", "address", plain, "Unknown request URL"},
		{openAI, "size", `{"model":"` + strings.Repeat("m", 32<<20) + `"}`, "maximum size"},
		{openAI, "key", plain, "API key"},
		{openAI, "json", `{`, "parse the JSON"},
		{openAI, "json", plain + `{}`, "parse the JSON"},
		{openAI, "types", with(plain, `"max_tokens":"3"`), "max_tokens"},
		{openAI, "fields", with(plain, `"max_token":3`), "max_token"},
		{openAI, "fields", openAIBody(`{"role":"user","content":"x","tool_call_id":"a"}`), "tool_call_id"},
		{openAI, "fields", openAIBody(text + strings.Replace(called, `"id"`, `"index":0,"id"`, 1) + "," + answered), "index"},
		{openAI, "model", `{"messages":[` + user("x") + `]}`, "model"},
		{openAI, "messages", `{"model":"m","messages":[]}`, "messages"},
		{openAI, "messages", openAIBody(`{"role":"system","content":"x"}`), "'user' is expected"},
		{openAI, "limit", with(plain, `"max_tokens":0`), "minimum"},
		{openAI, "two-limits", with(plain, `"max_completion_tokens":1`), "same time"},
		{openAI, "sampling", with(plain, `"temperature":2.1`), "temperature"},
		{openAI, "stream", with(plain, `"stream_options":{"include_usage":true}`), "stream"},
		{openAI, "role", openAIBody(`{"role":"robot","content":"x"}`), "robot"},
		{openAI, "role", openAIBody(`{"role":"user","name":"a b","content":"x"}`), "name"},
		{openAI, "system", openAIBody(text + `{"role":"system","content":"x"}`), "beginning"},
		{openAI, "content", openAIBody(`{"role":"user","content":null}`), "got null"},
		{openAI, "content", openAIBody(`{"role":"user","content":[]}`), "empty array"},
		{openAI, "content", openAIBody(text + `{"role":"assistant","content":null},` + user("y")), "got null"},
		{openAI, "content", openAIBody(text + `{"role":"assistant","content":"x","tool_calls":[]},` + user("y")), "empty array"},
		{openAI, "content", openAIBody(text + called + "," + strings.Replace(answered, `"ok"`, `null`, 1)), "got null"},
		{openAI, "content", openAIBody(`{"role":"user","content":[{"type":"refusal","refusal":"x"}]}`), "no such part"},
		{openAI, "image", openAIBody(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,` + pixel + `"}}]}`), "image_url"},
		{openAI, "image", openAIBody(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///x.png"}}]}`), "image_url"},
		{openAI, "tool-form", with(plain, functions(function("a.b", "", object))), "tools[0]"},
		{openAI, "tool-name", with(plain, functions(function("a", "", object), function("a", "", object))), "twice"},
		{openAI, "tool-schema", with(plain, functions(function("a", "", `{"type":"string"}`))), "'object'"},
		{openAI, "tool-schema", with(plain, functions(function("a", "", `{"type":"object","anyOf":[]}`))), "top level"},
		{openAI, "tool-items", with(plain, functions(function("a", "", `{"type":"object","properties":{"p":{"anyOf":[{"type":"array"}]}}}`))), "missing items"},
		{openAI, "tool-description", with(plain, functions(function("a", strings.Repeat("d", 1025), object))), "maximum length 1024"},
		{openAI, "many-tools", with(plain, functions(many...)), "maximum length 128"},
		{openAI, "tool-choice", with(plain, `"tool_choice":"none"`), "tool_choice"},
		{openAI, "tool-choice", with(plain, `"parallel_tool_calls":false`), "parallel_tool_calls"},
		{openAI, "call-id", openAIBody(text + strings.Replace(called, `"a"`, `"`+strings.Repeat("a", 41)+`"`, 1)), "maximum length 40"},
		{openAI, "call-id", openAIBody(text + strings.Replace(called, `"id":"a",`, ``, 1)), "Missing required"},
		{openAI, "call-twice", openAIBody(text + called + "," + answered + "," + called + "," + answered), "Duplicate"},
		{openAI, "call-form", openAIBody(text + strings.Replace(called, "executeShell", "functions.x", 1)), "pattern"},
		{openAI, "arguments", openAIBody(text + strings.Replace(called, `"{}"`, `"{"`, 1) + "," + answered), "arguments"},
		{openAI, "arguments", openAIBody(text + strings.Replace(called, `"{}"`, `"[]"`, 1) + "," + answered), "arguments"},
		{openAI, "unanswered", openAIBody(text + called + "," + user("y")), "did not have response messages: a"},
		{openAI, "unanswered", openAIBody(text + called), "did not have response messages: a"},
		{openAI, "unanswered", openAIBody(text + called + "," + user("y") + "," + answered), "did not have response messages: a"},
		{openAI, "orphan", openAIBody(text + answered), "role 'tool'"},
		{openAI, "orphan", openAIBody(text + called + "," + answered + "," + answered), "role 'tool'"},

		{anthropic, "size", `{"model":"` + strings.Repeat("m", 32<<20) + `"}`, "maximum size"},
		{anthropic, "key", plain, "API key"},
		{anthropic, "version", plain, "anthropic-version"},
		{anthropic, "json", `{`, "not valid JSON"},
		{anthropic, "types", with(plain, `"max_tokens":"3"`), "max_tokens"},
		{anthropic, "types", anthropicBody(`{"role":"user","content":null}`), "valid list"},
		{anthropic, "fields", with(plain, `"n":3`), "Extra inputs"},
		{anthropic, "fields", anthropicBody(said(`{"type":"text","text":"x","id":"a"}`)), "Extra inputs"},
		{anthropic, "model", `{"max_tokens":1,"messages":[` + user("x") + `]}`, "model"},
		{anthropic, "messages", anthropicBody(``), "at least one"},
		{anthropic, "limit", `{"model":"m","messages":[` + user("x") + `]}`, "max_tokens"},
		{anthropic, "limit", with(plain, `"max_tokens":0`), "max_tokens"},
		{anthropic, "sampling", with(plain, `"temperature":1`), "temperature"},
		{anthropic, "role", anthropicBody(text + `{"role":"tool","content":"x"}`), "role"},
		{anthropic, "system", anthropicBody(`{"role":"system","content":"x"},` + user("x")), "top-level"},
		{anthropic, "system", with(plain, `"system":[{"type":"image","text":"x"}]`), "text"},
		{anthropic, "first", anthropicBody(`{"role":"assistant","content":"x"},` + user("x")), "first message"},
		{anthropic, "alternate", anthropicBody(text + user("y")), "in a row"},
		{anthropic, "last-message", anthropicBody(text + `{"role":"assistant","content":"x"}`), "prefill"},
		{anthropic, "trailing", anthropicBody(text + `{"role":"assistant","content":"x "}`), "trailing whitespace"},
		{anthropic, "content", anthropicBody(said()), "non-empty content"},
		{anthropic, "content", anthropicBody(said(`{"type":"video"}`)), "expected tags"},
		{anthropic, "content", anthropicBody(said(`{"type":"thinking","thinking":"x","signature":"s"}`)), "not expected of a user"},
		{anthropic, "content", anthropicBody(text + used + `,{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","is_error":true,"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + pixel + `"}}]}]}`), "is_error"},
		{anthropic, "blank", anthropicBody(user("  ")), "non-whitespace"},
		{anthropic, "blank", anthropicBody(said(`{"type":"text","text":""}`)), "non-whitespace"},
		{anthropic, "blank", with(plain, `"system":[{"type":"text","text":" "}]`), "non-empty"},
		{anthropic, "image", anthropicBody(said(`{"type":"text","text":"x"}`, `{"type":"image","source":{"type":"base64","media_type":"image/bmp","data":"`+pixel+`"}}`)), "process image"},
		{anthropic, "tool-form", with(plain, `"tools":[`+tool("a.b", object)+`]`), "pattern"},
		{anthropic, "tool-name", with(plain, `"tools":[`+tool("a", object)+","+tool("a", object)+`]`), "unique"},
		{anthropic, "tool-schema", with(plain, `"tools":[`+tool("a", `{}`)+`]`), "object"},
		{anthropic, "tool-schema", with(plain, `"tools":[`+tool("a", `{"type":"object","oneOf":[]}`)+`]`), "top level"},
		{anthropic, "tool-keys", with(plain, `"tools":[`+tool("a", `{"type":"object","properties":{"filter[id]":{}}}`)+`]`), "Property keys"},
		{anthropic, "tool-choice", with(plain, `"tool_choice":{"type":"auto"}`), "tool_choice"},
		{anthropic, "tools-known", `{"model":"m","max_tokens":1,"messages":[` + text + used + "," + resulted + `]}`, "must define tools"},
		{anthropic, "call-id", anthropicBody(text + strings.Replace(used, `"a"`, `"a.b"`, 1) + "," + resulted), "pattern"},
		{anthropic, "call-twice", anthropicBody(text + used + "," + resulted + "," + used + "," + resulted), "unique"},
		{anthropic, "call-form", anthropicBody(text + strings.Replace(used, "executeShell", "a.b", 1) + "," + resulted), "pattern"},
		{anthropic, "arguments", anthropicBody(text + strings.Replace(used, "{}", `"{"`, 1) + "," + resulted), "object"},
		{anthropic, "unanswered", anthropicBody(text + used + "," + user("y")), "without `tool_result` blocks immediately after: a"},
		{anthropic, "unanswered", anthropicBody(text + used), "without `tool_result` blocks immediately after: a"},
		{anthropic, "orphan", anthropicBody(resulted), "unexpected `tool_use_id`"},
		{anthropic, "orphan", anthropicBody(text + used + "," + strings.Replace(resulted, `}]}`, `},{"type":"tool_result","tool_use_id":"a","content":"ok"}]}`, 1)), "unexpected `tool_use_id`"},
		{anthropic, "order", anthropicBody(text + used + "," + strings.Replace(resulted, `[`, `[{"type":"text","text":"t"},`, 1)), "before text"},
		{anthropic, "signature", anthropicBody(text + thinks(`{"type":"thinking","thinking":"x","signature":"s"}`) + "," + resulted), "signature"},
		{anthropic, "signature", anthropicBody(text + thinks(`{"type":"redacted_thinking","data":"eA=="}`) + "," + resulted), "redacted_thinking"},
		{anthropic, "thinking", with(plain, `"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":2000}`), "greater than"},
		{anthropic, "thinking", with(plain, `"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1000}`), "1024"},
		{anthropic, "thought", with(anthropicBody(text+used+","+resulted), `"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024}`), "start with a thinking block"},
		{anthropic, "cache", anthropicBody(said(marked, marked, marked, marked, marked)), "maximum of 4"},
		{anthropic, "cache", anthropicBody(said(strings.Replace(marked, "ephemeral", "for-ever", 1))), "ephemeral"},
	}
}

func TestEveryRuleIsToldAndCounted(t *testing.T) {
	seen := map[string][]string{}
	for _, test := range broken() {
		wire := "openai"
		if test.path == anthropic {
			wire = "anthropic"
		}
		if !slices.Contains(seen[wire], test.rule) {
			seen[wire] = append(seen[wire], test.rule)
		}
		t.Run(wire+"/"+test.rule, func(t *testing.T) {
			options, headers, status := fake.ModelOptions{}, []string(nil), http.StatusBadRequest
			switch test.rule {
			case "key":
				options.Key, status = "another", http.StatusUnauthorized
			case "version":
				headers = []string{"Anthropic-Version", ""}
			case "size":
				status = http.StatusRequestEntityTooLarge
			case "address":
				status = http.StatusNotFound
			}
			model, url := start(t, options)
			got := post(t, url+test.path, test.body, headers...)
			message, _ := got.at(t, "error", "message").(string)
			if got.status != status || !strings.Contains(message, test.says) {
				t.Errorf("got %d %.300s; want %d and %q", got.status, got.body, status, test.says)
			}
			if kind := got.at(t, "error", "type"); status == http.StatusBadRequest && kind != "invalid_request_error" {
				t.Errorf("the type is %v", kind)
			}
			if diff := cmp.Diff(map[string]int{wire + "/" + test.rule: 1}, model.Faults()); diff != "" {
				t.Errorf("what is counted (-want +got):\n%s", diff)
			}
			if requests := model.Requests(); status == http.StatusBadRequest && (len(requests) != 1 || requests[0].Refused != message || requests[0].Rule != test.rule) {
				t.Errorf("recorded: %+v", requests)
			}
		})
	}
	for wire, rules := range fake.Rules() {
		slices.Sort(rules)
		slices.Sort(seen[wire])
		if diff := cmp.Diff(rules, seen[wire]); diff != "" {
			t.Errorf("%s: the rules that a request of this test breaks (-want +got):\n%s", wire, diff)
		}
	}
}

// A model that is not there breaks a rule as well, and what a script refuses does not.
func TestWhatAScriptRefusesIsNoFault(t *testing.T) {
	script, err := fake.ParseScript([]byte(`rules: [{match: {exact: x}, respond: {status: 400}}]`))
	if err != nil {
		t.Fatal(err)
	}
	model, url := start(t, fake.ModelOptions{Models: []string{"m"}, Script: script})
	for _, path := range []string{openAI, anthropic} {
		post(t, url+path, strings.Replace(openAIBody(user("x")), openAITools, "", 1))
		post(t, url+path, `{"model":"other","max_tokens":1,"messages":[`+user("x")+`]}`)
	}
	if diff := cmp.Diff(map[string]int{"openai/model": 1, "anthropic/model": 1}, model.Faults()); diff != "" {
		t.Error(diff)
	}
}

func TestWhatTheRealOnesTakeIsTaken(t *testing.T) {
	model, url := start(t, fake.ModelOptions{})
	image := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + pixel + `"}}`
	for path, bodies := range map[string][]string{
		openAI: {
			openAIBody(`{"role":"system","content":"s"},{"role":"developer","content":[{"type":"text","text":"d"}]},` + user("x") + "," + user("y")),
			openAIBody(`{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + pixel + `"}}]}`),
			openAIBody(user("x") + "," + called + "," + answered + `,{"role":"assistant","content":"so"}`),
			with(openAIBody(user("x")), `"stream":true,"stream_options":{"include_usage":true},"prompt_cache_key":"k","temperature":0,"tool_choice":"auto"`),
		},
		anthropic: {
			with(anthropicBody(said(`{"type":"text","text":"x"}`, marked)), `"system":[`+marked+`],"tools":[{"name":"t","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral","ttl":"1h"}}]`),
			anthropicBody(said(image, `{"type":"text","text":"x"}`)),
			anthropicBody(user("x") + "," + used + "," + strings.Replace(resulted, `"ok"`, `[`+image+`]`, 1)),
			anthropicBody(user("x") + "," + used + "," + strings.Replace(resulted, `}]}`, `},{"type":"text","text":"t"}]}`, 1)),
			with(plainThinking, `"stream":true`),
		},
	} {
		for _, body := range bodies {
			if got := post(t, url+path, body); got.status != http.StatusOK {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		}
	}
	if faults := model.Faults(); len(faults) != 0 {
		t.Errorf("counted: %v", faults)
	}
}

const plainThinking = `{"model":"m","max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"x"}]}`

// What it thought goes back with the call as it is, and no other way.
func TestThoughtsComeBackSigned(t *testing.T) {
	model, url := start(t, fake.ModelOptions{Thinks: true})
	first := post(t, url+anthropic, anthropicBody(user("run: ls")))
	blocks := string(first.body[strings.Index(string(first.body), `"content":[`)+len(`"content":[`) : strings.Index(string(first.body), `],"id"`)])
	id, _ := first.at(t, "content", 2, "id").(string)
	if first.at(t, "content", 0, "type") != "thinking" || first.at(t, "content", 1, "type") != "redacted_thinking" || id == "" {
		t.Fatalf("%s", first.body)
	}
	again := func(blocks string) reply {
		return post(t, url+anthropic, anthropicBody(user("run: ls")+`,{"role":"assistant","content":[`+blocks+`]},`+strings.Replace(resulted, `"a"`, `"`+id+`"`, 1)))
	}
	if got := again(blocks); got.status != http.StatusOK {
		t.Errorf("%s: %s", blocks, got.body)
	}
	if got := again(strings.Replace(blocks, "This wants", "That wants", 1)); got.status != http.StatusBadRequest {
		t.Errorf("a changed thought was taken: %s", got.body)
	}
	streamed := post(t, url+anthropic, strings.Replace(anthropicBody(user("run: ls")), `"model"`, `"stream":true,"model"`, 1))
	for _, part := range []string{`"type":"thinking_delta"`, `"type":"signature_delta"`, `"type":"redacted_thinking"`, `"type":"input_json_delta"`} {
		if !strings.Contains(string(streamed.body), part) {
			t.Errorf("the stream has no %s: %s", part, streamed.body)
		}
	}
	if diff := cmp.Diff(map[string]int{"anthropic/signature": 1}, model.Faults()); diff != "" {
		t.Error(diff)
	}
}
