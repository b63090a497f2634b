package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// A replay has the identity that the event had, and of something that is done
// nothing comes, however often it is replayed and delivered.
func TestAReplayOfWhatIsDoneDoesNothing(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	accepted := arrive(t, s, "a")
	session, message := accepted[0].Session, accepted[0].Message
	run(t, s,
		`UPDATE sessions SET state = 'IDLE', due_at = NULL`, `UPDATE messages SET state = 'DONE'`, `DELETE FROM outbox`,
		`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_out', '`+string(session)+`', 99, 'OUTBOUND', 'DONE', 'u', 'x')`,
		`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_1', 'msg_out', '`+string(session)+`', 99, 1, 1, 'x', 'SENT', NULL)`,
		`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, ended_at)
			VALUES ('exe_1', '`+string(session)+`', 'coder', 'API', '1', 'true', '{}', 'd', 1, 'COMPLETED', 'n', now())`)
	lease := postgres.Lease{Owner: "test", For: time.Minute}
	claimSession := func() error { _, err := s.ClaimSession(ctx, session, lease); return err }
	cases := map[string]struct {
		event event.Event
		claim func() error
	}{
		"a message":            {event.Event{ID: "message.received:1", Type: event.MessageReceived, Payload: event.Payload{Session: session, Message: message}}, claimSession},
		"a wake":               {event.Event{ID: "session.due:1", Type: event.SessionDue, Payload: event.Payload{Session: session}}, claimSession},
		"the end of a command": {event.Event{ID: "execution.finished:exe_1", Type: event.ExecutionFinished, Payload: event.Payload{Session: session, Execution: "exe_1"}}, claimSession},
		"a command":            {event.Event{ID: "execution.requested:exe_1:1", Type: event.ExecutionRequested, Payload: event.Payload{Session: session, Execution: "exe_1"}}, func() error { _, err := s.ClaimExecution(ctx, "exe_1", lease); return err }},
		"a reply":              {event.Event{ID: "message.reply:msg_out", Type: event.MessageReply, Payload: event.Payload{Session: session, Message: "msg_out"}}, func() error { _, err := s.ClaimReply(ctx, session, postgres.ReplyLease{Lease: lease}); return err }},
	}
	tables := []string{"sessions", "messages", "replies", "executions", "session_events", "steps", "tool_calls", "outbox", "agent_execution_logs"}
	before := postgrestest.Dump(t, s, tables...)
	for what, c := range cases {
		c.event.Session, c.event.Agent, c.event.Channel = session, "coder", harness.ChannelWebhook
		state, err := s.PutDeadLetter(ctx, postgres.DeadLetter{Event: c.event, Destination: "http://there", StatusCode: 503, Cause: "not now"})
		if err != nil || state != postgres.DeadLetterMoot {
			t.Fatalf("%s: %s, %v", what, state, err)
		}
		id := value[int64](t, s, `SELECT dead_letter_id FROM dead_letters WHERE event_id = $1`, c.event.ID)
		for range 2 {
			letter, again, err := s.ReplayDeadLetter(ctx, id, postgres.Audit{Actor: "ann"})
			if err != nil || again.ID != c.event.ID || again.Type != c.event.Type || again.Payload != c.event.Payload || again.Session != session {
				t.Errorf("%s: replayed as %+v, %v; want %+v", what, again, err, c.event)
			}
			if letter.Cause != "not now" || letter.StatusCode != 503 || letter.Destination != "http://there" {
				t.Errorf("%s: the letter says %+v", what, letter)
			}
			if err := c.claim(); !errors.Is(err, postgres.ErrNothingDue) {
				t.Errorf("%s: a claim got %v", what, err)
			}
		}
		if diff := cmp.Diff(before, postgrestest.Dump(t, s, tables...)); diff != "" {
			t.Errorf("%s: its replay changed %s", what, diff)
		}
	}
}
