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

// How many entries one call of ListLogs looks at: no index helps to find words,
// and a page has its time. Those of one agent are far apart from each other.
const (
	logScan      = 8000
	logScanAgent = 1000
)

// ListLogs returns up to limit log entries behind after, newest first, and the
// place to go on from. That is the zero place at the end of the list: a page may
// be short, even empty, and not be the last, because one call looks at a bounded
// number of entries. The ID of a place is the entry's in decimal. An entry that is
// committed late may come behind a page that was read: who follows the log asks by
// LogMark. Entries that wait for a partition of their day are in no list until the
// sweep has made it, which it does two weeks ahead.
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
		return s.scanLogs(ctx, scan, limit, "true", nil, limit)
	}
	var pattern []any
	if f.Text != "" {
		pattern = []any{"%" + escapeLike.Replace(harness.CleanText(f.Text)) + "%"}
		match.and(fmt.Sprintf("message ILIKE $%d", len(q.args)+1))
	}
	most := logScan
	if f.Agent != "" {
		most = logScanAgent
	}
	return s.scanLogs(ctx, scan, most, match.sql(), pattern, limit)
}

var escapeLike = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

func onlyWarnings(levels []harness.Level) bool {
	return !slices.ContainsFunc(levels, func(l harness.Level) bool { return l != harness.LevelWarn && l != harness.LevelError })
}

// logScanOf is a walk over log entries, newest first.
type logScanOf struct {
	*query
	merged bool // over agents, each of whose entries an index has in order
}

const (
	newestLog  = ` ORDER BY created_at DESC, log_id DESC`
	logColumns = `log_id, agent_name, session_id, node_id, level, message, guardrail_result, substr(traceparent, 4, 32), created_at`
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

// scanLogs returns up to limit of the first scan entries of a walk, of those that
// match, which may have an argument of its own, and the place behind the last
// entry that was looked at. It stops looking when it has them: the number, the walk
// and the page have one order, so that nothing is sorted.
func (s *Store) scanLogs(ctx context.Context, w logScanOf, scan int, match string, arg []any, limit int) ([]view.LogEntry, view.Place, error) {
	q := query{args: slices.Concat(w.args, arg)}
	most := q.arg(scan)
	entries := []view.LogEntry{}
	var last view.Place
	reached := false // the entry number scan: there may be more behind it
	_, err := list(ctx, s, `SELECT `+logColumns+`, matches, n = `+most+` FROM (SELECT l.*, row_number() OVER (`+strings.TrimSpace(newestLog)+`) AS n, `+match+` AS matches FROM (`+w.first(most)+`) l) l
		WHERE matches OR n = `+most+newestLog+` LIMIT `+q.arg(limit), q.args, func(row pgx.CollectableRow) (struct{}, error) {
		var v view.LogEntry
		var matches bool
		err := row.Scan(&v.ID, &v.Agent, &v.Session, &v.Node, &v.Level, &v.Message, &v.GuardrailResult, &v.TraceID, &v.CreatedAt, &matches, &reached)
		last = view.Place{At: v.CreatedAt, ID: strconv.FormatInt(v.ID, 10)}
		if matches {
			entries = append(entries, v)
		}
		return struct{}{}, err
	})
	if err != nil {
		return nil, view.Place{}, err
	}
	if len(entries) < limit && !reached {
		last = view.Place{}
	}
	return entries, last, nil
}
