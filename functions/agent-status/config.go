package main

import (
	"strings"

	"tuluat.ai/harness/shared/api/limits"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret/source"
)

// Where agents come from.
const (
	sourceKubernetes = "kubernetes" // AiAgents of a namespace
	sourceFolder     = "folder"     // files
)

type config struct {
	DatabaseURL     harness.Secret
	BrokerURL       string
	Source          string
	AgentsDir       string // folder
	AgentsNamespace string // kubernetes
	ImagesDir       string // kubernetes: a file per image of the platform
	Limits          v1alpha1.Limits
	Secrets         source.Options // credentials of registries
	AllowPrivate    bool           // registries may have private addresses
	PlainHTTP       []string       // registries that are reached without TLS
}

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		DatabaseURL: harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		BrokerURL:   c.Required("BROKER_URL", "where events are published"),
		Source:      c.OneOf("AGENTS_SOURCE", sourceFolder, sourceFolder, sourceKubernetes),
	}
	if cfg.Source == sourceFolder {
		cfg.AgentsDir = c.Required("AGENTS_DIR", "the folder of AiAgent YAML")
	} else {
		cfg.AgentsNamespace = c.Text("AGENTS_NAMESPACE", "tuluat-agents")
		cfg.ImagesDir = c.Text("SANDBOX_IMAGES_DIR", "")
	}
	cfg.Limits = limits.Read(c)
	cfg.Secrets = source.Read(c, getenv)
	cfg.AllowPrivate = c.OneOf("REMOTE_ALLOW_PRIVATE", "false", "true", "false") == "true"
	for host := range strings.SplitSeq(c.Text("REGISTRY_PLAIN_HTTP", ""), ",") {
		if host = strings.TrimSpace(host); host != "" {
			cfg.PlainHTTP = append(cfg.PlainHTTP, host)
		}
	}
	return cfg, c.Err()
}
