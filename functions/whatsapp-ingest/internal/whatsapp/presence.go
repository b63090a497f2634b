package whatsapp

import (
	"context"
	"strings"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Show marks the message as read, and every one before it, and shows "typing".
// One call does both, there is none for typing alone; it lasts until the reply,
// at most 25 seconds. Groups have neither.
func (g *Graph) Show(ctx context.Context, account *channel.Account, m *postgres.Received, _ bool) error {
	if m.ProviderID == "" || strings.HasPrefix(m.Address, groupPrefix) || strings.HasPrefix(m.Session.Chat, groupPrefix) || account.Key(channel.RoleAccessToken) == "" {
		return nil
	}
	r := g.postJSON(ctx, account, outgoing{Status: "read", MessageID: m.ProviderID, Typing: &outIndicator{Type: "text"}})
	switch {
	case r.err != nil:
		return harness.Wrap(harness.Unavailable, r.err, "WhatsApp was not told that the message is read")
	case r.status/100 != 2:
		return harness.Errorf(r.errorKind(), "WhatsApp was not told that the message is read: %s", refusal(r, r.fault()))
	}
	return nil
}

// Every is how often Show is called to keep "typing" alive.
func (g *Graph) Every() time.Duration { return 20 * time.Second }

// Longest is how long "typing" is kept alive.
func (g *Graph) Longest() time.Duration { return 2 * time.Minute }
