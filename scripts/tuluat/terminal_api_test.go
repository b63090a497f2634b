//go:build linux

package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// A person at a terminal is asked for a token, which is not shown, and before
// what cannot be taken back; what a command printed does not command the
// terminal.
func TestTerminalManagement(t *testing.T) {
	cli, _ := build(t)
	var cancelled atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/whoami", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer typed-token" {
			w.WriteHeader(401)
			return
		}
		io.WriteString(w, `{"name":"ann","groups":[]}`)
	})
	mux.HandleFunc("POST /api/v1/sessions/ses_1/cancel", func(w http.ResponseWriter, _ *http.Request) {
		cancelled.Add(1)
		io.WriteString(w, `{"id":"ses_1","state":"CANCELLED"}`)
	})
	mux.HandleFunc("GET /api/v1/executions/exe_1/output", func(w http.ResponseWriter, r *http.Request) {
		text := "ab\x1b[2J\u20acc\x9b\n"
		from, to := 0, 7 // within the euro sign
		if r.URL.Query().Get("offset") != "0" {
			from, to = 7, len(text)
		}
		if r.URL.Query().Get("stream") == "stderr" {
			from, to = 0, 0
		}
		fmt.Fprintf(w, `{"offset":%d,"data":%q,"next":%d,"ended":%v}`, from, base64.StdEncoding.EncodeToString([]byte(text[from:to])), to, to == 0 || to == len(text))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "config.json")
	x := startTerminal(t, cli, []string{"TULUAT_CONFIG=" + config}, "login", server.URL)
	x.shows("Token: ")
	x.types("typed-token\n")
	x.shows("as ann")
	x.ends(0)
	if strings.Contains(x.text(), "typed-token") {
		t.Errorf("the token is shown: %q", x.text())
	}
	if text, err := os.ReadFile(config); err != nil || !strings.Contains(string(text), "typed-token") {
		t.Errorf("%s %v", text, err)
	}
	x = startTerminal(t, cli, []string{"TULUAT_CONFIG=" + filepath.Join(t.TempDir(), "none")}, "login", server.URL)
	x.shows("Token: ")
	x.types("\x03")
	x.ends(130)

	env := []string{"TULUAT_CONFIG=" + config}
	for answer, want := range map[string]struct{ code, cancelled int }{"n\n": {1, 0}, "\n": {1, 0}, "\x04": {1, 0}, "\x03": {130, 0}, "y\n": {0, 1}} {
		cancelled.Store(0)
		x = startTerminal(t, cli, env, "session", "cancel", "ses_1")
		x.shows("Cancel session ses_1 at " + server.URL + "? What runs there is ended. [y/N] ")
		x.types(answer)
		x.ends(want.code)
		if got := int(cancelled.Load()); got != want.cancelled {
			t.Errorf("%q: cancelled %d times", answer, got)
		}
	}
	x = startTerminal(t, cli, env, "execution", "output", "exe_1")
	x.shows("ab^[[2J\u20acc\ufffd")
	x.ends(0)
}
