package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// runState is how the turn ended that c ends.
func runState(c StepCommit) harness.SessionState {
	switch c.State {
	case harness.SessionBlocked, harness.SessionFailed:
		return c.State
	default:
		return harness.SessionCompleted
	}
}

// Labels of FigureTokens.
const (
	TokensInput  = "input"
	TokensOutput = "output"
	TokensOther  = "other" // answers that were lost, and what guardrails asked
)

// figures counts what has no row of its own. It locks nothing.
func (w *stepWriter) figures() {
	var names, labels []string
	var amounts []int64
	add := func(name harness.FigureName, label string, n int64) {
		if n != 0 {
			names, labels, amounts = append(names, string(name)), append(labels, label), append(amounts, n)
		}
	}
	other := w.c.Spent.Tokens
	if step := w.c.Step; step != nil {
		add(harness.FigureTokens, TokensInput, step.InputTokens)
		add(harness.FigureTokens, TokensOutput, step.OutputTokens)
		other -= step.InputTokens + step.OutputTokens
	}
	add(harness.FigureTokens, TokensOther, max(0, other))
	add(harness.FigureCost, "", int64(w.c.Spent.Cost))
	add(harness.FigureModelFailures, "", int64(count(w.c.Unanswered)))
	if len(names) > 0 {
		w.Queue(`INSERT INTO figure_changes (figure_name, agent_name, label, model, amount)
			SELECT f.name, $1, f.label, $2, f.amount FROM unnest($3::text[], $4::text[], $5::bigint[]) AS f (name, label, amount)`,
			w.c.Claim.Session.Agent, w.c.Model, names, labels, amounts)
	}
}

// foldTimes is how many changes of figures are taken for each row that other items
// of a pass take: they are small, and several come of each step.
const foldTimes = 50

// FoldFigures adds changes of figures to them, deletes those, and returns how many
// there were: fewer than limit is all there were. Of two at a time one waits, and counts none twice.
func (s *Store) FoldFigures(ctx context.Context, limit int) (int, error) {
	var folded int
	err := s.pool.QueryRow(ctx, `WITH gone AS (
			DELETE FROM figure_changes WHERE ctid = ANY (ARRAY(SELECT ctid FROM figure_changes LIMIT $1))
			RETURNING figure_name, agent_name, label, model, amount
		), added AS (
			INSERT INTO figures AS f (figure_name, agent_name, label, model, amount)
			SELECT figure_name, agent_name, label, model, sum(amount) FROM gone GROUP BY figure_name, agent_name, label, model ORDER BY 1, 2, 3, 4
			ON CONFLICT (figure_name, agent_name, label, model) DO UPDATE SET amount = f.amount + EXCLUDED.amount
		) SELECT count(*) FROM gone`, limit*foldTimes).Scan(&folded)
	return folded, translate(err)
}

// Figures is what there is to count, of one moment.
type Figures struct {
	Agents     []AgentFigures // every agent that is not deleted, by name
	Counts     []FigureCount
	Guardrails []GuardrailFigure

	Sandboxes []AgentCount   // that are not GONE
	Approvals []AgentCount   // that wait
	Retrying  []AgentCount   // sessions whose model gave no answer and that wait to ask again
	Waiting   int            // messages that nobody has begun to answer, at most CountLimit
	Letters   map[string]int // dead letters by state, each at most CountLimit
	Outbox    int            // announcements that nobody has acted on, at most CountLimit

	MessageAge  time.Duration // of the oldest of Waiting; 0: there is none
	ApprovalAge time.Duration // of the oldest of Approvals
	OutboxAge   time.Duration // of the oldest of Outbox that were counted
	LetterAge   time.Duration // of the oldest OPEN dead letter

	Leaks []LeakFigure // of kinds that were ever compared

	ArchiveLag  time.Duration // since the oldest day of log entries could be archived that is not; 0: all are
	Archiving   int           // objects of the archive that are on their way, at most CountLimit
	ArchivesAge time.Duration // of the oldest of Archiving

	SweepAge *time.Duration // since the last full pass; nil: there was none yet
	Findings map[string]Finding
}

// CountLimit bounds what is counted row by row.
const CountLimit = 10_000

// AgentFigures is an agent whose figures begin at 0.
type AgentFigures struct {
	Agent harness.AgentName
	Model string // that its spec names; empty: the platform's
}

// FigureCount is one amount of a figure. A figure that no agent has is of "".
type FigureCount struct {
	Name   harness.FigureName
	Agent  harness.AgentName
	Label  string
	Model  string
	Amount int64
}

// AgentCount is how many things of an agent there are.
type AgentCount struct {
	Agent harness.AgentName
	Count int
}

// LeakFigure is what the last comparison of rows and objects of a kind came to.
type LeakFigure struct {
	Kind         harness.ObjectKind
	Leaked, Lost int64
	Age          float64 // of the comparison, in seconds
}

// GuardrailFigure is how often a guardrail has found something, or failed, and
// what that led to; 0 for those that an agent has and that never did.
type GuardrailFigure struct {
	Agent     harness.AgentName
	Stage     harness.GuardrailStage
	Guardrail string
	Action    harness.GuardrailAction
	Times     int64
}

// The statements of Figures. None walks more than a partial index or CountLimit
// rows of a table.
const (
	figureAgentsSQL = `SELECT a.agent_name, COALESCE(r.spec->'model'->>'name', '') FROM agents a
		LEFT JOIN agent_revisions r ON r.agent_name = a.agent_name AND r.revision = a.revision WHERE a.phase <> 'DELETED' ORDER BY a.agent_name`

	figureCountsSQL = `SELECT figure_name, agent_name, label, model, sum(amount)::bigint FROM (
			SELECT figure_name, agent_name, label, model, amount FROM figures
			UNION ALL SELECT figure_name, agent_name, label, model, amount FROM figure_changes
		) f GROUP BY figure_name, agent_name, label, model`

	// Those of revisions in use have a row of 0 each, for the action that a hit and
	// that a failure leads to.
	figureGuardrailsSQL = `SELECT agent_name, stage, guardrail, action, sum(times)::bigint FROM (
			SELECT agent_name, stage, guardrail, action, times FROM guardrail_counts WHERE verdict <> 'PASSED'
			UNION ALL
			SELECT a.agent_name, s.stage, g->>'name', x.action, 0 FROM agents a
			JOIN agent_revisions r ON r.agent_name = a.agent_name AND r.revision = a.revision
			CROSS JOIN (VALUES ('INPUT', 'input'), ('TOOL_CALL', 'toolCall'), ('TOOL_OUTPUT', 'toolOutput'), ('OUTPUT', 'output')) AS s (stage, key)
			CROSS JOIN LATERAL jsonb_array_elements(COALESCE(r.spec->'guardrails'->s.key, '[]')) g
			CROSS JOIN LATERAL (SELECT DISTINCT v AS action FROM (VALUES (g->>'action'), (g->>'onFailure')) AS f (v) WHERE COALESCE(v, '') <> '') x
			WHERE a.phase <> 'DELETED'
		) t GROUP BY agent_name, stage, guardrail, action`

	figureSandboxesSQL = `SELECT agent_name, count(*) FROM sandboxes WHERE state <> 'GONE' GROUP BY agent_name`
	figureApprovalsSQL = `SELECT agent_name, count(*) FROM approvals WHERE state = 'PENDING' GROUP BY agent_name`
	figureRetryingSQL  = `SELECT agent_name, count(*) FROM (SELECT agent_name FROM sessions
		WHERE due_at IS NOT NULL AND retry_at IS NOT NULL AND attempts > 0 AND state NOT IN ('COMPLETED', 'CANCELLED') LIMIT $1) s GROUP BY agent_name`

	// Each is a count and the age of the oldest in seconds.
	figureWaitingSQL  = `SELECT (SELECT count(*) FROM (SELECT 1 FROM messages WHERE state = 'PENDING' LIMIT $1) w), (SELECT extract(epoch FROM now() - min(created_at))::float8 FROM messages WHERE state = 'PENDING' AND created_at > '-infinity')`
	figureApprovalSQL = `SELECT 0, (SELECT extract(epoch FROM now() - min(created_at))::float8 FROM (SELECT created_at FROM approvals WHERE state = 'PENDING' ORDER BY approval_id LIMIT 100) a)`
	figureOutboxSQL   = `SELECT count(*), extract(epoch FROM now() - min(created_at))::float8 FROM (SELECT created_at FROM outbox LIMIT $1) o`
	figureLettersSQL  = `SELECT s.state, (SELECT count(*) FROM (SELECT 1 FROM dead_letters d WHERE d.state = s.state LIMIT $1) n),
		(SELECT extract(epoch FROM now() - d.received_at)::float8 FROM dead_letters d WHERE d.state = s.state ORDER BY d.dead_letter_id LIMIT 1)
		FROM (VALUES ('OPEN'), ('MOOT'), ('REPLAYED'), ('DISCARDED')) AS s (state)`

	figureLeaksSQL = `SELECT kind, COALESCE((tally->>'leaked')::bigint, 0), COALESCE((tally->>'lost')::bigint, 0), extract(epoch FROM now() - compared_at)::float8
		FROM comparisons WHERE compared_at IS NOT NULL`
	figureArchivingSQL = `SELECT count(*), extract(epoch FROM now() - min(created_at))::float8 FROM (SELECT created_at FROM log_archives WHERE state IN ('PENDING', 'STORED') LIMIT $1) a`

	figureSweepSQL    = `SELECT extract(epoch FROM now() - completed_at)::float8 FROM sweeps WHERE sweep_name = 'main'`
	figureFindingsSQL = `SELECT findings FROM sweep_reports ORDER BY sweep_report_id DESC LIMIT 1`
)

// A day could be archived since its agent's days were over.
var figureLagSQL = `SELECT extract(epoch FROM now() - (d.due AT TIME ZONE 'UTC'))::float8 FROM (` + logDaysDueSQL("(d.day + 1 + "+logDaysOf("g.agent_name", "retentionDays", harness.DefaultRetentionDays)+")::timestamp AS due") + `) d ORDER BY d.due LIMIT 1`

// figuresTime is the server's own limit on one statement of Figures.
const figuresTime = "3s"

// Figures reads what there is to count, in one snapshot.
func (s *Store) Figures(ctx context.Context) (f Figures, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		f = Figures{Letters: map[string]int{}, Findings: map[string]Finding{}}
		b := &pgx.Batch{}
		b.Queue(`SELECT set_config('statement_timeout', '` + figuresTime + `', true)`)
		b.Queue(figureAgentsSQL).Query(collectInto(&f.Agents))
		b.Queue(figureCountsSQL).Query(collectInto(&f.Counts))
		b.Queue(figureGuardrailsSQL).Query(collectInto(&f.Guardrails))
		b.Queue(figureSandboxesSQL).Query(collectInto(&f.Sandboxes))
		b.Queue(figureApprovalsSQL).Query(collectInto(&f.Approvals))
		b.Queue(figureRetryingSQL, CountLimit).Query(collectInto(&f.Retrying))
		b.Queue(figureWaitingSQL, CountLimit).QueryRow(counted(&f.Waiting, &f.MessageAge))
		b.Queue(figureApprovalSQL).QueryRow(counted(nil, &f.ApprovalAge))
		b.Queue(figureOutboxSQL, CountLimit).QueryRow(counted(&f.Outbox, &f.OutboxAge))
		b.Queue(figureLettersSQL, CountLimit).Query(each(func(row pgx.CollectableRow) error {
			var state string
			var n int
			var age *float64
			err := row.Scan(&state, &n, &age)
			f.Letters[state] = n
			if age != nil && state == "OPEN" {
				f.LetterAge = seconds(*age)
			}
			return err
		}))
		b.Queue(figureLeaksSQL).Query(collectInto(&f.Leaks))
		b.Queue(figureArchivingSQL, CountLimit).QueryRow(counted(&f.Archiving, &f.ArchivesAge))
		b.Queue(figureLagSQL).QueryRow(func(row pgx.Row) error {
			var lag float64
			err := row.Scan(&lag)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil // all are archived
			}
			f.ArchiveLag = seconds(lag)
			return err
		})
		b.Queue(figureSweepSQL).QueryRow(func(row pgx.Row) error {
			var age *float64
			err := row.Scan(&age)
			if age != nil {
				since := seconds(*age)
				f.SweepAge = &since
			}
			return err
		})
		b.Queue(figureFindingsSQL).QueryRow(func(row pgx.Row) error {
			err := row.Scan(&f.Findings)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil // no pass yet
			}
			return err
		})
		return tx.SendBatch(ctx, b).Close()
	})
	return f, translate(err)
}

func collectInto[T any](to *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*to, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	}
}

// counted reads a count and the age of the oldest.
func counted(n *int, age *time.Duration) func(pgx.Row) error {
	return func(row pgx.Row) error {
		var count int
		var of *float64
		err := row.Scan(&count, &of)
		if n != nil {
			*n = count
		}
		if of != nil {
			*age = seconds(*of)
		}
		return err
	}
}

// seconds is at least 0: the clock of a transaction begins before what others
// commit while it does.
func seconds(s float64) time.Duration { return max(0, time.Duration(s*float64(time.Second))) }
