package postgres_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// person is an arrival on a channel with people on it.
func person(provider, chat, text string, change ...func(*postgres.Arrival)) postgres.Arrival {
	a := postgres.Arrival{
		Account: "number", ProviderID: provider, Chat: chat, Address: chat, Message: harness.Message{Channel: harness.ChannelWhatsApp, ChannelUserID: chat, Text: text},
	}
	for _, c := range change {
		c(&a)
	}
	return a
}

func people(t *testing.T, senders string) *postgres.Store {
	t.Helper()
	s := postgrestest.New(t)
	agent(t, s)
	if _, err := s.Pool().Exec(context.Background(), `INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all, pairing, senders)
		VALUES ('WHATSAPP', 'number', 'coder', '{"type": "WHATSAPP"}', $1 = 'open', $1 = 'pairing', ARRAY['listed'])`, senders); err != nil {
		t.Fatal(err)
	}
	return s
}

func accept(t *testing.T, s *postgres.Store, in postgres.Inbound) []postgres.Accepted {
	t.Helper()
	accepted, _, err := s.Accept(context.Background(), harness.ChannelWhatsApp, in, "")
	if err != nil {
		t.Fatal(err)
	}
	return accepted
}

func texts(t *testing.T, s *postgres.Store, sql string, args ...any) []string {
	t.Helper()
	rows, err := s.Pool().Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	found := []string{}
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		found = append(found, text)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return found
}

// A person is one conversation, by phone, by user id, and by a new number.
func TestAConversationFollowsThePerson(t *testing.T) {
	s := people(t, "open")
	first := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "111", "hi", ids("111", ""))}})
	both := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("2", "111", "hi", ids("111", "US.1"))}})
	bsuid := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("3", "US.1", "hi", ids("", "US.1"))}})
	renamed := postgres.Inbound{Renames: []postgres.Rename{{Account: "number", ProviderID: "r", From: []string{"111", "US.1"}, To: []string{"222", "US.2"}, Lasting: "US.2"}}}
	accept(t, s, renamed)
	accept(t, s, renamed) // a repeat
	if got := texts(t, s, `SELECT address FROM chats`); !reflect.DeepEqual(got, []string{"222"}) {
		t.Errorf("after a new number the address is %q", got)
	}
	moved := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("4", "US.2", "hi", ids("", "US.2"))}})
	for i, a := range [][]postgres.Accepted{both, bsuid, moved} {
		if a[0].Outcome != postgres.ArrivalAccepted || a[0].Session != first[0].Session {
			t.Errorf("message %d: %+v, want session %s", i+2, a[0], first[0].Session)
		}
	}
	// The number now belongs to somebody else.
	other := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("5", "111", "hi", ids("111", "US.9"))}})
	if other[0].Outcome != postgres.ArrivalAccepted || other[0].Session == first[0].Session {
		t.Errorf("a stranger with an old number is in %s: %+v", first[0].Session, other)
	}
	if got := texts(t, s, `SELECT address FROM chats ORDER BY chat`); !reflect.DeepEqual(got, []string{"US.2", "111"}) {
		t.Errorf("addresses %q", got)
	}
}

func TestAGroupThatMovedIsTheSameConversation(t *testing.T) {
	s := people(t, "open")
	first := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "-4", "hi")}})
	accept(t, s, postgres.Inbound{Renames: []postgres.Rename{{Account: "number", ProviderID: "r", From: []string{"-4"}, To: []string{"-1004"}}}})
	after := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("2", "-1004", "hi")}})
	if after[0].Session != first[0].Session {
		t.Errorf("session %s, want %s", after[0].Session, first[0].Session)
	}
}

// The parts of an album are one message while it waits, whichever way they come.
func TestAnAlbumIsOneMessage(t *testing.T) {
	photo := func(album string, standIn bool) func(*postgres.Arrival) {
		return func(a *postgres.Arrival) {
			a.Album, a.Attachments = album, []harness.Attachment{{Kind: harness.AttachmentImage, ProviderID: "file-" + a.ProviderID, MimeType: "image/jpeg", Bytes: 9}}
			if a.Message.Metadata = map[string]any{}; standIn {
				a.Message.Metadata[postgres.StandIn] = true
			}
		}
	}
	for name, together := range map[string]bool{"apart": false, "in one request": true} {
		t.Run(name, func(t *testing.T) {
			s := people(t, "open")
			arrivals := []postgres.Arrival{
				person("1", "c", "[photo]", photo("A", true)), person("2", "c", "both please", photo("A", false)),
				person("3", "c", "[photo]", photo("A", true)), person("4", "c", "[photo]", photo("B", true)),
			}
			if together {
				accept(t, s, postgres.Inbound{Arrivals: arrivals})
			} else {
				for _, a := range arrivals {
					accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{a}})
				}
			}
			for range 2 { // a repeat changes nothing
				if got := texts(t, s, `SELECT text FROM messages ORDER BY seq`); !reflect.DeepEqual(got, []string{"both please", "[photo]"}) {
					t.Errorf("messages %q", got)
				}
				if got := texts(t, s, `SELECT (metadata ? 'standIn') || ' ' || string_agg(f.provider_id, ' ' ORDER BY f.provider_id) FROM messages m JOIN attachments f USING (message_id) GROUP BY m.message_id ORDER BY m.seq`); !reflect.DeepEqual(got, []string{"false file-1 file-2 file-3", "true file-4"}) {
					t.Errorf("files %q", got)
				}
				accept(t, s, postgres.Inbound{Arrivals: arrivals})
			}
			var early bool
			if err := s.Pool().QueryRow(context.Background(), `SELECT due_at <= now() FROM sessions`).Scan(&early); err != nil || early {
				t.Errorf("the turn begins before the album has settled: %v", err)
			}
		})
	}
}

func TestSenderPolicies(t *testing.T) {
	s := people(t, "pairing")
	outcome := func(a postgres.Arrival) postgres.ArrivalOutcome {
		return accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{a}})[0].Outcome
	}
	paired := func(a *postgres.Arrival) { a.Paired = true }
	if got := outcome(person("1", "listed", "hi")); got != postgres.ArrivalAccepted {
		t.Errorf("one who is listed: %s", got)
	}
	if got := outcome(person("2", "x", "hi", func(a *postgres.Arrival) { a.OtherID = "listed" })); got != postgres.ArrivalAccepted {
		t.Errorf("one whose other id is listed: %s", got)
	}
	if got := outcome(person("3", "stranger", "hi")); got != postgres.ArrivalDenied {
		t.Errorf("a stranger: %s", got)
	}
	if got := outcome(person("4", "stranger", "code", paired)); got != postgres.ArrivalAccepted {
		t.Errorf("one who shows the code: %s", got)
	}
	if got := outcome(person("5", "stranger", "hi")); got != postgres.ArrivalAccepted {
		t.Errorf("one who is paired: %s", got)
	}
	for i := range 10 {
		outcome(person(fmt.Sprint("guess", i), "guesser", "wrong"))
	}
	if got := outcome(person("6", "guesser", "code", paired)); got != postgres.ArrivalDenied {
		t.Errorf("one who guessed ten times: %s", got)
	}
	if got := texts(t, s, `SELECT kind || count(*) FROM notices GROUP BY kind`); !reflect.DeepEqual(got, []string{"DENIED12"}) {
		t.Errorf("notices %q", got)
	}
}

func TestAnAllowlistTakesNoCode(t *testing.T) {
	s := people(t, "allowlist")
	if got := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "stranger", "code", func(a *postgres.Arrival) { a.Paired = true })}}); got[0].Outcome != postgres.ArrivalDenied {
		t.Errorf("%+v", got)
	}
}

func TestNoticesAreKeptOnce(t *testing.T) {
	s := people(t, "open")
	notice := postgres.Notice{Account: "number", ProviderID: "u1", Kind: harness.NoticeReaction, Chat: "c", Ref: "m", Data: map[string]any{"emoji": "👍"}}
	for range 2 {
		accept(t, s, postgres.Inbound{Notices: []postgres.Notice{notice}, Blocks: []postgres.Block{{Account: "number", Chat: "c", Reason: "kicked"}}})
	}
	if got := texts(t, s, `SELECT kind || ref || (data->>'emoji') FROM notices`); !reflect.DeepEqual(got, []string{"REACTIONm👍"}) {
		t.Errorf("notices %q", got)
	}
	if got := texts(t, s, `SELECT blocked_reason FROM chats`); !reflect.DeepEqual(got, []string{"kicked"}) {
		t.Errorf("blocks %q", got)
	}
	accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "c", "hi again")}})
	if got := texts(t, s, `SELECT blocked_reason FROM chats WHERE blocked_at IS NULL`); !reflect.DeepEqual(got, []string{""}) {
		t.Errorf("one who writes again is still blocked: %q", got)
	}
}

// reply makes one reply row of a WhatsApp session in the given state.
func reply(t *testing.T, s *postgres.Store, state string) harness.SessionID {
	t.Helper()
	session := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "c", "hi", func(a *postgres.Arrival) { a.Pace = postgres.Pace{Every: time.Hour, Burst: 2} })}})[0].Session
	claim, err := s.ClaimSession(context.Background(), session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CommitStep(context.Background(), postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"one two three"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pool().Exec(context.Background(), `UPDATE replies SET state = $1, reply_id = 'rpl_1', provider_id = CASE WHEN $1 IN ('PLANNED', 'UNKNOWN') THEN '' ELSE 'p1' END, attempts = 1`, state); err != nil {
		t.Fatal(err)
	}
	return session
}

// Statuses come late, doubled and out of order.
func TestStatusesSettleReplies(t *testing.T) {
	ours := func(state harness.ReplyState) postgres.Status {
		return postgres.Status{Account: "number", ProviderID: "p1", Reply: "rpl_1", State: state, Code: 131026, Reason: "why"}
	}
	theirs := func(state harness.ReplyState) postgres.Status {
		return postgres.Status{Account: "number", ProviderID: "p1", State: state}
	}
	foreign := ours(harness.ReplyFailed)
	foreign.Account = "another"
	for _, c := range []struct {
		from     string
		statuses []postgres.Status
		want     string
	}{
		{"UNKNOWN", []postgres.Status{ours(harness.ReplySent)}, "SENT p1"},
		{"UNKNOWN", []postgres.Status{theirs(harness.ReplySent)}, "UNKNOWN "}, // nothing says that it is this one
		{"UNKNOWN", []postgres.Status{ours(harness.ReplyFailed)}, "FAILED p1 131026 why"},
		{"SENT", []postgres.Status{theirs(harness.ReplyRead), theirs(harness.ReplyDelivered), theirs(harness.ReplySent)}, "READ p1"},
		{"SENT", []postgres.Status{ours(harness.ReplyFailed)}, "FAILED p1 131026 why"},
		{"SENT", []postgres.Status{foreign}, "SENT p1"},
		{"DELIVERED", []postgres.Status{ours(harness.ReplySent), ours(harness.ReplyFailed)}, "DELIVERED p1"},
		{"READ", []postgres.Status{ours(harness.ReplyDelivered)}, "READ p1"},
		{"FAILED", []postgres.Status{ours(harness.ReplyDelivered)}, "FAILED p1"},
	} {
		t.Run(fmt.Sprint(c.from, c.statuses), func(t *testing.T) {
			s := people(t, "open")
			reply(t, s, c.from)
			for range 2 {
				accept(t, s, postgres.Inbound{Statuses: c.statuses})
			}
			if got := texts(t, s, `SELECT state || ' ' || provider_id || CASE WHEN state = 'FAILED' THEN COALESCE(' ' || provider_code || ' ' || reason, '') ELSE '' END FROM replies`); !reflect.DeepEqual(got, []string{c.want}) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// Where the account has a template, a proved failure for want of a window is
// sent again as one, once.
func TestAClosedWindowIsTriedAsATemplateOnce(t *testing.T) {
	s := people(t, "open")
	reply(t, s, "SENT")
	if _, err := s.Pool().Exec(context.Background(), `UPDATE channel_routes SET spec = '{"template": {"name": "n"}}'`); err != nil {
		t.Fatal(err)
	}
	closed := postgres.Status{Account: "number", ProviderID: "p1", Reply: "rpl_1", State: harness.ReplyFailed, Code: 131047, Template: true}
	for i, want := range []string{"PLANNED TEMPLATE", "PLANNED TEMPLATE"} {
		accept(t, s, postgres.Inbound{Statuses: []postgres.Status{closed}})
		if got := texts(t, s, `SELECT state || ' ' || format FROM replies`); !reflect.DeepEqual(got, []string{want}) {
			t.Errorf("%d: %q", i, got)
		}
	}
	if _, err := s.Pool().Exec(context.Background(), `UPDATE replies SET state = 'SENT'`); err != nil {
		t.Fatal(err)
	}
	accept(t, s, postgres.Inbound{Statuses: []postgres.Status{closed}})
	if got := texts(t, s, `SELECT state || ' ' || format FROM replies`); !reflect.DeepEqual(got, []string{"FAILED TEMPLATE"}) {
		t.Errorf("a template that failed too: %q", got)
	}
}

func TestAPartIsSplitBeforeItIsSent(t *testing.T) {
	ctx := context.Background()
	s := people(t, "open")
	session := reply(t, s, "PLANNED")
	provider := postgres.ReplyLease{Lease: lease}
	claim, err := s.ClaimReply(ctx, session, provider)
	if err != nil || !claim.WindowOpen || claim.Address != "c" || claim.Kind != harness.ReplyText || claim.Format != harness.FormatRich {
		t.Fatalf("claim %+v %v", claim, err)
	}
	if err := s.SplitReply(ctx, claim, []string{"one ", "two ", "three"}); err != nil {
		t.Fatal(err)
	}
	if err := s.BeginSend(ctx, claim); err != nil {
		t.Fatal(err)
	}
	if err := s.BeginSend(ctx, claim); err == nil {
		t.Error("a part that may have been sent began again")
	}
	second, err := s.MarkReply(ctx, claim, postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true}, &provider)
	if err != nil || second.Text != "two " || second.Part != 2 || second.Parts != 3 {
		t.Fatalf("second %+v %v", second, err)
	}
	// The pace of this chat is two at once, then one an hour.
	if _, err := s.MarkReply(ctx, second, postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: "p2"}, &provider); err == nil {
		t.Fatal("the pace was not kept")
	}
	if got := texts(t, s, `SELECT part || state || (COALESCE(due_at > now() + interval '50 minutes', false)) FROM replies ORDER BY part`); !reflect.DeepEqual(got, []string{"1UNKNOWNfalse", "2SENTfalse", "3PLANNEDtrue"}) {
		t.Errorf("rows %q", got)
	}
	// Evidence that comes later settles what nobody sends again.
	accept(t, s, postgres.Inbound{Statuses: []postgres.Status{{Account: "number", Reply: claim.ID, ProviderID: "p1", State: harness.ReplyDelivered}}})
	if got := texts(t, s, `SELECT state FROM replies ORDER BY part`); got[0] != "DELIVERED" {
		t.Errorf("states %q", got)
	}
}

func TestAnOffsetIsStoredByWhoeverPolls(t *testing.T) {
	ctx := context.Background()
	s := people(t, "open")
	first, err := s.ClaimPoll(ctx, harness.ChannelWhatsApp, "number", postgres.Lease{Owner: "a", For: time.Millisecond})
	if err != nil || first.Next != 0 {
		t.Fatalf("%+v %v", first, err)
	}
	time.Sleep(5 * time.Millisecond)
	second, err := s.ClaimPoll(ctx, harness.ChannelWhatsApp, "number", lease)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ClaimPoll(ctx, harness.ChannelWhatsApp, "number", lease); err == nil {
		t.Error("two poll one bot")
	}
	batch := func(token int64) postgres.Inbound {
		return postgres.Inbound{Offset: &postgres.PollOffset{Account: "number", Token: token, Next: 8}, Arrivals: []postgres.Arrival{person(fmt.Sprint(token), "c", "hi")}}
	}
	if _, _, err := s.Accept(ctx, harness.ChannelWhatsApp, batch(first.Token), ""); err == nil {
		t.Error("one that lost its lease stored updates")
	}
	accept(t, s, batch(second.Token))
	if err := s.ReleasePoll(ctx, harness.ChannelWhatsApp, "number", second); err != nil {
		t.Fatal(err)
	}
	if third, err := s.ClaimPoll(ctx, harness.ChannelWhatsApp, "number", lease); err != nil || third.Next != 8 {
		t.Errorf("%+v %v", third, err)
	}
	if got := texts(t, s, `SELECT provider_id FROM messages`); !reflect.DeepEqual(got, []string{fmt.Sprint(second.Token)}) {
		t.Errorf("messages %q", got)
	}
}
