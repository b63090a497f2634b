package postgres

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// timelineText finds up to $8 entries of session $1 of each kind behind its number:
// $2 of visits, $3 of messages, $4 of steps, $5 of tool calls, $6 of executions,
// $7 of approvals and $9 of what guardrails said, but for what they let pass. All are numbered under the session's lock, so that what is
// committed later has a greater number; its time, that of its transaction's begin,
// may be older. Its first word says which side of the number is behind it, the second
// in which order that is read.
const timelineText = `
(SELECT 0, v.seq::bigint, v.created_at, 'VISIT', v.visit_id FROM node_visits v WHERE v.session_id = $1 AND v.seq %[1]s $2::bigint ORDER BY v.seq %[2]s LIMIT $8)
UNION ALL
(SELECT 1, m.seq, m.created_at, 'MESSAGE', m.message_id FROM messages m WHERE m.session_id = $1 AND m.seq %[1]s $3::bigint ORDER BY m.seq %[2]s LIMIT $8)
UNION ALL
(SELECT 2, s.seq, s.created_at, 'STEP', s.step_id FROM steps s WHERE s.session_id = $1 AND s.seq %[1]s $4::bigint ORDER BY s.seq %[2]s LIMIT $8)
UNION ALL
(SELECT 3, ` + callNumber + `, t.created_at, 'TOOL_CALL', t.tool_call_id FROM steps s JOIN tool_calls t USING (step_id)
    WHERE s.session_id = $1 AND s.seq %[1]s= $5::bigint / 1000000 AND ` + callNumber + ` %[1]s $5 ORDER BY s.seq %[2]s, t.seq %[2]s LIMIT $8)
UNION ALL
(SELECT 4, e.seq, e.created_at, 'EXECUTION', e.execution_id FROM executions e WHERE e.session_id = $1 AND e.seq %[1]s $6::bigint ORDER BY e.seq %[2]s LIMIT $8)
UNION ALL
(SELECT 5, a.seq, a.created_at, 'APPROVAL', a.approval_id FROM approvals a WHERE a.session_id = $1 AND a.seq %[1]s $7::bigint ORDER BY a.seq %[2]s LIMIT $8)
UNION ALL
(SELECT 6, g.seq, g.created_at, 'GUARDRAIL', g.guardrail_verdict_id FROM guardrail_verdicts g
    WHERE g.session_id = $1 AND g.verdict <> 'PASSED' AND g.seq %[1]s $9::bigint ORDER BY g.seq %[2]s LIMIT $8)
ORDER BY 1, 2 %[2]s`

// direction is one of the two ways to read a timeline.
type direction struct {
	sql   string
	begin int64                     // of each kind
	ahead func(a, b time.Time) bool // an entry of a is before one of b, whose kind is of a lower number
}

var (
	onward = direction{fmt.Sprintf(timelineText, ">", "ASC"), 0, func(a, b time.Time) bool { return a.Before(b) }}
	back   = direction{fmt.Sprintf(timelineText, "<", "DESC"), math.MaxInt64, func(a, b time.Time) bool { return !a.Before(b) }}
)

// callNumber puts the calls of a session, of steps s and calls t, in one order.
const callNumber = `s.seq * 1000000 + t.seq`

// progress is how far a timeline was read: the last number of each kind, in the
// order of timelineText.
type progress [7]int64

// read returns the progress that a place says.
func (p *progress) read(place view.Place) error {
	if place.ID == "" {
		return nil
	}
	numbers := strings.Split(place.ID, ".")
	for i := range p {
		var err error
		if len(numbers) == len(p) {
			p[i], err = strconv.ParseInt(numbers[i], 10, 64)
		}
		if err != nil || len(numbers) != len(p) || p[i] < 0 {
			return harness.Errorf(harness.Invalid, "the place is none of a timeline")
		}
	}
	return nil
}

func (p *progress) place() view.Place {
	return view.Place{ID: strings.Trim(strings.ReplaceAll(fmt.Sprint(*p), " ", "."), "[]")}
}

// Timeline returns up to limit entries of what happened in a session behind after,
// and the place to go on from, which is the zero place at the end. Entries are in
// the order of their times; of one moment, a visit is before what it asked for, and
// a message before a step and that before what it asked for. Every entry is on one
// page: one that is committed late is on a later page, behind entries of its time.
// harness.Invalid: after is no place of a timeline.
func (s *Store) Timeline(ctx context.Context, session harness.SessionID, after view.Place, limit int) ([]view.Entry, view.Place, error) {
	return s.timeline(ctx, session, onward, after, limit)
}

// NewestTimeline is Timeline from the end to the begin. What is committed meanwhile is
// on none of its pages.
func (s *Store) NewestTimeline(ctx context.Context, session harness.SessionID, before view.Place, limit int) ([]view.Entry, view.Place, error) {
	return s.timeline(ctx, session, back, before, limit)
}

func (s *Store) timeline(ctx context.Context, session harness.SessionID, way direction, after view.Place, limit int) ([]view.Entry, view.Place, error) {
	var at progress
	for kind := range at {
		at[kind] = way.begin
	}
	if err := at.read(after); err != nil {
		return nil, view.Place{}, err
	}
	type numbered struct {
		view.Entry
		n int64
	}
	var behind [len(at)][]numbered
	_, err := list(ctx, s, way.sql, []any{session, at[0], at[1], at[2], at[3], at[4], at[5], limit + 1, at[6]}, func(row pgx.CollectableRow) (struct{}, error) {
		var kind int
		var e numbered
		err := row.Scan(&kind, &e.n, &e.At, &e.Kind, &e.ID)
		if err == nil {
			behind[kind] = append(behind[kind], e)
		}
		return struct{}{}, err
	})
	if err != nil {
		return nil, view.Place{}, err
	}
	var entries []view.Entry
	for {
		first := -1
		for kind, rest := range behind {
			if len(rest) > 0 && (first < 0 || way.ahead(rest[0].At, behind[first][0].At)) {
				first = kind
			}
		}
		if first < 0 {
			return entries, view.Place{}, s.tell(ctx, entries)
		}
		if len(entries) == limit {
			return entries, at.place(), s.tell(ctx, entries)
		}
		next := behind[first][0]
		entries, at[first], behind[first] = append(entries, next.Entry), next.n, behind[first][1:]
	}
}

// tell fills in what each entry is about.
func (s *Store) tell(ctx context.Context, entries []view.Entry) error {
	if len(entries) == 0 {
		return nil
	}
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
	b.Queue(`SELECT step_id, message_id, seq, text, author, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens FROM steps WHERE step_id = ANY ($1)`, orEmpty(ids[view.EntryStep])).
		Query(each(func(row pgx.CollectableRow) error {
			v := &view.Step{}
			err := row.Scan(&v.ID, &v.Message, &v.Seq, &v.Text, &v.Author, &v.Model, &v.InputTokens, &v.OutputTokens, &v.CacheReadTokens, &v.CacheWriteTokens)
			if err == nil {
				at[string(v.ID)].Step = v
			}
			return err
		}))
	b.Queue(stepAttemptsSQL, orEmpty(ids[view.EntryStep])).Query(each(func(row pgx.CollectableRow) error { // behind the steps, which it fills in
		step, v, err := readStepAttempt(row)
		if err == nil {
			at[step].Step.ModelAttempts = append(at[step].Step.ModelAttempts, v)
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
