package figures_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/figures"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func scrape(t *testing.T, c *figures.Collector) string {
	t.Helper()
	w := httptest.NewRecorder()
	c.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 {
		t.Fatal(w.Code, err, string(body))
	}
	return string(body)
}

// Where the figures cannot be read there are none, not zeros, and they are back once
// they can; whoever scrapes meanwhile is served what was read.
func TestFailuresAreNotZeros(t *testing.T) {
	now, reads := time.Unix(1000, 0), atomic.Int64{}
	var fails error
	c := figures.New(func(context.Context) (postgres.Figures, error) {
		reads.Add(1)
		return postgres.Figures{Agents: []postgres.AgentFigures{{Agent: "a", Model: "m"}}}, fails
	}, slog.New(slog.DiscardHandler), func() time.Time { return now })
	for range 3 {
		if text := scrape(t, c); !strings.Contains(text, "tuluat_figures_up 1\n") || !strings.Contains(text, `tuluat_agent_runs_total{agent="a",state="FAILED"} 0`+"\n") {
			t.Fatalf("got %s", text)
		}
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("%d reads for scrapes at one moment", n)
	}
	fails, now = errors.New("away"), now.Add(5*time.Second)
	text := scrape(t, c)
	if !strings.Contains(text, "tuluat_figures_up 0\n") {
		t.Errorf("it is not said that the database is away: %s", text)
	}
	if left := regexp.MustCompile(`(?m)^tuluat_\w+`).FindAllString(text, -1); len(left) != 2 {
		t.Errorf("while it is away there are %v", left)
	}
	fails, now = nil, now.Add(5*time.Second)
	if text := scrape(t, c); !strings.Contains(text, "tuluat_figures_up 1\n") {
		t.Error("it stays away")
	}
}

// A database that is gone makes a read fail in bounded time.
func TestDatabaseAway(t *testing.T) {
	store, err := postgres.Open("postgres://nobody@127.0.0.1:1/none?sslmode=disable", postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	began := time.Now()
	text := scrape(t, figures.New(store.Figures, slog.New(slog.DiscardHandler), time.Now))
	if !strings.Contains(text, "tuluat_figures_up 0\n") || strings.Contains(text, "tuluat_sessions") {
		t.Errorf("got %s", text)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
}

// Rows become series: what an agent has begins at 0, the rest is what was counted.
func TestSeries(t *testing.T) {
	d := functiontest.NewDatabase(t)
	d.Agents("coder", "gone")
	d.Exec(`UPDATE agents SET phase = 'DELETED' WHERE agent_name = 'gone'`)
	d.Exec(`UPDATE agent_revisions SET spec = $1 WHERE agent_name = 'coder'`, harness.Agent{
		Name: "coder", Model: harness.ModelSpec{Name: "m"},
		Guardrails: &harness.Guardrails{
			Input:  []harness.Guardrail{{Name: "quiet", Type: harness.GuardrailSecret, Action: harness.GuardrailRedact}},
			Output: []harness.Guardrail{{Name: "judge", Type: harness.GuardrailHTTP, Action: harness.GuardrailBlock, Failure: harness.GuardrailWarn}},
		},
	})
	d.Exec(`INSERT INTO guardrail_counts VALUES ('coder', 'OUTPUT', 'judge', 'block', 'HIT', 4), ('coder', 'OUTPUT', 'judge', 'block', 'PASSED', 9), ('gone', 'INPUT', 'old', 'ask', 'HIT', 2)`)
	d.Exec(`INSERT INTO figures VALUES ('COST', 'coder', '', 'm', 2500000), ('TOKENS', 'coder', 'input', 'm', 10), ('SANDBOX_START', 'coder', '0.5', '', 3), ('SANDBOX_START', 'coder', '+Inf', '', 1),
		('SANDBOX_START_MILLIS', 'coder', '', '', 200900), ('RUNS', 'gone', 'COMPLETED', '', 7)`)
	d.Exec(`INSERT INTO figure_changes VALUES ('TOKENS', 'coder', 'input', 'm', 5), ('MODEL_FAILURES', 'coder', '', 'other', 1)`)
	d.Exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_a', 'coder', 'API', 'coder', 'a', 'AWAITING_APPROVAL')`)
	d.Exec(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, created_at) VALUES ('msg_a', 'ses_a', 1, 'INBOUND', 'PENDING', 'u', 't', now() - interval '90 seconds')`)
	d.Exec(`INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state, created_at) VALUES ('apr_a', 'ses_a', 'coder', 't', 'd', 'PENDING', now() - interval '30 seconds')`)
	d.Exec(`INSERT INTO dead_letters (event_id, event_type, destination, payload, state) VALUES ('e', 't', 'd', '{}', 'OPEN')`)
	d.Exec(`INSERT INTO sweep_reports (started_at, findings) VALUES (now(), '{"leaks": {"found": 3, "done": 2, "left": 1, "reason": "x", "objects": 2, "rows": 1}}')`)
	d.Exec(`UPDATE comparisons SET tally = '{"leaked": 3, "lost": 2}', compared_at = now() - interval '90 seconds' WHERE kind = 'VOLUME'`)
	d.Exec(`INSERT INTO log_archives (object_key, kind, agent_name, state, digest, size_bytes, day, part, first_at, first_log_id, last_at, last_log_id, created_at)
		VALUES ('a', 'ENTRIES', 'coder', 'PENDING', '', 0, now(), 1, now(), 1, now(), 1, now() - interval '70 seconds'), ('b', 'ENTRIES', 'coder', 'VERIFIED', '', 0, now(), 2, now(), 1, now(), 1, now() - interval '1 day')`)
	// The agent keeps entries for 7 days, so one of 9 days ago could have gone since midnight of yesterday at least.
	d.Exec(`UPDATE agent_revisions SET spec = spec || '{"logs": {"retentionDays": 7}}' WHERE agent_name = 'coder'`)
	d.Exec(`INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at) VALUES ('coder', 's', '', 'INFO', 'm', now() - interval '9 days'), ('coder', 's', '', 'INFO', 'm', now())`)
	d.Exec(`SELECT create_log_partitions(1)`)
	text := scrape(t, figures.New(d.Store.Figures, slog.New(slog.DiscardHandler), time.Now))
	lag := regexp.MustCompile(`(?m)^tuluat_log_archive_lag_seconds (\S+)$`).FindStringSubmatch(text)
	if len(lag) != 2 {
		t.Fatalf("no lag: %s", text)
	}
	if got, err := strconv.ParseFloat(lag[1], 64); err != nil || got < 86400 || got >= 2*86400 {
		t.Errorf("the lag is %s, want one day and what has passed of today", lag[1])
	}
	for _, want := range []string{
		`tuluat_leaked_objects{kind="VOLUME"} 3`,
		`tuluat_lost_objects{kind="VOLUME"} 2`,
		`tuluat_log_archives_pending 1`,
		`tuluat_agent_guardrail_blocks_total{action="block",agent="coder",guardrail="judge",stage="OUTPUT"} 4`,
		`tuluat_agent_guardrail_blocks_total{action="warn",agent="coder",guardrail="judge",stage="OUTPUT"} 0`,
		`tuluat_agent_guardrail_blocks_total{action="redact",agent="coder",guardrail="quiet",stage="INPUT"} 0`,
		`tuluat_agent_guardrail_blocks_total{action="ask",agent="gone",guardrail="old",stage="INPUT"} 2`,
		`tuluat_agent_runs_total{agent="coder",state="COMPLETED"} 0`,
		`tuluat_agent_runs_total{agent="gone",state="COMPLETED"} 7`,
		`tuluat_sessions{agent="coder",state="AWAITING_APPROVAL"} 1`,
		`tuluat_sessions{agent="coder",state="IDLE"} 0`,
		`tuluat_sandbox_pods_active{agent="coder"} 0`,
		`tuluat_model_cost_total{agent="coder",model="m"} 2.5`,
		`tuluat_model_tokens_total{agent="coder",direction="input",model="m"} 15`,
		`tuluat_model_failures_total{agent="coder",model="other"} 1`,
		`tuluat_sandbox_start_seconds_bucket{agent="coder",le="0.25"} 0`,
		`tuluat_sandbox_start_seconds_bucket{agent="coder",le="120"} 3`,
		`tuluat_sandbox_start_seconds_count{agent="coder"} 4`,
		`tuluat_sandbox_start_seconds_sum{agent="coder"} 200.9`,
		`tuluat_messages_waiting 1`,
		`tuluat_approvals_waiting{agent="coder"} 1`,
		`tuluat_dead_letters{state="OPEN"} 1`,
		`tuluat_leaks{kind="object_without_row"} 2`,
		`tuluat_leaks{kind="row_without_object"} 1`,
		`tuluat_sweep_findings{item="leaks",outcome="left"} 1`,
		`tuluat_sweep_item_failed{item="leaks"} 1`,
		`tuluat_sweep_age_seconds +Inf`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	for name, least := range map[string]string{"tuluat_message_oldest_seconds": "9", "tuluat_approval_oldest_seconds": "3", `tuluat_leak_comparison_age_seconds{kind="VOLUME"}`: "9", "tuluat_log_archive_pending_oldest_seconds": "7"} {
		if !strings.Contains(text, "\n"+name+" "+least) {
			t.Errorf("%s is not %s…", name, least)
		}
	}
	if strings.Contains(text, `kind="ARCHIVE"`) {
		t.Error("a kind that was never compared has figures")
	}
	if t.Failed() {
		t.Log(text)
	}
}

// The bounds that the database counts by are those that are served.
func TestBoundsOfStarts(t *testing.T) {
	d := functiontest.NewDatabase(t)
	d.Agents("coder")
	d.Exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_a', 'coder', 'API', 'coder', 'a', 'IDLE')`)
	for i, seconds := range []float64{0.2, 0.3, 0.7, 1.5, 2.5, 4, 7, 12, 19, 29, 59, 119, 500} {
		id := string(rune('a' + i))
		d.Exec(`INSERT INTO sandboxes (sandbox_id, sandbox_name, agent_name, session_id, spec, spec_digest, state, created_at, expires_at)
			VALUES ($1, $1, 'coder', 'ses_a', '{}', $1, 'CREATING', now() - $2 * interval '1 second', now())`, id, seconds)
		d.Exec(`UPDATE sandboxes SET state = 'READY', sandbox_uid = 'u' WHERE sandbox_id = $1`, id)
	}
	text := scrape(t, figures.New(d.Store.Figures, slog.New(slog.DiscardHandler), time.Now))
	counts := regexp.MustCompile(`(?m)^tuluat_sandbox_start_seconds_bucket\{agent="coder",le="([^"]+)"\} (\d+)$`).FindAllStringSubmatch(text, -1)
	if len(counts) != 13 {
		t.Fatalf("%d buckets: %v", len(counts), counts)
	}
	for i, c := range counts {
		if want := string([]byte("0123456789")[(i+1)%10]); !strings.HasSuffix(c[2], want) {
			t.Errorf("up to %s: %s, want %d", c[1], c[2], i+1)
		}
	}
}
