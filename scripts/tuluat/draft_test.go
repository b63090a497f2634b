//go:build linux

package main

import (
	"context"
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
