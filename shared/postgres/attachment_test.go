package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// media is a conversation whose message came with files, and a command of it.
type media struct {
	*testing.T
	store   *postgres.Store
	session harness.SessionID
	message harness.MessageID
}

func newMedia(t *testing.T, files ...string) *media {
	t.Helper()
	s := postgrestest.New(t)
	agent(t, s)
	m := &media{T: t, store: s}
	m.sql(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('TELEGRAM', 'bot', 'coder', '{"account": "bot"}', true)`)
	arrival := postgres.Arrival{Account: "bot", ProviderID: "u1", Chat: "7", Address: "7", Message: harness.Message{ChannelUserID: "7", Text: "look"}}
	for i, name := range files {
		arrival.Attachments = append(arrival.Attachments, harness.Attachment{Kind: harness.AttachmentImage, ProviderID: fmt.Sprint("p", i), FileName: name, Bytes: 10})
	}
	accepted, _, err := s.Accept(context.Background(), harness.ChannelTelegram, postgres.Inbound{Arrivals: []postgres.Arrival{arrival}}, "")
	if err != nil {
		t.Fatal(err)
	}
	m.session, m.message = accepted[0].Session, accepted[0].Message
	m.sql(`UPDATE messages SET state = 'RUNNING'`)
	return m
}

func (m *media) sql(sql string, args ...any) {
	m.Helper()
	if _, err := m.store.Pool().Exec(context.Background(), sql, args...); err != nil {
		m.Fatal(err)
	}
}

func (m *media) text(sql string, args ...any) string {
	m.Helper()
	var text string
	if err := m.store.Pool().QueryRow(context.Background(), sql, args...).Scan(&text); err != nil {
		m.Fatal(sql, err)
	}
	return text
}

func (m *media) command(id string) *postgres.ExecutionClaim {
	m.Helper()
	spec := harness.DefaultSandbox()
	m.sql(`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
		VALUES ($1, $2, 'coder', 'API', $1, 'true', $3, $4, 1, 'PENDING', 'n', now())`, id, m.session, spec, spec.Digest())
	return m.claim(id)
}

func (m *media) claim(id string) *postgres.ExecutionClaim {
	m.Helper()
	c, err := m.store.ClaimExecution(context.Background(), harness.ExecutionID(id), lease)
	if err != nil {
		m.Fatal(err)
	}
	return c
}

var wait = postgres.MediaWait{Look: 20 * time.Second, Patience: 90 * time.Second}

func (m *media) states() string {
	return m.text(`SELECT COALESCE(string_agg(state, ' ' ORDER BY attachment_id), '') FROM attachments`)
}

// A command waits for two files; the second to come wakes it.
func TestCommandsWaitForFiles(t *testing.T) {
	ctx := context.Background()
	m := newMedia(t, "a.png", "b.png")
	c := m.command("exe_1")
	waits, events, err := m.store.AwaitMedia(ctx, c, wait)
	if err != nil || !waits || len(events) != 1 || events[0].Type != event.MediaRequested || events[0].Channel != harness.ChannelTelegram || events[0].Session != m.session {
		t.Fatalf("await: %v %+v %v", waits, events, err)
	}
	if got := m.states(); got != "REQUESTED REQUESTED" {
		t.Fatal(got)
	}
	if got := m.text(`SELECT state || (due_at > now() + interval '15 seconds') || (lease_owner IS NULL) || attempts FROM executions`); got != "PENDINGtruetrue0" {
		t.Errorf("the command is %s", got)
	}
	if _, _, err := m.store.AwaitMedia(ctx, c, wait); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("a second wait under one claim: %v", err)
	}
	if due, err := m.store.MediaDue(ctx, 10); err != nil || len(due) != 0 {
		t.Errorf("announced already: %+v %v", due, err)
	}
	first, err := m.store.ClaimMedia(ctx, m.session, lease)
	if err != nil || first.FileName == "" || first.Spec == nil || first.Account != "bot" || first.Attempts != 1 {
		t.Fatalf("claim: %+v %v", first, err)
	}
	if n := m.text(`SELECT count(*)::text FROM outbox WHERE subject = 'media:' || $1`, m.session); n != "0" {
		t.Errorf("%s announcements after the claim", n)
	}
	second, err := m.store.ClaimMedia(ctx, m.session, lease)
	if err != nil || second.ID == first.ID {
		t.Fatalf("second claim: %+v %v", second, err)
	}
	if _, err := m.store.ClaimMedia(ctx, m.session, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("third claim: %v", err)
	}
	stored := postgres.MediaOutcome{State: harness.AttachmentStored, ObjectKey: "k", Digest: "d", Bytes: 12, MimeType: "image/png"}
	if events, err := m.store.MarkMedia(ctx, first, stored); err != nil || len(events) != 0 {
		t.Fatalf("first mark: %+v %v", events, err)
	}
	if _, err := m.store.MarkMedia(ctx, first, stored); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("a second mark: %v", err)
	}
	again := postgres.MediaOutcome{State: harness.AttachmentRequested, Reason: "later", Retry: time.Hour}
	if events, err := m.store.MarkMedia(ctx, second, again); err != nil || len(events) != 0 {
		t.Fatalf("retry: %+v %v", events, err)
	}
	if _, err := m.store.ClaimMedia(ctx, m.session, lease); !errors.Is(err, postgres.ErrNothingDue) {
		t.Fatalf("claim before its time: %v", err)
	}
	m.sql(`UPDATE attachments SET due_at = now() WHERE state = 'REQUESTED'`)
	if due, err := m.store.MediaDue(ctx, 10); err != nil || len(due) != 1 || due[0].Session != m.session || due[0].Channel != harness.ChannelTelegram {
		t.Errorf("due and unheard: %+v %v", due, err)
	}
	if second, err = m.store.ClaimMedia(ctx, m.session, lease); err != nil || second.Attempts != 2 {
		t.Fatalf("claim again: %+v %v", second, err)
	}
	events, err = m.store.MarkMedia(ctx, second, postgres.MediaOutcome{State: harness.AttachmentFailed, Reason: "gone"})
	if err != nil || len(events) != 1 || events[0].Type != event.ExecutionRequested || events[0].Payload.Execution != "exe_1" {
		t.Fatalf("last mark: %+v %v", events, err)
	}
	c = m.claim("exe_1")
	if waits, events, err := m.store.AwaitMedia(ctx, c, wait); err != nil || waits || len(events) != 0 {
		t.Fatalf("await with nothing to wait for: %v %+v %v", waits, events, err)
	}
	m.sql(`INSERT INTO sandboxes (sandbox_id, sandbox_name, agent_name, session_id, spec, spec_digest, state, sandbox_uid, expires_at) VALUES ('sbx_1', 'n', 'coder', $1, '{}', 'd', 'READY', 'u', now())`, m.session)
	lacking, err := m.store.LackingFiles(ctx, c, "sbx_1")
	if err != nil || len(lacking) != 2 {
		t.Fatalf("lacking: %+v %v", lacking, err)
	}
	if lacking[0].ID != first.ID {
		lacking[0], lacking[1] = lacking[1], lacking[0]
	}
	if lacking[0].ObjectKey != "k" || lacking[0].Digest != "d" || lacking[0].Bytes != 12 || !lacking[0].Current || lacking[1].Reason != "gone" {
		t.Fatalf("lacking: %+v %v", lacking, err)
	}
	for range 2 {
		if err := m.store.PlaceFile(ctx, "sbx_1", lacking[0].ID); err != nil {
			t.Fatal(err)
		}
	}
	if lacking, err = m.store.LackingFiles(ctx, c, "sbx_1"); err != nil || len(lacking) != 1 {
		t.Fatalf("lacking after one was placed: %+v %v", lacking, err)
	}
}

// Nobody brings the files: the command stops waiting.
func TestPatienceEnds(t *testing.T) {
	ctx := context.Background()
	m := newMedia(t, "a.png")
	c := m.command("exe_1")
	if waits, _, err := m.store.AwaitMedia(ctx, c, wait); err != nil || !waits {
		t.Fatal(waits, err)
	}
	m.sql(`UPDATE executions SET due_at = now()`)
	m.sql(`UPDATE attachments SET updated_at = now() - interval '85 seconds'`)
	c = m.claim("exe_1")
	if waits, _, err := m.store.AwaitMedia(ctx, c, wait); err != nil || !waits {
		t.Fatal(waits, err)
	}
	if got := m.text(`SELECT (due_at < now() + interval '10 seconds')::text FROM executions`); got != "true" {
		t.Error("the last look is later than patience ends")
	}
	m.sql(`UPDATE executions SET due_at = now()`)
	m.sql(`UPDATE attachments SET updated_at = now() - interval '91 seconds'`)
	c = m.claim("exe_1")
	if waits, events, err := m.store.AwaitMedia(ctx, c, wait); err != nil || waits || len(events) != 0 {
		t.Fatalf("after patience: %v %+v %v", waits, events, err)
	}
	if got := m.text(`SELECT state || (lease_owner IS NOT NULL) FROM executions`); got != "PENDINGtrue" {
		t.Errorf("the claim is %s", got)
	}
}

// The mark that comes while the command is about to wait is not lost: one of
// them sees the other.
func TestTheLastFileAndTheWaitMeet(t *testing.T) {
	ctx := context.Background()
	for range 20 {
		m := newMedia(t, "a.png")
		m.sql(`UPDATE attachments SET state = 'REQUESTED', due_at = now(), updated_at = now()`)
		file, err := m.store.ClaimMedia(ctx, m.session, lease)
		if err != nil {
			t.Fatal(err)
		}
		c := m.command("exe_1")
		marked := make(chan []event.Event, 1)
		go func() {
			events, err := m.store.MarkMedia(ctx, file, postgres.MediaOutcome{State: harness.AttachmentStored, ObjectKey: "k", Digest: "d", Bytes: 1})
			if err != nil {
				t.Error(err)
			}
			marked <- events
		}()
		waits, _, err := m.store.AwaitMedia(ctx, c, wait)
		if err != nil {
			t.Fatal(err)
		}
		if events := <-marked; waits != (len(events) == 1) {
			t.Fatalf("the command waits: %v, and %d wakes came", waits, len(events))
		}
	}
}

// What commands made goes out behind the answer, the newest of each path, once.
func TestMadeFilesGoWithTheAnswer(t *testing.T) {
	ctx := context.Background()
	m := newMedia(t)
	made := func(path, key string) postgres.MadeFile {
		return postgres.MadeFile{Path: path, ObjectKey: key, Digest: key, Attachment: harness.Attachment{Kind: harness.AttachmentDocument, FileName: strings.TrimPrefix(path, "out/"), MimeType: "text/plain", Bytes: 3}}
	}
	c := m.command("exe_1")
	for range 2 {
		if err := m.store.StoreMadeFiles(ctx, c, []postgres.MadeFile{made("out/a", "k1"), made("out/b", "k2")}); err != nil {
			t.Fatal(err)
		}
	}
	c2 := m.command("exe_2")
	if err := m.store.StoreMadeFiles(ctx, c2, []postgres.MadeFile{made("out/a", "k3")}); err != nil {
		t.Fatal(err)
	}
	if n := m.text(`SELECT count(*)::text FROM attachments`); n != "3" {
		t.Fatalf("%s rows", n)
	}
	c2.Token++
	if err := m.store.StoreMadeFiles(ctx, c2, []postgres.MadeFile{made("out/z", "k")}); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Fatalf("under a lost claim: %v", err)
	}
	claim, err := m.store.ClaimSession(ctx, m.session, lease)
	if err != nil {
		t.Fatal(err)
	}
	choices := []harness.Choice{{ID: "c1", Title: "Yes"}, {ID: "c2", Title: "No", Description: "not now"}}
	if _, err := m.store.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Reply: []string{"done?"}, Choices: choices, Step: &postgres.NewStep{ID: "stp_1", Text: "done?"}}); err != nil {
		t.Fatal(err)
	}
	got := m.text(`SELECT string_agg(concat_ws('|', part, parts, r.kind, text, object_key, choices), E'\n' ORDER BY part) FROM replies r LEFT JOIN attachments a USING (attachment_id)`)
	want := "1|3|CHOICES|done?|[{\"id\": \"c1\", \"title\": \"Yes\"}, {\"id\": \"c2\", \"title\": \"No\", \"description\": \"not now\"}]\n2|3|FILE|b|k2|[]\n3|3|FILE|a|k3|[]"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("replies (-want +got):\n%s", diff)
	}
	if n := m.text(`SELECT count(*)::text FROM attachments WHERE message_id IS NULL`); n != "0" {
		t.Errorf("%s files belong to no answer", n)
	}
}

// A step reads the files of its turns, and only the two ends of what was printed.
func TestClaimsReadFilesAndWindows(t *testing.T) {
	ctx := context.Background()
	m := newMedia(t, "a.png", "../../b\n.png")
	c := m.command("exe_1")
	m.sql(`INSERT INTO steps (step_id, session_id, message_id, seq, text) VALUES ('stp_1', $1, $2, 1, '')`, m.session, m.message)
	m.sql(`INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state) VALUES ('call_1', 'stp_1', $1, 0, 'p', 'executeShell', '{}', 'RUNNING')`, m.session)
	m.sql(`UPDATE executions SET cause = 'TOOL_CALL', cause_id = 'call_1'`)
	var printed []byte
	for len(printed) < 100<<10 {
		printed = fmt.Appendf(printed, "line %d\n", len(printed))
	}
	var pieces []postgres.OutputPiece
	for at := 0; at < len(printed); at += 5000 {
		pieces = append(pieces, postgres.OutputPiece{Stream: "stdout", Start: int64(at), Data: printed[at:min(len(printed), at+5000)]})
	}
	pieces = append(pieces, postgres.OutputPiece{Stream: "stderr", Data: printed[:12<<10]})
	if err := m.store.StoreMadeFiles(ctx, c, []postgres.MadeFile{{Path: "out/x", ObjectKey: "k", Attachment: harness.Attachment{Kind: harness.AttachmentDocument}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.store.FinishExecution(ctx, c, postgres.ExecutionOutcome{
		State: harness.ExecutionFailed, StdoutBytes: int64(len(printed)), StderrBytes: 12 << 10, Output: pieces,
	}); err != nil {
		t.Fatal(err)
	}
	claim, err := m.store.ClaimSession(ctx, m.session, lease)
	if err != nil {
		t.Fatal(err)
	}
	files := claim.Turns[0].Files
	if len(files) == 2 && files[0].FileName != "a.png" {
		files[0], files[1] = files[1], files[0]
	}
	if len(files) != 2 || files[0].FileName != "a.png" || files[0].State != harness.AttachmentOffered || strings.Contains(files[1].Path, "..") || strings.Contains(files[1].Path, "\n") {
		t.Errorf("files %+v", files)
	}
	e := claim.Calls[0].Execution
	if !bytes.Equal(e.StdoutHead, printed[:postgres.OutputWindow]) || !bytes.Equal(e.StdoutTail, printed[len(printed)-postgres.OutputWindow:]) {
		t.Errorf("stdout: %d and %d bytes", len(e.StdoutHead), len(e.StdoutTail))
	}
	if !bytes.Equal(e.StderrHead, printed[:12<<10]) || e.StderrTail != nil {
		t.Errorf("stderr: %d and %d bytes", len(e.StderrHead), len(e.StderrTail))
	}
	if !cmp.Equal(e.Files, []string{"out/x"}) {
		t.Errorf("made %v", e.Files)
	}
}

func TestWindowsOfEverySize(t *testing.T) {
	ctx := context.Background()
	m := newMedia(t)
	const w = postgres.OutputWindow
	for i, c := range []struct{ stored, printed int }{{0, 0}, {1, 1}, {w, w}, {2*w - 1, 2*w - 1}, {2 * w, 2 * w}, {2*w + 1, 2*w + 1}, {5 * w, 5 * w}, {0, 10}, {100, 200}, {w + 5, 3 * w}, {3 * w, 9 * w}} {
		all := make([]byte, c.printed)
		for k := range all {
			all[k] = byte(k*7 + k/251)
		}
		id := fmt.Sprint("exe_", i)
		claim := m.command(id)
		m.sql(`INSERT INTO steps (step_id, session_id, message_id, seq, text) VALUES ($3, $1, $2, $4, '')`, m.session, m.message, "stp"+id, i+1)
		m.sql(`INSERT INTO tool_calls (tool_call_id, step_id, session_id, seq, provider_id, name, arguments, state) VALUES ($2, $3, $1, 0, 'p', 'x', '{}', 'RUNNING')`, m.session, "call"+id, "stp"+id)
		m.sql(`UPDATE executions SET cause = 'TOOL_CALL', cause_id = $2 WHERE execution_id = $1`, id, "call"+id)
		o := postgres.ExecutionOutcome{State: harness.ExecutionFailed, StdoutBytes: int64(c.printed)}
		for at := 0; at < c.stored; at += 3001 {
			o.Output = append(o.Output, postgres.OutputPiece{Stream: "stdout", Start: int64(at), Data: all[at:min(c.stored, at+3001)]})
		}
		if c.stored < c.printed {
			o.StdoutTail = all[max(0, len(all)-8<<10):]
		}
		if _, err := m.store.FinishExecution(ctx, claim, o); err != nil {
			t.Fatal(err)
		}
		s, err := m.store.ClaimSession(ctx, m.session, lease)
		if err != nil {
			t.Fatal(err)
		}
		e := s.Calls[len(s.Calls)-1].Execution
		wantHead, wantTail := all[:min(c.stored, w)], all[max(0, len(all)-w):]
		if c.stored == c.printed && c.stored <= 2*w {
			wantHead, wantTail = all, nil
		}
		if !bytes.Equal(e.StdoutHead, wantHead) || !bytes.Equal(e.StdoutTail, wantTail) {
			t.Errorf("%d stored of %d: head %d, tail %d; want %d and %d", c.stored, c.printed, len(e.StdoutHead), len(e.StdoutTail), len(wantHead), len(wantTail))
		}
		m.sql(`UPDATE sessions SET lease_owner = NULL, lease_until = NULL, due_at = now()`)
	}
}

// The first attempt at a turn counts against its time, and an older turn's does not.
func TestATurnBeginsWithItsFirstClaim(t *testing.T) {
	ctx := context.Background()
	m := newMedia(t)
	started := func() string { return m.text(`SELECT turn_started_at::text FROM sessions`) }
	m.sql(`UPDATE messages SET state = 'PENDING'`)
	m.sql(`UPDATE sessions SET turn_started_at = now() - interval '1 day', attempts = 1`) // a claim of an earlier turn died
	if c, err := m.store.ClaimSession(ctx, m.session, lease); err != nil || c.Used.Elapsed > time.Minute {
		t.Fatalf("%+v %v", c, err)
	}
	m.sql(`UPDATE sessions SET turn_started_at = turn_started_at + interval '1 second', lease_until = now() - interval '1 second'`)
	first := started()
	if _, err := m.store.ClaimSession(ctx, m.session, lease); err != nil || started() != first {
		t.Fatalf("a second attempt begins the turn at %s, the first did at %s; %v", started(), first, err)
	}
	m.sql(`UPDATE messages SET state = 'RUNNING'`)
	m.sql(`UPDATE sessions SET lease_until = now() - interval '1 second', attempts = 0`)
	if _, err := m.store.ClaimSession(ctx, m.session, lease); err != nil || started() != first {
		t.Fatalf("a later step begins the turn again; %v", err)
	}
}

func TestDueIn(t *testing.T) {
	ctx := context.Background()
	m := newMedia(t)
	for sql, want := range map[string]string{
		`due_at = now() + interval '2 seconds'`:                   "true true",
		`due_at = now() - interval '2 seconds'`:                   "true false",
		`due_at = NULL`:                                           "false false",
		`due_at = now(), retry_at = now() + interval '2 seconds'`: "false false",
		`due_at = now() + interval '2 seconds', lease_owner = 'x', lease_until = now() + interval '10 seconds'`: "false false",
	} {
		m.sql(`UPDATE sessions SET retry_at = NULL, lease_owner = NULL, lease_until = NULL`)
		m.sql(`UPDATE sessions SET ` + sql)
		in, ok, err := m.store.DueIn(ctx, m.session)
		if got := fmt.Sprint(ok, in > time.Second && in <= 2*time.Second); err != nil || got != want {
			t.Errorf("%s: %s (%s) %v, want %s", sql, got, in, err, want)
		}
	}
}
