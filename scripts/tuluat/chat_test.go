package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/harness"
)

func TestPipedChat(t *testing.T) {
	w := newWorld(t)
	w.agent()
	got := w.tuluat(strings.NewReader("hello\n\nrun: echo hi\nbye"), "chat", "coder")
	if got.code != 0 || got.out != "you said: hello\nit printed echo hi\nyou said: bye\n" {
		t.Fatalf("%+v", got)
	}
	if want := "executeShell $ echo hi\n  echo hi\n  second\n  oops\n  exit 7\n"; got.errOut != want {
		t.Errorf("tool lines %q, want %q", got.errOut, want)
	}
	got = w.tuluat(strings.NewReader("again"), "chat", "coder")
	if got.out != "you said: again\n" || got.errOut != "An earlier conversation goes on: 3 turns so far.\n  Its last answer: you said: bye\n" {
		t.Errorf("the next day: %+v", got)
	}
	got = w.tuluat(strings.NewReader("/new\nfresh\n"), "chat", "coder")
	if got.out != "A new conversation.\nyou said: fresh\n" {
		t.Errorf("a new conversation: %+v", got)
	}
	if got = w.tuluat(strings.NewReader("hi"), "chat", "coder", "--chat", "room"); strings.Contains(got.errOut, "earlier") || got.out != "you said: hi\n" {
		t.Errorf("another chat: %+v", got)
	}
	if got = w.tuluat(strings.NewReader(""), "chat", "coder"); got.code != 0 || got.out != "" {
		t.Errorf("nothing to say: %+v", got)
	}
}

// Choices have numbers until the next answer, and pressing one says its title.
func TestChoices(t *testing.T) {
	w := newWorld(t)
	w.agent()
	got := w.tuluat(strings.NewReader("2\nchoose\n2\n2\nchoose"), "chat", "coder")
	if got.code != 0 || got.out != "you said: 2\nWhichone?\nyou said: Black coffee\nyou said: 2\nWhichone?\n" || strings.Count(got.errOut, "  [1] Tea\n  [2] Black coffee: hot\n") != 2 {
		t.Errorf("%+v", got)
	}
	got = w.tuluat(strings.NewReader("1"), "chat", "coder")
	if got.out != "you said: Tea\n" || !strings.Contains(got.errOut, "[1] Tea") {
		t.Errorf("the next day: %+v", got)
	}
	var answer struct{ Choices []harness.Choice }
	got = w.tuluat(nil, "send", "coder", "choose", "--wait", "-o", "json")
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || len(answer.Choices) != 2 || answer.Choices[1] != (harness.Choice{ID: "c2", Title: "Black coffee", Description: "hot"}) {
		t.Errorf("%+v %v", got, err)
	}
	if got = w.tuluat(nil, "send", "coder", "choose", "--wait"); got.out != "Whichone?\n" || !strings.Contains(got.errOut, "[1] Tea") {
		t.Errorf("in words: %+v", got)
	}
}

func TestUntrustedTextDoesNotReachTheTerminal(t *testing.T) {
	w := newWorld(t)
	w.agent()
	got := w.tuluat(strings.NewReader("run: a\x1b]0;title\x07\u202eb\u009bc"), "chat", "coder")
	for _, text := range []string{got.out, got.errOut} {
		if strings.ContainsAny(text, "\x1b\x07\u202e\u009b") || !strings.Contains(text, "a^[]0;title^G<U+202E>b<U+009B>c") {
			t.Errorf("printed %q", text)
		}
	}
}

func TestSend(t *testing.T) {
	w := newWorld(t)
	if got := w.tuluat(nil, "send", "coder", "do", "it"); got.code != 0 || !strings.Contains(got.out, "message msg_") {
		t.Fatalf("%+v", got)
	}
	w.agent()
	if got := w.tuluat(nil, "send", "coder", "how are", "you", "--wait"); got.out != "you said: how are you\n" {
		t.Errorf("%+v", got)
	}
	got := w.tuluat(nil, "send", "coder", "run: x\x1b", "--wait", "-o", "json")
	var answer struct {
		Session, Message, Text string
		ToolCalls              []struct {
			Name, ExecutionState string
			ExitCode             int
		}
	}
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || answer.Text != "it printed x\x1b" || len(answer.ToolCalls) != 1 || answer.ToolCalls[0].ExitCode != 7 || answer.ToolCalls[0].ExecutionState != "FAILED" {
		t.Errorf("%+v %v", got, err)
	}
}

func TestFailures(t *testing.T) {
	w := newWorld(t)
	empty := t.TempDir()
	for name, c := range map[string]struct {
		env, args []string
		before    func()
		code      int
		want      string
	}{
		"no command there":   {args: []string{"chatter"}, code: 2, want: "unknown command"},
		"no agent named":     {args: []string{"chat"}, code: 2, want: "arg(s)"},
		"unknown flag":       {args: []string{"chat", "coder", "--loud"}, code: 2, want: "--loud"},
		"bad output":         {args: []string{"send", "coder", "x", "-o", "xml"}, code: 2, want: "text or json"},
		"unknown agent":      {args: []string{"chat", "nobody"}, code: 3, want: "known: coder, helper"},
		"unknown hook":       {env: []string{"TULUAT_WEBHOOK_SECRET=x"}, args: []string{"chat", "coder", "--hook", "nope"}, code: 3, want: "hooks known here: coder-hook, helper-hook"},
		"no answer":          {args: []string{"send", "coder", "silent", "--wait", "--timeout", "1s"}, code: 4, want: "no answer within 1s"},
		"home without state": {env: []string{"TULUAT_HOME=" + empty}, args: []string{"chat", "coder"}, code: 3, want: "TULUAT_HOME holds no dev.json"},
		"no state at all":    {env: []string{"TULUAT_HOME="}, args: []string{"chat", "coder"}, code: 3, want: "make dev"},
		"nothing listens":    {args: []string{"chat", "coder", "--url", "http://127.0.0.1:1"}, code: 1, want: "nothing listens at http://127.0.0.1:1: start it with `make dev`"},
		"not a URL":          {args: []string{"chat", "coder", "--url", "nowhere"}, code: 1, want: "absolute"},
		"wrong secret":       {env: []string{"TULUAT_HOME=", "TULUAT_URL=" + w.url, "TULUAT_WEBHOOK_SECRET=wrong"}, args: []string{"send", "coder-hook", "x"}, code: 1, want: "secret does not fit"},
		"no secret":          {env: []string{"TULUAT_HOME=", "TULUAT_URL=" + w.url}, args: []string{"send", "coder-hook", "x"}, code: 1, want: "TULUAT_WEBHOOK_SECRET"},
	} {
		t.Run(name, func(t *testing.T) {
			env := append([]string{"TULUAT_HOME=" + w.home, "USER=" + strings.ReplaceAll(name, " ", "-")}, c.env...)
			got := runCLI(t, w.cli, t.TempDir(), env, nil, c.args...)
			if got.code != c.code || !strings.Contains(got.errOut, c.want) || got.out != "" || strings.Contains(got.errOut, secret) {
				t.Errorf("%+v, want code %d and %q", got, c.code, c.want)
			}
		})
	}
	if got := w.tuluat(nil, "version"); got.code != 0 || !strings.HasPrefix(got.out, "tuluat ") {
		t.Errorf("version %+v", got)
	}
	if got := w.tuluat(nil, "__complete", "chat", ""); !strings.HasPrefix(got.out, "coder\nhelper\n") {
		t.Errorf("completion %+v", got)
	}
	if got := w.tuluat(nil, "completion", "bash"); got.code != 0 || !strings.Contains(got.out, "bash completion") {
		t.Errorf("completion script: code %d", got.code)
	}
}

func TestDatabaseDown(t *testing.T) {
	w := newWorld(t)
	w.Exec(`ALTER TABLE sessions RENAME TO gone`)
	if got := w.tuluat(nil, "send", "coder", "x"); got.code != 1 || !strings.Contains(got.errOut, "try again") {
		t.Errorf("%+v", got)
	}
}

func TestStateOfAParentFolderAndOfTheEnvironment(t *testing.T) {
	w := newWorld(t)
	w.agent()
	root := t.TempDir()
	below := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(w.home, filepath.Join(root, ".tuluat")); err != nil {
		t.Fatal(err)
	}
	if got := runCLI(t, w.cli, below, []string{"USER=ann"}, nil, "send", "helper", "hi", "--wait"); got.out != "you said: hi\n" {
		t.Errorf("from a parent's state: %+v", got)
	}
	env := []string{"TULUAT_URL=" + w.url + "/", "TULUAT_WEBHOOK_SECRET=" + secret + ",old"}
	if got := runCLI(t, w.cli, t.TempDir(), env, nil, "send", "coder", "hi", "--wait", "--hook", "coder-hook", "--user", "bob"); got.out != "you said: hi\n" {
		t.Errorf("from the environment: %+v", got)
	}
}

// The service restarts while an answer is awaited, and the database has the
// answer before the stream is back.
func TestReconnects(t *testing.T) {
	w := newWorld(t)
	input, say := io.Pipe()
	got := make(chan result)
	go func() { got <- w.tuluat(input, "chat", "coder") }()
	if _, err := io.WriteString(say, "hello\n"); err != nil {
		t.Fatal(err)
	}
	w.Await("true", `SELECT EXISTS (SELECT 1 FROM messages)::text`)
	w.stop()
	w.agent()
	w.start()
	if _, err := io.WriteString(say, "still there?\n"); err != nil {
		t.Fatal(err)
	}
	say.Close()
	if r := <-got; r.code != 0 || r.out != "you said: hello\nyou said: still there?\n" {
		t.Errorf("%+v", r)
	}
}

func TestInterrupt(t *testing.T) {
	w := newWorld(t)
	cmd := exec.Command(w.cli, "send", "coder", "silent", "--wait")
	cmd.Env = []string{"TULUAT_HOME=" + w.home, "USER=ann"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Await("true", `SELECT EXISTS (SELECT 1 FROM messages)::text`)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("ended with %v", err)
	}
}

// The CLI stays small: what the development runner needs is not in it.
func TestLinks(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, forbidden := range []string{"knative.dev/", "k8s.io/", "github.com/jackc/", "github.com/cloudevents/"} {
		if i := slices.IndexFunc(strings.Fields(string(out)), func(p string) bool { return strings.HasPrefix(p, forbidden) }); i >= 0 {
			t.Errorf("the CLI links %s", strings.Fields(string(out))[i])
		}
	}
}
