//go:build linux

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/shared/function/functiontest"
)

// A chat over a messenger's fake, on a terminal: the bot is driven by hand.
func TestTerminalChatVia(t *testing.T) {
	cli, _ := build(t)
	server, err := botapi.New(botapi.Options{Seed: "test", Bots: []botapi.Bot{{Token: "7000000001:test", Username: "example_helper_bot"}}})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(server)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		api.Close()
	})
	w := &world{Database: &functiontest.Database{T: t}, cli: cli, home: t.TempDir()}
	w.write("dev.json", fmt.Sprintf(`{"url": "http://127.0.0.1:1", "fakes": {"telegram": %q}, "channels": {"coder": [{"type": "TELEGRAM", "account": "example_helper_bot"}]}}`, api.URL))
	said := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); server.Counters()["said"] < n; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d said, want %d", server.Counters()["said"], n)
			}
		}
	}
	send := func(body string) {
		t.Helper()
		response, err := http.Post(api.URL+"/bot7000000001:test/sendMessage", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("sendMessage: %d", response.StatusCode)
		}
	}
	x := w.terminal("chat", "coder", "--via", "telegram", "-v")
	x.shows("coder over telegram as 5000000001")
	x.types("hello\n")
	said(1)
	send(`{"chat_id":5000000001,"text":"Shall I? \u001b[31m","reply_markup":{"inline_keyboard":[[{"text":"Yes","callback_data":"yes"},{"text":"No","callback_data":"no"}]]}}`)
	x.shows("Shall I? ^[[31m")
	x.shows("[2] No")
	x.shows("✓ its message is sent")
	x.types("2\n")
	said(2)
	send(`{"chat_id":5000000001,"text":"Then not."}`)
	x.shows("Then not.")
	x.types("/quit\n")
	x.ends(0)

	x = w.terminal("chat", "coder", "--via", "telegram")
	x.shows("Its last message: Then not.")
	x.types("\x03") // Ctrl-C
	x.ends(130)
	lines, _ := server.Chat("", 5000000001, 0)
	if len(lines) != 4 || lines[2].Kind != "press" || lines[2].Text != "No" {
		t.Errorf("lines: %+v", lines)
	}
}
