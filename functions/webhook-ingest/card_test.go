package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/harness"
)

// A hook's people decide by the code, or by what its system brings back of a
// choice. It is answered like any message.
func TestDecidedByAHook(t *testing.T) {
	for name, said := range map[string]func(code, choice string) map[string]any{
		"code":           func(code, _ string) map[string]any { return map[string]any{"text": "approve " + code + ": fine"} },
		"code in a room": func(code, _ string) map[string]any { return map[string]any{"text": "@coder approve " + code + " fine"} },
		"choice": func(_, choice string) map[string]any {
			return map[string]any{"text": "Approve", "metadata": map[string]any{"selectionId": choice}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.hook("hook", harness.ChannelSpec{})
			p := w.start("public", nil)
			p.say("hook", "user", "m1", "please deploy")
			asked, _ := w.Ask("deploy", harness.ApprovalTerms{})
			choice := fmt.Sprintf("%s.%s.a", asked.ID, asked.Digest[:12])
			post := func(id, user string) answer {
				body := said(asked.Code, choice)
				body["messageId"], body["channelUserId"], body["chat"] = id, user, "user"
				text, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				return p.post("hook", string(text))
			}
			if a := post("m2", "mallory"); a.Status != http.StatusAccepted || w.Query(`SELECT state FROM approvals`) != "PENDING" {
				t.Errorf("another: %d, %s", a.Status, w.Query(`SELECT state FROM approvals`))
			}
			for range 2 {
				if a := post("m3", "user"); a.Status != http.StatusAccepted || a.Message != "" {
					t.Errorf("answered %d %s", a.Status, a.Body)
				}
			}
			if got := w.Query(`SELECT state || ' ' || decided_by FROM approvals`); got != "APPROVED webhook user" {
				t.Errorf("it is %s", got)
			}
			if got := w.Query(`SELECT string_agg(text, '|' ORDER BY seq) FROM replies WHERE kind <> 'CARD'`); !strings.Contains(got, "You are none of those who may decide this (webhook user)") || strings.Count(got, "Approved by webhook user") != 1 {
				t.Errorf("the chat is told %q", got)
			}
			if got := w.Query(`SELECT count(*)::text FROM messages WHERE direction = 'INBOUND'`); got != "1" {
				t.Errorf("%s messages to answer", got)
			}
			p.say("hook", "user", "m4", "approve 000000")
			if got := w.Query(`SELECT text FROM messages WHERE direction = 'INBOUND' ORDER BY seq DESC LIMIT 1`); got != "approve 000000" && asked.Code != "000000" {
				t.Errorf("a code that is nobody's: %q", got)
			}
		})
	}
}
