package main

import (
	"encoding/json"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret/source"
)

type config struct {
	DatabaseURL   harness.Secret
	BrokerURL     string
	Lease         time.Duration // of a session; extended while a step works
	ContextTokens int64         // of history sent to the model, estimated
	Model         model.Config
	Prices        map[string]harness.Price // by model
	Secrets       source.Options           // of agents
	Archive       archive.Options          // of files; without a bucket models are told of images in words
	AllowPrivate  bool                     // agents' servers may have private addresses
}

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		DatabaseURL:   harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		BrokerURL:     c.Required("BROKER_URL", "where events are published"),
		Lease:         c.Duration("LEASE", time.Minute),
		Secrets:       source.Read(c, getenv),
		Archive:       archive.Read(c),
		AllowPrivate:  c.OneOf("REMOTE_ALLOW_PRIVATE", "false", "true", "false") == "true",
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
	prices, err := parsePrices(c.Text("MODEL_PRICES", ""))
	if err != nil {
		c.Problem("MODEL_PRICES", harness.MessageOf(err))
	}
	cfg.Prices = prices
	return cfg, c.Err()
}

// parsePrices reads {"MODEL": {"input": "2.50", "output": "10.00"}}: what a million
// tokens cost, and where it differs from input, in cachedInput and cacheWrite what
// those cost that the provider had kept, and that it keeps. Without these they cost
// as input: rather too much is counted than too little.
func parsePrices(text string) (map[string]harness.Price, error) {
	if text == "" {
		return nil, nil
	}
	var table map[string]struct{ Input, Output, CachedInput, CacheWrite *string }
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&table); err != nil || decoder.More() {
		return nil, harness.Errorf(harness.Invalid, "is not a JSON object that gives each model, by its name, decimal strings input and output, and may give cachedInput and cacheWrite")
	}
	prices := map[string]harness.Price{}
	for name, of := range table {
		if of.Input == nil || of.Output == nil {
			return nil, harness.Errorf(harness.Invalid, "model %s needs both input and output", name)
		}
		var price harness.Price
		for _, p := range []struct {
			what string
			text *string
			set  func(harness.Micros)
		}{
			{"input", of.Input, func(m harness.Micros) { price.Input = m }},
			{"output", of.Output, func(m harness.Micros) { price.Output = m }},
			{"cachedInput", of.CachedInput, func(m harness.Micros) { price.CachedInput = &m }},
			{"cacheWrite", of.CacheWrite, func(m harness.Micros) { price.CacheWrite = &m }},
		} {
			if p.text == nil {
				continue
			}
			amount, err := harness.ParseMicros(*p.text)
			if err != nil {
				return nil, harness.Errorf(harness.Invalid, "%s of model %s: %s", p.what, name, harness.MessageOf(err))
			}
			p.set(amount)
		}
		prices[name] = price
	}
	return prices, nil
}

// secrets are the values that must never leave the function.
func (c config) secrets() []harness.Secret {
	return []harness.Secret{c.DatabaseURL, c.Model.OpenAIKey, c.Model.AnthropicKey, c.Archive.SecretKey}
}
