package main

import (
	"fmt"
	"log/slog"

	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/shared/harness"
)

// model is the language model the agents think with.
type model struct {
	provider, name             string
	openaiURL, openaiKey       string
	anthropicURL, anthropicKey string
	standIn                    bool // the deterministic one
}

// Default models, where a key is set and no name.
const (
	defaultOpenAI    = "gpt-5-mini"
	defaultAnthropic = "claude-sonnet-4-5"
	standInName      = "tuluat-stand-in"
)

// chooseModel goes by the variables a person has set: a key or a base URL is a
// model; without any, the deterministic one stands in.
func chooseModel(getenv func(string) string) (model, error) {
	m := model{
		provider: getenv("MODEL_PROVIDER"), name: getenv("MODEL_NAME"),
		openaiURL: getenv("OPENAI_BASE_URL"), openaiKey: getenv("OPENAI_API_KEY"),
		anthropicURL: getenv("ANTHROPIC_BASE_URL"), anthropicKey: getenv("ANTHROPIC_API_KEY"),
	}
	openai, anthropic := m.openaiURL != "" || m.openaiKey != "", m.anthropicURL != "" || m.anthropicKey != ""
	if !openai && !anthropic {
		return model{provider: string(harness.ProviderOpenAI), name: standInName, standIn: true}, nil
	}
	if m.provider == "" {
		m.provider = string(harness.ProviderAnthropic)
		if openai {
			m.provider = string(harness.ProviderOpenAI)
		}
	}
	if m.name == "" {
		switch {
		case m.provider == string(harness.ProviderAnthropic):
			m.name = defaultAnthropic
		case m.openaiURL != "":
			return m, fmt.Errorf("OPENAI_BASE_URL is set: say which of its models to use, for example MODEL_NAME=qwen3")
		default:
			m.name = defaultOpenAI
		}
	}
	return m, nil
}

// serveModel starts the deterministic model if it stands in, and points both
// providers at it, so that an agent that names either is answered.
func serveModel(m *model, log *slog.Logger) (*standIn, error) {
	if !m.standIn {
		return &standIn{}, nil
	}
	served, err := serveLoopback(fake.NewModel(fake.ModelOptions{Log: log}), log)
	if err != nil {
		return nil, err
	}
	const key = "no-key-is-needed"
	m.openaiURL, m.openaiKey = served.url+"/v1", key
	m.anthropicURL, m.anthropicKey = served.url, key
	return &standIn{served}, nil
}

// standIn is the running deterministic model, or none.
type standIn struct{ served *loopback }

func (s *standIn) close() error {
	if s.served == nil {
		return nil
	}
	return s.served.close()
}

// secrets are the keys of the Secrets that the YAML refers to, by NAME/KEY.
// databases has each function's own connection string.
func (m model) secrets(databases map[string]string) map[string]string {
	all := map[string]string{
		"model/provider": m.provider, "model/name": m.name,
		"model/openai-base-url": m.openaiURL, "model/openai-api-key": m.openaiKey,
		"model/anthropic-base-url": m.anthropicURL, "model/anthropic-api-key": m.anthropicKey,
	}
	for function, url := range databases {
		all["database/"+function] = url
	}
	for key, value := range all {
		if value == "" {
			delete(all, key)
		}
	}
	return all
}

// String says which model is used, for a person.
func (m model) String() string {
	if m.standIn {
		return "deterministic stand-in (set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL for a real one)"
	}
	return m.provider + " " + m.name
}
