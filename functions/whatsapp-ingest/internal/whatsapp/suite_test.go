package whatsapp

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/channel/channeltest"
	"tuluat.ai/harness/shared/harness"
)

type served map[string]*channel.Account

func (s served) All(context.Context) (map[string]*channel.Account, error) { return s, nil }

func suiteAccount(name string, secrets ...harness.Secret) *channel.Account {
	return &channel.Account{
		Name: name, Agent: "coder", Spec: harness.ChannelSpec{Type: harness.ChannelWhatsApp, Account: name},
		Keys: map[channel.Role][]harness.Secret{channel.RoleAppSecret: secrets, channel.RoleAccessToken: {"access-token-of-the-suite"}},
	}
}

func TestSuite(t *testing.T) {
	channeltest.TestInbound(t, channeltest.Inbound{
		New: func(accounts map[string]*channel.Account) channel.Adapter {
			return NewAdapter(served(accounts), time.Now)
		},
		Ours:   suiteAccount("100000000000001", "new-secret", "old-secret"),
		Theirs: suiteAccount("100000000000002", "their-secret"),
		Sign: func(a *channel.Account, key int, body []byte) *http.Request {
			mac := hmac.New(sha256.New, []byte(a.Keys[channel.RoleAppSecret][key].Reveal()))
			mac.Write(body)
			r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
			r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
			return r
		},
		Message: func(a *channel.Account, id, text string) []byte {
			encoded, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Appendf(nil, `{"object":"whatsapp_business_account","entry":[{"id":"2","changes":[{"field":"messages","value":{"messaging_product":"whatsapp",
				"metadata":{"display_phone_number":"15550009999","phone_number_id":%q},"contacts":[{"wa_id":"15550001111"}],
				"messages":[{"from":"15550001111","id":"wamid.%s","timestamp":"1788000000","type":"text","text":{"body":%s}}]}}]}]}`, a.Name, id, encoded)
		},
	})
	channeltest.TestOutbound(t, channeltest.Outbound{
		New: func(baseURL string) channel.Transport {
			g := NewGraph(GraphOptions{BaseURL: baseURL, Version: "v25.0", Log: slog.New(slog.DiscardHandler), MaxMedia: 1 << 20})
			t.Cleanup(g.Close)
			return g
		},
		Account: suiteAccount("100000000000001", "new-secret"), Secret: "access-token-of-the-suite", Address: "15550001111",
		Sent: `{"messaging_product":"whatsapp","messages":[{"id":"wamid.OUT"}]}`,
	})
}
