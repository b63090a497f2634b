package devstate

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// Channel is one way to reach an agent over a messenger.
type Channel struct {
	Type        harness.Channel   `json:"type"`
	Account     string            `json:"account"`               // the phone number's id, the bot's username
	Transport   harness.Transport `json:"transport,omitempty"`   // of a bot; empty: webhook
	SecretFiles map[Role]string   `json:"secretFiles,omitempty"` // absolute, or from the state's folder
}

// Role is what a secret of a Channel is for.
type Role string

// The roles. The words are those of channel routes.
const (
	VerifyToken   Role = "VERIFY_TOKEN"
	AppSecret     Role = "APP_SECRET"
	AccessToken   Role = "ACCESS_TOKEN"
	BotToken      Role = "BOT_TOKEN"
	WebhookSecret Role = "WEBHOOK_SECRET"
	PairingCode   Role = "PAIRING_CODE"
)

// Services are the addresses of messengers' APIs, or of their fakes.
type Services struct {
	WhatsApp string `json:"whatsapp,omitempty"`
	Telegram string `json:"telegram,omitempty"`
}

// Of returns the address for a channel; empty: none.
func (s Services) Of(channel harness.Channel) string {
	switch channel {
	case harness.ChannelWhatsApp:
		return s.WhatsApp
	case harness.ChannelTelegram:
		return s.Telegram
	}
	return ""
}

// Everyone lists every agent that has a hook or a channel, sorted.
func (s *State) Everyone() []string {
	all := map[string]bool{}
	for agent := range s.Webhooks {
		all[agent] = true
	}
	for agent := range s.Channels {
		all[agent] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// Channel returns agent's channel of a type: the first, or the one of account.
// Nothing of that kind is harness.NotFound.
func (s *State) Channel(agent string, kind harness.Channel, account string) (Channel, error) {
	for _, c := range s.Channels[agent] {
		if c.Type == kind && (account == "" || c.Account == account) {
			return c, nil
		}
	}
	if !slices.Contains(s.Everyone(), agent) {
		return Channel{}, harness.Errorf(harness.NotFound, "there is no agent %q here that can be talked to; known: %s", agent, list(s.Everyone()))
	}
	var having []string
	for name, channels := range s.Channels {
		if slices.ContainsFunc(channels, func(c Channel) bool { return c.Type == kind }) {
			having = append(having, name)
		}
	}
	slices.Sort(having)
	return Channel{}, harness.Errorf(harness.NotFound, "agent %q has no channel of type %s here; agents that have one: %s", agent, kind, list(having))
}

// Bot returns the channel of a bot, whoever's it is. Usernames are the same in
// any case.
func (s *State) Bot(username string) (Channel, bool) {
	for _, agent := range slices.Sorted(maps.Keys(s.Channels)) {
		for _, c := range s.Channels[agent] {
			if c.Type == harness.ChannelTelegram && strings.EqualFold(c.Account, username) {
				return c, true
			}
		}
	}
	return Channel{}, false
}

// Bots lists the usernames of all bots, sorted, in words: "none" if there is none.
func (s *State) Bots() string {
	var bots []string
	for _, channels := range s.Channels {
		for _, c := range channels {
			if c.Type == harness.ChannelTelegram {
				bots = append(bots, c.Account)
			}
		}
	}
	slices.Sort(bots)
	return list(bots)
}

// Secret reads the newest secret of a channel's role. One that is not named
// there is empty.
func (s *State) Secret(c Channel, role Role) (harness.Secret, error) {
	file := c.SecretFiles[role]
	if file == "" {
		return "", nil
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(s.file), file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return first(harness.Secret(text)), nil
}
