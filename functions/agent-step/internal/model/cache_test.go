package model_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/harness"
)

// A provider finds what it has kept by the bytes: those of one question are always
// the same, and those of the next begin with them.
func TestTheSameRequestIsTheSameBytes(t *testing.T) {
	for _, provider := range providers {
		s := serve(t, says(http.StatusOK, answers[provider]))
		client := newClient(t, provider, s.URL, model.Limits{})
		r := everything()
		r.Tools = append(r.Tools, model.Tool{Name: "many", Parameters: map[string]any{
			"type": "object", "properties": map[string]any{"z": map[string]any{"type": "string"}, "a": map[string]any{"type": "number"}, "m": map[string]any{"type": "boolean"}},
		}})
		for range 20 {
			if _, err := client.Complete(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		all := s.requests()
		for _, one := range all[1:] {
			if !bytes.Equal(one.body, all[0].body) {
				t.Fatalf("%s: the same question is other bytes:\n%s\n%s", provider, all[0].body, one.body)
			}
		}
	}
}

// Of the four places that may be marked at most three are, always the newest.
func TestWhatAnthropicKeepsIsMarked(t *testing.T) {
	s := serve(t, says(http.StatusOK, answers[harness.ProviderAnthropic]))
	client := newClient(t, harness.ProviderAnthropic, s.URL, model.Limits{})
	r := everything()
	for range 30 {
		r.Turns = append(r.Turns, model.Turn{Role: model.RoleAssistant, Text: "yes"}, model.Turn{Role: model.RoleUser, Text: "more"})
	}
	for _, system := range []string{"You are terse.", ""} {
		r.System = system
		if _, err := client.Complete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		all := s.requests()
		body := all[len(all)-1].body
		if n := bytes.Count(body, []byte(`"cache_control":{"type":"ephemeral"}`)); n != 3 {
			t.Errorf("%d marks", n)
		}
		var sent struct {
			Tools, System []map[string]any
			Messages      []struct{ Content []map[string]any }
		}
		if err := json.Unmarshal(body, &sent); err != nil {
			t.Fatal(err)
		}
		last := len(sent.Messages) - 1
		if sent.Messages[last].Content[0]["cache_control"] == nil || sent.Messages[last-2].Content[0]["cache_control"] == nil {
			t.Error("the newest messages are not marked")
		}
		if system != "" && sent.System[0]["cache_control"] == nil || system == "" && sent.Tools[0]["cache_control"] == nil {
			t.Error("what every question begins with is not marked")
		}
	}
}

// An agent that has lost its tools has calls in its history. Anthropic refuses those
// where no tool is defined; what cannot be called is not named to the model.
func TestCallsOfToolsThatAreGone(t *testing.T) {
	for _, provider := range providers {
		s := serve(t, says(http.StatusOK, answers[provider]))
		r := everything()
		r.Tools = nil
		if _, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		var sent struct {
			Tools      []struct{ Name string }
			ToolChoice *struct{ Type string } `json:"tool_choice"`
		}
		if err := json.Unmarshal(s.requests()[0].body, &sent); err != nil {
			t.Fatal(err)
		}
		if provider == harness.ProviderOpenAI {
			if sent.Tools != nil || sent.ToolChoice != nil {
				t.Errorf("openai: %+v", sent)
			}
			continue
		}
		if len(sent.Tools) != 1 || sent.Tools[0].Name != "none" || sent.ToolChoice == nil || sent.ToolChoice.Type != "none" {
			t.Errorf("anthropic: %+v", sent)
		}
	}
}

func TestOnlyOpenAIIsGivenACacheKey(t *testing.T) {
	for base, want := range map[string]string{"": "ses_1", "https://api.mistral.ai/v1": ""} {
		var sent struct {
			Key string `json:"prompt_cache_key"`
		}
		client, err := model.New(model.Config{
			Provider: harness.ProviderOpenAI, Name: "m", OpenAIBaseURL: base, OpenAIKey: openAIKey,
			HTTPClient: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
					return nil, err
				}
				body := strings.Replace(answers[harness.ProviderOpenAI], `"total_tokens":14`, `"total_tokens":14,"prompt_tokens_details":{"cached_tokens":7}`, 1)
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
			})},
		})
		if err != nil {
			t.Fatal(err)
		}
		r := hello()
		r.CacheKey = "ses_1"
		res, err := client.Complete(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if sent.Key != want || res.Usage.CacheReadTokens != 7 || res.Usage.InputTokens != 11 {
			t.Errorf("%q: the key is %q, want %q; usage %+v", base, sent.Key, want, res.Usage)
		}
	}
}

func TestImagesAreSent(t *testing.T) {
	r := model.Request{Turns: []model.Turn{{Role: model.RoleUser, Text: "what is this?", Images: []model.Image{{MimeType: "image/png", Data: []byte("PNG")}}}}}
	if with, without := r.EstimatedTokens(), hello().EstimatedTokens(); with < without+1000 {
		t.Errorf("an image counts %d tokens", with-without)
	}
	for provider, want := range map[harness.Provider]string{
		harness.ProviderOpenAI:    `"content":[{"text":"what is this?","type":"text"},{"image_url":{"url":"data:image/png;base64,UE5H"},"type":"image_url"}]`,
		harness.ProviderAnthropic: `{"source":{"data":"UE5H","media_type":"image/png","type":"base64"}`,
	} {
		s := serve(t, says(http.StatusOK, answers[provider]))
		if _, err := newClient(t, provider, s.URL, model.Limits{}).Complete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := string(s.requests()[0].body); !strings.Contains(got, want) {
			t.Errorf("%s: %s", provider, got)
		}
	}
}
