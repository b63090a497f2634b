//go:build system

package system_test

import (
	"context"
	"strings"
	"testing"
	"time"
)

// counter is an MCP server in a few lines of shell: its tool counts its calls in a
// file of the workspace, and leaves a process behind.
const counter = `while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"counter","version":"1"}}}\n' "$id" ;;
    *'"tools/list"'*) echo "counter is asked" >&2
      printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"count","description":"Counts.","inputSchema":{"type":"object","properties":{"by":{"type":"string"}}}}]}}\n' "$id" ;;
    *'"tools/call"'*) n=$(( $(cat /workspace/count 2>/dev/null || echo 0) + 1 )); echo $n > /workspace/count; sleep 3600 &
      printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"%s %s"}]}}\n' "$id" "$UNIT" "$n" ;;
  esac
done`

// An MCP server that is a program, over the real functions with the rights of their
// roles: it is listed and called in the sandbox of the conversation, where commands
// find what it did.
func TestAProgramIsAnMCPServer(t *testing.T) {
	agents := newAgents(2)[1:]
	a := &agents[0]
	a.budget = "  mcpServers:\n    servers:\n      - name: counter\n        env: [{name: UNIT, value: sheep}]\n        command:\n          - sh\n          - -c\n          - |\n            " +
		strings.ReplaceAll(counter, "\n", "\n            ") + "\n"
	w := newWorld(t, plan{agents: agents})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	const chat = "s000"
	var messages []message
	wants := []string{"sheep 1", "sheep 2", "count 2, sleepers 0"}
	for i, text := range []string{
		`use: counter__count {"by": "it's $(touch /workspace/injected)"}`, `use: counter__count {}`,
		`run: echo "count $(cat /workspace/count), sleepers $(cat /proc/[0-9]*/comm | grep -c sleep)"; test ! -e /workspace/injected`,
	} {
		messages = append(messages, message{id: chat + "-m" + string(rune('1'+i)), agent: *a, chat: chat, number: i + 1, text: text})
	}
	w.must(newCaller(w).converse(ctx, messages, 1))
	for i, m := range messages {
		if got, _ := w.receiver.answer(m.id); !strings.Contains(got.Text, wants[i]) {
			t.Errorf("%s: got %q, want %q", m.text, got.Text, wants[i])
		}
	}
	for sql, want := range map[string]int{
		`SELECT count(*) FROM executions WHERE cause = 'TOOL_LIST' AND state = 'COMPLETED'`:                                                1,
		`SELECT count(*) FROM executions WHERE state <> 'COMPLETED'`:                                                                       0,
		`SELECT count(*) FROM executions e JOIN tool_calls t ON t.tool_call_id = e.cause_id WHERE t.remote->>'server' = 'counter'`:         2,
		`SELECT count(DISTINCT sandbox_id) FROM executions`:                                                                                1,
		`SELECT count(*) FROM execution_output WHERE stream = 'stderr' AND position('counter is asked' in convert_from(data, 'UTF8')) > 0`: 1,
		`SELECT count(*) FROM remote_servers WHERE block = 'mcpServers' AND reason = '' AND listed_at IS NOT NULL`:                         1,
	} {
		if got := w.number(sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
}
