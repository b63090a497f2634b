package whatsapp

import (
	"encoding/json"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The outcome of a question answers its card: several may look alike.
func TestOutcomeOfACard(t *testing.T) {
	for card, want := range map[string]string{"wamid.CARD": "wamid.CARD", "": ""} {
		p := newProvider(t, nil)
		p.send(account(nil), claim(func(c *postgres.ReplyClaim) {
			c.Kind, c.Text = harness.ReplyDecision, "Agent a asks.\nApproved by ann"
			if card != "" {
				c.Card = &postgres.SentCard{ProviderID: card, Text: "Agent a asks."}
			}
		}))
		var sent struct {
			Context struct {
				MessageID string `json:"message_id"`
			} `json:"context"`
		}
		if err := json.Unmarshal(p.calls()[0].body, &sent); err != nil || sent.Context.MessageID != want {
			t.Errorf("card %q: the outcome answers %q, %v", card, sent.Context.MessageID, err)
		}
	}
}
