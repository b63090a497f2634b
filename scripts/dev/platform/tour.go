package main

import (
	"log/slog"
	"net/http"
	"os/exec"

	"tuluat.ai/harness/scripts/dev/tour"
	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/harness"
)

// The agents that the tour is about.
const (
	tourCoder = "python-coder"  // answers on WhatsApp
	tourAsker = "careful-shell" // asks before it runs anything, on Telegram
)

// guide is the tour with its address; nil where there is none.
type guide struct {
	tour   *tour.Tour
	served *loopback
}

// serveTour serves the tour at an address of its own. It returns nil where what
// it leads through is not there: the agents of the samples with their channels,
// both messengers played, the management API.
func serveTour(set *manifest.Set, found *channels, m *messengers, management *api, url string, log *slog.Logger) (*guide, error) {
	whatsapp, telegram := found.account(tourCoder, harness.ChannelWhatsApp), found.account(tourAsker, harness.ChannelTelegram)
	if management == nil || m.whatsapp == nil || m.telegram == nil || whatsapp == "" || telegram == "" {
		return nil, nil
	}
	t := tour.New(tour.Options{
		URL: url, TokenFile: management.tokenFile, Console: serves(set, consolePath),
		WhatsApp: tour.Messenger{URL: m.fakes.WhatsApp, Agent: tourCoder, Account: whatsapp, Lines: m.whatsapp.lines},
		Telegram: tour.Messenger{URL: m.fakes.Telegram, Agent: tourAsker, Account: telegram, Lines: m.telegram.lines},
		Log:      log,
	})
	served, err := serveLoopback(t.Handler(), log)
	if err != nil {
		return nil, err
	}
	return &guide{t, served}, nil
}

// consolePath is what the web console's pages begin with.
const consolePath = "/console/"

func serves(set *manifest.Set, path string) bool {
	for _, service := range set.Services {
		if service.Serves(path) != "" {
			return true
		}
	}
	return false
}

// account is that of an agent on a channel; empty: it has none.
func (c *channels) account(agent string, kind harness.Channel) string {
	for _, one := range c.all().others[agent] {
		if one.Type == kind {
			return one.Account
		}
	}
	return ""
}

// url is where the tour is; empty: there is none.
func (g *guide) url() string {
	if g == nil {
		return ""
	}
	return g.served.url
}

// saw tells the tour what came through the public entry.
func (g *guide) saw(r *http.Request, status int) {
	if g != nil {
		g.tour.Saw(r, status)
	}
}

func (g *guide) close() error {
	if g == nil {
		return nil
	}
	return g.served.close()
}

// show starts the browser that a person asked for, which goes on by itself.
func (g *guide) show(browser string, log *slog.Logger) {
	if g == nil || browser == "" {
		return
	}
	cmd := exec.Command(browser, g.url())
	if err := cmd.Start(); err != nil {
		log.Error("the tour's browser does not start", "err", err)
		return
	}
	go func() { _ = cmd.Wait() }() // whenever the person closes it
}
