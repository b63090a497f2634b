package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/dev/handover"
)

func TestTakenPortNamesItsHolder(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	err = checkPort(address)
	want := fmt.Sprintf("(process %d); stop it, or set TULUAT_PORT", os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := checkPort(address); err != nil {
		t.Errorf("a free port: %v", err)
	}
	if err := checkPort("127.0.0.1:many"); err == nil || !strings.Contains(err.Error(), "TULUAT_PORT") {
		t.Errorf("no port at all: %v", err)
	}
}

func TestOneRunPerFolder(t *testing.T) {
	state := t.TempDir()
	release, err := lock(state)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("another `make dev` (process %d) is using %s", os.Getpid(), state)
	if _, err := lock(state); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	again, err := lock(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := again(); err != nil {
		t.Fatal(err)
	}
}

// A build shows where it is at every stage, and its complaints are kept apart.
func TestProgress(t *testing.T) {
	begun := time.Now()
	p := &progress{begun: begun}
	for _, step := range []struct{ output, want string }{
		{"", "linking, 3s so far"},
		{"go: downloading k8s.io/api v0.35.6\n", "downloading modules, 3s so far: 1 (k8s.io/api v0.35.6)"},
		{"internal/goarch\nk8s.io/api/core/v1\n", "compiling, 3s so far: 2 packages (k8s.io/api/core/v1)"},
	} {
		if problems := p.read(strings.NewReader(step.output)); len(problems) > 0 {
			t.Errorf("%q: problems %q", step.output, problems)
		}
		if got := p.line(begun.Add(3 * time.Second)); !strings.HasSuffix(got, step.want) {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
	p.total = 900
	if got, want := p.line(begun.Add(90*time.Second)), "compiling, 1m30s so far: 2 of at most 900 packages (k8s.io/api/core/v1)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	problems := p.read(strings.NewReader("# example.com/a\na/b.go:3:1: undefined: x\nexample.com/b\n"))
	if len(problems) != 2 || p.compiled != 3 {
		t.Errorf("problems %q, %d compiled", problems, p.compiled)
	}
}

// Help names every variable that is read, and nothing starts.
func TestHelp(t *testing.T) {
	var out, errOut strings.Builder
	if code := answer([]string{"--help"}, &out, &errOut); code != 0 || errOut.String() != "" {
		t.Errorf("help ends with %d: %s", code, errOut.String())
	}
	for _, variable := range []string{
		"BROWSER", "TULUAT_PORT", "TULUAT_HOME", "TULUAT_AGENTS", "WHATSAPP_API_URL", "TELEGRAM_API_URL",
		"OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL_NAME", "MODEL_PROVIDER",
	} {
		if !strings.Contains(out.String(), variable) {
			t.Errorf("help does not name %s", variable)
		}
	}
	out.Reset()
	if code := answer([]string{"--port", "1"}, &out, &errOut); code != 2 || out.String() != "" || !strings.Contains(errOut.String(), "ARGS=--help") {
		t.Errorf("an unknown flag ends with %d: %s%s", code, out.String(), errOut.String())
	}
}

func TestHandoverIsRead(t *testing.T) {
	want := handover.Handover{Root: "/r", State: "/s", Agents: "/a", Address: "127.0.0.1:1", Postgres: "postgres://u:p@h/d"}
	variable, err := want.Environment()
	if err != nil {
		t.Fatal(err)
	}
	_, value, _ := strings.Cut(variable, "=")
	t.Setenv(handover.Variable, value)
	got, err := handover.Read()
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if os.Getenv(handover.Variable) != "" {
		t.Error("what is started later would have the connection string")
	}
	if _, err := handover.Read(); err == nil {
		t.Error("there is nothing to read")
	}
}

// A browser is started for who asks for it only.
func TestBrowserIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		set  string
		open bool
		want string
	}{
		{"", false, ""},
		{"", true, "xdg-open"},
		{"firefox", true, "firefox"},
		{"firefox", false, "firefox"},
	} {
		t.Setenv("BROWSER", c.set)
		if got := browser(c.open); got != c.want {
			t.Errorf("BROWSER=%q, -open %t: got %q, want %q", c.set, c.open, got, c.want)
		}
	}
}
