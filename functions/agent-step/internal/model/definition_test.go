package model_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
)

// What somebody else's server says of its tools is sent as both providers take it,
// and stays as it is where it is kept.
func TestDefinitionsAreMadeAcceptable(t *testing.T) {
	const given = `{"type":"object","properties":{"id":{"type":"string"},"tags":{"type":"array"}},
		"anyOf":[{"required":["id"]},{"properties":{"id":{"type":"number"},"url":{"type":"array","description":"d"}},"required":["url"]}],"not":{}}`
	const want = `{"type":"object","properties":{"id":{"type":"string"},"tags":{"type":"array","items":{}},"url":{"type":"array","description":"d","items":{}}}}`
	var parameters map[string]any
	if err := json.Unmarshal([]byte(given), &parameters); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("ä", 1025)
	for _, provider := range providers {
		s := serve(t, says(http.StatusOK, answers[provider]))
		req := hello()
		req.Tools = []model.Tool{{Name: "t", Description: long, Parameters: parameters}}
		if _, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		var sent struct {
			Tools []struct {
				Description string          `json:"description"`
				InputSchema json.RawMessage `json:"input_schema"`
				Function    struct {
					Description string          `json:"description"`
					Parameters  json.RawMessage `json:"parameters"`
				} `json:"function"`
			} `json:"tools"`
		}
		if err := json.Unmarshal(s.requests()[0].body, &sent); err != nil {
			t.Fatal(err)
		}
		schema, described, wanted := sent.Tools[0].InputSchema, sent.Tools[0].Description, long
		if provider == harness.ProviderOpenAI {
			schema, described, wanted = sent.Tools[0].Function.Parameters, sent.Tools[0].Function.Description, strings.Repeat("ä", 1023)+"…"
		}
		if diff := cmp.Diff(decode(t, want), decode(t, string(schema))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", provider, diff)
		}
		if described != wanted {
			t.Errorf("%s: the description is %d bytes long", provider, len(described))
		}
	}
	if diff := cmp.Diff(decode(t, given), any(parameters)); diff != "" {
		t.Errorf("what was given is changed (-want +got):\n%s", diff)
	}
}

// With its last block switched off, an agent has no tools, and a history with calls.
func TestCallsAreReadableWithoutTools(t *testing.T) {
	req := hello()
	s := serve(t, says(http.StatusOK, answers[harness.ProviderAnthropic]))
	client := newClient(t, harness.ProviderAnthropic, s.URL, model.Limits{})
	sent := func() (r struct {
		Tools  []struct{ Name string }
		Choice struct{ Type string } `json:"tool_choice"`
	},
	) {
		t.Helper()
		req.Tools = nil
		if _, err := client.Complete(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		all := s.requests()
		if err := json.Unmarshal(all[len(all)-1].body, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := sent(); len(r.Tools) != 0 || r.Choice.Type != "" {
		t.Errorf("without calls: %+v", r)
	}
	req.Turns = append(req.Turns,
		model.Turn{Role: model.RoleAssistant, Calls: []model.Call{{ID: "a", Name: "gone", Arguments: "{}"}}},
		model.Turn{Role: model.RoleTool, Results: []model.Result{{CallID: "a", Text: "ok"}}})
	if r := sent(); len(r.Tools) != 1 || r.Tools[0].Name != "none" || r.Choice.Type != "none" {
		t.Errorf("with calls: %+v", r)
	}
}
