//go:build mcp

package mcp_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// output is what a process prints, while it prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// reference starts the TypeScript reference server and returns its address, and
// what kills it.
func reference(t *testing.T) (url string, kill func()) {
	t.Helper()
	script := os.Getenv("MCP_SERVER_EVERYTHING")
	if script == "" {
		t.Fatal("MCP_SERVER_EVERYTHING does not name dist/index.js of the npm package @modelcontextprotocol/server-everything: install Node.js 20 or newer with npm, and run `make test-mcp`")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	var log output
	cmd := exec.Command("node", script, "streamableHttp")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), fmt.Sprintf("PORT=%d", port)), &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("node cannot be started: install Node.js 20 or newer: %v", err)
	}
	kill = sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(kill)
	url = fmt.Sprintf("http://127.0.0.1:%d/mcp", port)
	for range 300 {
		if response, err := http.Get(url); err == nil {
			response.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			return url, kill
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the server does not answer within 30 seconds:\n%s", log.String())
	return "", nil
}

// The reference server's tools in one conversation: text, structured, pictures,
// an error of its own, long running, and the server killed in the middle.
func TestTheReferenceServer(t *testing.T) {
	url, kill := reference(t)
	w := newWorld(t, harness.MCPServer{Name: "ref", URL: url, TimeoutSeconds: 20})
	for _, c := range []struct {
		tool      string
		arguments map[string]any
		want      []string
	}{
		{"echo", map[string]any{"message": "hello"}, []string{"DONE: ", "hello"}},
		{"get-sum", map[string]any{"a": 2, "b": 40}, []string{"DONE: ", "42"}},
		{"get-sum", map[string]any{"a": "two"}, []string{"FAILED: "}},
		{"get-tiny-image", map[string]any{}, []string{"DONE: ", "An image, image/png"}},
		{"get-structured-content", map[string]any{"location": "Chicago"}, []string{"DONE: ", "temperature"}},
		{"trigger-long-running-operation", map[string]any{"duration": 3, "steps": 3}, []string{"DONE: ", "3"}},
	} {
		w.Uses("ref__"+c.tool, c.arguments)
		w.Say("use " + c.tool)
		w.Until("IDLE")
		w.Says(c.tool, w.Result(), c.want...)
	}
	if offered := w.offered(); !slices.Contains(offered, "ref__echo") || slices.ContainsFunc(offered, func(name string) bool { return !strings.HasPrefix(name, "ref__") }) {
		t.Errorf("offered %v", offered)
	}
	w.Uses("ref__trigger-long-running-operation", map[string]any{"duration": 15, "steps": 15})
	w.Say("take your time")
	w.Wake()
	killed := time.AfterFunc(2*time.Second, kill)
	defer killed.Stop()
	w.Until("IDLE")
	w.Says("killed in the middle", w.Result(), "FAILED: There is no result of the MCP server ref: ", "The call may have run and was not repeated.")
	w.Uses("ref__echo", map[string]any{"message": "still there?"})
	w.Say("and now?")
	w.Until("IDLE")
	w.Says("when it is gone", w.Result(), "FAILED: Not run: the MCP server ref cannot be used now: it cannot be reached")
}
