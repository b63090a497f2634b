package telegram

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/channel/channeltest"
	"tuluat.ai/harness/shared/harness"
)

type served map[string]*channel.Account

func (s served) All(context.Context) (map[string]*channel.Account, error) { return s, nil }

func suiteAccount(name string, secrets ...harness.Secret) *channel.Account {
	return &channel.Account{
		Name: name, Agent: "coder", Spec: harness.ChannelSpec{Type: harness.ChannelTelegram, Account: name},
		Keys: map[channel.Role][]harness.Secret{channel.RoleWebhookSecret: secrets, channel.RoleBotToken: {"7000000001:token-of-the-suite"}},
	}
}

func TestSuite(t *testing.T) {
	channeltest.TestInbound(t, channeltest.Inbound{
		New:    func(accounts map[string]*channel.Account) channel.Adapter { return NewAdapter(served(accounts)) },
		Ours:   suiteAccount("our_bot", "new-secret", "old-secret"),
		Theirs: suiteAccount("their_bot", "their-secret"),
		Sign: func(a *channel.Account, key int, body []byte) *http.Request {
			r := httptest.NewRequest(http.MethodPost, Path+"our_bot", bytes.NewReader(body))
			r.SetPathValue("bot", "our_bot")
			r.Header.Set("X-Telegram-Bot-Api-Secret-Token", a.Keys[channel.RoleWebhookSecret][key].Reveal())
			return r
		},
		Message: func(_ *channel.Account, id, text string) []byte {
			encoded, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Appendf(nil, `{"update_id":91000000%s,"message":{"message_id":10%s,"from":{"id":5000000001,"is_bot":false,"first_name":"Ada"},
				"chat":{"id":5000000001,"type":"private"},"date":1788000000,"text":%s}}`, id, id, encoded)
		},
	})
	channeltest.TestOutbound(t, channeltest.Outbound{
		New: func(baseURL string) channel.Transport {
			client := NewClient(baseURL)
			t.Cleanup(client.Close)
			return NewTransport(client, nil, slog.New(slog.DiscardHandler))
		},
		Account: suiteAccount("our_bot", "new-secret"), Secret: "7000000001:token-of-the-suite", Address: "5000000001",
		Sent: `{"ok":true,"result":{"message_id":77,"chat":{"id":5000000001}}}`,
	})
}
