// Package counted holds what the figures that Prometheus scrapes must say: the rows,
// counted one by one. Tests of one machine and of a cluster compare with it.
package counted

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// SQL counts in the rows what is scraped: a line for each series that is not 0, with
// its name and its value, in order.
const SQL = `
WITH agent AS (SELECT agent_name FROM agents WHERE phase <> 'DELETED'), figure (name, value) AS (
    SELECT format('tuluat_sessions{agent="%s",state="%s"}', agent_name, state), count(*)::numeric FROM sessions GROUP BY 1
    UNION ALL SELECT format('tuluat_replies{state="%s"}', state), count(*) FROM replies GROUP BY 1
    UNION ALL SELECT format('tuluat_executions_total{agent="%s",state="%s"}', agent_name, state), count(*) FROM executions WHERE ended_at IS NOT NULL GROUP BY 1
    UNION ALL SELECT format('tuluat_approvals_total{agent="%s",state="%s"}', agent_name, state), count(*) FROM approvals WHERE state <> 'PENDING' GROUP BY 1
    UNION ALL SELECT format('tuluat_approvals_waiting{agent="%s"}', agent_name), (SELECT count(*) FROM approvals p WHERE p.agent_name = a.agent_name AND p.state = 'PENDING') FROM agent a
    UNION ALL SELECT format('tuluat_agent_runs_total{agent="%s",state="%s"}', agent_name, run_state), count(*) FROM messages m JOIN sessions s USING (session_id) WHERE run_state IS NOT NULL GROUP BY 1
    UNION ALL SELECT format('tuluat_sandbox_pods_active{agent="%s"}', agent_name), (SELECT count(*) FROM sandboxes b WHERE b.agent_name = a.agent_name AND b.state <> 'GONE') FROM agent a
    UNION ALL SELECT format('tuluat_sandbox_start_seconds_count{agent="%s"}', agent_name), (SELECT count(*) FROM sandboxes b WHERE b.agent_name = a.agent_name AND b.ready_at IS NOT NULL) FROM agent a
    UNION ALL SELECT format('tuluat_model_tokens_total{agent="%s",direction="input",model="%s"}', s.agent_name, t.model), sum(t.input_tokens) FROM steps t JOIN sessions s USING (session_id) GROUP BY 1
    UNION ALL SELECT format('tuluat_model_tokens_total{agent="%s",direction="output",model="%s"}', s.agent_name, t.model), sum(t.output_tokens) FROM steps t JOIN sessions s USING (session_id) GROUP BY 1
    UNION ALL SELECT 'tuluat_messages_waiting', count(*) FROM messages WHERE state = 'PENDING'
    UNION ALL SELECT 'tuluat_outbox_size', count(*) FROM outbox
    UNION ALL SELECT 'tuluat_dead_letters{state="OPEN"}', count(*) FROM dead_letters WHERE state = 'OPEN'
) SELECT name || ' ' || value FROM figure WHERE value > 0 ORDER BY 1`

// series are those that SQL counts.
var series = regexp.MustCompile(`^tuluat_(sessions|replies|executions_total|approvals_total|approvals_waiting|agent_runs_total|sandbox_pods_active|sandbox_start_seconds_count|model_tokens_total|messages_waiting|outbox_size|dead_letters)[{ ]`)

// Figures are the lines of a scrape, in Prometheus' text format, that SQL counts and
// that are not 0, as SQL writes them. It fails at a value that is no number.
func Figures(scraped string) ([]string, error) {
	var all []string
	for line := range strings.Lines(scraped) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !series.MatchString(name + " ") {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("the figure %s: %w", name, err)
		}
		if value != 0 {
			all = append(all, fmt.Sprintf("%s %.0f", name, value))
		}
	}
	slices.Sort(all)
	return all, nil
}
