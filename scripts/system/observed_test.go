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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/trace/tracetest"
)

// figuresSQL counts in the rows what is scraped, by the name of the series.
const figuresSQL = `
WITH agent AS (SELECT agent_name FROM agents WHERE phase <> 'DELETED'), figure (name, value) AS (
    SELECT format('tuluat_sessions{agent="%s",state="%s"}', agent_name, state), count(*)::numeric FROM sessions GROUP BY 1
    UNION ALL SELECT format('tuluat_replies{state="%s"}', state), count(*) FROM replies GROUP BY 1
    UNION ALL SELECT format('tuluat_executions_total{agent="%s",state="%s"}', agent_name, state), count(*) FROM executions WHERE ended_at IS NOT NULL GROUP BY 1
    UNION ALL SELECT format('tuluat_approvals_total{agent="%s",state="%s"}', agent_name, state), count(*) FROM approvals WHERE state <> 'PENDING' GROUP BY 1
    UNION ALL SELECT format('tuluat_approvals_waiting{agent="%s"}', agent_name), (SELECT count(*) FROM approvals p WHERE p.agent_name = a.agent_name AND p.state = 'PENDING') FROM agent a
    UNION ALL SELECT format('tuluat_agent_runs_total{agent="%s",state="%s"}', agent_name, run_state), count(*) FROM messages m JOIN sessions s USING (session_id) WHERE run_state IS NOT NULL GROUP BY 1
    UNION ALL SELECT format('tuluat_sandbox_pods_active{agent="%s"}', agent_name), (SELECT count(*) FROM sandboxes b WHERE b.agent_name = a.agent_name AND b.state <> 'GONE') FROM agent a
    UNION ALL SELECT format('tuluat_sandbox_start_seconds_count{agent="%s"}', agent_name), (SELECT count(*) FROM sandboxes b WHERE b.agent_name = a.agent_name AND b.ready_at IS NOT NULL) FROM agent a
    UNION ALL SELECT format('tuluat_model_tokens_total{agent="%s",direction="input",model="tuluat-stand-in"}', s.agent_name), sum(t.input_tokens) FROM steps t JOIN sessions s USING (session_id) GROUP BY 1
    UNION ALL SELECT format('tuluat_model_tokens_total{agent="%s",direction="output",model="tuluat-stand-in"}', s.agent_name), sum(t.output_tokens) FROM steps t JOIN sessions s USING (session_id) GROUP BY 1
    UNION ALL SELECT 'tuluat_messages_waiting', count(*) FROM messages WHERE state = 'PENDING'
    UNION ALL SELECT 'tuluat_outbox_size', count(*) FROM outbox
    UNION ALL SELECT 'tuluat_dead_letters{state="OPEN"}', count(*) FROM dead_letters WHERE state = 'OPEN'
) SELECT name || ' ' || value FROM figure WHERE value > 0 ORDER BY 1`

// counted are the series that figuresSQL counts.
var counted = regexp.MustCompile(`^tuluat_(sessions|replies|executions_total|approvals_total|approvals_waiting|agent_runs_total|sandbox_pods_active|sandbox_start_seconds_count|model_tokens_total|messages_waiting|outbox_size|dead_letters)[{ ]`)

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
	var all []string
	for line := range strings.Lines(scraped) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !counted.MatchString(name + " ") {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(line, err)
		}
		if value != 0 {
			all = append(all, fmt.Sprintf("%s %.0f", name, value))
		}
	}
	slices.Sort(all)
	return all
}

// One message that runs a command after a human has said yes: every function that
// works on it is in one trace, which is shown; and once all of them have been down,
// every figure is what the rows say.
func TestOneMessageIsTracedAndCounted(t *testing.T) {
	collector := tracetest.New(t)
	agents := newAgents(2)[1:]
	agents[0].budget = "  approvals: {timeout: 1h, approvers: [{user: ann}]}\n"
	w := newWorld(t, plan{agents: agents, traces: collector.URL})
	calls, api := newCaller(w), newREST(w)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	m := message{id: "m1", agent: agents[0], chat: "traced", number: 1, text: "run: echo SECRET-OUTPUT-$((40+2))"}
	w.must(calls.send(ctx, m))
	w.await(time.Minute, "a human is asked", func() (bool, string) {
		n := w.number(`SELECT count(*) FROM approvals WHERE state = 'PENDING'`)
		return n == 1, fmt.Sprint(n)
	})
	trace := w.strings(`SELECT substr(traceparent, 4, 32) FROM sessions`)[0]
	w.approveTraced(ctx, api, w.strings(`SELECT approval_id FROM approvals`)[0], trace)
	if err := calls.awaitAnswers(ctx, m.chat, 1); err != nil {
		t.Fatal(err, "\n", w.story(m))
	}
	if left := w.awaitRest(2 * time.Minute); left != "" {
		t.Fatal("not at rest: ", left)
	}
	if said := w.strings(`SELECT DISTINCT substr(traceparent, 4, 32) FROM agent_execution_logs WHERE session_id <> ''`); !slices.Equal(said, []string{trace}) {
		t.Errorf("log entries name the traces %v, want %s", said, trace)
	}

	before := figures(t, w.scrape(api))
	w.stop() // every function: what they have to say they say by then
	w.judgeTrace(collector.Spans(), trace)

	w.start(programDir(t))
	after, want := figures(t, w.scrape(api)), w.strings(figuresSQL)
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
		"webhook-ingest: /api/v1/channels/webhook/{name}", "agent-step: step", "agent-step: model", "sandbox-exec: exec", "sandbox-exec: sandbox start", "sandbox-exec: command",
		"management-api: decide-approval", "webhook-ingest: send",
	} {
		if names[want] == 0 {
			w.t.Errorf("no span %s among %v", want, slices.Sorted(maps.Keys(names)))
		}
	}
	w.t.Logf("functions: %v", slices.Sorted(maps.Keys(services)))
}
