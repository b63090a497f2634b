//go:build system

package system_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// strings returns a column of text.
func (w *world) strings(sql string, args ...any) []string {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), sql, args...)
	w.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	w.must(err)
	return all
}

// unfinished counts, by name, the rows that say that there is something to do.
// All are 0 when the system is at rest.
const unfinishedSQL = `
SELECT 'sessions in a working state', count(*) FROM sessions WHERE state NOT IN ('IDLE', 'BLOCKED', 'FAILED', 'COMPLETED', 'CANCELLED')
UNION ALL SELECT 'sessions due', count(*) FROM sessions WHERE due_at IS NOT NULL
UNION ALL SELECT 'messages not answered', count(*) FROM messages WHERE state <> 'DONE'
UNION ALL SELECT 'tool calls without a result', count(*) FROM tool_calls WHERE state IN ('PENDING', 'RUNNING')
UNION ALL SELECT 'executions open', count(*) FROM executions WHERE ended_at IS NULL
UNION ALL SELECT 'replies open', count(*) FROM replies WHERE state IN ('PLANNED', 'UNKNOWN')
UNION ALL SELECT 'replies failed', count(*) FROM replies WHERE state = 'FAILED'
UNION ALL SELECT 'leases held', (SELECT count(*) FROM sessions WHERE lease_owner IS NOT NULL) + (SELECT count(*) FROM executions WHERE lease_owner IS NOT NULL)
    + (SELECT count(*) FROM replies WHERE lease_owner IS NOT NULL)
UNION ALL SELECT 'outbox rows', count(*) FROM outbox
UNION ALL SELECT 'sandboxes not GONE', count(*) FROM sandboxes WHERE state <> 'GONE'`

func (w *world) unfinished() ([]string, map[string]int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	rows, err := w.db.Query(ctx, unfinishedSQL)
	if err != nil {
		return nil, nil, err
	}
	var order []string
	counts := map[string]int{}
	var name string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		order, counts[name] = append(order, name), n
		return nil
	})
	return order, counts, err
}

// awaitRest returns when nothing is left to do, sandboxes included, or says
// what is.
func (w *world) awaitRest(patience time.Duration) string {
	state, ok := w.wait(patience, func() (bool, string) {
		order, counts, err := w.unfinished()
		if err != nil {
			return false, err.Error()
		}
		var left []string
		for _, name := range order {
			if counts[name] > 0 {
				left = append(left, fmt.Sprintf("%s: %d", name, counts[name]))
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
	if ok {
		return ""
	}
	return state
}

// tables of a conversation, each with what finds its rows.
var tables = []struct{ name, where string }{
	{"sessions", "session_id IN (SELECT session_id FROM sessions WHERE chat = $1)"},
	{"messages", "session_id IN (SELECT session_id FROM sessions WHERE chat = $1) AND (provider_id = $2 OR in_reply_to = (SELECT message_id FROM messages WHERE provider_id = $2))"},
	{"steps", "message_id = (SELECT message_id FROM messages WHERE provider_id = $2)"},
	{"tool_calls", "step_id IN (SELECT step_id FROM steps WHERE message_id = (SELECT message_id FROM messages WHERE provider_id = $2))"},
	{"executions", "position($2 IN command) > 0"},
	{"execution_output", "execution_id IN (SELECT execution_id FROM executions WHERE position($2 IN command) > 0)"},
	{"sandboxes", "sandbox_id IN (SELECT sandbox_id FROM executions WHERE position($2 IN command) > 0)"},
	{"replies", "message_id IN (SELECT message_id FROM messages WHERE in_reply_to = (SELECT message_id FROM messages WHERE provider_id = $2))"},
	{"outbox", "session_id IN (SELECT session_id FROM sessions WHERE chat = $1)"},
	{"dead_letters", "session_id IN (SELECT session_id FROM sessions WHERE chat = $1)"},
}

// story is everything the database has of a message, for a person who looks
// for the cause of a failure.
func (w *world) story(m message) string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var b strings.Builder
	fmt.Fprintf(&b, "message %s to %s: %q\n", m.id, m.agent.name, m.text)
	for _, c := range w.receiver.callbacks() {
		if c.InReplyTo == m.id {
			fmt.Fprintf(&b, "  callback %s %s part %d/%d: %q\n", c.At.Format("15:04:05.000"), c.ReplyID, c.Part, c.Parts, c.Text)
		}
	}
	for _, table := range tables {
		// Both arguments are named, so that every condition may use either.
		rows, err := w.db.Query(ctx, fmt.Sprintf("SELECT to_jsonb(x)::text FROM %s x WHERE %s AND ($1::text, $2::text) IS NOT NULL", table.name, table.where), m.chat, m.id)
		if err != nil {
			fmt.Fprintf(&b, "  %s: %v\n", table.name, err)
			continue
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			fmt.Fprintf(&b, "  %s: %v\n", table.name, err)
		}
		for _, row := range found {
			fmt.Fprintf(&b, "  %s %s\n", table.name, row)
		}
	}
	return b.String()
}
