package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/functions/reaper-cron/internal/reap"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/driver"
)

type config struct {
	DatabaseURL harness.Secret
	BrokerURL   string
	Direct      map[reap.Sink][]string // where an event goes that the broker does not deliver
	Batch       int                    // rows an item takes at a time
	Stay        time.Duration          // how long a request stays for short timers; 0: one pass
	Sandbox     driver.Options
	Objects     archive.Options // the bucket of the archive
}

// maxStay leaves a request time for its pass within the shell's own deadline.
const maxStay = 120 * time.Second

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		DatabaseURL: harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		BrokerURL:   c.Required("BROKER_URL", "where events are published"),
		Direct:      map[reap.Sink][]string{},
		Batch:       c.Int("SWEEP_BATCH", 200, 1),
		Sandbox:     driver.Read(c),
		Objects:     archive.Read(c),
	}
	sinks(c, "DIRECT_SINKS", c.Text("DIRECT_SINKS", ""), cfg.Direct)
	sinks(c, "MORE_SINKS", c.Text("MORE_SINKS", ""), cfg.Direct)
	text := c.Text("STAY", "55s")
	stay, err := time.ParseDuration(text)
	if err != nil || stay < 0 || stay > maxStay {
		c.Problem("STAY", fmt.Sprintf("is %q: use 0 (one pass) to %s", text, maxStay))
	}
	cfg.Stay = stay
	return cfg, c.Err()
}

// sinks reads the text of a variable, type=url,type/channel=url, into direct.
func sinks(c *function.Config, variable, text string, direct map[reap.Sink][]string) {
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		heard, sink, _ := strings.Cut(entry, "=")
		name, channel, ofOne := strings.Cut(heard, "/")
		of := harness.Channel(strings.ToUpper(channel))
		u, err := url.Parse(sink)
		switch {
		case !slices.Contains(event.Types(), event.Type(name)):
			c.Problem(variable, fmt.Sprintf("names %q, which is no event type: write ai.tuluat.session.due.v1=http://agent-step...", name))
		case ofOne && !of.Known():
			c.Problem(variable, fmt.Sprintf("names %q, which is no channel: write %s/telegram=http://telegram-ingest-events...", channel, name))
		case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
			c.Problem(variable, fmt.Sprintf("has no absolute http or https URL for %s", name))
		default:
			of := reap.Sink{Type: event.Type(name), Channel: of}
			direct[of] = append(direct[of], sink)
		}
	}
}
