package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// A message for one session starts no other: when that has ended, or is another
// conversation's, nothing is stored. A repeat of what was stored is a repeat.
func TestAMessageForOneSession(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	putAgents(t, s, nil, agentText("a", "a.yaml", "", "h"))
	first, other := say(t, s, "a", "case-1", "k1"), say(t, s, "a", "case-2", "k2")
	send := func(chat, key string, only harness.SessionID) postgres.Accepted {
		t.Helper()
		accepted, events, err := s.Accept(ctx, harness.ChannelAPI, postgres.Inbound{Arrivals: []postgres.Arrival{{
			Account: "a", ProviderID: key, Chat: chat, Only: only, Message: harness.Message{Channel: harness.ChannelAPI, ChannelUserID: "ann", Text: "text"},
		}}}, "")
		if err != nil {
			t.Error(err)
			return postgres.Accepted{}
		}
		if (len(events) > 0) != (accepted[0].Outcome == postgres.ArrivalAccepted) {
			t.Errorf("%+v, published %+v", accepted[0], events)
		}
		return accepted[0]
	}
	sent := send("case-1", "k3", first.Session)
	if sent.Outcome != postgres.ArrivalAccepted || sent.Session != first.Session {
		t.Fatalf("%+v", sent)
	}
	tables := []string{"sessions", "messages", "inbox", "outbox", "notices", "chats"}
	refused := postgres.Accepted{Outcome: postgres.ArrivalEnded}
	before := postgrestest.Dump(t, s, tables...)
	if got := send("case-1", "k4", other.Session); got != refused {
		t.Errorf("of another conversation: %+v", got)
	}
	if got := send("case-1", "k4", "ses_none"); got != refused {
		t.Errorf("of none: %+v", got)
	}
	if diff := cmp.Diff(before, postgrestest.Dump(t, s, tables...)); diff != "" {
		t.Errorf("something is stored:\n%s", diff)
	}
	accepted, ended := 0, 0
	for i := range 20 {
		chat, key := fmt.Sprint("race-", i), fmt.Sprint("race", i)
		session := say(t, s, "a", chat, key).Session
		var racing sync.WaitGroup
		var got postgres.Accepted
		racing.Go(func() { got = send(chat, key+"b", session) })
		racing.Go(func() {
			if _, _, err := s.CancelSession(ctx, session, postgres.Audit{Actor: "ann"}); err != nil {
				t.Error(err)
			}
		})
		racing.Wait()
		switch {
		case got == refused:
			ended++
			if got := send(chat, key, session); got.Outcome != postgres.ArrivalDuplicate || got.Session != session {
				t.Errorf("a repeat: %+v", got)
			}
		case got.Outcome == postgres.ArrivalAccepted && got.Session == session:
			accepted++
		default:
			t.Errorf("%+v", got)
		}
		if n := value[int](t, s, `SELECT count(*) FROM sessions WHERE chat = $1`, chat); n != 1 {
			t.Errorf("%d sessions", n)
		}
	}
	t.Logf("the message was first %d times, the cancel %d times", accepted, ended)
}
