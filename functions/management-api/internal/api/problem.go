package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/trace"
)

const problemType = "application/problem+json"

// problem is an answer that is not a success. Its texts are ours: they repeat
// nothing that the caller sent but names of fields.
type problem struct {
	view.Problem
	header http.Header
}

// Error implements error and huma.StatusError.
func (p *problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *problem) GetStatus() int { return p.Status }

// GetHeaders implements huma.HeadersError.
func (p *problem) GetHeaders() http.Header { return p.header }

// ContentType implements huma.ContentTypeFilter.
func (p *problem) ContentType(string) string { return problemType }

// refuse returns a problem with status, and what is wrong with which field.
func refuse(status int, detail string, fields ...view.ProblemField) *problem {
	return &problem{Problem: view.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Errors: few(fields)}}
}

const (
	maxFields = 100 // of a problem
	maxText   = 256 // bytes of what is said of one
)

// few bounds what is said about fields, which is as long as who asked made it.
func few(fields []view.ProblemField) []view.ProblemField {
	var all []view.ProblemField
	for i, f := range fields {
		if i == maxFields {
			return append(all, view.ProblemField{Pointer: "#", Detail: fmt.Sprintf("and %d more", len(fields)-i)})
		}
		all = append(all, view.ProblemField{Pointer: clip(f.Pointer), Detail: clip(f.Detail)})
	}
	return all
}

func clip(text string) string {
	const dots = "…"
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len(dots)], "") + dots
}

// refuseField refuses a request by reason of one part of it.
func refuseField(pointer, detail string) *problem {
	return refuse(http.StatusUnprocessableEntity, "the request is not valid", view.ProblemField{Pointer: pointer, Detail: detail})
}

// problemOf is what a caller is told of err. What is not the caller's doing is
// logged.
func (a *api) problemOf(ctx context.Context, operation string, err error) *problem {
	p, ok := errors.AsType[*problem](err)
	if !ok {
		if fields := fieldsOf(err); len(fields) > 0 {
			p = refuse(http.StatusUnprocessableEntity, "the resource is not valid", fields...)
		} else {
			p = refuse(function.RESTStatus(err), harness.MessageOf(err))
		}
	}
	if p.Status >= http.StatusInternalServerError && !errors.Is(ctx.Err(), context.Canceled) {
		a.Log.Error("request failed", "operation", operation, "request", access.RequestID(ctx), "kind", string(harness.KindOf(err)), "err", err)
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		p.header = http.Header{"Retry-After": {"1"}}
	}
	p.RequestID, p.TraceID = access.RequestID(ctx), trace.ID(ctx)
	return p
}

// answer answers with err what no handler has answered.
func (a *api) answer(ctx huma.Context, operation string, err error) {
	r, w := humago.Unwrap(ctx)
	a.problemOf(r.Context(), operation, err).write(w)
}

// writeProblem answers outside of an operation.
func writeProblem(w http.ResponseWriter, r *http.Request, status int, detail string) {
	p := refuse(status, detail)
	p.RequestID, p.TraceID = access.RequestID(r.Context()), trace.ID(r.Context())
	p.write(w)
}

func (p *problem) write(w http.ResponseWriter) {
	for name, values := range p.header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", problemType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p.Problem) // the client may be gone
}

// transform replaces what huma says of a request that does not fit its
// operation by a problem, and unwraps ours.
func transform(ctx huma.Context, _ string, body any) (any, error) {
	switch e := body.(type) {
	case *problem:
		return e.Problem, nil
	case *huma.ErrorModel:
		return invalid(ctx.Context(), e).Problem, nil
	}
	return body, nil
}

func invalid(ctx context.Context, e *huma.ErrorModel) *problem {
	var fields []view.ProblemField
	for _, d := range e.Errors {
		fields = append(fields, view.ProblemField{Pointer: pointer(d.Location), Detail: d.Message})
	}
	p := refuse(e.Status, "the request is not valid", fields...)
	if len(fields) == 0 {
		p.Detail = e.Detail
	}
	p.RequestID, p.TraceID = access.RequestID(ctx), trace.ID(ctx)
	return p
}

// pointer turns a place as huma spells it (body.items[3].name, query.limit) into
// what ProblemField has.
func pointer(location string) string {
	place, path, _ := strings.Cut(location, ".")
	path = strings.NewReplacer("[", ".", "]", "").Replace(path)
	switch {
	case place != "body":
		return place + "/" + path
	case path == "":
		return "#"
	}
	segments := strings.Split(path, ".")
	for i, s := range segments {
		segments[i] = escape(s)
	}
	return "#/" + strings.Join(segments, "/")
}

// escape is that of a part of a JSON pointer (RFC 6901).
func escape(segment string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(segment)
}

// fieldPointer turns the path of a field as v1alpha1 and Kubernetes spell it,
// spec.harness.channels[0].name or metadata.labels[a.b/c], into a JSON pointer.
func fieldPointer(path string) string {
	var b strings.Builder
	b.WriteString("#")
	for path != "" {
		var segment string
		switch {
		case path[0] == '[':
			segment, path, _ = strings.Cut(path[1:], "]")
			segment = strings.Trim(segment, `"'`)
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			segment, path = path[:end], path[end:]
		}
		path = strings.TrimPrefix(path, ".")
		if segment != "" {
			b.WriteString("/" + escape(segment))
		}
	}
	return b.String()
}
