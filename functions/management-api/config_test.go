package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/function/functiontest"
)

const testToken = "a-token-of-26-characters-0"

func parsed(env map[string]string) (config, error) {
	all := map[string]string{"DATABASE_URL": "postgres://h/d", "BROKER_URL": "http://b", "AGENTS_DIR": "/agents", "MANAGEMENT_TOKEN": testToken}
	for name, value := range env {
		all[name] = value
	}
	return parseConfig(func(name string) string { return all[name] })
}

func TestConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(testToken+"-of-the-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := parsed(nil)
	if err != nil || cfg.tokens.Reveal() != testToken || cfg.openDocs || cfg.streamTime != 590*time.Second || cfg.rate != (access.Limits{PerSecond: 50, Burst: 100}) {
		t.Errorf("by default: %+v, %v", cfg, err)
	}
	cfg, err = parsed(map[string]string{"MANAGEMENT_TOKEN_FILE": file, "OPEN_DOCS": "true", "RATE_LIMIT": "5", "RATE_BURST": "7", "STREAM_TIME": "3s", "MAX_SANDBOXES": "3"})
	if err != nil || !strings.HasSuffix(cfg.tokens.Reveal(), "-of-the-file\n") || !cfg.openDocs || cfg.rate != (access.Limits{PerSecond: 5, Burst: 7}) || cfg.streamTime != 3*time.Second || cfg.agentLimits.Sandboxes != 3 {
		t.Errorf("all set: %+v, %v", cfg, err)
	}
	// With the API server nobody else knows a caller.
	cfg, err = parsed(map[string]string{"ACCESS": "kubernetes", "AGENTS_SOURCE": "kubernetes", "AGENTS_DIR": "", "TOKEN_AUDIENCES": "tuluat, other,"})
	if err != nil || cfg.tokens != "" || cfg.agentsNamespace != "tuluat-agents" || !cmp.Equal(cfg.audiences, []string{"tuluat", "other"}) {
		t.Errorf("on a cluster: %+v, %v", cfg, err)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	_, err := parsed(map[string]string{
		"MANAGEMENT_TOKEN_FILE": "/nowhere/at/all", "OPEN_DOCS": "yes", "RATE_LIMIT": "0", "RATE_BURST": "none", "ACCESS": "open", "AGENTS_SOURCE": "git", "MAX_SANDBOX_CPU": "lots", "STREAM_TIME": "-1s",
	})
	functiontest.Complains(t, err, "MANAGEMENT_TOKEN_FILE", "OPEN_DOCS", "RATE_LIMIT", "RATE_BURST", "ACCESS", "AGENTS_SOURCE", "MAX_SANDBOX_CPU", "STREAM_TIME")
	_, err = parsed(map[string]string{"MANAGEMENT_TOKEN": ""})
	functiontest.Complains(t, err, "MANAGEMENT_TOKEN", "MANAGEMENT_TOKEN_FILE")
}

func TestConsoleConfiguration(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := parsed(nil)
	if err != nil || len(cfg.console.keys) != 0 || cfg.console.oidc.Issuer != "" {
		t.Errorf("by default: %+v, %v", cfg.console, err)
	}
	cfg, err = parsed(map[string]string{
		"CONSOLE_KEY": "the-new-key-of-22-letters, the-old-key-of-22-letters,", "CONSOLE_URL": "https://console.example.com/", "CHANNELS_URL": "http://hooks.example.com:8080",
		"OIDC_ISSUER": "https://issuer.example.com/realm", "OIDC_CLIENT_ID": "tuluat", "OIDC_CLIENT_SECRET_FILE": secret, "CONSOLE_ENTRY_FILE": "/entry",
	})
	c := cfg.console
	if err != nil || len(c.keys) != 2 || c.keys[1].Reveal() != "the-old-key-of-22-letters" || c.url != "https://console.example.com" || c.hooks != "http://hooks.example.com:8080" ||
		c.oidc.Issuer != "https://issuer.example.com/realm" || c.oidc.ClientSecret.Reveal() != "from-a-file" || c.entry != "/entry" {
		t.Errorf("all set: %+v, %v", c, err)
	}
	_, err = parsed(map[string]string{"OIDC_ISSUER": "https://issuer.example.com", "OIDC_CLIENT_SECRET_FILE": "/nowhere/at/all"})
	functiontest.Complains(t, err, "OIDC_CLIENT_ID", "CONSOLE_URL", "OIDC_CLIENT_SECRET_FILE")
	for _, wrong := range []string{"console.example.com", "https://h/path", "ftp://h", "https://user@h", "https://h?a=b"} {
		_, err = parsed(map[string]string{"CONSOLE_URL": wrong, "CHANNELS_URL": wrong})
		functiontest.Complains(t, err, "CONSOLE_URL", "CHANNELS_URL")
	}
}
