package main

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/harness"
)

// The fakes know the accounts of the agents folder as it is now, and keep their
// people when it changes; a real API's address stands in for a fake.
func TestMessengersFollowTheAgents(t *testing.T) {
	folder := t.TempDir()
	s := &secrets{folder: folder, fixed: map[string]string{"w/verify": "v", "w/app": "a", "w/token": "t", "b/token": "7000000001:AAA", "b/secret": "s"}}
	log := slog.New(slog.DiscardHandler)
	m, err := serveMessengers(folder, s, func(string) string { return "" }, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	call := func(method, url, body string, want int) string {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != want {
			t.Fatalf("%s %s: %d %s %v", method, url, response.StatusCode, text, err)
		}
		return string(text)
	}
	if got := call(http.MethodGet, m.urls.WhatsApp+"/_fake/accounts", "", http.StatusServiceUnavailable); got != `{"error":"no agent has an account here"}` {
		t.Errorf("without agents %s", got)
	}
	var shown strings.Builder
	(&console{out: &shown}).ready(&system{messengers: m}, "http://gateway.test", model{standIn: true})
	if strings.Count(shown.String(), m.urls.WhatsApp+"/phone/\n") != 1 || strings.Count(shown.String(), m.urls.Telegram+"/phone/\n") != 1 {
		t.Errorf("ready names the phones: %s", shown.String())
	}

	number := channel{Type: harness.ChannelWhatsApp, Account: "100000000000001", spec: harness.ChannelSpec{
		Account: "100000000000001", VerifyToken: harness.SecretRef{Name: "w", Key: "verify"}, AppSecret: harness.SecretRef{Name: "w", Key: "app"}, AccessToken: harness.SecretRef{Name: "w", Key: "token"},
	}}
	second := number
	second.Account, second.spec.Account = "100000000000002", "100000000000002"
	bot := channel{Type: harness.ChannelTelegram, Account: "a_bot", spec: harness.ChannelSpec{Account: "a_bot", BotToken: harness.SecretRef{Name: "b", Key: "token"}, WebhookSecret: harness.SecretRef{Name: "b", Key: "secret"}}}
	register := func(all ...channel) {
		t.Helper()
		if err := m.register("http://gateway.test", map[string][]channel{"agent": all}); err != nil {
			t.Fatal(err)
		}
	}
	register(number, bot)
	if got := call(http.MethodGet, m.urls.WhatsApp+"/_fake/accounts", "", http.StatusOK); !strings.Contains(got, "http://gateway.test/api/v1/channels/whatsapp/webhook") {
		t.Errorf("accounts %s", got)
	}
	if got := call(http.MethodGet, m.urls.Telegram+"/bot7000000001:AAA/getWebhookInfo", "", http.StatusOK); !strings.Contains(got, "http://gateway.test/api/v1/channels/telegram/webhook/a_bot") {
		t.Errorf("webhook %s", got)
	}
	if got := call(http.MethodGet, m.urls.WhatsApp+"/_fake/groups", "", http.StatusOK); !strings.Contains(got, "Weekend") {
		t.Errorf("who opens a phone finds nobody to write as: %s", got)
	}
	call(http.MethodPost, m.urls.WhatsApp+"/_fake/people", `{"phone":"15550003333","name":"Cleo"}`, http.StatusOK)
	register(number, number, second) // one twice: the second agent of a conflict
	if got := call(http.MethodGet, m.urls.WhatsApp+"/_fake/accounts", "", http.StatusOK); !strings.Contains(got, "100000000000002") {
		t.Errorf("accounts %s", got)
	}
	if got := call(http.MethodGet, m.urls.WhatsApp+"/_fake/people", "", http.StatusOK); !strings.Contains(got, "Cleo") {
		t.Errorf("people %s", got)
	}
	call(http.MethodGet, m.urls.Telegram+"/_fake/accounts", "", http.StatusServiceUnavailable)

	real, err := serveMessengers(t.TempDir(), s, func(name string) string {
		return map[string]string{"TELEGRAM_API_URL": "https://api.telegram.org"}[name]
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer real.close()
	if real.telegram != nil || real.fakes.Telegram != "" || real.environment("telegram-ingest")["TELEGRAM_API_URL"] != "https://api.telegram.org" {
		t.Errorf("beside a real API: %+v", real.fakes)
	}
	if got := real.String(); !strings.HasSuffix(got, ", Telegram is the real one at https://api.telegram.org") {
		t.Errorf("beside a real API: %s", got)
	}
}
