package main

import (
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

type config struct {
	DatabaseURL harness.Secret
	BrokerURL   string
	AgentsDir   string
	Limits      v1alpha1.Limits
}

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		DatabaseURL: harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		BrokerURL:   c.Required("BROKER_URL", "where events are published"),
		AgentsDir:   c.Required("AGENTS_DIR", "the folder of AiAgent YAML"),
	}
	cfg.Limits = v1alpha1.DefaultLimits()
	cfg.Limits.PhoneNumberID = c.Text("WHATSAPP_PHONE_NUMBER_ID", "")
	return cfg, c.Err()
}
