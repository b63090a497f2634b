package trace_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/trace"
	"tuluat.ai/harness/shared/trace/tracetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func variables(all map[string]string) func(string) string {
	return func(name string) string { return all[name] }
}

func open(t *testing.T, all map[string]string) (*trace.Provider, *bytes.Buffer) {
	t.Helper()
	logs := &bytes.Buffer{}
	p, err := trace.Open(variables(all), "agent-step", slog.New(slog.NewJSONHandler(logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return p, logs
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// What an operator asks for by the standard variables is what is sent, and an
// error's words, which may quote anything, are not.
func TestExport(t *testing.T) {
	for name, more := range map[string]map[string]string{"plain": {}, "zipped": {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}} {
		t.Run(name, func(t *testing.T) {
			c := tracetest.New(t)
			all := map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL + "/", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s%20ecret,other=1", "OTEL_RESOURCE_ATTRIBUTES": "service.name=no,deployment.environment.name=test",
			}
			for k, v := range more {
				all[k] = v
			}
			p, logs := open(t, all)
			ctx, request := p.Begin(context.Background(), parent, true)
			if got := trace.ID(ctx); got != trace.IDOf(parent) {
				t.Errorf("the trace is %s, want %s", got, trace.IDOf(parent))
			}
			if own := trace.Parent(ctx); own == parent || trace.IDOf(own) != trace.IDOf(parent) {
				t.Errorf("what comes of it has %q", own)
			}
			under, end := trace.Start(ctx, "model", "gen_ai.request.model", "m", "empty", "")
			trace.Count(under, "gen_ai.usage.input_tokens", 7)
			end(harness.Wrap(harness.Unavailable, errors.New("SECRET-WORDS"), "more WORDS"))
			request.End("session.due", http.StatusAccepted)
			p.Close()
			spans := c.Spans()
			if len(spans) != 2 {
				t.Fatalf("%d spans, want 2: %s", len(spans), logs)
			}
			model, root := spans[0], spans[1]
			if root.Name != "session.due" || root.Service != "agent-step" || root.Parent != "b7ad6b7169203331" || root.Failed || root.Attributes["http.response.status_code"] != "202" {
				t.Errorf("the request is %+v", root)
			}
			if model.Parent != root.ID || !model.Failed || model.Attributes["gen_ai.usage.input_tokens"] != "7" || model.Attributes["gen_ai.request.model"] != "m" || len(model.Attributes) != 2 {
				t.Errorf("the model is %+v", model)
			}
			if r := c.Requests()[0]; r.Header.Get("Api-Key") != "s ecret" || r.Header.Get("Other") != "1" {
				t.Errorf("headers %v", r.Header)
			}
			if tree := tracetest.Tree(spans, root.Trace); !strings.HasPrefix(tree, "agent-step: session.due (") || !strings.Contains(tree, "\n  agent-step: model (") || !strings.Contains(tree, "FAILED") {
				t.Errorf("the tree is\n%s", tree)
			}
			if logs.Len() > 0 {
				t.Error(logs)
			}
		})
	}
}

// Without an endpoint nothing is there: no id, no span, no goroutine.
func TestOff(t *testing.T) {
	for name, all := range map[string]map[string]string{
		"unset": {}, "disabled": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, "none": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		p, _ := open(t, all)
		ctx, request := p.Begin(context.Background(), parent, false)
		under, end := trace.Start(ctx, "x")
		trace.Note(under, "k", "v")
		end(errors.New("x"))
		request.End("GET /", 500)
		if trace.ID(ctx) != "" || trace.Parent(under) != "" || ctx != under {
			t.Errorf("%s: there is a trace", name)
		}
		p.Close()
	}
}

// Who decides at the root that a trace is not recorded decides for all of it.
func TestSampling(t *testing.T) {
	for _, c := range []struct {
		sampler, argument, parent string
		want                      int
	}{
		{"", "", "", 1},
		{"", "", parent, 1},
		{"", "", parent[:53] + "00", 0},
		{"always_off", "", parent, 0},
		{"always_on", "", parent[:53] + "00", 1},
		{"parentbased_traceidratio", "0", "", 0},
		{"parentbased_traceidratio", "0", parent, 1},
		{"traceidratio", "1", "", 1},
		{"parentbased_always_off", "", "", 0},
	} {
		collector := tracetest.New(t)
		p, _ := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "OTEL_TRACES_SAMPLER": c.sampler, "OTEL_TRACES_SAMPLER_ARG": c.argument})
		ctx, request := p.Begin(context.Background(), c.parent, false)
		if trace.ID(ctx) == "" {
			t.Errorf("%+v: there is no id to refer to", c)
		}
		request.End("x", 200)
		p.Close()
		if got := len(collector.Spans()); got != c.want {
			t.Errorf("%+v: %d spans", c, got)
		}
	}
}

// A variable that is wrong is named, and what may be a secret in it is not repeated.
func TestBadVariables(t *testing.T) {
	_, err := trace.Open(variables(map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://user:PASSWORD@host", "OTEL_EXPORTER_OTLP_HEADERS": "SECRET", "OTEL_EXPORTER_OTLP_TIMEOUT": "-1",
		"OTEL_TRACES_SAMPLER": "some", "OTEL_TRACES_SAMPLER_ARG": "2", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
	}), "x", slog.New(slog.DiscardHandler))
	if harness.KindOf(err) != harness.Invalid {
		t.Fatalf("%v", err)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if !strings.Contains(err.Error(), name+":") {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	if text := err.Error(); strings.Contains(text, "PASSWORD") || strings.Contains(text, "SECRET") {
		t.Errorf("a secret is in %q", text)
	}
}

// A collector that is busy is asked again; one that refuses, or is away, costs the
// spans and nothing else.
func TestCollectorAway(t *testing.T) {
	for status, want := range map[int]int{http.StatusServiceUnavailable: 3, http.StatusBadRequest: 1, http.StatusTemporaryRedirect: 1} {
		c := tracetest.New(t)
		c.Refuse(status)
		p, logs := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_HEADERS": "k=SECRET"})
		_, request := p.Begin(context.Background(), "", false)
		request.End("x", 200)
		p.Close()
		if got := len(c.Requests()); got != want {
			t.Errorf("%d: asked %d times, want %d", status, got, want)
		}
		if text := logs.String(); !strings.Contains(text, "spans not exported") || strings.Contains(text, "SECRET") {
			t.Errorf("%d: logged %q", status, text)
		}
	}
}

// What a request does for another is in the other's trace; where nothing is
// recorded, the trace of what comes of it is as it was.
func TestResume(t *testing.T) {
	const other = "00-aaf7651916cd43dd8448eb211c80319c-a7ad6b7169203331-01"
	for name, test := range map[string]struct {
		sampler, other string
		spans          int
	}{
		"recorded":     {"always_on", other, 2},
		"not recorded": {"always_off", other, 0},
		"no trace":     {"always_on", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := tracetest.New(t)
			p, _ := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_TRACES_SAMPLER": test.sampler})
			ctx, request := p.Begin(context.Background(), "", true)
			under, parent, end := trace.Resume(ctx, test.other, "announce", "tuluat.event", "e1")
			if trace.IDOf(parent) != trace.IDOf(test.other) || test.spans < 2 && parent != test.other {
				t.Errorf("what comes of it has %q", parent)
			}
			if test.spans == 2 && trace.ID(under) != trace.IDOf(other) {
				t.Errorf("the trace is %s", trace.ID(under))
			}
			end(nil)
			request.End("tick", http.StatusAccepted)
			p.Close()
			spans := c.Spans()
			if len(spans) != test.spans {
				t.Fatalf("%d spans, want %d", len(spans), test.spans)
			}
			if test.spans == 2 && (spans[0].Parent != "a7ad6b7169203331" || spans[1].Trace == spans[0].Trace) {
				t.Errorf("the spans are %+v", spans)
			}
		})
	}
}
