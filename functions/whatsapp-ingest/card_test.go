package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// cards is a world in which a person is asked whether a command may run.
type cards struct {
	*world
	public, events *functiontest.Process
	asked          view.Approval
	posted         int
}

const me = "15550001111"

func ask(t *testing.T, first, command string, template bool) *cards {
	t.Helper()
	w := newWorld(t)
	if template {
		w.Exec(`UPDATE channel_routes SET spec = spec || '{"template": {"name": "asks", "language": "en_US"}}'`)
	}
	c := &cards{world: w, public: w.start("public", nil), events: w.start("events", nil)}
	c.say(first)
	c.asked, _ = w.Ask(command, harness.ApprovalTerms{})
	return c
}

func (c *cards) say(body string) {
	c.T.Helper()
	if a := c.post(c.public, appSecret, body); a.Status != http.StatusOK {
		c.T.Fatalf("status %d", a.Status)
	}
}

type out struct {
	Type, To string
	Text     struct{ Body string }
	Template struct {
		Name       string
		Components []struct{ Parameters []struct{ Text string } }
	}
	Interactive struct {
		Type   string
		Body   struct{ Text string }
		Action struct {
			Buttons  []struct{ Reply struct{ ID, Title string } }
			Sections []struct{ Rows []struct{ ID, Title string } }
		}
	}
}

// sends lets the events side send what is due and returns what has gone out since
// the last time.
func (c *cards) sends() []out {
	c.T.Helper()
	for range 4 {
		c.Exec(`UPDATE chats SET paced_until = now() - interval '1 hour'`)
		c.Exec(`UPDATE replies SET due_at = now() WHERE due_at IS NOT NULL`)
		for _, e := range c.Replies() {
			c.events.DeliverTwice(e)
		}
	}
	var sent []out
	calls := c.graph.taken()
	for _, call := range calls[c.posted:] {
		_, body, _ := strings.Cut(call, " ")
		var o out
		if err := json.Unmarshal([]byte(body), &o); err != nil {
			c.T.Fatal(err)
		}
		sent = append(sent, o)
	}
	c.posted = len(calls)
	return sent
}

// tap is what WhatsApp sends when somebody taps a reply button.
func tap(id, from, payload, title string) string {
	return webhook(fmt.Sprintf(`"messages":[{"from":%q,"id":%q,"timestamp":"%d","type":"interactive","context":{"from":"15550009999","id":"wamid.OUT"},
		"interactive":{"type":"button_reply","button_reply":{"id":%q,"title":%q}}}]`, from, id, time.Now().Unix(), payload, title))
}

func text(id, from, more, words string) string {
	return webhook(fmt.Sprintf(`"messages":[{"from":%q,"id":%q,"timestamp":"%d",%s"type":"text","text":{"body":%q}}]`, from, id, time.Now().Unix(), more, words))
}

func (c *cards) payload(verdict string) string {
	return fmt.Sprintf("%s.%s.%s", c.asked.ID, c.asked.Digest[:12], verdict)
}

func (c *cards) wants(what, want, got string) {
	c.T.Helper()
	if got != want {
		c.T.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestACardIsTapped(t *testing.T) {
	c := ask(t, message("w1", "please deploy"), "deploy --all", false)
	card := c.sends()
	if len(card) != 1 || card[0].Interactive.Type != "button" || len(card[0].Interactive.Action.Buttons) != 3 || !strings.Contains(card[0].Interactive.Body.Text, "```deploy --all```") {
		t.Fatalf("the card is %+v", card)
	}
	button := card[0].Interactive.Action.Buttons[0].Reply
	c.wants("button", c.payload("a")+" Approve", button.ID+" "+button.Title)

	c.say(tap("t1", me, strings.Replace(button.ID, c.asked.Digest[:4], "0000", 1), "Approve")) // tampered with
	c.say(tap("t2", "15550002222", button.ID, "Approve"))                                      // in a chat that has no card
	c.wants("state", "PENDING", c.Query(`SELECT state FROM approvals`))
	if said := c.sends(); len(said) != 1 || !strings.Contains(said[0].Text.Body, "Nothing was done.") {
		t.Errorf("a tampered tap is answered %+v", said)
	}
	c.say(tap("t3", me, button.ID, "Approve"))
	c.say(tap("t3", me, button.ID, "Approve")) // once more
	c.wants("state", "APPROVED whatsapp "+me, c.Query(`SELECT state || ' ' || decided_by FROM approvals`))
	if said := c.sends(); len(said) != 1 || !strings.Contains(said[0].Text.Body, "Approved by whatsapp "+me) {
		t.Errorf("the outcome is told as %+v", said)
	}
	c.say(tap("t4", me, c.payload("r"), "Reject"))
	if said := c.sends(); len(said) != 1 || !strings.Contains(said[0].Text.Body, "decided already: APPROVED by whatsapp "+me+" at ") {
		t.Errorf("who comes late is told %+v", said)
	}
	c.wants("messages to answer", "1", c.Query(`SELECT count(*)::text FROM messages WHERE direction = 'INBOUND'`))
}

// A card with no room for buttons loses none of its words: up to 4,096 characters
// they go into a list, and longer ones into several messages.
func TestALongCard(t *testing.T) {
	for length, kinds := range map[int]string{1200: "list", 5000: "text text list|text list|text text button|text button|text text text list"} {
		command := "echo '" + strings.Repeat("0123456789abcdef ", length/17) + "'"
		c := ask(t, message("w1", "please deploy"), command, false)
		var shown strings.Builder
		var got []string
		for _, o := range c.sends() {
			body, kind := o.Text.Body, o.Type
			if o.Type == "interactive" {
				body, kind = o.Interactive.Body.Text, o.Interactive.Type
			}
			got = append(got, kind)
			for i, piece := range strings.Split(body, "```") {
				if i%2 == 1 {
					shown.WriteString(piece)
				}
			}
			if kind == "list" {
				if rows := o.Interactive.Action.Sections[0].Rows; len(rows) != 3 || rows[2].ID != c.payload("r") {
					t.Errorf("its rows are %+v", rows)
				}
			}
		}
		if !strings.Contains("|"+kinds+"|", "|"+strings.Join(got, " ")+"|") {
			t.Errorf("%d: sent as %q", length, got)
		}
		c.wants("command", command, shown.String())
	}
}

func TestACardInAGroup(t *testing.T) {
	group := `"group_id":"G1",`
	c := ask(t, text("w1", me, group, "@15550009999 please deploy"), "deploy", false)
	card := c.sends()
	if len(card) != 1 || card[0].Type != "text" || !strings.Contains(card[0].Text.Body, "approve "+c.asked.Code) {
		t.Fatalf("the card is %+v", card)
	}
	c.say(text("w2", "15550002222", group, "@15550009999 approve "+c.asked.Code))
	c.wants("another's words", "PENDING", c.Query(`SELECT state FROM approvals`))
	c.say(text("w3", me, group, "@15550009999 Reject "+c.asked.Code+" not today"))
	c.wants("decision", "REJECTED not today", c.Query(`SELECT state || ' ' || reason FROM approvals`))
}

// Nobody decides by what a template has no room for: it says that there is a card,
// which comes when the person asks for it, and may write to us again.
func TestACardByTemplate(t *testing.T) {
	c := ask(t, message("w1", "please deploy"), "deploy\n  --all "+strings.Repeat("x", 5000), true)
	c.Exec(`UPDATE chats SET last_inbound_at = now() - interval '25 hours'`)
	card := c.sends()
	if len(card) != 1 || card[0].Template.Name != "asks" {
		t.Fatalf("the card is %+v", card)
	}
	c.wants("template", "Agent coder asks to run a command. Write: show "+c.asked.Code+", to see it and to decide.", card[0].Template.Components[0].Parameters[0].Text)
	c.say(text("w2", me, "", "show "+c.asked.Code))
	c.say(text("w2", me, "", "show "+c.asked.Code)) // once more
	c.Exec(`UPDATE chats SET last_inbound_at = now()`)
	shown := c.sends()
	if len(shown) < 2 || shown[len(shown)-1].Type != "interactive" {
		t.Fatalf("what is shown is %+v", shown)
	}
	c.say(text("w3", me, "", "approve "+c.asked.Code))
	c.wants("state", "APPROVED", c.Query(`SELECT state FROM approvals`))
	if said := c.sends(); len(said) != 1 || !strings.Contains(said[0].Text.Body, "Approved by whatsapp "+me) {
		t.Errorf("the outcome is told as %+v", said)
	}
	c.wants("messages to answer", "1", c.Query(`SELECT count(*)::text FROM messages WHERE direction = 'INBOUND'`))
}
