package main

import (
	"net/url"
	"os"
	"strings"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/functions/management-api/internal/console"
	"tuluat.ai/harness/functions/management-api/internal/logs"
	"tuluat.ai/harness/shared/api/limits"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

// Where agents and workflows are, and who knows callers.
const (
	sourceKubernetes = "kubernetes"
	sourceFolder     = "folder"

	accessKubernetes = "kubernetes" // the API server: TokenReview and SubjectAccessReview
	accessStatic     = "static"     // tokens of a file
)

type config struct {
	databaseURL     harness.Secret
	brokerURL       string
	source          string
	agentsDir       string // folder
	agentsNamespace string // kubernetes
	imagesDir       string // kubernetes: a file per image of the platform
	access          string
	audiences       []string       // kubernetes: whom a token must be made for
	tokens          harness.Secret // static
	rate            access.Limits  // of one caller
	agentLimits     v1alpha1.Limits
	streamTime      time.Duration
	openDocs        bool
	temporal        bool // sessions may name a Temporal workflow
	archive         archive.Options
	console         consoleConfig
}

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		databaseURL:     harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		brokerURL:       c.Required("BROKER_URL", "where events are published"),
		source:          c.OneOf("AGENTS_SOURCE", sourceFolder, sourceFolder, sourceKubernetes),
		access:          c.OneOf("ACCESS", accessStatic, accessStatic, accessKubernetes),
		agentsNamespace: c.Text("AGENTS_NAMESPACE", "tuluat-agents"),
		imagesDir:       c.Text("SANDBOX_IMAGES_DIR", ""),
		rate: access.Limits{
			PerSecond: float64(c.Int("RATE_LIMIT", 50, 1)),
			Burst:     c.Int("RATE_BURST", 100, 1),
		},
		agentLimits: limits.Read(c),
		streamTime:  c.Duration("STREAM_TIME", api.StreamTime),
		openDocs:    c.OneOf("OPEN_DOCS", "false", "false", "true") == "true",
		temporal:    c.OneOf("TEMPORAL_BRIDGE", "false", "false", "true") == "true",
		archive:     archive.Read(c),
		console:     readConsole(c),
	}
	if cfg.source == sourceFolder {
		cfg.agentsDir = c.Required("AGENTS_DIR", "the folder of AiAgent YAML")
	}
	if cfg.access == accessKubernetes {
		for audience := range strings.SplitSeq(c.Text("TOKEN_AUDIENCES", ""), ",") {
			if audience = strings.TrimSpace(audience); audience != "" {
				cfg.audiences = append(cfg.audiences, audience)
			}
		}
	} else {
		cfg.tokens = tokens(c)
	}
	return cfg, c.Err()
}

// openArchive returns the bucket of the archive, nil if there is none.
func openArchive(o archive.Options, env function.Env) (logs.Objects, error) {
	if !o.Enabled() {
		return nil, nil
	}
	bucket, err := archive.Open(o)
	if err != nil {
		return nil, err // and not a typed nil
	}
	env.OnExit(bucket.Close)
	return bucket, nil
}

// tokens are those of the file, else the one of the variable.
func tokens(c *function.Config) harness.Secret {
	const variable = "MANAGEMENT_TOKEN"
	file := c.Text(variable+"_FILE", "")
	if file == "" {
		token := c.Required(variable, "the token of who may call (or "+variable+"_FILE, a file of them)")
		return harness.Secret(token)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		c.Problem(variable+"_FILE", "names a file that cannot be read")
		return ""
	}
	return harness.Secret(text)
}

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
	file := c.Text("OIDC_CLIENT_SECRET_FILE", "")
	if file == "" {
		return c.Secret("OIDC_CLIENT_SECRET")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		c.Problem("OIDC_CLIENT_SECRET_FILE", "names a file that cannot be read")
	}
	return harness.Secret(strings.TrimSpace(string(text)))
}
