package telegram

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

type known map[string]*channel.Account

func (k known) All(context.Context) (map[string]*channel.Account, error) { return k, nil }

// What Telegram says of the bots of agents is kept, once an hour, and stays when no
// agent has the bot any more.
func TestWebhooksAreKept(t *testing.T) {
	ctx := t.Context()
	store := postgrestest.New(t)
	sql := func(text string) {
		t.Helper()
		if _, err := store.Pool().Exec(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	sql(`INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('coder', 1, 'READY', 'd')`)
	var asked atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		for bot, answer := range map[string]string{
			"1:set": `{"ok":true,"result":{"url":"https://agents.example/api/v1/channels/telegram/webhook/set_bot"}}`, "2:polled": `{"ok":true,"result":{"url":""}}`,
			"3:revoked": `{"ok":false,"error_code":401,"description":"Unauthorized"}`,
		} {
			if r.URL.Path == "/bot"+bot+"/getWebhookInfo" {
				_, _ = io.WriteString(w, answer)
			}
		}
	}))
	defer api.Close()
	accounts := known{}
	for bot, token := range map[string]string{"set_bot": "1:set", "polled_bot": "2:polled", "revoked_bot": "3:revoked", "tokenless_bot": ""} {
		sql(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('TELEGRAM', '` + bot + `', 'coder', '{}', true)`)
		accounts[bot] = &channel.Account{Name: bot, Keys: map[channel.Role][]harness.Secret{channel.RoleBotToken: {harness.Secret(token)}}}
	}
	client := NewClient(api.URL)
	defer client.Close()
	var log strings.Builder
	r := &Registered{Client: client, Store: store, Accounts: accounts, Log: slog.New(slog.NewTextHandler(&log, nil))}
	r.Look(ctx)
	r.Look(ctx)
	if n := asked.Load(); n != 4 { // the one that did not answer is asked again
		t.Errorf("asked %d times, want 4", n)
	}
	kept := func() (text string) {
		t.Helper()
		if err := store.Pool().QueryRow(ctx, `SELECT string_agg(object_name || ' ' || state || ' ' || agent_name || ' ' || registered_url, ', ' ORDER BY object_name) FROM outside_objects`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	want := "TELEGRAM/polled_bot GONE coder , TELEGRAM/set_bot MADE coder https://agents.example/api/v1/channels/telegram/webhook/set_bot"
	if diff := cmp.Diff(want, kept()); diff != "" {
		t.Error(diff)
	}
	sql(`DELETE FROM channel_routes WHERE account = 'set_bot'`)
	sql(`UPDATE outside_objects SET updated_at = now() - interval '2 hours'`)
	r.Look(ctx)
	if diff := cmp.Diff(want, kept()); diff != "" {
		t.Error(diff)
	}
	if log.Len() > 0 {
		t.Errorf("it says %s", log.String())
	}
	api.Close()
	r.Look(ctx)
	if !strings.Contains(log.String(), "is not known now") || strings.Contains(log.String(), "3:revoked") {
		t.Errorf("while nobody answers it says %q", log.String())
	}
}
