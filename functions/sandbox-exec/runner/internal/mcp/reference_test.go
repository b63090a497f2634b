//go:build mcp

package mcp_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/sandbox/stdio"
)

// The TypeScript reference server over its standard input and output.
func TestTheReferenceServer(t *testing.T) {
	script := os.Getenv("MCP_SERVER_EVERYTHING")
	if script == "" {
		t.Fatal("MCP_SERVER_EVERYTHING does not name dist/index.js of the npm package @modelcontextprotocol/server-everything: install Node.js 20 or newer with npm, and run `make test-mcp`")
	}
	command := []string{"node", script, "stdio"}
	code, stdout, stderr, _ := run(t, stdio.Request{Command: command}, "")
	var tools stdio.Tools
	if err := json.Unmarshal([]byte(stdout), &tools); code != 0 || err != nil || len(tools.Tools) < 5 {
		t.Fatalf("the list: %d, %v, %.300q, %.1000q", code, err, stdout, stderr)
	}
	for _, c := range []struct {
		tool, arguments string
		code            int
		want            string
	}{
		{"echo", `{"message": "hello"}`, 0, "hello"},
		{"get-sum", `{"a": 2, "b": 40}`, 0, "42"},
		{"get-tiny-image", `{}`, 0, "An image, image/png"},
		{"get-sum", `{"a": "two"}`, stdio.ExitToolFailed, ""},
	} {
		code, stdout, stderr, _ := run(t, stdio.Request{Command: command, Tool: c.tool, Arguments: json.RawMessage(c.arguments)}, "")
		if code != c.code || !strings.Contains(stdout, c.want) {
			t.Errorf("%s: %d, %.300q, %.500q", c.tool, code, stdout, stderr)
		}
	}
}
