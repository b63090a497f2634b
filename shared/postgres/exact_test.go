package postgres_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// Numbers that no Go or JavaScript number holds are shown as they are stored,
// and make no list fail.
func TestNumbersAreShownAsTheyAreStored(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	accepted := arrive(t, s, "a")[0]
	digits := strings.Repeat("7", 401)
	stored := `{"a": ` + digits + `, "b": 12345678901234567890, "c": 0.1000000000000000055, "d": 1` + strings.Repeat("0", 400) + `}`
	execSQL(t, s, `UPDATE messages SET metadata = $1::jsonb`, `{"a":`+digits+`,"b":12345678901234567890,"c":0.1000000000000000055,"d":1e400}`)
	run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, title, input, digest, state) SELECT 'apr_1', session_id, 'coder', 't', metadata, 'd', 'PENDING' FROM messages`,
		`INSERT INTO dead_letters (event_id, event_type, payload, destination, state) SELECT 'e', 'ai.tuluat.session.due.v1', metadata, 'd', 'OPEN' FROM messages`)
	is := func(what string, got json.RawMessage, err error) {
		t.Helper()
		if err != nil || string(got) != stored {
			t.Errorf("%s: %s, %v", what, got, err)
		}
	}
	messages, err := s.ListMessages(ctx, accepted.Session, 0, 10)
	if err != nil || len(messages) != 1 {
		t.Fatal(messages, err)
	}
	is("a message", messages[0].Metadata, err)
	entries, _, err := s.Timeline(ctx, accepted.Session, view.Place{}, 10)
	if err != nil || len(entries) != 2 {
		t.Fatal(entries, err)
	}
	is("a message of the timeline", entries[0].Message.Metadata, err)
	is("an approval of the timeline", entries[1].Approval.Input, err)
	approvals, err := s.ListApprovals(ctx, postgres.ApprovalFilter{}, view.Place{}, 10)
	if err != nil || len(approvals) != 1 {
		t.Fatal(approvals, err)
	}
	is("an approval", approvals[0].Input, err)
	decided, _, err := s.DecideApproval(ctx, postgres.Decision{ID: "apr_1", State: harness.ApprovalApproved, By: "ann", Via: harness.ChannelAPI})
	is("a decided approval", decided.Input, err)
	letters, err := s.ListDeadLetters(ctx, postgres.DeadLetterFilter{}, view.Place{}, 10)
	if err != nil || len(letters) != 1 {
		t.Fatal(letters, err)
	}
	is("a dead letter", letters[0].Payload, err)
	if _, err := s.BeginWrite(ctx, postgres.Write{Before: json.RawMessage(stored), After: json.RawMessage(strings.Replace(stored, "}", `, "e": 1e400}`, 1))}); err != nil {
		t.Fatal(err)
	}
	audit, err := s.ListAudit(ctx, postgres.AuditFilter{}, view.Place{}, 10)
	if err != nil || len(audit) != 1 {
		t.Fatal(audit, err)
	}
	is("what was written over", audit[0].Before, err)
	if !strings.Contains(string(audit[0].After), `"e": 1000`) {
		t.Errorf("after: %s", audit[0].After)
	}
	_, err = s.BeginWrite(ctx, postgres.Write{After: json.RawMessage(`[1]`)})
	kindOf(t, err, harness.Invalid)
}

// A row that does not fit into what it is read into is a fault of ours, which
// trying again does not mend.
func TestARowThatCannotBeReadIsInternal(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	first := runIn(t, s, commands(t, s, 1, "ses_a")[0])
	execSQL(t, s, `UPDATE sandboxes SET spec = '["none"]'`)
	_, err := s.GetSandbox(ctx, first.Sandbox.ID)
	kindOf(t, err, harness.Internal)
}
