package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// LogFilter says which log entries a list holds. Zero fields: any.
type LogFilter struct {
	Agent        harness.AgentName
	Session      harness.SessionID
	Levels       []harness.Level
	Text         string // that the message has in it, in whatever case
	Since, Until time.Time
}

// logScan is how many entries one call of ListLogs looks at: no index helps to
// find words, and a page has its time.
const logScan = 10000

// ListLogs returns up to limit log entries behind after, newest first, and the
// place to go on from. That is the zero place at the end of the list: a page may
// be short, even empty, and not be the last, because one call looks at a bounded
// number of entries. The ID of a place is the entry's in decimal.
func (s *Store) ListLogs(ctx context.Context, f LogFilter, after view.Place, limit int) ([]view.LogEntry, view.Place, error) {
	q := &query{}
	q.equal("agent_name", string(f.Agent))
	q.equal("session_id", string(f.Session))
	if err := q.behindNumber("created_at", "log_id", after); err != nil {
		return nil, view.Place{}, err
	}
	if after.ID != "" { // an index of the time alone, and whole days, can be passed over by this
		q.and("created_at <= " + q.arg(after.At))
	}
	if !f.Since.IsZero() {
		q.and("created_at >= " + q.arg(f.Since))
	}
	if !f.Until.IsZero() {
		q.and("created_at < " + q.arg(f.Until))
	}
	levels, err := quoted(f.Levels, harness.Level.Known)
	if err != nil {
		return nil, view.Place{}, err
	}
	scan := logScanOf{query: q}
	match := &query{}
	switch {
	case levels == "":
	case onlyWarnings(f.Levels) && f.Session == "" && (f.Agent != "" || f.Text == ""): // these have an index, of each agent
		q.and("level IN (" + levels + ")")
		scan.merged = f.Agent == ""
	default:
		match.and("level IN (" + levels + ")")
	}
	if f.Text == "" && len(match.where) == 0 {
		entries, err := s.scanLogs(ctx, scan, limit, "true", nil, limit)
		if err != nil || len(entries) < limit {
			return entries, view.Place{}, err
		}
		return entries, placeOf(entries), nil
	}
	var pattern []any
	if f.Text != "" {
		pattern = []any{"%" + escapeLike.Replace(harness.CleanText(f.Text)) + "%"}
		match.and(fmt.Sprintf("message ILIKE $%d", len(q.args)+1))
	}
	entries, err := s.scanLogs(ctx, scan, logScan, match.sql(), pattern, limit)
	if err != nil || len(entries) == limit {
		return entries, placeOf(entries), err
	}
	last, err := s.lastLog(ctx, scan, logScan)
	return entries, placeOf(last), err
}

var escapeLike = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

func onlyWarnings(levels []harness.Level) bool {
	return !slices.ContainsFunc(levels, func(l harness.Level) bool { return l != harness.LevelWarn && l != harness.LevelError })
}

// placeOf is the place behind the last of entries.
func placeOf(entries []view.LogEntry) view.Place {
	if len(entries) == 0 {
		return view.Place{}
	}
	last := entries[len(entries)-1]
	return view.Place{At: last.CreatedAt, ID: strconv.FormatInt(last.ID, 10)}
}

// logScanOf is a walk over log entries, newest first.
type logScanOf struct {
	*query
	merged bool // over agents, each of whose entries an index has in order
}

const (
	newestLog  = ` ORDER BY created_at DESC, log_id DESC`
	logColumns = `log_id, agent_name, session_id, node_id, level, message, guardrail_result, created_at`
)

// first is the first entries of the walk, as many as the argument most says.
func (w logScanOf) first(most string) string {
	from := `agent_execution_logs WHERE ` + w.sql()
	if w.merged {
		from = `agents a CROSS JOIN LATERAL (SELECT l.* FROM agent_execution_logs l WHERE l.agent_name = a.agent_name AND ` + w.sql() + newestLog + ` LIMIT ` + most + `) l`
		return `SELECT l.* FROM ` + from + newestLog + ` LIMIT ` + most
	}
	return `SELECT * FROM ` + from + newestLog + ` LIMIT ` + most
}

// scanLogs returns up to limit of the first entries of a walk, of those that
// match, which may have arguments of its own.
func (s *Store) scanLogs(ctx context.Context, w logScanOf, scan int, match string, args []any, limit int) ([]view.LogEntry, error) {
	q := query{args: slices.Concat(w.args, args)}
	return list(ctx, s, `SELECT `+logColumns+` FROM (`+w.first(q.arg(scan))+`) l WHERE `+match+newestLog+` LIMIT `+q.arg(limit), q.args, readLogEntry)
}

// lastLog returns the entry number scan of a walk, if it has so many.
func (s *Store) lastLog(ctx context.Context, w logScanOf, scan int) ([]view.LogEntry, error) {
	q := query{args: slices.Clone(w.args)}
	return list(ctx, s, `SELECT `+logColumns+` FROM (`+w.first(q.arg(scan))+`) l`+newestLog+` OFFSET `+q.arg(scan-1)+` LIMIT 1`, q.args, readLogEntry)
}

func readLogEntry(row pgx.CollectableRow) (view.LogEntry, error) {
	var v view.LogEntry
	return v, row.Scan(&v.ID, &v.Agent, &v.Session, &v.Node, &v.Level, &v.Message, &v.GuardrailResult, &v.CreatedAt)
}
