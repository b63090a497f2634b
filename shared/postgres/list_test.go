package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// walk reads a list page by page and returns all its rows; none may come twice.
func walk[T any](t *testing.T, limit int, get func(after view.Place) ([]T, error), place func(T) view.Place) []T {
	t.Helper()
	var all []T
	var after view.Place
	for {
		rows, err := get(after)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rows...)
		if len(rows) < limit {
			return all
		}
		if after = place(rows[len(rows)-1]); len(all) > 10_000 {
			t.Fatal("the list has no end")
		}
	}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// Every filter, alone and with others, page by page: what it should hold, newest
// first, nothing twice, nothing left out.
func TestListSessions(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Now().Truncate(time.Second)
	run(t, s, `INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('a', 1, 'READY', ''), ('b', 1, 'READY', ''), ('gone', 1, 'DELETED', '')`)
	type row struct {
		v    view.Session
		user string
	}
	var rows []row
	for i := range 300 {
		at := now.Add(-time.Duration(i) * time.Minute)
		v := view.Session{
			ID: harness.NewSessionID(at), Agent: pick[harness.AgentName](r, "a", "a", "b", "gone"), Channel: pick(r, harness.ChannelAPI, harness.ChannelWhatsApp, harness.ChannelTelegram),
			Account: pick(r, "one", "two"), Chat: strconv.Itoa(i), State: pick(r, harness.SessionStates()...), CreatedAt: at.Truncate(time.Microsecond),
		}
		user := pick(r, "ann", "ben")
		execSQL(t, s, `INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, created_at, traceparent, message_seq, step_seq) VALUES ($1, $2, $3, $4, $5, $6, $7, '00-0af7-b7ad-01', 2, 1)`,
			v.ID, v.Agent, v.Channel, v.Account, v.Chat, v.State, v.CreatedAt)
		for seq := range 2 {
			execSQL(t, s, `INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ($1, $2, $3, 'INBOUND', 'DONE', $4, '')`,
				harness.NewMessageID(at), v.ID, seq+1, user)
		}
		rows = append(rows, row{v, user})
	}
	for range 60 {
		f := postgres.SessionFilter{
			Agent: pick[harness.AgentName](r, "", "", "a", "b", "gone", "none"), Channel: pick(r, "", "", harness.ChannelAPI, harness.ChannelWebhook),
			ChannelUserID: pick(r, "", "", "ann", "nobody"),
			Since:         pick(r, time.Time{}, now.Add(-200*time.Minute)), Until: pick(r, time.Time{}, now.Add(-100*time.Minute)),
		}
		for range r.IntN(3) {
			f.States = append(f.States, pick(r, harness.SessionStates()...)) // perhaps one of them twice
		}
		var want []harness.SessionID
		for _, row := range rows {
			if (f.Agent == "" || f.Agent == row.v.Agent) && (f.Channel == "" || f.Channel == row.v.Channel) && (f.ChannelUserID == "" || f.ChannelUserID == row.user) &&
				(len(f.States) == 0 || slices.Contains(f.States, row.v.State)) && !row.v.CreatedAt.Before(f.Since) && (f.Until.IsZero() || row.v.CreatedAt.Before(f.Until)) {
				want = append(want, row.v.ID)
			}
		}
		slices.SortFunc(want, func(a, b harness.SessionID) int { return strings.Compare(string(b), string(a)) })
		got := walk(t, 7, func(after view.Place) ([]view.Session, error) { return s.ListSessions(ctx, f, after, 7) },
			func(v view.Session) view.Place { return view.Place{At: v.CreatedAt, ID: string(v.ID)} })
		var ids []harness.SessionID
		for _, v := range got {
			ids = append(ids, v.ID)
		}
		if diff := cmp.Diff(want, ids); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", f, diff)
		}
	}
	got, err := s.GetSession(ctx, rows[0].v.ID)
	if err != nil || got.TraceID != "0af7" || got.Messages != 2 || got.Steps != 1 || !got.CreatedAt.Equal(rows[0].v.CreatedAt) {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = s.ListSessions(ctx, postgres.SessionFilter{States: []harness.SessionState{"x' OR true --"}}, view.Place{}, 7)
	kindOf(t, err, harness.Invalid)
	_, err = s.GetSession(ctx, "ses_none")
	kindOf(t, err, harness.NotFound)
}

func TestListExecutionsAndSandboxes(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	r := rand.New(rand.NewPCG(3, 4))
	run(t, s, `INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('other', 1, 'READY', '')`,
		`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) SELECT 'ses_' || n, CASE n % 2 WHEN 0 THEN 'coder' ELSE 'other' END, 'API', 'x', n::text, 'IDLE' FROM generate_series(0, 5) n`)
	now := time.Now().Truncate(time.Second)
	var executions []view.Execution
	var sandboxes []view.Sandbox
	for i := range 60 {
		at := now.Add(-time.Duration(i) * time.Minute)
		n := r.IntN(6)
		box := view.Sandbox{ID: harness.NewSandboxID(at), Session: harness.SessionID(fmt.Sprint("ses_", n)), Agent: []harness.AgentName{"coder", "other"}[n%2], State: pick(r, harness.SandboxTerminating, harness.SandboxGone, harness.SandboxGone)}
		execSQL(t, s, `INSERT INTO sandboxes (sandbox_id, sandbox_name, agent_name, session_id, spec, spec_digest, state, expires_at, ended_at, created_at)
			VALUES ($1, $1, $2, $3, '{"cpuMillis": 500}', 'd', $4, now(), CASE WHEN $4 = 'GONE' THEN now() END, $5)`, box.ID, box.Agent, box.Session, box.State, at)
		sandboxes = append(sandboxes, box)
		for range 3 {
			e := view.Execution{ID: harness.NewExecutionID(at), Session: box.Session, Agent: box.Agent, Sandbox: box.ID, State: pick(r, harness.ExecutionPending, harness.ExecutionCompleted, harness.ExecutionFailed, harness.ExecutionUnknown)}
			execSQL(t, s, `INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, sandbox_id, nonce, ended_at, created_at)
				VALUES ($1, $2, $3, 'API', $1, 'true', '{}', 'd', 1, $4, $5, 'n', CASE WHEN $4 <> 'PENDING' THEN now() END, $6)`, e.ID, e.Session, e.Agent, e.State, e.Sandbox, at)
			executions = append(executions, e)
		}
	}
	for range 40 {
		f := postgres.ExecutionFilter{
			Agent: pick[harness.AgentName](r, "", "coder", "other"), Session: pick[harness.SessionID](r, "", "", "ses_1", "ses_2"), Sandbox: pick(r, "", "", sandboxes[3].ID),
			Since: pick(r, time.Time{}, now.Add(-30*time.Minute)), Until: pick(r, time.Time{}, now.Add(-10*time.Minute)),
		}
		f.States = pick(r, nil, []harness.ExecutionState{harness.ExecutionUnknown}, []harness.ExecutionState{harness.ExecutionPending, harness.ExecutionCompleted, harness.ExecutionPending})
		var want []harness.ExecutionID
		for i, e := range executions {
			at := now.Add(-time.Duration(i/3) * time.Minute)
			if (f.Agent == "" || f.Agent == e.Agent) && (f.Session == "" || f.Session == e.Session) && (f.Sandbox == "" || f.Sandbox == e.Sandbox) && (len(f.States) == 0 || slices.Contains(f.States, e.State)) &&
				!at.Before(f.Since) && (f.Until.IsZero() || at.Before(f.Until)) {
				want = append(want, e.ID)
			}
		}
		slices.SortFunc(want, func(a, b harness.ExecutionID) int { return strings.Compare(string(b), string(a)) })
		var ids []harness.ExecutionID
		for _, v := range walk(t, 7, func(after view.Place) ([]view.Execution, error) { return s.ListExecutions(ctx, f, after, 7) },
			func(v view.Execution) view.Place { return view.Place{At: v.CreatedAt, ID: string(v.ID)} }) {
			ids = append(ids, v.ID)
		}
		if diff := cmp.Diff(want, ids); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", f, diff)
		}
		b := postgres.SandboxFilter{Agent: f.Agent, Session: f.Session, States: pick(r, nil, []harness.SandboxState{harness.SandboxGone}, []harness.SandboxState{harness.SandboxTerminating, harness.SandboxReady})}
		var wanted []harness.SandboxID
		for _, v := range sandboxes {
			if (b.Agent == "" || b.Agent == v.Agent) && (b.Session == "" || b.Session == v.Session) && (len(b.States) == 0 || slices.Contains(b.States, v.State)) {
				wanted = append(wanted, v.ID)
			}
		}
		var found []harness.SandboxID
		for _, v := range walk(t, 7, func(after view.Place) ([]view.Sandbox, error) { return s.ListSandboxes(ctx, b, after, 7) },
			func(v view.Sandbox) view.Place { return view.Place{At: v.CreatedAt, ID: string(v.ID)} }) {
			found = append(found, v.ID)
		}
		if diff := cmp.Diff(wanted, found); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", b, diff)
		}
	}
	box, err := s.GetSandbox(ctx, sandboxes[0].ID)
	if err != nil || box.Spec.CPUMillis != 500 || box.Session != sandboxes[0].Session {
		t.Errorf("%+v, %v", box, err)
	}
	_, err = s.GetExecution(ctx, "exe_none")
	kindOf(t, err, harness.NotFound)
}

// The walk over logs finds what matches, also where much does not and many are
// of one moment, and says when it is at its end.
func TestListLogs(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	r := rand.New(rand.NewPCG(5, 6))
	now := time.Now().Truncate(time.Second)
	run(t, s, `INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('a', 1, 'READY', ''), ('b', 1, 'READY', '')`)
	for i := range 400 {
		execSQL(t, s, `INSERT INTO agent_execution_logs (agent_name, session_id, node_id, level, message, created_at) VALUES ($1, $2, 'n', $3, $4, $5)`, pick(r, "a", "b"), pick(r, "ses_1", "ses_2"),
			pick(r, "DEBUG", "INFO", "WARN", "ERROR"), pick(r, "One thing", "another_thing", "100% of it", `back\slash`), now.Add(-time.Duration(i/20)*time.Second))
	}
	rows, err := s.Pool().Query(ctx, `SELECT log_id, agent_name, session_id, level, message, created_at FROM agent_execution_logs ORDER BY created_at DESC, log_id DESC`)
	if err != nil {
		t.Fatal(err)
	}
	var all []view.LogEntry
	for rows.Next() {
		var v view.LogEntry
		if err := rows.Scan(&v.ID, &v.Agent, &v.Session, &v.Level, &v.Message, &v.CreatedAt); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	for range 80 {
		f := postgres.LogFilter{
			Agent: pick[harness.AgentName](r, "", "a"), Session: pick[harness.SessionID](r, "", "ses_1"), Text: pick(r, "", "", "ONE", "_thing", "0% o", `k\s`, "nowhere"),
			Levels: pick(r, nil, nil, []harness.Level{harness.LevelError}, []harness.Level{harness.LevelError, harness.LevelWarn}, []harness.Level{harness.LevelInfo}),
			Since:  pick(r, time.Time{}, now.Add(-12*time.Second)), Until: pick(r, time.Time{}, now.Add(-5*time.Second)),
		}
		var want []int64
		for _, v := range all {
			if (f.Agent == "" || f.Agent == v.Agent) && (f.Session == "" || f.Session == v.Session) && strings.Contains(strings.ToLower(v.Message), strings.ToLower(f.Text)) &&
				(len(f.Levels) == 0 || slices.Contains(f.Levels, harness.Level(v.Level))) && !v.CreatedAt.Before(f.Since) && (f.Until.IsZero() || v.CreatedAt.Before(f.Until)) {
				want = append(want, v.ID)
			}
		}
		var got []int64
		var after view.Place
		for range 200 {
			page, next, err := s.ListLogs(ctx, f, after, 7)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range page {
				got = append(got, v.ID)
			}
			if after = next; next.ID == "" {
				break
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || after.ID != "" {
			t.Fatalf("%+v (-want +got):\n%s", f, diff)
		}
	}
	// One call looks at 8,000 entries, and says where it stopped.
	run(t, s, `INSERT INTO agent_execution_logs (agent_name, session_id, node_id, level, message) SELECT 'a', 'ses_3', 'n', 'INFO', CASE n WHEN 17001 THEN 'needle' ELSE 'noise' END FROM generate_series(1, 25000) n`)
	if page, next, err := s.ListLogs(ctx, postgres.LogFilter{Text: "needle"}, view.Place{}, 7); err != nil || len(page) != 1 || next.ID == "" {
		t.Errorf("the last entry that is looked at: %+v, and goes on at %v, %v", page, next, err)
	}
	var after view.Place
	pages := 0
	for found := 0; found == 0; pages++ {
		page, next, err := s.ListLogs(ctx, postgres.LogFilter{Text: "one thing"}, after, 7)
		if err != nil || pages > 5 {
			t.Fatal(pages, err)
		}
		found, after = len(page), next
	}
	if pages != 4 {
		t.Errorf("the words were found on page %d", pages)
	}
}

// Everything that happened in a session, in order, and the same whatever the
// size of the pages, though many things are of one moment.
func TestTimeline(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	var ids []string
	for i := range 300 { // of one moment
		ids = append(ids, fmt.Sprint("m", i))
	}
	session := arrive(t, s, ids...)[0].Session
	running(t, s, session, "call_1", "exe_1")
	run(t, s, `INSERT INTO approvals (approval_id, session_id, agent_name, tool_call_id, title, digest, state) SELECT 'apr_1', session_id, 'coder', 'call_1', 't', 'd', 'PENDING' FROM sessions`)
	arrive(t, s, "last")
	run(t, s, `INSERT INTO attachments (attachment_id, session_id, message_id, direction, kind, file_name, path, state) SELECT 'att_1', session_id, message_id, 'INBOUND', 'IMAGE', 'cat.png', 'in/cat.png', 'OFFERED' FROM messages WHERE seq = 301`)
	timeline := func(limit int) []view.Entry {
		t.Helper()
		entries := timelineFrom(t, s.Timeline, session, view.Place{}, limit)
		newest := timelineFrom(t, s.NewestTimeline, session, view.Place{}, limit)
		slices.Reverse(newest)
		if diff := cmp.Diff(entries, newest); diff != "" {
			t.Errorf("newest first, %d at a time:\n%s", limit, diff)
		}
		return entries
	}
	all := timeline(1000)
	if len(all) != 305 {
		t.Fatalf("%d entries", len(all))
	}
	var kinds []view.EntryKind
	for i, e := range all {
		if i < 300 && (e.Message == nil || e.Message.Seq != int64(i+1)) {
			t.Fatalf("entry %d is %+v", i, e)
		}
		kinds = append(kinds, e.Kind)
	}
	if diff := cmp.Diff([]view.EntryKind{view.EntryStep, view.EntryToolCall, view.EntryExecution, view.EntryApproval, view.EntryMessage}, kinds[300:]); diff != "" {
		t.Error(diff)
	}
	if all[300].Step == nil || all[301].ToolCall == nil || all[301].ToolCall.Name != "executeShell" || all[302].Execution == nil || all[302].Execution.Command != "sleep 1" || all[303].Approval == nil ||
		len(all[304].Message.Attachments) != 1 || all[304].Message.Attachments[0].FileName != "cat.png" {
		t.Errorf("details are missing: %+v", all[300:])
	}
	for _, limit := range []int{1, 7, 299} {
		if diff := cmp.Diff(all, timeline(limit)); diff != "" {
			t.Fatalf("pages of %d differ:\n%s", limit, diff)
		}
	}
	// Of another day there is more to pass over than to read.
	run(t, s, `UPDATE messages SET created_at = created_at - (302 - seq) * interval '1 minute'`, `UPDATE steps SET created_at = created_at - interval '90 seconds'`)
	if diff := cmp.Diff(timeline(1000), timeline(5)); diff != "" {
		t.Error(diff)
	}
	if none, next, err := s.Timeline(ctx, "ses_none", view.Place{}, 5); err != nil || len(none) != 0 || next.ID != "" {
		t.Errorf("%v, %v, %v", none, next, err)
	}
	for _, forged := range []string{"x", "1.2.3.4.5.6", "1.2.3.4.5.6.7.8", "1.2.3.4.5.6.x", "1.2.3.4.5.6.-7", "msg_1", "1.2.3.4.5.6.99999999999999999999"} {
		_, _, err := s.Timeline(ctx, session, view.Place{ID: forged}, 5)
		kindOf(t, err, harness.Invalid)
	}
}

// timelineFrom reads a timeline behind a place page by page, to its end.
func timelineFrom(t *testing.T, read func(context.Context, harness.SessionID, view.Place, int) ([]view.Entry, view.Place, error), session harness.SessionID, after view.Place, limit int) (all []view.Entry) {
	t.Helper()
	for {
		entries, next, err := read(context.Background(), session, after, limit)
		if err != nil || len(entries) > limit || next.ID != "" && len(entries) < limit {
			t.Fatalf("%d entries, next %q, %v", len(entries), next.ID, err)
		}
		all = append(all, entries...)
		if after = next; next.ID == "" {
			return all
		}
	}
}

func TestListChannels(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	putAgents(t, s, nil, agentText("a", "a.yaml", "", "h1", "h2"))
	arrival := postgres.Arrival{Account: "h1", ProviderID: "1", Chat: "c", Message: harness.Message{Channel: harness.ChannelWebhook, ChannelUserID: "ann", Text: "x"}}
	run(t, s, `UPDATE channel_routes SET open_to_all = true`)
	accepted, _, err := s.Accept(ctx, harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{arrival}}, "")
	if err != nil {
		t.Fatal(err)
	}
	claim, err := s.ClaimSession(ctx, accepted[0].Session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, Reply: []string{"1", "2", "3"}, Step: &postgres.NewStep{ID: "stp_1", Text: "123"}}); err != nil {
		t.Fatal(err)
	}
	run(t, s, `UPDATE replies SET state = 'FAILED' WHERE part = 1`, `UPDATE replies SET state = 'UNKNOWN', due_at = NULL WHERE part = 2`)
	if _, err := s.StoreSecretChecks(ctx, "webhook-ingest", []harness.SecretCheck{{Agent: "a", Ref: harness.SecretRef{Name: "s", Key: "k"}, State: harness.SecretDenied, Reason: "label it"}}); err != nil {
		t.Fatal(err)
	}
	all, err := s.ListChannels(ctx, "", 10)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	h1, h2 := all[0], all[1]
	if h1.Account != "h1" || h1.Waiting != 1 || h1.Failed != 1 || h1.Unknown != 1 || h1.LastInboundAt == nil || h1.LastOutboundAt == nil || len(h1.Secrets) != 1 || h1.Secrets[0].State != "DENIED" {
		t.Errorf("%+v", h1)
	}
	if h2.LastInboundAt != nil || h2.Waiting != 0 {
		t.Errorf("%+v", h2)
	}
	if rest, err := s.ListChannels(ctx, "WEBHOOK/h1", 10); err != nil || len(rest) != 1 || rest[0].Account != "h2" {
		t.Errorf("%+v, %v", rest, err)
	}
	rows, err := s.AgentRows(ctx)
	if err != nil || len(rows) != 1 || rows[0].Name != "a" || rows[0].Phase != harness.AgentReady || rows[0].Sessions != 0 || rows[0].Execution != nil {
		t.Errorf("%+v, %v", rows, err)
	}
	if rows, err = s.AgentRows(ctx, "none"); err != nil || len(rows) != 0 {
		t.Errorf("%+v, %v", rows, err)
	}
}
