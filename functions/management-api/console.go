package main

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/console"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

type consoleConfig struct {
	keys  []harness.Secret
	oidc  console.OIDC
	url   string // of the outside
	hooks string // where web hooks come in
	entry string // the file of a code that signs in once
}

func readConsole(c *function.Config) consoleConfig {
	cfg := consoleConfig{
		url: address(c, "CONSOLE_URL"), hooks: address(c, "CHANNELS_URL"), entry: c.Text("CONSOLE_ENTRY_FILE", ""),
		oidc: console.OIDC{Issuer: c.Text("OIDC_ISSUER", ""), ClientID: c.Text("OIDC_CLIENT_ID", ""), ClientSecret: clientSecret(c)},
	}
	for key := range strings.SplitSeq(c.Text("CONSOLE_KEY", ""), ",") {
		if key = strings.TrimSpace(key); key != "" {
			cfg.keys = append(cfg.keys, harness.Secret(key))
		}
	}
	if cfg.oidc.Issuer != "" && cfg.oidc.ClientID == "" {
		c.Problem("OIDC_CLIENT_ID", "is needed beside OIDC_ISSUER: the client that the issuer knows the console as")
	}
	if cfg.oidc.Issuer != "" && cfg.url == "" {
		c.Problem("CONSOLE_URL", "is needed beside OIDC_ISSUER: the address that browsers come back to, as in https://console.example.com")
	}
	return cfg
}

// address reads one of a scheme and a host, without a path.
func address(c *function.Config, name string) string {
	text := strings.TrimSuffix(c.Text(name, ""), "/")
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
		c.Problem(name, "is no address of a scheme and a host alone, as in https://console.example.com")
		return ""
	}
	return text
}

// clientSecret is that of the file, else of the variable; public clients have none.
func clientSecret(c *function.Config) harness.Secret {
	const variable = "OIDC_CLIENT_SECRET"
	file := c.Text(variable+"_FILE", "")
	if file == "" {
		return c.Secret(variable)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		c.Problem(variable+"_FILE", "names a file that cannot be read")
	}
	return harness.Secret(strings.TrimSpace(string(text)))
}

// openConsole returns the pages over api. It reaches nobody: an issuer is asked when
// somebody wants to sign in by it.
func openConsole(ctx context.Context, cfg config, env function.Env, api http.Handler) (http.Handler, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: http.DefaultTransport.(*http.Transport).Clone()}
	env.OnExit(client.CloseIdleConnections)
	return console.New(console.Options{
		API: api, Keys: cfg.console.keys, OIDC: cfg.console.oidc, URL: cfg.console.url, Hooks: cfg.console.hooks, Entry: cfg.console.entry,
		Log: env.Log, Now: time.Now, Drain: ctx.Done(), Client: client,
	})
}
