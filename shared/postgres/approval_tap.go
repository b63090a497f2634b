package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Tap is what somebody in a chat says to a card: by a tap on it, or by typing its
// code. Who they are and where they are is the provider's word.
type Tap struct {
	Channel    harness.Channel
	Account    string
	Chat       string // or an alias of it
	ProviderID string // of the update: a repeat has the same, and has no effect
	People     []string
	Callback   string // the provider's own id of the tap, where it waits for an answer

	Payload   string // of the button; else:
	Code      string
	State     harness.ApprovalState // of Code; empty: the card is to be shown once more
	Reason    string                // behind Code
	Forwarded bool                  // the words are another's
}

// TapOutcome is what became of a Tap.
type TapOutcome string

// The outcomes of a Tap.
const (
	TapDecided   TapOutcome = "DECIDED"   // it counted
	TapRefused   TapOutcome = "REFUSED"   // the chat is told why
	TapDuplicate TapOutcome = "DUPLICATE" // known already: no effect
	TapNotAsked  TapOutcome = "NOT_ASKED" // no card of this chat has the code: it is a message like any other
)

// IsTap reports whether the payload of a button is one of a card.
func IsTap(payload string) bool { return strings.HasPrefix(payload, "apr_") }

// tapped reads the payload of a button of a card.
func tapped(payload string) (id harness.ApprovalID, digest, verdict string, ok bool) {
	parts := strings.Split(payload, ".")
	if len(parts) != 3 || len(parts[1]) != digestPart || harness.CleanText(payload) != payload {
		return "", "", "", false
	}
	switch parts[2] {
	case tapApprove, tapSession, tapReject:
		return harness.ApprovalID(parts[0]), parts[1], parts[2], true
	}
	return "", "", "", false
}

// cardSQL finds the card of approval $4, or of the one with code $5, in chat $3 of
// account $2 of channel $1, and who the people $6 are known as there. An open one
// comes before those that are decided, of which whoever writes is told. known says
// that the inbox has the update $7; open counts the open ones that it may mean.
const cardSQL = `
WITH place AS (
    SELECT COALESCE((SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = $2 AND k.alias = $3), $3) AS chat
)
SELECT r.approval_id, r.session_id, r.message_id, ARRAY(
    SELECT unnest($6::text[]) UNION SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = $2 AND k.alias = ANY ($6)
    UNION SELECT o.alias FROM chat_aliases o WHERE o.channel = $1 AND o.account = $2 AND o.chat IN (
        SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = $2 AND k.alias = ANY ($6))),
    EXISTS (SELECT 1 FROM inbox i WHERE i.channel = $1 AND i.account = $2 AND i.provider_id = $7) AS known,
    count(*) FILTER (WHERE a.state = 'PENDING') OVER () AS open
FROM place, replies r JOIN sessions n USING (session_id) JOIN approvals a USING (approval_id)
WHERE r.kind = 'CARD' AND n.channel = $1 AND n.account = $2 AND n.chat = place.chat
  AND (a.approval_id = $4 OR $5 <> '' AND a.short_code = $5)
ORDER BY (a.state = 'PENDING') DESC, r.reply_id DESC LIMIT 1`

// DecideByTap writes what somebody in a chat says, once, and returns the events to
// publish. A tap that may not decide changes nothing, and its chat is told who
// decided what, and when, or who may.
func (s *Store) DecideByTap(ctx context.Context, t Tap) (TapOutcome, []event.Event, error) {
	id, digest, verdict, ok := tapped(t.Payload)
	if t.Payload != "" && !ok {
		id = "" // a button that was tampered with
	}
	var card struct {
		Approval harness.ApprovalID
		Session  harness.SessionID
		Message  harness.MessageID
		People   []string
		Known    bool
		Open     int
	}
	found, err := list(ctx, s, cardSQL, []any{t.Channel, t.Account, t.Chat, id, t.Code, t.People, t.ProviderID}, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&card.Approval, &card.Session, &card.Message, &card.People, &card.Known, &card.Open)
	})
	if err != nil {
		return "", nil, err
	}
	if len(found) == 0 {
		if t.Code != "" {
			return TapNotAsked, nil, nil
		}
		return s.refuseTap(ctx, t, "", "This button belongs to no question that was asked here. Nothing was done.")
	}
	if card.Known {
		return TapDuplicate, nil, nil
	}
	if card.Open > 1 { // by chance, two questions have the same code
		return s.refuseTap(ctx, t, card.Session, "Several questions here have this code. Tap on the card of the one that you mean. Nothing was done.")
	}
	before, err := s.GetApproval(ctx, card.Approval)
	if err != nil {
		return "", nil, err
	}
	switch {
	case t.Code != "" && t.State == "" && before.State == harness.ApprovalPending:
		return s.showCard(ctx, t, card.Session, before)
	case t.Forwarded:
		return s.refuseTap(ctx, t, card.Session, "What is forwarded decides nothing: write it yourself. Nothing was done.")
	case before.State != harness.ApprovalPending:
		return s.refuseTap(ctx, t, card.Session, "Nothing was done: it is decided already: "+DecidedText(before)+".")
	}
	d := Decision{ID: before.ID, Via: t.Channel, State: t.State, Reason: t.Reason, Digest: before.Digest}
	if t.Payload != "" {
		d.State = map[string]harness.ApprovalState{tapApprove: harness.ApprovalApproved, tapSession: harness.ApprovalApproved, tapReject: harness.ApprovalRejected}[verdict]
		if verdict == tapSession {
			d.Scope = harness.GrantSession
		}
		if !strings.HasPrefix(before.Digest, digest) {
			return s.refuseTap(ctx, t, card.Session, "This card is of something else than what is asked now. Nothing was done.")
		}
	}
	i := slices.IndexFunc(before.Approvers, func(a harness.Approver) bool {
		return a.Channel == t.Channel && slices.Contains(card.People, a.ChannelUserID)
	})
	if i < 0 {
		return s.refuseTap(ctx, t, card.Session, "You are none of those who may decide this ("+approverNames(before.Approvers)+"). Nothing was done.")
	}
	d.By = before.Approvers[i].String()
	subject, err := d.subject(before)
	if harness.KindOf(err) == harness.Invalid {
		return s.refuseTap(ctx, t, card.Session, "Nothing was done: "+harness.MessageOf(err)+".")
	}
	if err != nil {
		return "", nil, err
	}
	outcome := TapDecided
	var events []event.Event
	fresh, err := s.once(ctx, t, func(tx pgx.Tx) error {
		events = nil
		var after view.Approval
		var counted bool
		b := &pgx.Batch{}
		d.queue(b, before.Digest, subject, &events, &counted)
		b.Queue(approvalSQL, d.ID).Query(into(&after, readApproval))
		if t.Callback != "" { // whoever sends the outcome answers the tap
			b.Queue(`UPDATE messages SET metadata = jsonb_build_object('callbackQueryId', $2::text) WHERE message_id = $1 AND created_at = now()`, string(card.Message)+"o", t.Callback)
		}
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		var words string
		if outcome, words = d.answer(before, after, counted); words == "" {
			return nil
		}
		return tx.SendBatch(ctx, s.words(t, card.Session, words, &events)).Close()
	})
	switch {
	case err != nil:
		return "", nil, err
	case !fresh:
		return TapDuplicate, nil, nil
	}
	return outcome, events, nil
}

// answer is what became of the tap d, and what its chat is told about it; nothing
// where the outcome of the question says it.
func (d Decision) answer(before, after view.Approval, counted bool) (TapOutcome, string) {
	switch err := d.outcome(before, after, counted); {
	case err == nil && after.State == harness.ApprovalPending:
		return TapDecided, fmt.Sprintf("Noted: %d of %d have approved.", approvals(after.Votes), after.Quorum)
	case err == nil:
		return TapDecided, ""
	case after.State != harness.ApprovalPending:
		return TapRefused, "Nothing was done: it is decided already: " + DecidedText(after) + "."
	case voted(before.Votes, d):
		return TapRefused, fmt.Sprintf("Nothing was done: you have said so already; %d must approve.", after.Quorum)
	}
	return TapRefused, "Nothing was done: its time is over."
}

func approvals(votes []view.Vote) int {
	n := 0
	for _, v := range votes {
		if v.Decision == harness.ApprovalApproved {
			n++
		}
	}
	return n
}

// refuseTap tells the chat of a tap why it does not count, once. Without a
// session, the chat's newest is told; a chat that has none is not.
func (s *Store) refuseTap(ctx context.Context, t Tap, session harness.SessionID, why string) (TapOutcome, []event.Event, error) {
	if session == "" {
		found, err := list(ctx, s, `SELECT session_id FROM sessions WHERE channel = $1 AND account = $2
			AND chat = COALESCE((SELECT k.chat FROM chat_aliases k WHERE k.channel = $1 AND k.account = $2 AND k.alias = $3), $3) ORDER BY created_at DESC LIMIT 1`,
			[]any{t.Channel, t.Account, t.Chat}, pgx.RowTo[harness.SessionID])
		if err != nil || len(found) == 0 {
			return TapRefused, nil, err
		}
		session = found[0]
	}
	var events []event.Event
	fresh, err := s.once(ctx, t, func(tx pgx.Tx) error {
		events = nil
		return tx.SendBatch(ctx, s.words(t, session, why, &events)).Close()
	})
	switch {
	case err != nil:
		return "", nil, err
	case !fresh:
		return TapDuplicate, nil, nil
	}
	return TapRefused, events, nil
}

// showCard sends the card of a once more, where words behind a code ask for it:
// what went out as a template had no room for it.
func (s *Store) showCard(ctx context.Context, t Tap, session harness.SessionID, a view.Approval) (TapOutcome, []event.Event, error) {
	card, err := questionOf(a)
	if err != nil {
		return "", nil, err
	}
	person := ""
	if len(t.People) > 0 {
		person = t.People[0]
	}
	id := harness.NewMessageID(s.now())
	var events []event.Event
	var fresh bool
	b := &pgx.Batch{}
	b.Queue(`SELECT lock_approval($1)`, a.ID)
	b.Queue(`INSERT INTO inbox (channel, account, provider_id, message_id) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING true`, t.Channel, t.Account, t.ProviderID, id).
		Query(each(func(row pgx.CollectableRow) error { return row.Scan(&fresh) }))
	if t.Channel != harness.ChannelTelegram { // where no card is edited, the newest one alone is followed by its outcome
		b.Queue(`UPDATE replies SET kind = 'TEXT' WHERE approval_id = $1 AND session_id = $2 AND kind = 'CARD' AND state NOT IN ('PLANNED', 'UNKNOWN')`, a.ID, session)
	}
	b.Queue(`SELECT e.* FROM inbox i, approvals a, LATERAL tell($5, i.message_id, $6, $7, 'CARD', $8, a.approval_id) e
		WHERE i.channel = $1 AND i.account = $2 AND i.provider_id = $3 AND i.message_id = $9 AND a.approval_id = $4 AND a.state = 'PENDING'`,
		t.Channel, t.Account, t.ProviderID, a.ID, session, person, card.text(), cardChoices(a.ID, a.Digest, card.Subject), id).Query(collectAnnounced(&events))
	if err := s.batch(ctx, b, nil); err != nil || !fresh {
		return TapDuplicate, nil, err
	}
	return TapDecided, events, nil
}

// once runs do in the transaction that makes t known, so that its effect, and the
// words that its chat is told, are there once or not at all. fresh: it was not
// known before.
func (s *Store) once(ctx context.Context, t Tap, do func(tx pgx.Tx) error) (fresh bool, err error) {
	err = again(func() error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `INSERT INTO inbox (channel, account, provider_id, message_id) VALUES ($1, $2, $3, '') ON CONFLICT DO NOTHING`, t.Channel, t.Account, t.ProviderID)
			if fresh = tag.RowsAffected() > 0; err != nil || !fresh {
				return err
			}
			return do(tx)
		})
	})
	return fresh, translate(err)
}

// words tells session a text about t.
func (s *Store) words(t Tap, session harness.SessionID, text string, events *[]event.Event) *pgx.Batch {
	id := harness.NewMessageID(s.now())
	person := ""
	if len(t.People) > 0 {
		person = t.People[0]
	}
	b := &pgx.Batch{}
	b.Queue(`SELECT 1 FROM sessions WHERE session_id = $1 FOR NO KEY UPDATE`, session)
	b.Queue(`SELECT * FROM tell($1, $2, $3, $4, 'TEXT', '[]', NULL)`, session, id, person, text).Query(collectAnnounced(events))
	if t.Callback != "" {
		b.Queue(`UPDATE messages SET metadata = jsonb_build_object('callbackQueryId', $2::text) WHERE message_id = $1`, id, t.Callback)
	}
	return b
}
