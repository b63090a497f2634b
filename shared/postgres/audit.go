package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Audit says who writes, by which right and with which request. A method that is
// given one stores it with what was before and after, in the transaction of what
// it changes: there is no change without its row, and no row where nothing
// changed. Without an Action there is no row: what comes by other ways than the
// management API is in the rows themselves.
type Audit struct {
	Actor     string
	Action    string // verb and resource
	RequestID string
}

func (a Audit) args() []any { return []any{clip(a.Actor), clip(a.Action), clip(a.RequestID)} }

// queue queues a statement of auditSQL whose first arguments are args. Without an
// Action it queues nothing: functions but the management API may not write rows.
func (a Audit) queue(b *pgx.Batch, sql string, args ...any) {
	if a.Action != "" {
		b.Queue(sql, append(args, a.args()...)...)
	}
}

// auditSQL is the part of a statement that stores an Audit, whose args begin at
// argument n, for each row of from. object is what was written; before and after
// are objects, or NULL.
func auditSQL(n int, from, object, before, after string) string {
	return fmt.Sprintf(`INSERT INTO audit_log (actor, action, request_id, object, before, after)
    SELECT $%d, $%d, $%d, %s, %s, %s FROM %s WHERE $%[2]d <> ''`, n, n+1, n+2, object, before, after, from)
}

// Write is a write of something that is kept elsewhere, as an agent at the API
// server, and cannot commit with a row of ours. Its row is there before it: a
// crash between leaves one that says UNKNOWN, and never a write without a row.
type Write struct {
	ID int64 // of its row
	Audit
	Object        string
	Before, After json.RawMessage // objects; nil: there is none. Until it is DONE, After is what it is to be
	State         view.AuditState
	Reason        string // why it was refused, or is not known

	// Key names the request, unique over all callers; empty: it has none. It belongs
	// to the request with this Digest, unless that was refused.
	Key, Digest string
}

const writeColumns = `audit_log_id, actor, action, request_id, object, before, after, state, reason, COALESCE(idempotency_key, ''), digest`

func readWrite(row pgx.CollectableRow) (Write, error) {
	var w Write
	return w, row.Scan(&w.ID, &w.Actor, &w.Action, &w.RequestID, &w.Object, &w.Before, &w.After, &w.State, &w.Reason, &w.Key, &w.Digest)
}

// WriteOf returns the write that the key belongs to. harness.NotFound: none.
func (s *Store) WriteOf(ctx context.Context, key string) (Write, error) {
	return one(ctx, s, "write", `SELECT `+writeColumns+` FROM audit_log WHERE idempotency_key = $1 AND state <> 'REFUSED'`, []any{key}, readWrite)
}

// BeginWrite stores that w is about to be done, and returns it with its ID and
// UNKNOWN; where its key belongs to a write already, that one as it stands.
func (s *Store) BeginWrite(ctx context.Context, w Write) (Write, error) {
	before, after, err := w.texts()
	if err != nil {
		return w, err
	}
	var key *string
	if w.Key != "" {
		key = &w.Key
	}
	w.State, w.Reason = view.AuditUnknown, ""
	for {
		err := s.pool.QueryRow(ctx, `INSERT INTO audit_log (actor, action, request_id, object, before, after, state, idempotency_key, digest)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL AND state <> 'REFUSED' DO NOTHING RETURNING audit_log_id`,
			append(w.args(), clip(w.Object), before, after, w.State, key, w.Digest)...).Scan(&w.ID)
		if err = translate(err); harness.KindOf(err) != harness.NotFound {
			return w, err
		}
		// The key belongs to another, or did until that was refused.
		if known, err := s.WriteOf(ctx, w.Key); harness.KindOf(err) != harness.NotFound {
			return known, err
		}
	}
}

// EndWrite stores what came of w: its Before, After, State and Reason. A row
// that is complete stays as it is.
func (s *Store) EndWrite(ctx context.Context, w Write) error {
	before, after, err := w.texts()
	if err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `SELECT complete_audit($1, $2, $3, $4, $5)`, w.ID, before, after, w.State, clip(w.Reason))
	return translate(err)
}

func (w Write) texts() (before, after *json.RawMessage, err error) {
	if before, err = auditText(w.Before); err == nil {
		after, err = auditText(w.After)
	}
	return before, after, err
}

// auditText is value as JSON that can be stored: NUL, which it may hold escaped,
// is none that PostgreSQL takes.
func auditText(value json.RawMessage) (*json.RawMessage, error) {
	if value == nil {
		return nil, nil
	}
	var object map[string]any
	exact := json.NewDecoder(bytes.NewReader(value))
	exact.UseNumber()
	err := exact.Decode(&object)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "an audit entry is no JSON object")
	}
	text, err := json.Marshal(cleanJSON(object))
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "an audit entry cannot be stored")
	}
	raw := json.RawMessage(text)
	return &raw, nil
}

func cleanJSON(value any) any {
	switch v := value.(type) {
	case string:
		return harness.CleanText(v)
	case []any:
		clean := make([]any, len(v))
		for i := range v {
			clean[i] = cleanJSON(v[i])
		}
		return clean
	case map[string]any:
		clean := make(map[string]any, len(v))
		for key, child := range v {
			clean[harness.CleanText(key)] = cleanJSON(child)
		}
		return clean
	}
	return value
}

// AuditFilter says which writes a list holds. Zero fields: any.
type AuditFilter struct {
	Actor  string
	Object string
	Since  time.Time
}

// ListAudit returns up to limit writes behind after, newest first. The ID of a
// place is the entry's in decimal. A row is of the time at which its transaction
// began, and may be committed behind newer ones: whoever asks again and again with
// the newest time as Since asks for a minute more, and knows by the ids what is new.
func (s *Store) ListAudit(ctx context.Context, f AuditFilter, after view.Place, limit int) ([]view.AuditEntry, error) {
	q := &query{}
	q.equal("actor", f.Actor)
	q.equal("object", f.Object)
	if err := q.behindNumber("created_at", "audit_log_id", after); err != nil {
		return nil, err
	}
	if !f.Since.IsZero() {
		q.and("created_at >= " + q.arg(f.Since))
	}
	return list(ctx, s, `SELECT audit_log_id, actor, action, object, before, after, state, reason, request_id, created_at FROM audit_log
		WHERE `+q.sql()+` ORDER BY created_at DESC, audit_log_id DESC LIMIT `+q.arg(limit), q.args, func(row pgx.CollectableRow) (view.AuditEntry, error) {
		var v view.AuditEntry
		return v, row.Scan(&v.ID, &v.Actor, &v.Action, &v.Object, &v.Before, &v.After, &v.State, &v.Reason, &v.RequestID, &v.CreatedAt)
	})
}

// behindNumber begins a list that is ordered by time and number after a place.
func (q *query) behindNumber(created, number string, after view.Place) error {
	if after.ID == "" {
		return nil
	}
	n, err := strconv.ParseInt(after.ID, 10, 64)
	if err != nil {
		return harness.Errorf(harness.Invalid, "the place in this list is no number")
	}
	q.and("(" + created + ", " + number + ") < (" + q.arg(after.At) + ", " + q.arg(n) + ")")
	return nil
}
