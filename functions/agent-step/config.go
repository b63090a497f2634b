package main

import (
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

type config struct {
	DatabaseURL   harness.Secret
	BrokerURL     string
	Lease         time.Duration // of a session; extended while a step works
	ContextTokens int64         // of history sent to the model, estimated
	Model         model.Config
}

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		DatabaseURL:   harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		BrokerURL:     c.Required("BROKER_URL", "where events are published"),
		Lease:         c.Duration("LEASE", time.Minute),
		ContextTokens: int64(c.Int("MODEL_CONTEXT_TOKENS", 100_000, 1000)),
		Model: model.Config{
			Provider:         harness.Provider(c.OneOf("MODEL_PROVIDER", string(harness.ProviderOpenAI), string(harness.ProviderOpenAI), string(harness.ProviderAnthropic))),
			Name:             c.Required("MODEL_NAME", "the model of agents that name none"),
			OpenAIBaseURL:    c.Text("OPENAI_BASE_URL", ""),
			OpenAIKey:        c.Secret("OPENAI_API_KEY"),
			AnthropicBaseURL: c.Text("ANTHROPIC_BASE_URL", ""),
			AnthropicKey:     c.Secret("ANTHROPIC_API_KEY"),
		},
	}
	return cfg, c.Err()
}

// secrets are the values that must never leave the function.
func (c config) secrets() []harness.Secret {
	return []harness.Secret{c.DatabaseURL, c.Model.OpenAIKey, c.Model.AnthropicKey}
}
