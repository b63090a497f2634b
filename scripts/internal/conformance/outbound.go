package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// planned is a reply that agent-step would have planned.
type planned struct {
	channel string
	session harness.SessionID
	message harness.MessageID
	begun   time.Time // by the database's clock
}

// The people that a case writes to when it does not say to whom.
var recipients = map[string][2]string{
	"WHATSAPP": {"15550001111", "15550002222"},
	"TELEGRAM": {"5000000001", "5000000002"},
}

var accounts = map[string]string{"WHATSAPP": firstNumber, "TELEGRAM": botName}

// sendTime is how long all attempts of a reply that need no long wait may take;
// patience is the longest wait for one.
const (
	sendTime = 30 * time.Second
	patience = 6 * time.Second

	brokerTime = 2 * time.Second // for a broker to hand on an event, with a Target
)

// send plans the case's reply, wakes the function and reads what came of it.
func (w *World) send(ctx context.Context, c *Case, o *Observed) error {
	sending, err := c.sending()
	if err != nil {
		return err
	}
	to := sending.Reply.ChannelUserID
	if to == "" {
		to = recipients[sending.Channel][0]
	}
	if sending.Response != nil {
		w.provider.answerNext(sending.Response.Status, sending.Response.Body)
	}
	p, err := w.plan(ctx, sending.Channel, to, sending.text())
	if err != nil {
		return err
	}
	longest := patience
	if c.Expect.Outcome == "retry" {
		longest = 0 // the wait itself is looked at
	}
	if o.Reply, err = w.deliver(ctx, p, longest); err != nil {
		return err
	}
	o.Reply.Text = sending.text()
	o.Requests = w.provider.taken()
	if c.Expect.Outcome == "fail" || c.Expect.Outcome == "retry" { // a repeated wake sends nothing either
		if err := w.wake(ctx, p); err != nil {
			return err
		}
		o.Requests = w.provider.taken()
	}
	if c.Expect.Scope != nil {
		other, err := w.plan(ctx, sending.Channel, recipients[sending.Channel][1], "to somebody else")
		if err != nil {
			return err
		}
		reply, err := w.deliver(ctx, other, patience)
		if err != nil {
			return err
		}
		o.Reply.OtherServed = new(reply.State == string(harness.ReplySent))
	}
	return nil
}

// plan writes a conversation whose turn is over and whose answer is to be sent:
// the rows that a step leaves.
func (w *World) plan(ctx context.Context, channel, to, text string) (planned, error) {
	now := time.Now()
	p := planned{channel: channel, session: harness.NewSessionID(now), message: harness.NewMessageID(now)}
	asked := harness.NewMessageID(now)
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, message_seq) VALUES ($1, $2, $3, $4, $5, 'IDLE', 2)`,
		p.session, agentName, channel, accounts[channel], to)
	b.Queue(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, provider_id, text) VALUES ($1, $2, 1, 'INBOUND', 'DONE', $3, '', 'a question')`,
		asked, p.session, to)
	b.Queue(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, in_reply_to) VALUES ($1, $2, 2, 'OUTBOUND', 'DONE', $3, $4, $5)`,
		p.message, p.session, to, text, asked)
	b.Queue(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state) VALUES ($1, $2, $3, 2, 1, 1, $4, 'PLANNED')`,
		harness.NewReplyID(now), p.message, p.session, text)
	b.Queue(`INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, channel, payload, due_at) VALUES ($1, $2, $3, $4, $5, $6, $7, now() + interval '1 hour')`,
		p.eventID(), event.MessageReply, p.message, p.session, agentName, channel, event.Payload{Session: p.session, Message: p.message})
	b.Queue(`SELECT now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&p.begun) })
	return p, w.store.Pool().SendBatch(ctx, b).Close()
}

func (p *planned) eventID() string { return "message.reply:" + string(p.message) }

// wake posts message.reply as the broker does.
func (w *World) wake(ctx context.Context, p planned) error {
	payload, err := json.Marshal(event.Payload{Session: p.session, Message: p.message})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.events[p.channel], bytes.NewReader(payload))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": p.eventID(), "Ce-Source": event.Source, "Ce-Type": string(event.MessageReply),
		"Ce-Tuluatsession": string(p.session), "Ce-Partitionkey": string(p.session), "Ce-Tuluatagent": string(agentName), "Ce-Tuluatchannel": strings.ToLower(p.channel),
	} {
		r.Header.Set(name, value)
	}
	response, err := w.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("message.reply was answered %d", response.StatusCode)
	}
	return nil
}

// deliver wakes the function until every part is settled or has to wait for more
// than longest, as the sweep would.
func (w *World) deliver(ctx context.Context, p planned, longest time.Duration) (*Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	for tries := 1; ; tries++ {
		if err := w.wake(ctx, p); err != nil {
			return nil, err
		}
		reply, next, err := w.reply(ctx, p)
		if err != nil {
			return nil, err
		}
		if w.options.Target != "" && tries == 1 { // a broker takes an event before the function has it
			if err := wait(ctx, brokerTime); err != nil {
				return nil, err
			}
			if reply, next, err = w.reply(ctx, p); err != nil {
				return nil, err
			}
		}
		if !reply.Open || next > longest {
			return reply, nil
		}
		if err := wait(ctx, max(next, 20*time.Millisecond)); err != nil {
			return reply, nil // it is judged as it is
		}
	}
}

// reply reads the parts of p. next is the wait until the first open one is due,
// an hour if nobody looks at it again.
func (w *World) reply(ctx context.Context, p planned) (reply *Reply, next time.Duration, err error) {
	rows, err := w.store.Pool().Query(ctx, `SELECT state, reason, COALESCE(EXTRACT(EPOCH FROM due_at - $2::timestamptz), 0)::float8,
		COALESCE(EXTRACT(EPOCH FROM due_at - now()), 3600)::float8 FROM replies WHERE message_id = $1 ORDER BY part`, p.message, p.begun)
	if err != nil {
		return nil, 0, err
	}
	reply = &Reply{}
	var state, reason string
	var after, until float64
	_, err = pgx.ForEachRow(rows, []any{&state, &reason, &after, &until}, func() error {
		if reply.Parts++; reply.Parts == 1 {
			reply.State, reply.Reason = state, reason
		}
		if open := state == string(harness.ReplyPlanned) || state == string(harness.ReplyUnknown); open && !reply.Open {
			reply.Open, reply.Wait, next = true, after, time.Duration(until*float64(time.Second))
		}
		return nil
	})
	return reply, next, err
}
