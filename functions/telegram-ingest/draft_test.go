package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/channel/markup"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// writing is a world in which the model writes its answer to Ada.
type writing struct {
	*cards
	claim *postgres.Claim
	count int
}

func write(t *testing.T, question string) *writing {
	t.Helper()
	w := newWorld(t, harness.ChannelSpec{})
	c := &writing{cards: &cards{world: w, public: w.start("public", nil), events: w.start("events", nil)}}
	c.post(question)
	c.begin()
	return c
}

func (c *writing) begin() {
	c.T.Helper()
	session := c.Query(`SELECT session_id FROM sessions WHERE due_at IS NOT NULL OR lease_owner IS NOT NULL`)
	claim, err := c.Store.ClaimSession(c.T.Context(), harness.SessionID(session), postgres.Lease{Owner: "test", For: time.Minute})
	if err != nil {
		c.T.Fatal(err)
	}
	c.claim = claim
}

func (c *writing) message() harness.MessageID { return c.claim.Turns[len(c.claim.Turns)-1].Message }

// keep keeps what is written so far.
func (c *writing) keep(text string) {
	c.T.Helper()
	if err := c.Store.WriteDraft(c.T.Context(), c.claim, text); err != nil {
		c.T.Fatal(err)
	}
}

// show delivers the news of it.
func (c *writing) show() {
	c.T.Helper()
	c.count++
	c.events.DeliverTwice(event.Event{
		ID: fmt.Sprint("message.draft:", c.count), Type: event.MessageDraft, Session: c.claim.ID, Agent: c.claim.Session.Agent, Channel: c.claim.Channel,
		Payload: event.Payload{Session: c.claim.ID, Message: c.message()},
	})
}

// grow keeps and shows text, when its chat's pace allows it.
func (c *writing) grow(text string) {
	c.T.Helper()
	c.keep(text)
	c.Exec(`UPDATE chats SET paced_until = NULL`)
	c.Exec(`UPDATE drafts SET due_at = now()`)
	c.show()
}

// answers commits the answer.
func (c *writing) answers(text string) {
	c.T.Helper()
	if _, err := c.Store.CommitStep(c.T.Context(), postgres.StepCommit{
		Claim: c.claim, State: harness.SessionIdle, Start: true, Step: &postgres.NewStep{ID: harness.NewStepID(time.Now()), Text: text}, Reply: []string{text},
	}); err != nil {
		c.T.Fatal(err)
	}
}

// sends has the events side send what is due, however soon it is.
func (c *writing) sends() {
	c.T.Helper()
	c.Exec(`UPDATE replies SET due_at = now() WHERE due_at IS NOT NULL AND state = 'PLANNED'`)
	c.send()
}

// told are the calls of the Bot API from the n-th on: what they are, of which
// message, and their text.
func (c *writing) told(n int) string {
	c.T.Helper()
	var all []string
	for _, call := range c.calls(n) {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %d %s", call.method, call.body.MessageID, call.body.Text)))
	}
	return strings.Join(all, "\n")
}

const outcome = `SELECT string_agg(state || ' ' || provider_id, ',' ORDER BY seq, part) FROM replies`

func TestADraftGrowsAndBecomesTheReply(t *testing.T) {
	c := write(t, update(1, "a long question"))
	c.grow("One **two")
	c.grow("One **two** three")
	c.show() // nothing new
	c.answers("One **two** three four")
	c.sends()
	c.wants("calls", "sendMessage 0 One **two …\neditMessageText 4711 One two three …\neditMessageText 4711 One <b>two</b> three four", c.told(0))
	c.wants("reply", "SENT 4711", c.Query(outcome))
	c.wants("drafts", "0", c.Query(`SELECT count(*)::text FROM drafts`))
	c.post(update(2, "and a short one"))
	c.begin()
	c.answers("Yes.")
	c.sends()
	c.wants("a reply without a draft", "sendMessage 0 Yes.", c.told(3))
}

// In a group a draft answers its message, and takes half of the pace at most.
func TestADraftInAGroup(t *testing.T) {
	mention := `"entities":[{"type":"mention","offset":0,"length":19}],"text"`
	c := write(t, strings.Replace(written(1, ada, group, "@example_helper_bot deploy"), `"text"`, mention, 1))
	c.grow("One")
	first := c.api.taken()
	if len(first) != 1 || !strings.Contains(first[0], `"reply_parameters":{"allow_sending_without_reply":true,"message_id":101}`) || strings.Contains(first[0], "parse_mode") {
		t.Fatalf("the draft is sent by %q", first)
	}
	c.keep("One two")
	c.show()
	c.wants("too soon", "", c.told(1))
	c.wants("not before", "6", c.Query(`SELECT round(extract(epoch FROM due_at - sent_at))::text FROM drafts`))
	c.answers("One two three") // which does not wait
	for _, e := range c.Replies() {
		c.events.DeliverTwice(e)
	}
	c.wants("reply", "editMessageText 4711 One two three", c.told(1))
}

// A draft shows what fits one message; what comes behind it is sent as ever.
func TestALongAnswer(t *testing.T) {
	c := write(t, update(1, "a long question"))
	long := strings.Repeat("𝔄 word ", 900)
	c.grow(long)
	if text := c.calls(0)[0].body.Text; markup.UTF16Len(text) > 4096 || markup.UTF16Len(text) < 4090 || !strings.HasSuffix(text, " …") {
		t.Errorf("the draft has %d units and ends with %q", markup.UTF16Len(text), text[len(text)-10:])
	}
	c.grow(long + "more")
	c.answers(long + "more")
	c.sends()
	var methods []string
	for _, call := range c.calls(1) {
		methods = append(methods, call.method)
	}
	c.wants("calls", "editMessageText editMessageText sendMessage", strings.Join(methods, " "))
	c.wants("replies", "2", c.Query(`SELECT count(*)::text FROM replies WHERE state = 'SENT'`))
}

// Whatever dies between, and whatever Telegram says, the answer is there once, and
// no draft is taken for it.
func TestDraftsThatDoNotGoWell(t *testing.T) {
	const lost = `UPDATE drafts SET state = 'UNKNOWN', lease_owner = 'dead', lease_token = lease_token + 1, lease_until = now() - interval '1 second', sent_at = now() - interval '1 minute'`
	for _, test := range []struct {
		name  string
		do    func(c *writing)
		calls string // from the first, without text
		reply string
	}{
		{"it dies before the first draft is sent, or before its id is known", func(c *writing) {
			c.keep("One")
			c.Exec(lost)
			c.grow("One two")
			c.answers("One two three")
		}, "sendMessage", "SENT 4711"},
		{"the answer to the first draft is lost", func(c *writing) {
			c.api.refuse("sendMessage", 502)
			c.grow("One")
			c.grow("One two")
			c.answers("One two three")
		}, "sendMessage sendMessage", "SENT 4711"},
		{"the first draft is refused", func(c *writing) {
			c.api.refuse("sendMessage", 400)
			c.grow("One")
			c.grow("One two")
			c.answers("One two three")
		}, "sendMessage sendMessage", "SENT 4711"},
		{"the first draft comes too soon", func(c *writing) {
			c.api.refuse("sendMessage", 429)
			c.grow("One")
			c.keep("One two")
			c.Exec(`UPDATE chats SET paced_until = NULL`)
			c.show() // still too soon
			c.grow("One two three")
			c.answers("One two three four")
		}, "sendMessage sendMessage editMessageText", "SENT 4711"},
		{"a later draft comes too soon", func(c *writing) {
			c.grow("One")
			c.api.refuse("editMessageText", 429)
			c.grow("One two")
			c.answers("One two three")
		}, "sendMessage editMessageText editMessageText", "SENT 4711"},
		{"it dies while a draft is edited", func(c *writing) {
			c.grow("One")
			c.Exec(`UPDATE drafts SET lease_owner = 'dead', lease_token = lease_token + 1, lease_until = now() - interval '1 second'`)
			c.answers("One two three")
		}, "sendMessage editMessageText", "SENT 4711"},
		{"Telegram limits the last edit", func(c *writing) {
			c.grow("One")
			c.answers("One two three")
			c.api.refuse("editMessageText", 429)
			c.sends()
			c.wants("it waits", "PLANNED ", c.Query(outcome))
		}, "sendMessage editMessageText editMessageText", "SENT 4711"},
		{"the answer to the last edit is lost", func(c *writing) {
			c.grow("One")
			c.answers("One two three")
			c.api.refuse("editMessageText", 502)
		}, "sendMessage editMessageText editMessageText", "SENT 4711"},
		{"the last edit was made, and nobody knows", func(c *writing) {
			c.grow("One")
			c.answers("One **two** three")
			c.api.refuse("editMessageText", 400)
		}, "sendMessage editMessageText editMessageText editMessageText", "SENT 4711"},
		{"the marks of the answer are refused", func(c *writing) {
			c.grow("One")
			c.answers("One **two** three")
			c.api.refuse("editMessageText", 400, 200, 400)
		}, "sendMessage editMessageText editMessageText editMessageText editMessageText", "SENT 4711"},
		{"the message is gone", func(c *writing) {
			c.grow("One")
			c.answers("One two three")
			c.api.refuse("editMessageText", 400, 400)
		}, "sendMessage editMessageText editMessageText sendMessage", "SENT 4711"},
		{"the person has blocked the bot", func(c *writing) {
			c.grow("One")
			c.answers("One two three")
			c.api.refuse("editMessageText", 403)
		}, "sendMessage editMessageText", "FAILED "},
		{"somebody else has the session", func(c *writing) {
			c.grow("One")
			c.keep("One two")
			c.Exec(`UPDATE sessions SET lease_until = now() - interval '1 second'`)
			c.begin()
			c.Exec(`UPDATE chats SET paced_until = NULL`)
			c.Exec(`UPDATE drafts SET due_at = now()`)
			c.show()
			c.answers("Another answer")
		}, "sendMessage editMessageText", "SENT 4711"},
		{"a draft is late for its turn", func(c *writing) {
			c.grow("One")
			c.answers("One two three")
			c.sends()
			c.show()
		}, "sendMessage editMessageText", "SENT 4711"},
		{"the chat is blocked", func(c *writing) {
			c.Exec(`UPDATE chats SET blocked_at = now()`)
			c.grow("One")
			c.answers("One two three")
		}, "", "FAILED "},
		{"the chat is a guest's", func(c *writing) {
			c.Exec(`UPDATE chats SET address = '5000000001;guest=q1'`)
			c.grow("One")
			c.answers("One two three")
		}, "answerGuestQuery", "SENT 4711"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := write(t, update(1, "a long question"))
			test.do(c)
			for range 3 {
				c.sends()
			}
			var methods []string
			for _, call := range c.calls(0) {
				methods = append(methods, call.method)
			}
			c.wants("calls", test.calls, strings.Join(methods, " "))
			c.wants("reply", test.reply, c.Query(outcome))
			if left := c.Query(`SELECT count(*)::text FROM drafts`); left != "0" {
				t.Errorf("%s drafts are left", left)
			}
		})
	}
}

// A reply that is ready while a draft is on its way waits for it, and then takes
// its place.
func TestAReplyWaitsForTheDraftOnItsWay(t *testing.T) {
	c := write(t, update(1, "a long question"))
	c.keep("One")
	once := make(chan struct{}, 1)
	once <- struct{}{}
	c.api.during(func(method string) {
		select {
		case <-once:
		default:
			return
		}
		c.answers("One two three")
		for _, e := range c.Replies() {
			if a := c.events.Deliver(e); a.Status != http.StatusAccepted {
				t.Errorf("the reply's wake is answered %d", a.Status)
			}
		}
		c.wants("while "+method+" goes on", "PLANNED ", c.Query(outcome))
	})
	c.show()
	c.wants("calls", "sendMessage 0 One …\neditMessageText 4711 One two three", c.told(0))
	c.wants("reply", "SENT 4711", c.Query(outcome))
}

// What is sent behind a draft stays before the answer: the draft is taken away.
func TestAnAnswerStandsBehindWhatWasSentMeanwhile(t *testing.T) {
	c := write(t, update(1, "a long question"))
	c.grow("One")
	c.Exec(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_card', $1, 50, 'OUTBOUND', 'DONE', 'u', 'x')`, c.claim.ID)
	c.Exec(`UPDATE sessions SET message_seq = 60`)
	c.Exec(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_card', 'msg_card', $1, 50, 1, 1, 'May I?', 'PLANNED', now())`, c.claim.ID)
	c.grow("One two") // not before what is to be sent
	c.sends()
	c.grow("One two three") // not before what was sent
	c.answers("One two three four")
	c.sends()
	c.wants("calls", "sendMessage 0 One …\nsendMessage 0 May I?\ndeleteMessage 4711\nsendMessage 0 One two three four", c.told(0))
}
