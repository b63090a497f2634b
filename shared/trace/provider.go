package trace

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"tuluat.ai/harness/shared/harness"
)

// What waits to be sent is bounded: a span that finds no room is dropped.
const (
	queueSize = 2048
	batchSize = 256
	batchTime = 2 * time.Second
	closeTime = 5 * time.Second // for the last batch
)

// Provider begins traces and exports them. A nil one does nothing.
type Provider struct{ sdk *sdk.TracerProvider }

// Open returns the Provider that the standard variables of OpenTelemetry ask for,
// nil where they name no endpoint. It opens no connection. harness.Invalid: a
// variable is wrong.
//
// Read are OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER (otlp, none), OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and _ARG, and of
// OTEL_EXPORTER_OTLP_… and OTEL_EXPORTER_OTLP_TRACES_…, which wins, ENDPOINT,
// HEADERS, TIMEOUT, COMPRESSION and PROTOCOL (http/protobuf).
func Open(getenv func(string) string, name string, log *slog.Logger) (*Provider, error) {
	c := config{getenv: getenv}
	target := c.endpoint()
	if target == "" || strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") || getenv("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil //nolint:nilnil // nothing is to be traced
	}
	client := newClient(target, c.headers(), c.timeout(), c.otlp("COMPRESSION") == "gzip", log)
	sampler := c.sampler()
	if protocol := c.otlp("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		c.problem("OTEL_EXPORTER_OTLP_PROTOCOL", "only http/protobuf is spoken")
	}
	if err := errors.Join(c.problems...); err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "configuration")
	}
	exporter, err := otlptrace.New(context.Background(), client) // the client does nothing yet
	if err != nil {
		return nil, err
	}
	return &Provider{sdk.NewTracerProvider(
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(queueSize), sdk.WithMaxExportBatchSize(batchSize), sdk.WithBatchTimeout(batchTime)),
		sdk.WithSampler(sampler), sdk.WithResource(c.resource(name)),
		sdk.WithRawSpanLimits(sdk.SpanLimits{
			AttributeValueLengthLimit: 256, AttributeCountLimit: 32, EventCountLimit: 8, LinkCountLimit: 8, AttributePerEventCountLimit: 8, AttributePerLinkCountLimit: 8,
		}),
	)}, nil
}

// Close sends what is left, for a while.
func (p *Provider) Close() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), closeTime, errors.New("last spans"))
	defer cancel()
	_ = p.sdk.Shutdown(ctx) // the client has logged what went wrong
}

// Request is the span of one request or event.
type Request struct{ span trace.Span }

// Begin begins the span of a request under traceparent, or a trace of its own. What
// comes of the request has Parent of the returned context.
func (p *Provider) Begin(ctx context.Context, traceparent string, event bool) (context.Context, Request) {
	if p == nil {
		return ctx, Request{}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
	kind := trace.SpanKindServer
	if event {
		kind = trace.SpanKindConsumer
	}
	ctx, span := p.sdk.Tracer(scope).Start(ctx, "request", trace.WithSpanKind(kind))
	return ctx, Request{span}
}

// End ends the span of a request called name that was answered with status.
func (r Request) End(name string, status int) {
	if r.span == nil {
		return
	}
	r.span.SetName(name)
	r.span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		r.span.SetStatus(codes.Error, "")
	}
	r.span.End()
}

type config struct {
	getenv   func(string) string
	problems []error
}

func (c *config) problem(name, what string) {
	c.problems = append(c.problems, errors.New(name+": "+what))
}

// otlp is a variable of the exporter: that of traces, else that of all signals.
func (c *config) otlp(name string) string {
	if v := c.getenv("OTEL_EXPORTER_OTLP_TRACES_" + name); v != "" {
		return v
	}
	return c.getenv("OTEL_EXPORTER_OTLP_" + name)
}

func (c *config) endpoint() string {
	name, target := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", c.getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
	if base := c.getenv("OTEL_EXPORTER_OTLP_ENDPOINT"); target == "" && base != "" {
		name, target = "OTEL_EXPORTER_OTLP_ENDPOINT", strings.TrimSuffix(base, "/")+"/v1/traces"
	}
	if target == "" {
		return ""
	}
	if u, err := url.Parse(target); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		c.problem(name, "an absolute http or https URL is needed") // it may have a password: it is not repeated
	}
	return target
}

// headers are NAME=VALUE, with commas between; values are percent-encoded.
func (c *config) headers() http.Header {
	h := http.Header{}
	for pair := range strings.SplitSeq(c.otlp("HEADERS"), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !found || err != nil || strings.ContainsAny(name+value, "\r\n") {
			c.problem("OTEL_EXPORTER_OTLP_HEADERS", "NAME=VALUE with commas between is needed")
			continue
		}
		h.Set(strings.TrimSpace(name), value)
	}
	return h
}

func (c *config) timeout() time.Duration {
	text := c.otlp("TIMEOUT")
	if text == "" {
		return 10 * time.Second
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		c.problem("OTEL_EXPORTER_OTLP_TIMEOUT", "milliseconds are needed")
	}
	return time.Duration(n) * time.Millisecond
}

func (c *config) sampler() sdk.Sampler {
	share := 1.0
	if text := c.getenv("OTEL_TRACES_SAMPLER_ARG"); text != "" {
		var err error
		if share, err = strconv.ParseFloat(text, 64); err != nil || share < 0 || share > 1 {
			c.problem("OTEL_TRACES_SAMPLER_ARG", "a number from 0 to 1 is needed")
		}
	}
	switch c.getenv("OTEL_TRACES_SAMPLER") {
	case "always_on":
		return sdk.AlwaysSample()
	case "always_off":
		return sdk.NeverSample()
	case "traceidratio":
		return sdk.TraceIDRatioBased(share)
	case "", "parentbased_always_on":
		return sdk.ParentBased(sdk.AlwaysSample())
	case "parentbased_always_off":
		return sdk.ParentBased(sdk.NeverSample())
	case "parentbased_traceidratio":
		return sdk.ParentBased(sdk.TraceIDRatioBased(share))
	}
	c.problem("OTEL_TRACES_SAMPLER", "use always_on, always_off, traceidratio, or one of these after parentbased_")
	return sdk.NeverSample()
}

// resource is who sends: the function, and what an operator adds.
func (c *config) resource(name string) *resource.Resource {
	if v := c.getenv("OTEL_SERVICE_NAME"); v != "" {
		name = v
	}
	all := []attribute.KeyValue{attribute.String("service.name", name), attribute.String("service.namespace", "tuluat")}
	for pair := range strings.SplitSeq(c.getenv("OTEL_RESOURCE_ATTRIBUTES"), ",") {
		key, value, found := strings.Cut(pair, "=")
		if value, err := url.PathUnescape(strings.TrimSpace(value)); found && err == nil && strings.TrimSpace(key) != "service.name" {
			all = append(all, attribute.String(strings.TrimSpace(key), value))
		}
	}
	return resource.NewSchemaless(all...)
}
