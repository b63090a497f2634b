// Package trace follows one message through the functions: from a provider's
// webhook to the answer that the provider takes. The context of a trace travels in
// events and rows (traceparent); spans are exported by OTLP where an operator says
// where to, and cost nothing else.
//
// A span says which things it is about, by their ids and names. It never has a text
// of a person, of a model or of a command, and no error's words: of those its kind.
package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"tuluat.ai/harness/shared/harness"
)

// scope names who makes spans.
const scope = "tuluat.ai/harness"

// Start begins a span under that of ctx. Where ctx has none that is recorded, it
// does nothing. attributes are keys, each with its value. The span ends with end,
// which is told how what it is about went.
func Start(ctx context.Context, name string, attributes ...string) (under context.Context, end func(error)) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, func(error) {}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(pairs(attributes)...))
	return ctx, func(err error) {
		fail(span, err)
		span.End()
	}
}

// Resume begins a span under traceparent, of a trace that is not that of ctx: what
// a request does for another. parent is the traceparent of what comes of it. Where
// the request is not recorded or traceparent is none, it does nothing and parent is
// traceparent. The span ends with end, as that of Start.
func Resume(ctx context.Context, traceparent, name string, attributes ...string) (under context.Context, parent string, end func(error)) {
	request := trace.SpanFromContext(ctx)
	if IDOf(traceparent) == "" || !request.IsRecording() {
		return ctx, traceparent, func(error) {}
	}
	ctx = propagation.TraceContext{}.Extract(trace.ContextWithSpan(ctx, nil), propagation.MapCarrier{"traceparent": traceparent})
	ctx, span := request.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(pairs(attributes)...), trace.WithLinks(trace.Link{SpanContext: request.SpanContext()}))
	return ctx, Parent(ctx), func(err error) {
		fail(span, err)
		span.End()
	}
}

// Note adds attributes to the span of ctx.
func Note(ctx context.Context, attributes ...string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(pairs(attributes)...)
	}
}

// Count adds a number to the span of ctx.
func Count(ctx context.Context, key string, n int64) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.Int64(key, n))
	}
}

// ID is the id of the trace of ctx; empty: there is none.
func ID(ctx context.Context) string {
	if c := trace.SpanContextFromContext(ctx); c.HasTraceID() {
		return c.TraceID().String()
	}
	return ""
}

// IDOf is the id of the trace that a traceparent belongs to; empty: it is none.
func IDOf(traceparent string) string {
	const from, to = 3, 35
	if len(traceparent) < to {
		return ""
	}
	return traceparent[from:to]
}

// Parent is the traceparent of what comes of the span of ctx; empty: there is none.
func Parent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

func pairs(attributes []string) []attribute.KeyValue {
	var all []attribute.KeyValue
	for i := 0; i+1 < len(attributes); i += 2 {
		if attributes[i+1] != "" {
			all = append(all, attribute.String(attributes[i], attributes[i+1]))
		}
	}
	return all
}

// fail says that a span came to nothing, and by which kind of error.
func fail(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, string(harness.KindOf(err)))
	}
}
