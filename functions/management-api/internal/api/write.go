package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/resource"
)

// Resources are kept elsewhere than the audit is, so that a write of one and its
// row cannot be one: it is tried, then it has its row, then it is done, and then
// the row says what came of it. What is refused at the first try leaves no row.

type auditStore interface {
	WriteOf(ctx context.Context, key string) (postgres.Write, error)
	BeginWrite(ctx context.Context, w postgres.Write) (postgres.Write, error)
	EndWrite(ctx context.Context, w postgres.Write) error
}

// attempts is how often a write of any version is done anew when somebody else
// has written meanwhile.
const attempts = 5

// end says what came of w: r, or err. Where that is not known, the row goes on
// saying so.
func (s *resources) end(ctx context.Context, w postgres.Write, r resource.Resource, err error) {
	switch harness.KindOf(err) {
	case "":
		w.State, w.After = view.AuditDone, r.Object
	case harness.Unavailable, harness.Internal:
		w.State, w.Reason = view.AuditUnknown, harness.MessageOf(err)
	default:
		w.State, w.Reason = view.AuditRefused, harness.MessageOf(err)
	}
	s.complete(ctx, w)
}

// complete stores what came of w. Where that cannot be, the row says UNKNOWN.
func (s *resources) complete(ctx context.Context, w postgres.Write) {
	ctx, cancel := unhurried(ctx) // whatever the write has left
	defer cancel()
	if err := s.Store.EndWrite(ctx, w); err != nil {
		s.Log.Error("what came of a write could not be recorded", "actor", w.Actor, "action", w.Action, "object", w.Object, "state", string(w.State), "request", w.RequestID, "err", err)
	}
}

// change does a write of the resource called name, which do makes of what it is
// given: the resource as it is, for that version alone. Of a write that changes
// nothing, what there is is returned.
func (s *resources) change(ctx context.Context, audit postgres.Audit, name string, m match, dryRun bool,
	do func(is resource.Resource, dryRun bool) (resource.Resource, error),
) (resource.Resource, error) {
	w := postgres.Write{Audit: audit, Object: name}
	fail := func(err error) (resource.Resource, error) { // with nothing written
		if w.ID != 0 {
			w.State, w.Reason = view.AuditRefused, harness.MessageOf(err)
			if p, ok := errors.AsType[*problem](err); ok {
				w.Reason = p.Detail
			}
			s.complete(ctx, w)
		}
		return resource.Resource{}, err
	}
	for range attempts {
		is, err := s.Resources.Get(ctx, s.kind, name)
		if err == nil {
			err = m.check(is)
		}
		if err != nil {
			return fail(err)
		}
		next, err := do(is, true)
		switch {
		case err != nil:
			return fail(err)
		case dryRun, w.ID == 0 && bytes.Equal(is.YAML, next.YAML):
			return next, nil
		}
		w.Before, w.After = is.Object, next.Object
		if w.ID == 0 {
			if w, err = s.Store.BeginWrite(ctx, w); err != nil {
				return resource.Resource{}, err
			}
		}
		next, err = do(is, false)
		if m.any && harness.KindOf(err) == harness.Stale {
			continue
		}
		s.end(ctx, w, next, err)
		return next, err
	}
	return fail(harness.Errorf(harness.Conflict, "%s is being changed by others all the time: try again", name))
}

// add makes a resource, once per key: who asks again with it gets what was made.
func (s *resources) add(ctx context.Context, r resource.Resource, key, digest string) (resource.Resource, error) {
	w, err := s.begin(ctx, r, key, digest)
	switch {
	case err != nil:
		return r, err
	case w.Digest != digest:
		return r, refuse(http.StatusConflict, "the Idempotency-Key belongs to another request",
			view.ProblemField{Pointer: "header/Idempotency-Key", Detail: "was used with another body or path"})
	case w.State == view.AuditDone:
		return made(w)
	}
	created, err := s.Resources.Create(ctx, r, false)
	if key != "" && harness.KindOf(err) == harness.Conflict {
		// Whoever came with the key before, or at the same time, may have made it.
		is, failed := s.Resources.Get(ctx, s.kind, w.Object)
		if failed != nil || !alike(is.Object, w.After) {
			return r, err // or somebody else has: the row goes on saying that nobody knows
		}
		created, err = is, nil
	}
	s.end(ctx, w, created, err)
	return created, err
}

// begin returns the write that the key belongs to, or a new one of r, if r can be
// made.
func (s *resources) begin(ctx context.Context, r resource.Resource, key, digest string) (postgres.Write, error) {
	if w, err := s.known(ctx, key); err != nil || w.ID != 0 {
		return w, err
	}
	tried, refused := s.Resources.Create(ctx, r, true)
	if harness.KindOf(refused) == harness.Conflict { // with what the key has made meanwhile, perhaps
		if w, err := s.known(ctx, key); err != nil || w.ID != 0 {
			return w, err
		}
	}
	if refused != nil {
		return postgres.Write{}, refused
	}
	return s.Store.BeginWrite(ctx, postgres.Write{
		Audit: by(ctx, access.Create, s.word), Object: tried.Name, After: tried.Object, Key: key, Digest: digest,
	})
}

// known is the write that the key belongs to, if there is one.
func (s *resources) known(ctx context.Context, key string) (postgres.Write, error) {
	if key == "" {
		return postgres.Write{}, nil
	}
	w, err := s.Store.WriteOf(ctx, key)
	if harness.KindOf(err) == harness.NotFound {
		return postgres.Write{}, nil
	}
	return w, err
}

// made is the resource as a write has left it.
func made(w postgres.Write) (resource.Resource, error) {
	r := resource.Resource{Name: w.Object, Object: w.After}
	var object struct {
		Metadata struct {
			Version string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(w.After, &object); err != nil {
		return r, harness.Wrap(harness.Internal, err, "what was made cannot be read")
	}
	r.Version = object.Metadata.Version
	return r, nil
}

// alike reports whether two resources are the same by what their author says.
func alike(one, other json.RawMessage) bool {
	type said struct {
		Metadata struct {
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec any `json:"spec"`
	}
	var a, b said
	err := cmp.Or(json.Unmarshal(one, &a), json.Unmarshal(other, &b))
	return err == nil && reflect.DeepEqual(a, b)
}
