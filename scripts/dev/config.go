package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

type config struct {
	repository string
	home       string // everything that is kept
	agents     string // folder of AiAgent YAML
	address    string // the public entry
	model      modelConfig
}

// modelConfig says which model thinks; provider "" is the deterministic one.
type modelConfig struct {
	provider, name, openAIBaseURL, anthropicBaseURL string
	openAIKey, anthropicKey                         harness.Secret
}

// The models used when a key is set and MODEL_NAME is not.
const (
	defaultOpenAI    = "gpt-5-mini"
	defaultAnthropic = "claude-sonnet-4-5"
)

func parseConfig(getenv func(string) string) (config, error) {
	repository, err := repositoryRoot()
	if err != nil {
		return config{}, err
	}
	c := function.NewConfig(getenv)
	port := c.Int("TULUAT_PORT", 8080, 1)
	cfg := config{
		repository: repository,
		home:       absolute(c.Text("TULUAT_HOME", filepath.Join(repository, ".tuluat"))),
		agents:     absolute(c.Text("TULUAT_AGENTS", filepath.Join(repository, "config", "samples"))),
		address:    fmt.Sprintf("127.0.0.1:%d", port),
		model: modelConfig{
			name: c.Text("MODEL_NAME", ""), openAIBaseURL: c.Text("OPENAI_BASE_URL", ""), openAIKey: c.Secret("OPENAI_API_KEY"),
			anthropicBaseURL: c.Text("ANTHROPIC_BASE_URL", ""), anthropicKey: c.Secret("ANTHROPIC_API_KEY"),
		},
	}
	m := &cfg.model
	switch {
	case m.openAIKey != "" || m.openAIBaseURL != "":
		m.provider, m.name = string(harness.ProviderOpenAI), c.Text("MODEL_NAME", defaultOpenAI)
	case m.anthropicKey != "":
		m.provider, m.name = string(harness.ProviderAnthropic), c.Text("MODEL_NAME", defaultAnthropic)
	}
	if info, err := os.Stat(cfg.agents); err != nil || !info.IsDir() {
		c.Problem("TULUAT_AGENTS", cfg.agents+" is no folder: name one with AiAgent YAML files in it")
	}
	if err := portFree(cfg.address); err != nil {
		c.Problem("TULUAT_PORT", err.Error())
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		c.Problem("PATH", "has no bwrap, which local sandboxes need: run scripts/setup.sh, or install the package bubblewrap")
	}
	return cfg, c.Err()
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// portFree says what to do when something listens on address already.
func portFree(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("port of %s is taken: stop what listens there (another `make dev`?), or choose another, as in TULUAT_PORT=8090 make dev", address)
	}
	return l.Close()
}

// repositoryRoot is the folder with go.work at or above the current one.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.work here or above: run this in the repository")
		}
		dir = parent
	}
}
