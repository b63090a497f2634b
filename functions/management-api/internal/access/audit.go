package access

import (
	"context"
	"encoding/json"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// AuditStore keeps what was written through the API.
type AuditStore interface {
	RecordAudit(ctx context.Context, e view.AuditEntry) error
}

// Audit records who wrote what.
type Audit struct{ Store AuditStore }

// Record keeps that the caller of ctx did action (a Right as it spells itself)
// to object. before and after are JSON objects, or nil where there is none.
func (a Audit) Record(ctx context.Context, action, object string, before, after any) error {
	caller, ok := From(ctx)
	if !ok {
		return harness.Errorf(harness.Internal, "a write of nobody")
	}
	e := view.AuditEntry{Actor: caller.Name, Action: action, Object: object, RequestID: RequestID(ctx)}
	var err error
	if e.Before, err = fields(before); err != nil {
		return err
	}
	if e.After, err = fields(after); err != nil {
		return err
	}
	return a.Store.RecordAudit(ctx, e)
}

func fields(value any) (json.RawMessage, error) {
	if value == nil {
		return nil, nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, harness.Wrap(harness.Internal, err, "what was written cannot be recorded")
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, harness.Wrap(harness.Internal, err, "what was written cannot be recorded")
	}
	if members == nil {
		return nil, nil
	}
	return text, nil
}
