package main

import (
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

type config struct {
	DatabaseURL harness.Secret
}

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{DatabaseURL: harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string"))}
	return cfg, c.Err()
}
