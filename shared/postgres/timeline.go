package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// near is how much the order of a session's rows by number may differ from that
// by time: two transactions that begin one after the other may be given numbers
// the other way round. A statement ends within 15 seconds.
const (
	nearRows = "200"
	nearTime = "interval '1 minute'"
)

// beforeSQL searches rows of table, numbered within session $1 up to the
// session's last, for the greatest number of which all up to it are older than
// $2 by more than nearTime.
func beforeSQL(name, table, last string) string {
	return name + ` (low, high) AS (
    SELECT 0::bigint, ` + last + ` FROM sessions WHERE session_id = $1
    UNION ALL
    SELECT CASE WHEN p.older THEN p.middle ELSE low END, CASE WHEN p.older THEN high ELSE p.middle - 1 END
    FROM ` + name + `, LATERAL (
        SELECT (low + high + 1) / 2 AS middle, COALESCE((SELECT r.created_at < $2::timestamptz - ` + nearTime + ` FROM ` + table + ` r
            WHERE r.session_id = $1 AND r.seq >= (low + high + 1) / 2 ORDER BY r.seq LIMIT 1), false) AS older) p
    WHERE low < high
)`
}

// timelineSQL finds the entries of session $1 behind entry $4, of time $2 and
// place $3, oldest first, at most $5; $6, $7 and $8 are ids of executions,
// approvals and verdicts that are surely older. A verdict that let pass is none of it. In one moment, a visit is before what it asked
// for, a message before a step, that before what it asked for, and rows are in the order of their numbers.
var timelineSQL = `
WITH RECURSIVE ` + beforeSQL("message", "messages", "message_seq") + `, ` + beforeSQL("step", "steps", "step_seq") + `, begin AS (
    SELECT CASE $3::int
        WHEN 1 THEN (SELECT seq FROM messages WHERE message_id = $4)
        WHEN 2 THEN (SELECT seq FROM steps WHERE step_id = $4)
        WHEN 3 THEN (SELECT ` + callNumber + ` FROM tool_calls t JOIN steps s USING (step_id) WHERE t.tool_call_id = $4) END AS n,
        (SELECT max(low) FROM message) AS message, (SELECT max(low) FROM step) AS step
)
SELECT at, kind, id FROM (
    (SELECT m.created_at, 1, 'MESSAGE', m.seq, m.message_id FROM begin, messages m
        WHERE m.session_id = $1 AND m.seq > begin.message AND (m.created_at, 1, m.seq) > ($2::timestamptz, $3::int, COALESCE(begin.n, 0)) ORDER BY m.seq LIMIT $5 + ` + nearRows + `)
    UNION ALL
    (SELECT s.created_at, 2, 'STEP', s.seq, s.step_id FROM begin, steps s
        WHERE s.session_id = $1 AND s.seq > begin.step AND (s.created_at, 2, s.seq) > ($2, $3, COALESCE(begin.n, 0)) ORDER BY s.seq LIMIT $5 + ` + nearRows + `)
    UNION ALL
    (SELECT t.created_at, 3, 'TOOL_CALL', ` + callNumber + `, t.tool_call_id FROM begin, steps s JOIN tool_calls t USING (step_id)
        WHERE s.session_id = $1 AND s.seq > begin.step AND (t.created_at, 3, ` + callNumber + `) > ($2, $3, COALESCE(begin.n, 0)) ORDER BY s.seq, t.seq LIMIT $5 + ` + nearRows + `)
    UNION ALL
    (SELECT e.created_at, 4, 'EXECUTION', 0, e.execution_id FROM executions e
        WHERE e.session_id = $1 AND e.execution_id > $6 AND (e.created_at, 4, e.execution_id) > ($2, $3, $4::text) ORDER BY e.execution_id LIMIT $5 + ` + nearRows + `)
    UNION ALL
    (SELECT a.created_at, 5, 'APPROVAL', 0, a.approval_id FROM approvals a
        WHERE a.session_id = $1 AND a.approval_id > $7 AND (a.created_at, 5, a.approval_id) > ($2, $3, $4) ORDER BY a.approval_id LIMIT $5 + ` + nearRows + `)
    UNION ALL
    (SELECT g.created_at, 6, 'GUARDRAIL', 0, g.guardrail_verdict_id FROM guardrail_verdicts g
        WHERE g.session_id = $1 AND g.verdict <> 'PASSED' AND g.guardrail_verdict_id > $8 AND (g.created_at, 6, g.guardrail_verdict_id) > ($2, $3, $4) ORDER BY g.guardrail_verdict_id LIMIT $5 + ` + nearRows + `)
    UNION ALL
    (SELECT v.created_at, 0, 'VISIT', v.seq, v.visit_id FROM node_visits v
        WHERE v.session_id = $1 AND (v.created_at, 0, v.seq) > ($2, $3, COALESCE((SELECT n.seq FROM node_visits n WHERE n.visit_id = $4), 0)) ORDER BY v.seq LIMIT $5 + ` + nearRows + `)
) entry (at, place, kind, n, id) ORDER BY at, place, n, id LIMIT $5`

// callNumber puts the calls of a session, of steps s and calls t, in one order.
const callNumber = `s.seq * 1000000 + t.seq`

// entryPlaces are those of timelineSQL, by the prefix of the ids.
var entryPlaces = map[string]int{"msg": 1, "stp": 2, "call": 3, "exe": 4, "apr": 5, verdictPrefix: 6}

// Timeline returns up to limit entries of what happened in a session behind
// after, oldest first.
func (s *Store) Timeline(ctx context.Context, session harness.SessionID, after view.Place, limit int) ([]view.Entry, error) {
	prefix, _, _ := strings.Cut(after.ID, "_")
	args := []any{session, after.At, entryPlaces[prefix], after.ID, limit, harness.IDFloor("exe", after.At.Add(-clockSkew)), harness.IDFloor("apr", after.At.Add(-clockSkew)), harness.IDFloor(verdictPrefix, after.At.Add(-clockSkew))}
	entries, err := list(ctx, s, timelineSQL, args, func(row pgx.CollectableRow) (view.Entry, error) {
		var e view.Entry
		return e, row.Scan(&e.At, &e.Kind, &e.ID)
	})
	if err != nil || len(entries) == 0 {
		return entries, err
	}
	return entries, s.tell(ctx, entries)
}

// tell fills in what each entry is about.
func (s *Store) tell(ctx context.Context, entries []view.Entry) error {
	ids := map[view.EntryKind][]string{}
	at := map[string]*view.Entry{}
	for i := range entries {
		ids[entries[i].Kind] = append(ids[entries[i].Kind], entries[i].ID)
		at[entries[i].ID] = &entries[i]
	}
	var messages []view.Message
	b := &pgx.Batch{}
	b.Queue(`SELECT `+messageColumns+` FROM messages m WHERE m.message_id = ANY ($1)`, orEmpty(ids[view.EntryMessage])).Query(func(rows pgx.Rows) (err error) {
		messages, err = pgx.CollectRows(rows, readMessage)
		return err
	})
	b.Queue(`SELECT step_id, message_id, seq, text, author, model, input_tokens, output_tokens FROM steps WHERE step_id = ANY ($1)`, orEmpty(ids[view.EntryStep])).
		Query(each(func(row pgx.CollectableRow) error {
			v := &view.Step{}
			err := row.Scan(&v.ID, &v.Message, &v.Seq, &v.Text, &v.Author, &v.Model, &v.InputTokens, &v.OutputTokens)
			if err == nil {
				at[string(v.ID)].Step = v
			}
			return err
		}))
	b.Queue(`SELECT tool_call_id, step_id, name, arguments, state, COALESCE(result, ''), ended_at FROM tool_calls WHERE tool_call_id = ANY ($1)`, orEmpty(ids[view.EntryToolCall])).
		Query(each(func(row pgx.CollectableRow) error {
			v := &view.ToolCall{}
			err := row.Scan(&v.ID, &v.Step, &v.Name, &v.Arguments, &v.State, &v.Result, &v.EndedAt)
			if err == nil {
				at[string(v.ID)].ToolCall = v
			}
			return err
		}))
	b.Queue(`SELECT `+executionColumns+` FROM executions e WHERE e.execution_id = ANY ($1)`, orEmpty(ids[view.EntryExecution])).
		Query(each(func(row pgx.CollectableRow) error {
			v, err := readExecution(row)
			if err == nil {
				at[string(v.ID)].Execution = &v
			}
			return err
		}))
	b.Queue(`SELECT `+visitColumns+` FROM node_visits v WHERE v.visit_id = ANY ($1)`, orEmpty(ids[view.EntryVisit])).
		Query(each(func(row pgx.CollectableRow) error {
			v, err := readVisitView(row)
			if err == nil {
				at[string(v.ID)].Visit = &v
			}
			return err
		}))
	b.Queue(`SELECT `+approvalColumns+` FROM approvals a WHERE a.approval_id = ANY ($1)`, orEmpty(ids[view.EntryApproval])).
		Query(each(func(row pgx.CollectableRow) error {
			v, err := readApproval(row)
			if err == nil {
				at[string(v.ID)].Approval = &v
			}
			return err
		}))
	b.Queue(`SELECT `+verdictColumns+` FROM guardrail_verdicts v WHERE v.guardrail_verdict_id = ANY ($1)`, orEmpty(ids[view.EntryGuardrail])).
		Query(each(func(row pgx.CollectableRow) error {
			v, err := readVerdict(row)
			if err == nil {
				at[v.ID].Guardrail = &v
			}
			return err
		}))
	if err := s.batch(ctx, b, nil); err != nil {
		return err
	}
	if err := s.withParts(ctx, messages); err != nil {
		return err
	}
	for i := range messages {
		at[string(messages[i].ID)].Message = &messages[i]
	}
	return nil
}

// into reads the last of the rows, if there is one.
func into[T any](target *T, read pgx.RowToFunc[T]) func(pgx.Rows) error {
	return each(func(row pgx.CollectableRow) (err error) {
		*target, err = read(row)
		return err
	})
}

// each reads rows one by one.
func each(read func(pgx.CollectableRow) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) { return struct{}{}, read(row) })
		return err
	}
}
