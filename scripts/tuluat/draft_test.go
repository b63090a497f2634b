//go:build linux

package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// slowly answers the next message in the agent's place, text by text.
func (w *world) slowly(done chan<- error, answer string, texts ...string) {
	ctx := context.Background()
	work := func() error {
		var session harness.SessionID
		for session == "" {
			if err := w.Store.Pool().QueryRow(ctx, `SELECT COALESCE((SELECT session_id FROM sessions WHERE due_at <= now() LIMIT 1), '')`).Scan(&session); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		claim, err := w.Store.ClaimSession(ctx, session, postgres.Lease{Owner: "agent", For: time.Minute})
		if err != nil {
			return err
		}
		for _, text := range texts {
			if err := w.Store.WriteDraft(ctx, claim, text); err != nil {
				return err
			}
			time.Sleep(1200 * time.Millisecond)
		}
		_, err = w.Store.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{answer}})
		return err
	}
	done <- work()
}

// On a terminal an answer is seen on one line while it grows, and then in its place;
// a pipe gets the answer and nothing else.
func TestChatShowsAnswersGrow(t *testing.T) {
	w := newWorld(t)
	done := make(chan error, 1)
	x := w.terminal("chat", "coder")
	x.shows("> ")
	go w.slowly(done, "One two\nthree.", "One", "One two\nthr\x1b[2Jee"+strings.Repeat(" and more", 20))
	x.types("a long question\n")
	x.shows("\r\x1b[2mOne…\x1b[0m\x1b[K")
	x.shows("\r\x1b[2m…")
	x.shows("and more…\x1b[0m\x1b[K")
	x.shows("\r\x1b[KOne two\r\nthree.\r\n> ")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	x.types("/quit\n")
	x.ends(0)

	go w.slowly(done, "Four five.", "Four", "Four five")
	got := w.tuluat(strings.NewReader("another one\n"), "chat", "coder")
	if err := <-done; err != nil || got.code != 0 || got.out != "Four five.\n" || strings.Contains(got.errOut, "Four") {
		t.Errorf("%+v, %v", got, err)
	}
}

// The same of a session that is followed; as JSON a draft is no event of it.
func TestFollowShowsAnswersGrow(t *testing.T) {
	cli, _ := build(t)
	mux := http.NewServeMux()
	for path, body := range map[string]string{
		"sessions/ses_1": `{"id":"ses_1","agent":"coder","state":"RUNNING"}`, "sessions/ses_1/messages": `{"items":[]}`,
	} {
		mux.HandleFunc("GET /api/v1/"+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, body)
		})
	}
	mux.HandleFunc("GET /api/v1/sessions/ses_1/events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range []string{
			"event: session\ndata: {\"session\":\"ses_1\",\"state\":\"RUNNING\"}", `event: draft` + "\ndata: " + `{"session":"ses_1","inReplyTo":"msg_1","revision":1,"text":"One"}`,
			"id: ses_1/1\nevent: turn\ndata: " + `{"session":"ses_1","seq":1,"at":"2026-01-02T03:04:05Z","message":"msg_1","channelUserId":"ann","text":"question"}`,
			`event: draft` + "\ndata: " + `{"session":"ses_1","inReplyTo":"msg_1","revision":2,"text":"One two"}`,
			"id: ses_1/2\nevent: reply\ndata: " + `{"session":"ses_1","seq":2,"at":"2026-01-02T03:04:06Z","message":"msg_2","inReplyTo":"msg_1","text":"One two three"}`,
			"event: end\ndata: {\"session\":\"ses_1\",\"state\":\"COMPLETED\"}",
		} {
			io.WriteString(w, e+"\n\n")
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	env := []string{"TULUAT_URL=" + server.URL, "TULUAT_TOKEN=t", "TULUAT_CONFIG=" + filepath.Join(t.TempDir(), "none")}
	x := startTerminal(t, cli, env, "session", "messages", "ses_1", "-f")
	x.shows("\r\x1b[2mOne…\x1b[0m\x1b[K\r\x1b[K")
	x.shows("  question\r\n\r\x1b[2mOne two…\x1b[0m\x1b[K\r\x1b[K")
	x.shows("coder\r\n  One two three\r\n")
	x.ends(0)
	for _, args := range [][]string{{}, {"-o", "json"}} {
		cmd := exec.Command(cli, append([]string{"session", "messages", "ses_1", "-f"}, args...)...)
		cmd.Env = env
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), "One two three") || strings.Count(string(out), "One") != 1 {
			t.Errorf("%q: %v %q", args, err, out)
		}
	}
}
