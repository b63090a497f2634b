package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// cards is a world in which Ada is asked whether a command may run.
type cards struct {
	*world
	public, events *functiontest.Process
	asked          view.Approval
}

const (
	ada     = 5000000001
	grace   = 5000000002
	private = `{"id":5000000001,"type":"private"}`
	group   = `{"id":-1001,"type":"supergroup"}`
)

func ask(t *testing.T, command string, terms harness.ApprovalTerms) *cards {
	t.Helper()
	w := newWorld(t, harness.ChannelSpec{})
	c := &cards{world: w, public: w.start("public", nil), events: w.start("events", nil)}
	c.post(update(1, "please deploy"))
	c.asked, _ = w.Ask(command, terms)
	c.send()
	w.Broker.Take()
	return c
}

func (c *cards) post(body string) {
	c.T.Helper()
	if a := c.Send(http.MethodPost, c.public.URL+hookPath+bot, signed(secretText), body); a.Status != http.StatusOK {
		c.T.Fatalf("status %d", a.Status)
	}
}

// send has the events side send what is due.
func (c *cards) send() {
	c.T.Helper()
	c.Exec(`UPDATE chats SET paced_until = now() - interval '1 hour'`)
	for _, e := range c.Replies() {
		c.events.DeliverTwice(e)
	}
}

func (c *cards) payload(verdict string) string {
	return fmt.Sprintf("%s.%s.%s", c.asked.ID, c.asked.Digest[:12], verdict)
}

// tap is what Telegram sends when somebody taps a button of the card.
func tap(update, from int, chat, data string) string {
	return fmt.Sprintf(`{"update_id":%d,"callback_query":{"id":"43862%d","from":{"id":%d,"is_bot":false,"first_name":"Ada"},"chat_instance":"-42","data":%q,
		"message":{"message_id":4711,"date":%d,"from":{"id":7000000001,"is_bot":true,"username":"example_helper_bot"},"chat":%s,"text":"card",
		"reply_markup":{"inline_keyboard":[[{"text":"Approve","callback_data":%q}]]}}}}`, update, update, from, data, time.Now().Unix(), chat, data)
}

func written(update, from int, chat, text string) string {
	return fmt.Sprintf(`{"update_id":%d,"message":{"message_id":%d,"date":%d,"from":{"id":%d,"is_bot":false,"first_name":"Ada"},"chat":%s,"text":%q}}`,
		update, update+100, time.Now().Unix(), from, chat, text)
}

type sentCall struct {
	method string
	body   struct {
		MessageID int64  `json:"message_id"`
		ChatID    int64  `json:"chat_id"`
		Text      string `json:"text"`
		Query     string `json:"callback_query_id"`
		Markup    *struct {
			Keyboard [][]struct {
				Text string `json:"text"`
				Data string `json:"callback_data"`
			} `json:"inline_keyboard"`
		} `json:"reply_markup"`
	}
}

// calls are those of the Bot API, from the n-th on.
func (c *cards) calls(n int) []sentCall {
	c.T.Helper()
	var calls []sentCall
	for _, text := range c.api.taken()[n:] {
		method, body, _ := strings.Cut(text, " ")
		call := sentCall{method: method}
		if err := json.Unmarshal([]byte(body), &call.body); err != nil {
			c.T.Fatal(err)
		}
		calls = append(calls, call)
	}
	return calls
}

func (c *cards) wants(what, want string, got string) {
	c.T.Helper()
	if got != want {
		c.T.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestACardIsTappedAndEdited(t *testing.T) {
	c := ask(t, "deploy <all> & `more`", harness.ApprovalTerms{Timeout: time.Hour})
	card := c.calls(0)
	if len(card) != 1 || card[0].method != "sendMessage" || card[0].body.Markup == nil || len(card[0].body.Markup.Keyboard) != 3 {
		t.Fatalf("the card is %+v", card)
	}
	if first := card[0].body.Markup.Keyboard[0][0]; first.Text != "Approve" || first.Data != c.payload("a") {
		t.Errorf("its first button is %+v", first)
	}
	if text := card[0].body.Text; !strings.Contains(text, "<pre>deploy &lt;all&gt; &amp; `more`</pre>") || !strings.Contains(text, "approve "+c.asked.Code) {
		t.Errorf("it says %q", text)
	}

	c.post(tap(2, ada, private, c.payload("a")))
	c.post(tap(2, ada, private, c.payload("a"))) // Telegram repeats what it has no answer to
	c.wants("state", "APPROVED telegram 5000000001", c.Query(`SELECT state || ' ' || decided_by FROM approvals`))
	var heard []string
	for _, header := range c.Broker.Take() {
		heard = append(heard, header.Get("Ce-Type"))
	}
	if all := strings.Join(heard, " "); strings.Count(all, string(event.ApprovalDecided)) != 1 || strings.Count(all, string(event.MessageReply)) != 1 {
		t.Errorf("the tap is announced as %q", all)
	}
	c.send()
	after := c.calls(1)
	if len(after) != 2 || after[0].method != "answerCallbackQuery" || after[0].body.Query != "438622" || after[1].method != "editMessageText" {
		t.Fatalf("after the tap: %+v", after)
	}
	edit := after[1].body
	if edit.ChatID != ada || edit.MessageID != 4711 || edit.Markup == nil || len(edit.Markup.Keyboard) != 0 || !strings.Contains(edit.Text, "Approved by telegram 5000000001") ||
		!strings.Contains(edit.Text, "<pre>deploy &lt;all&gt; &amp; `more`</pre>") || strings.Contains(edit.Text, "Tap, or write") {
		t.Errorf("the card becomes %+v", edit)
	}
	c.wants("messages to answer", "1", c.Query(`SELECT count(*)::text FROM messages WHERE direction = 'INBOUND'`))

	c.post(tap(3, ada, private, c.payload("r"))) // too late
	c.post(written(4, ada, private, "reject "+c.asked.Code+" no"))
	c.send()
	late := c.calls(3)
	if len(late) != 3 || late[0].method != "answerCallbackQuery" || !strings.Contains(late[1].body.Text, "decided already: APPROVED by telegram 5000000001 at ") ||
		!strings.Contains(late[2].body.Text, "decided already: APPROVED") {
		t.Errorf("late: %+v", late)
	}
}

// An answer that was lost is followed by the same edit again, and a card that is
// gone by a message.
func TestACardThatCannotBeEdited(t *testing.T) {
	for _, c := range []struct {
		name    string
		refuse  []int // the edits, from the first
		methods string
	}{
		{"it says so already, or its marks are refused", []int{400}, "editMessageText editMessageText"},
		{"it is gone", []int{400, 400}, "editMessageText editMessageText sendMessage"},
		{"the answer is lost", []int{502}, "editMessageText editMessageText"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := ask(t, "deploy", harness.ApprovalTerms{})
			w.post(written(2, ada, private, "approve "+w.asked.Code))
			w.api.refuse("editMessageText", c.refuse...)
			for range 3 {
				w.Exec(`UPDATE replies SET due_at = now() WHERE due_at IS NOT NULL`)
				w.send()
			}
			var methods []string
			for _, call := range w.calls(1) {
				methods = append(methods, call.method)
				if !strings.Contains(call.body.Text, "Approved by telegram 5000000001") {
					t.Errorf("%s says %q", call.method, call.body.Text)
				}
			}
			w.wants("calls", c.methods, strings.Join(methods, " "))
			w.wants("outcome", "SENT", w.Query(`SELECT state FROM replies WHERE kind = 'DECISION'`))
		})
	}
}

// What is not the asked person's own, in the place where they were asked, decides
// nothing and is told why.
func TestTapsThatDoNotCount(t *testing.T) {
	c := ask(t, "deploy", harness.ApprovalTerms{})
	c.post(written(2, grace, `{"id":5000000002,"type":"private"}`, "hello"))
	for i, body := range []string{
		tap(10, grace, private, c.payload("a")),                                                 // another
		tap(11, grace, `{"id":5000000002,"type":"private"}`, c.payload("a")),                    // a forwarded card
		tap(12, ada, private, strings.Replace(c.payload("a"), c.asked.Digest[:6], "000000", 1)), // another digest
		tap(13, ada, private, c.payload("x")),                                                   // a verdict that there is not
		tap(14, ada, private, "apr_none."+c.asked.Digest[:12]+".a"),                             // another approval
		strings.Replace(written(15, ada, private, "approve "+c.asked.Code), `"text"`, `"forward_origin":{"type":"hidden_user","sender_user_name":"X","date":1},"text"`, 1),
	} {
		before := len(c.api.taken())
		c.post(body)
		c.send()
		said := c.calls(before)
		if n := len(said); n == 0 || !strings.Contains(said[n-1].body.Text, "Nothing was done.") || i < 5 && said[0].method != "answerCallbackQuery" {
			t.Errorf("%d: %+v", i, said)
		}
	}
	c.post(written(30, grace, `{"id":5000000002,"type":"private"}`, "approve "+c.asked.Code)) // nobody's here
	c.wants("a code that is nobody's", "approve "+c.asked.Code, c.Query(`SELECT text FROM messages WHERE direction = 'INBOUND' ORDER BY created_at DESC LIMIT 1`))
	c.wants("state", "PENDING", c.Query(`SELECT state FROM approvals`))
	c.wants("votes", "0", c.Query(`SELECT count(*)::text FROM approval_votes`))
}

func TestDecidedInAGroup(t *testing.T) {
	for i, text := range []string{"@example_helper_bot approve %s", "/approve@example_helper_bot %s", "@example_helper_bot approve: %s, go on"} {
		w := newWorld(t, harness.ChannelSpec{})
		c := &cards{world: w, public: w.start("public", nil), events: w.start("events", nil)}
		mention := `"entities":[{"type":"mention","offset":0,"length":19}],"text"`
		c.post(strings.Replace(written(1, ada, group, "@example_helper_bot deploy"), `"text"`, mention, 1))
		c.asked, _ = w.Ask("deploy", harness.ApprovalTerms{})
		c.send()
		if card := c.calls(0); len(card) != 1 || card[0].body.ChatID != -1001 || card[0].body.Markup == nil {
			t.Fatalf("the card is %+v", card)
		}
		said := fmt.Sprintf(text, c.asked.Code)
		entity := mention
		if strings.HasPrefix(said, "/") {
			entity = `"entities":[{"type":"bot_command","offset":0,"length":27}],"text"`
		}
		c.post(strings.Replace(written(2, grace, group, said), `"text"`, entity, 1))
		c.wants("another's words", "PENDING", c.Query(`SELECT state FROM approvals`))
		c.post(strings.Replace(written(3, ada, group, said), `"text"`, entity, 1))
		c.wants(text, "APPROVED", c.Query(`SELECT state FROM approvals`))
		if i == 2 {
			c.wants("reason", "go on", c.Query(`SELECT reason FROM approvals`))
		}
	}
}

func TestTapsComeByPollToo(t *testing.T) {
	w := newWorld(t, harness.ChannelSpec{Transport: harness.TransportPoll})
	c := &cards{world: w}
	w.api.updates = []string{"[" + update(1, "please deploy") + "]"}
	w.start("poll", nil)
	w.Await("1", `SELECT count(*)::text FROM messages`)
	c.asked, _ = w.Ask("deploy", harness.ApprovalTerms{})
	w.api.poll("[" + tap(2, ada, private, c.payload("a")) + "," + update(3, "and then?") + "]")
	w.Await("APPROVED", `SELECT state FROM approvals`)
	w.Await("4", `SELECT next_offset::text FROM polls`)
	w.api.poll("[" + tap(2, ada, private, c.payload("a")) + "]") // once more
	w.Await("please deploy,and then?", `SELECT string_agg(text, ',' ORDER BY seq) FROM messages WHERE direction = 'INBOUND'`)
	c.wants("outcomes", "1", c.Query(`SELECT count(*)::text FROM replies WHERE kind = 'DECISION'`))
}

// A command of 5,000 characters comes whole, in the parts that a message has room
// for, with the buttons below the last.
func TestALongCommandComesWhole(t *testing.T) {
	command := "echo '" + strings.Repeat("0123456789abcdef ", 300) + "' **and** `more`"
	c := ask(t, command, harness.ApprovalTerms{})
	for range 5 {
		c.send()
	}
	var shown strings.Builder
	calls := c.calls(0)
	for i, call := range calls {
		if hasButtons := call.body.Markup != nil; hasButtons != (i == len(calls)-1) {
			t.Errorf("part %d of %d: buttons %v", i+1, len(calls), hasButtons)
		}
		for rest := call.body.Text; ; {
			_, after, found := strings.Cut(rest, "<pre>")
			if !found {
				break
			}
			var code string
			code, rest, _ = strings.Cut(after, "</pre>")
			shown.WriteString(code)
		}
	}
	c.wants("command", command, strings.NewReplacer("&#39;", "'", "&quot;", `"`, "&lt;", "<", "&amp;", "&").Replace(shown.String()))
	c.post(tap(2, ada, private, c.payload("a")))
	c.wants("state", "APPROVED", c.Query(`SELECT state FROM approvals`))
	before := len(calls)
	c.send()
	if after := c.calls(before); len(after) != 2 || after[1].method != "editMessageText" {
		t.Errorf("after the tap: %+v", after)
	}
}
