// Package api is the management API: its operations, problems, pages, documents
// and streams.
package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"tuluat.ai/harness/functions/management-api/internal/a2a"
	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/logs"
	"tuluat.ai/harness/functions/management-api/internal/mcp"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/resource"
)

// Store is what the API reads and changes of the rows.
type Store interface {
	agentStore
	haltStore
	usageStore
	sessionStore
	takeoverStore
	streamStore
	approvalStore
	sandboxStore
	executionStore
	letterStore
	recordStore
	forgetStore
	leakStore
	auditStore
}

// Options say what the API works with.
type Options struct {
	Store      Store
	Objects    logs.Objects // the bucket of the archive; nil: there is none
	Resources  resource.Store
	Access     access.Access
	Limits     access.Limits
	Publish    func(context.Context, ...event.Event)
	Log        *slog.Logger
	Now        func() time.Time
	Drain      <-chan struct{} // closed when the process ends
	StreamTime time.Duration   // the longest a stream lives; 0: StreamTime
	Version    string          // of this build
	// OpenDocs shows /openapi.json and /docs to everybody.
	OpenDocs bool
	// Temporal says that temporal-bridge is installed: sessions may name a workflow.
	Temporal bool
	// Metrics serves what the rows say to Prometheus; nil: nothing does here.
	Metrics http.Handler
}

// StreamTime ends a stream before the platform's own ten minutes do, so that a
// client sees a clean end.
const StreamTime = 590 * time.Second

// Where the documents are.
const (
	pathDocument = "/openapi.json"
	pathDocs     = "/docs"

	pathMetrics = prefix + "/metrics"
)

// api is what handlers share.
type api struct {
	Options
	huma       huma.API
	operations map[string]Operation // that have no handler yet
	streams    streams
	records    *logs.Reader
}

// New returns the handler of every path of the API.
func New(o Options) http.Handler {
	if o.StreamTime == 0 {
		o.StreamTime = StreamTime
	}
	mux := http.NewServeMux()
	a := build(mux, o)
	mux.Handle("/", a.unknown(mux))
	serveDocuments(mux, a.huma.OpenAPI())
	if o.Metrics != nil {
		mux.Handle("GET "+pathMetrics, a.metrics())
	}
	options := access.Options{Access: o.Access, Limits: o.Limits, Log: o.Log, Now: o.Now, Problem: writeProblem}
	if o.OpenDocs {
		options.Open = []string{pathDocument, pathDocs}
	}
	handler := access.Middleware(options)(mux)
	mux.Handle("POST "+mcp.Path, tools(a.huma.OpenAPI(), handler))
	a2a.Register(mux, a2a.Options{API: handler, Log: o.Log, Drain: o.Drain, StreamTime: o.StreamTime, Problem: writeProblem})
	return handler
}

// tools is the API as a server of the Model Context Protocol.
func tools(described *huma.OpenAPI, handler http.Handler) http.Handler {
	text, err := document(described)
	if err == nil {
		if handler, err = mcp.New(text, handler); err == nil {
			return handler
		}
	}
	panic(err) // of what is compiled in: found by the first test
}

// Document returns the OpenAPI document, as /openapi.json serves it.
func Document() ([]byte, error) {
	a := build(http.NewServeMux(), Options{})
	return document(a.huma.OpenAPI())
}

// build registers every operation.
func build(mux *http.ServeMux, o Options) *api {
	// Of two spellings of a key huma would look at one and encoding/json read the
	// other. It is a variable of huma's package, which requests read.
	if !huma.ValidateStrictCasing {
		huma.ValidateStrictCasing = true
	}
	a := &api{Options: o, operations: map[string]Operation{}, records: newRecords(o)}
	for _, operation := range Operations() {
		a.operations[operation.ID] = operation
	}
	a.huma = humago.New(mux, huma.Config{
		OpenAPI:                      describe(),
		Formats:                      map[string]huma.Format{"application/json": jsonFormat(), "json": jsonFormat()},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{transform},
	})
	a.registerAgents()
	a.registerWorkflows()
	a.registerHalts()
	a.registerUsage()
	a.registerSessions()
	a.registerTakeovers()
	a.registerEvents()
	a.registerApprovals()
	a.registerSandboxes()
	a.registerExecutions()
	a.registerLetters()
	a.registerLogs()
	a.registerForgets()
	a.registerLeaks()
	a.registerRecords()
	for id := range a.operations {
		panic("operation without a handler: " + id) // found by the first test
	}
	return a
}

// register gives the operation id its handler. What the handler returns as an
// error is answered as a problem.
func register[I, O any](a *api, id string, handle func(context.Context, *I) (*O, error), change ...func(*huma.Operation)) {
	o, ok := a.operations[id]
	if !ok {
		panic("handler without an operation: " + id)
	}
	delete(a.operations, id)
	op := huma.Operation{
		OperationID: o.ID, Method: o.Method, Path: o.Path, Summary: o.Summary, Description: o.Notes, DefaultStatus: o.Status,
		Tags: []string{tag(o.Path)}, Middlewares: huma.Middlewares{a.allow(o)},
		// Bodies are in memory by now; a deadline left on the connection would end
		// the request while it works.
		MaxBodyBytes: maxBody, BodyReadTimeout: -1,
		Responses: map[string]*huma.Response{"default": a.problems()},
	}
	if o.Right.Verb != "" {
		op.Extensions = map[string]any{rightExtension: o.Right.String()}
	}
	for _, c := range change {
		c(&op)
	}
	body := op.RequestBody
	op.RequestBody = nil
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		if o.Method != http.MethodGet {
			// A client that hangs up does not stop a write between its commit and its
			// event.
			var cancel context.CancelFunc
			ctx, cancel = unhurried(ctx)
			defer cancel()
		}
		out, err := handle(ctx, in)
		if err != nil {
			return nil, a.problemOf(ctx, id, err)
		}
		return out, nil
	})
	if body != nil {
		operationAt(a.huma.OpenAPI(), o).RequestBody = body
	}
}

// operationAt returns o as the document has it.
func operationAt(described *huma.OpenAPI, o Operation) *huma.Operation {
	item := described.Paths[o.Path]
	return map[string]*huma.Operation{
		http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put, http.MethodPatch: item.Patch, http.MethodDelete: item.Delete,
	}[o.Method]
}

// unhurried returns a context that ends by its own time only.
func unhurried(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), writeTime)
}

const (
	// writeTime is what a write may take, and the record of it again.
	writeTime = 20 * time.Second

	// rightExtension says in the document which right an operation needs.
	rightExtension = "x-tuluat-right"

	// maxBody is one more than access lets in, so that its answer holds.
	maxBody = 1<<20 + 1
)

// tag groups operations by the first part of their path.
func tag(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, prefix+"/"), "/")
	return first
}

// allow lets through who has the right of o.
func (a *api) allow(o Operation) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		function.NameRequest(ctx.Context(), o.ID)
		right := o.Right
		if right.Name != "" {
			right.Name = ctx.Param(right.Name)
		}
		if right.Verb != "" {
			if err := access.Check(ctx.Context(), a.Access, right); err != nil {
				a.answer(ctx, o.ID, err)
				return
			}
		}
		r, _ := humago.Unwrap(ctx)
		query, err := readQuery(r.URL.RawQuery, ctx.Operation())
		if err != nil {
			a.answer(ctx, o.ID, err)
			return
		}
		r.URL.RawQuery = query
		if err := encoded(r); err != nil {
			a.answer(ctx, o.ID, err)
			return
		}
		ctx.SetHeader("Cache-Control", "no-store")
		ctx.SetHeader("X-Content-Type-Options", "nosniff")
		next(ctx)
	}
}

// metrics lets whoever may list sessions scrape: no figure says more.
func (a *api) metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		function.NameRequest(r.Context(), "get-metrics")
		if err := access.Check(r.Context(), a.Access, right(access.List, access.Sessions)); err != nil {
			p := a.problemOf(r.Context(), "get-metrics", err)
			writeProblem(w, r, p.Status, p.Detail)
			return
		}
		a.Metrics.ServeHTTP(w, r)
	})
}

// unknown answers what is no operation.
func (a *api) unknown(mux *http.ServeMux) http.Handler {
	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, method := range methods {
			probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
			if _, pattern := mux.Handler(probe); pattern != "/" && pattern != "" {
				allowed = append(allowed, method)
			}
		}
		if len(allowed) > 0 {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			writeProblem(w, r, http.StatusMethodNotAllowed, "the path is known, the method is not: see the header Allow")
			return
		}
		writeProblem(w, r, http.StatusNotFound, "there is no such path: /openapi.json lists them")
	})
}

// jsonFormat reads and writes bodies.
func jsonFormat() huma.Format {
	return huma.Format{
		Marshal: func(w io.Writer, v any) error {
			encoder := json.NewEncoder(w)
			encoder.SetEscapeHTML(false)
			if err := encoder.Encode(v); err != nil {
				return fmt.Errorf("encode an answer: %w", err)
			}
			return nil
		},
		Unmarshal: unmarshal,
	}
}

// location is the path of what was made.
func location(path ...string) string { return prefix + "/" + strings.Join(path, "/") }

// by is what the audit has of the caller of ctx, who does what action says.
func by(ctx context.Context, verb, resource string) postgres.Audit {
	return postgres.Audit{Actor: callerName(ctx), Action: right(verb, resource).String(), RequestID: access.RequestID(ctx)}
}

// digest is the SHA-256 of text, in hex.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func callerName(ctx context.Context) string {
	caller, _ := access.From(ctx)
	return caller.Name
}

func callerGroups(ctx context.Context) []string {
	caller, _ := access.From(ctx)
	return caller.Groups
}
