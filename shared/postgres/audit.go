package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// AuditFilter says which writes a list holds. Zero fields: any.
type AuditFilter struct {
	Actor  string
	Object string
	Since  time.Time
}

// RecordAudit stores one write through the management API, with the database's
// time and an id of its own.
func (s *Store) RecordAudit(ctx context.Context, e view.AuditEntry) error {
	before, err := auditText(e.Before)
	if err != nil {
		return err
	}
	after, err := auditText(e.After)
	if err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `INSERT INTO audit_log (actor, action, object, before, after, request_id) VALUES ($1, $2, $3, $4, $5, $6)`,
		clip(e.Actor), clip(e.Action), clip(e.Object), before, after, clip(e.RequestID))
	return translate(err)
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

// ListAudit returns up to limit writes behind after, newest first. The ID of a
// place is the entry's in decimal.
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
	return list(ctx, s, `SELECT audit_log_id, actor, action, object, before, after, request_id, created_at FROM audit_log
		WHERE `+q.sql()+` ORDER BY created_at DESC, audit_log_id DESC LIMIT `+q.arg(limit), q.args, func(row pgx.CollectableRow) (view.AuditEntry, error) {
		var v view.AuditEntry
		return v, row.Scan(&v.ID, &v.Actor, &v.Action, &v.Object, &v.Before, &v.After, &v.RequestID, &v.CreatedAt)
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
