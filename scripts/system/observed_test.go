//go:build system

package system_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/counted"
	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/shared/trace/tracetest"
)

// scrape is what the management API says to Prometheus.
func (w *world) scrape(api *rest) string {
	w.t.Helper()
	status, text, _, err := api.call(w.t.Context(), "ann", http.MethodGet, "/metrics", "", nil)
	w.must(err)
	if status != http.StatusOK {
		w.t.Fatalf("the scrape answered %d %s", status, text)
	}
	return string(text)
}

// figures are the series of a scrape that are counted and are not 0.
func figures(t *testing.T, scraped string) []string {
	t.Helper()
	all, err := counted.Figures(scraped)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// One message that runs a command after a human has said yes: every function that
// works on it is in one trace, which is shown; and once all of them have been down,
// every figure is what the rows say. The message comes by WhatsApp while the broker
// is away, so that the sweep announces it; people are asked on WhatsApp, Telegram
// and a webhook; and the API is told what they decide.
func TestOneMessageIsTracedAndCounted(t *testing.T) {
	collector := tracetest.New(t)
	asks := newAskers(1)[0]
	asks.hook = agent{name: asks.name, key: "signing-key-of-an-asker"}
	w := newWorld(t, plan{people: &crowd{askers: []asker{asks}}, traces: collector.URL, gated: true, ageing: 5 * time.Second})
	calls, api := newCaller(w), newREST(w)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w.greet()
	hello := message{id: "m1", agent: asks.hook, chat: hookPerson, number: 1, text: "hello"}
	w.must(calls.send(ctx, hello))
	if err := calls.awaitAnswers(ctx, hello.chat, 1); err != nil {
		t.Fatal(err, "\n", w.story(hello))
	}

	said := len(answers(w.linesOf(asks, "WHATSAPP")))
	w.gate.set(gateRefusing)
	w.sayTo(asks, "WHATSAPP", "run: echo SECRET-OUTPUT-$((40+2))")
	w.await(time.Minute, "the message is kept", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM messages WHERE text LIKE 'run:%'`)
		return n == 1, fmt.Sprint(n)
	})
	w.gate.set(gateOpen)
	w.await(time.Minute, "a human is asked", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM approvals WHERE state = 'PENDING'`)
		return n == 1, fmt.Sprint(n)
	})
	trace := w.strings(`SELECT substr(traceparent, 4, 32) FROM sessions WHERE session_id = (SELECT session_id FROM approvals)`)[0]
	w.await(time.Minute, "everybody is asked", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM replies r JOIN approvals a ON r.approval_id = a.approval_id WHERE r.state IN ('SENT', 'DELIVERED', 'READ')`)
		return n == 3, fmt.Sprint(n)
	})
	w.approveTraced(ctx, api, w.strings(`SELECT approval_id FROM approvals`)[0], trace)
	w.await(2*time.Minute, "the answer", func() (bool, string) {
		lines := answers(w.linesOf(asks, "WHATSAPP"))[said:]
		return slices.ContainsFunc(lines, func(l person.Line) bool { return strings.Contains(l.Text, "SECRET-OUTPUT-42") }), fmt.Sprint(lines)
	})
	if left := w.awaitRest(2 * time.Minute); left != "" {
		t.Fatal("not at rest: ", left)
	}
	if said := w.strings(`SELECT DISTINCT substr(traceparent, 4, 32) FROM agent_execution_logs
		WHERE session_id = (SELECT session_id FROM approvals) AND created_at >= (SELECT created_at FROM messages WHERE text LIKE 'run:%')`); !slices.Equal(said, []string{trace}) {
		t.Errorf("log entries of the message name the traces %v, want %s", said, trace)
	}

	before := figures(t, w.scrape(api))
	w.stop() // every function: what they have to say they say by then
	w.judgeTrace(collector.Spans(), trace)

	w.start(programDir(t))
	after, want := figures(t, w.scrape(api)), w.strings(counted.SQL)
	t.Logf("figures after every function was down:\n  %s", strings.Join(after, "\n  "))
	if !slices.Equal(after, want) {
		t.Errorf("the rows say\n  %s", strings.Join(want, "\n  "))
	}
	for _, line := range before {
		if strings.Contains(line, "_total") && !slices.Contains(after, line) {
			t.Errorf("%q was there before", line)
		}
	}
}

// approveTraced approves as a caller who is part of a trace.
func (w *world) approveTraced(ctx context.Context, api *rest, approval, trace string) {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"decision": "APPROVE"})
	w.must(err)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.cluster.GatewayURL()+"/api/v1/approvals/"+approval+"/decision", bytes.NewReader(body))
	w.must(err)
	request.Header.Set("Authorization", "Bearer "+tokenOf("ann"))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	response, err := api.client.Do(request)
	w.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	w.must(err)
	if response.StatusCode != http.StatusOK {
		w.t.Fatalf("the decision answered %d %s", response.StatusCode, text)
	}
}

// judgeTrace shows the trace and says what is missing in it, or should not be.
func (w *world) judgeTrace(spans []tracetest.Span, trace string) {
	w.t.Helper()
	w.t.Logf("the trace of one message:\n%s", tracetest.Tree(spans, trace))
	services, names := map[string]bool{}, map[string]int{}
	for _, s := range spans {
		for key, value := range s.Attributes {
			if strings.Contains(value, "SECRET") || strings.Contains(value, "echo") {
				w.t.Errorf("%s of %s says %q", key, s.Name, value)
			}
		}
		if s.Trace == trace {
			services[s.Service] = true
			names[s.Service+": "+s.Name]++
		}
	}
	for _, want := range []string{
		"whatsapp-ingest: POST " + whatsappPath, "reaper-cron: announce", "agent-step: step", "agent-step: model",
		"whatsapp-ingest: send", "telegram-ingest: send", "webhook-ingest: send", "management-api: decide-approval",
		"sandbox-exec: exec", "sandbox-exec: sandbox start", "sandbox-exec: command",
	} {
		if names[want] == 0 {
			w.t.Errorf("no span %s among %v", want, slices.Sorted(maps.Keys(names)))
		}
	}
	if !services["agent-status"] {
		w.t.Error("agent-status is not in the trace")
	}
	w.t.Logf("functions: %v", slices.Sorted(maps.Keys(services)))
}
