package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/functions/reaper-cron/internal/reap"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/driver"
)

type config struct {
	DatabaseURL harness.Secret
	BrokerURL   string
	Direct      map[reap.Sink]string // where an event goes that the broker does not deliver
	Batch       int                  // rows an item takes at a time
	Stay        time.Duration        // how long a request stays for short timers; 0: one pass
	Sandbox     driver.Options
}

// maxStay leaves a request time for its pass within the shell's own deadline.
const maxStay = 120 * time.Second

func parseConfig(getenv func(string) string) (config, error) {
	c := function.NewConfig(getenv)
	cfg := config{
		DatabaseURL: harness.Secret(c.Required("DATABASE_URL", "the PostgreSQL connection string")),
		BrokerURL:   c.Required("BROKER_URL", "where events are published"),
		Direct:      sinks(c),
		Batch:       c.Int("SWEEP_BATCH", 200, 1),
		Sandbox:     driver.Read(c),
	}
	text := c.Text("STAY", "55s")
	stay, err := time.ParseDuration(text)
	if err != nil || stay < 0 || stay > maxStay {
		c.Problem("STAY", fmt.Sprintf("is %q: use 0 (one pass) to %s", text, maxStay))
	}
	cfg.Stay = stay
	return cfg, c.Err()
}

// sinks reads DIRECT_SINKS: type=url,type/channel=url.
func sinks(c *function.Config) map[reap.Sink]string {
	direct := map[reap.Sink]string{}
	for entry := range strings.SplitSeq(c.Text("DIRECT_SINKS", ""), ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		heard, sink, _ := strings.Cut(entry, "=")
		name, channel, ofOne := strings.Cut(heard, "/")
		of := harness.Channel(strings.ToUpper(channel))
		u, err := url.Parse(sink)
		switch {
		case !slices.Contains(event.Types(), event.Type(name)):
			c.Problem("DIRECT_SINKS", fmt.Sprintf("names %q, which is no event type: write ai.tuluat.session.due.v1=http://agent-step...", name))
		case ofOne && !of.Known():
			c.Problem("DIRECT_SINKS", fmt.Sprintf("names %q, which is no channel: write %s/telegram=http://telegram-ingest-events...", channel, name))
		case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
			c.Problem("DIRECT_SINKS", fmt.Sprintf("has no absolute http or https URL for %s", name))
		default:
			direct[reap.Sink{Type: event.Type(name), Channel: of}] = sink
		}
	}
	return direct
}
