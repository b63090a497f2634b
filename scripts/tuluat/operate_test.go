package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const (
	operatorToken = "operator-0123456789abcdefghijkl"
	viewerToken   = "viewer-0123456789abcdefghijklmn"
)

// office is a database, a folder of agents and management-api as a process over
// both.
type office struct {
	*functiontest.Database
	cli, url string
	agents   string // folder
	stop     func()
	start    func()
}

func newOffice(t *testing.T) *office {
	t.Helper()
	cli, _ := build(t)
	program := binaries.management
	o := &office{Database: functiontest.NewDatabase(t), cli: cli, agents: t.TempDir()}
	port := freePort(t)
	o.url = "http://127.0.0.1:" + port
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(operatorToken+" ann\n"+viewerToken+" vera viewer\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{Database: o.Database, url: o.url}
	o.start = func() {
		w.serve(program, "PORT="+port, "DATABASE_URL="+o.DSN.Reveal(), "BROKER_URL=http://127.0.0.1:1", "AGENTS_DIR="+o.agents, "MANAGEMENT_TOKEN_FILE="+tokens)
		o.stop = w.stop
	}
	o.start()
	return o
}

func (o *office) file(name, text string) string {
	o.T.Helper()
	file := filepath.Join(o.agents, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		o.T.Fatal(err)
	}
	return file
}

// status is what agent-status does when it has read the folder.
func (o *office) status(texts ...postgres.AgentText) {
	o.T.Helper()
	if _, _, err := o.Store.PutAgents(context.Background(), texts, nil); err != nil {
		o.T.Fatal(err)
	}
}

func ready(name harness.AgentName, description string) postgres.AgentText {
	return postgres.AgentText{Name: name, Agent: &harness.Agent{Name: name, Description: description, Harness: harness.HarnessSpec{
		Enabled: true, Type: harness.HarnessCode, Sandbox: harness.DefaultSandbox(), MaxSandboxes: 1,
	}}}
}

func (o *office) as(token string, args ...string) result {
	o.T.Helper()
	return runCLI(o.T, o.cli, o.T.TempDir(), []string{"TULUAT_URL=" + o.url, "TULUAT_TOKEN=" + token}, nil, args...)
}

// run runs a command as ann and logs it as on a terminal. Its text must hold all
// of want.
func (o *office) run(code int, command string, want ...string) string {
	o.T.Helper()
	got := o.as(operatorToken, strings.Fields(command)...)
	o.T.Logf("$ tuluat %s\n%s%s", command, got.out, got.errOut)
	if got.code != code {
		o.T.Fatalf("exit code %d, want %d", got.code, code)
	}
	for _, text := range want {
		if !strings.Contains(got.out+got.errOut, text) {
			o.T.Errorf("no %q", text)
		}
	}
	return got.out
}

const agentText = `# ours
apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: %s
spec:
  description: %s # in a sentence
  harness:
    type: CODE
`

// An operator's morning: what failed, why, mended, approved, sent again.
func TestMorning(t *testing.T) {
	o := newOffice(t)
	o.file("coder.yaml", fmt.Sprintf(agentText, "coder", "Writes code."))
	o.file("broken.yaml", strings.Replace(fmt.Sprintf(agentText, "broken", "Broken."), "CODE", "NONSENSE", 1))
	o.status(ready("coder", "Writes code."), postgres.AgentText{Name: "broken", Reason: "spec.harness.type is NONSENSE: use CODE"})
	o.Exec(`INSERT INTO agent_execution_logs (agent_name, session_id, node_id, level, message, guardrail_result, created_at) VALUES ('broken', '', '', 'ERROR', 'cannot start' || chr(27) || '[31m', '', now()), ('coder', '', '', 'INFO', 'all well', '', now())`)

	o.run(0, "whoami", "ann", o.url)
	o.run(0, "get agent --status INVALID,DEGRADED", "broken", "NONSENSE")
	o.run(0, "logs broken --since 1h --level ERROR", "cannot start^[[31m")
	o.run(0, "describe agent broken", "Accepted is False", "cannot start")

	mine := filepath.Join(t.TempDir(), "mine.yaml")
	wrong := strings.Replace(fmt.Sprintf(agentText, "broken", "Mended."), "CODE", "CHANNELS", 1)
	if err := os.WriteFile(mine, []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	o.run(1, "apply -f "+mine, mine+":9: spec.harness.type", "Nothing was applied")
	if err := os.WriteFile(mine, []byte(fmt.Sprintf(agentText, "broken", "Mended.")), 0o600); err != nil {
		t.Fatal(err)
	}
	o.run(0, "apply -f "+mine+" --dry-run", "agent/broken configured (dry run)")
	go func() { // agent-status reads the folder when the new text is there
		for range 600 {
			if text, err := os.ReadFile(filepath.Join(o.agents, "broken.yaml")); err == nil && strings.Contains(string(text), "Mended.") {
				o.status(ready("coder", "Writes code."), ready("broken", "Mended."))
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	o.run(0, "apply -f "+mine+" --wait", "agent/broken configured", "agent/broken is READY")
	o.run(0, "apply -f "+mine, "agent/broken unchanged")
	if text, err := os.ReadFile(filepath.Join(o.agents, "broken.yaml")); err != nil || !strings.Contains(string(text), "# in a sentence") {
		t.Errorf("the comments are lost: %s %v", text, err)
	}
	o.run(0, "agent disable coder harness", "agent/coder harness disabled")
	o.run(0, "agent enable coder harness", "agent/coder harness enabled")

	started := o.run(0, "session start coder Clean up.", "is taken in session ses_")
	session := harness.SessionID(regexp.MustCompile(`ses_\w+`).FindString(started))
	for _, id := range []string{"apr_00000000000000000000000001", "apr_00000000000000000000000002"} {
		o.Exec(`INSERT INTO approvals (approval_id, session_id, agent_name, title, input, digest, state)
			SELECT $1, session_id, agent_name, 'run rm -r build', '{"command": "rm -r build"}', 'd1', 'PENDING' FROM sessions WHERE session_id = $2`, id, session)
	}
	o.run(0, "approval list", "apr_00000000000000000000000001", "apr_00000000000000000000000002", "rm -r build")
	o.run(2, "approval approve apr_00000000000000000000000001", "--yes")
	o.run(0, "approval approve apr_00000000000000000000000001 --yes", "command:\n  rm -r build", "approved")
	o.run(0, "approval approve apr_00000000000000000000000002 --yes --reason fine", "approved")
	o.run(6, "approval reject apr_00000000000000000000000002", "is APPROVED by ann", "fine")

	e := event.Event{ID: "session.due:x", Type: event.SessionDue, Session: session, Payload: event.Payload{Session: session}}
	if _, err := o.Store.PutDeadLetter(t.Context(), postgres.DeadLetter{Event: e, Destination: "http://agent-step", StatusCode: 503, Cause: "busy"}); err != nil {
		t.Fatal(err)
	}
	o.run(0, "deadletter list", "http://agent-step answered 503: busy")
	o.run(0, "deadletter replay 1", "deadletter/1 replayed")
	o.run(3, "deadletter show 99")
	o.run(0, "audit list", "ann", "update aiagents", "decide approvals", "replay deadletters")
	o.run(0, "version --server", `"client"`)

	for command, want := range map[string]string{"session cancel " + string(session) + " --yes": "cancel sessions", "deadletter replay 1": "replay deadletters"} {
		if got := o.as(viewerToken, strings.Fields(command)...); got.code != 5 || !strings.Contains(got.errOut, want) {
			t.Errorf("a viewer: %+v, want %q", got, want)
		}
	}
	if got := o.as("nobody-0123456789abcdefghijkl", "get", "agent"); got.code != 5 {
		t.Errorf("nobody: %+v", got)
	}
	o.run(0, "session cancel "+string(session)+" --yes", "cancelled")
	o.run(6, "session cancel "+string(session)+" --yes")
	o.run(0, "delete agent broken --yes", "agent/broken deleted")
	o.run(3, "get agent broken")
}

// Every list and every record of the real API is one that the CLI reads.
func TestEveryListOfTheRealAPI(t *testing.T) {
	o := newOffice(t)
	o.file("coder.yaml", fmt.Sprintf(agentText, "coder", "Writes code."))
	o.status(ready("coder", "Writes code."))
	o.run(0, "session start coder hello")
	session := o.Query(`SELECT session_id FROM sessions`)
	for _, command := range []string{
		"get agent", "get workflow", "session list --agent coder --status PENDING,RUNNING --since 1h --channel API", "session show " + session, "session messages " + session, "session timeline " + session,
		"approval list --all", "sandbox list --all --agent coder", "execution list --since 1d --status RUNNING,FAILED", "deadletter list --all --type x", "channel list", "audit list --actor ann --since 1h", "logs", "logs coder --grep x --level INFO,WARN",
	} {
		for _, format := range []string{"table", "json", "yaml"} {
			if got := o.as(operatorToken, append(strings.Fields(command), "-o", format)...); got.code != 0 || format != "table" && (got.out == "" || strings.Contains(got.out, "null\n")) {
				t.Errorf("%s -o %s: %+v", command, format, got)
			}
		}
	}
	if got := runCLI(t, o.cli, t.TempDir(), []string{"TULUAT_URL=" + o.url, "TULUAT_TOKEN=" + operatorToken}, nil, "__complete", "session", "cancel", ""); !strings.HasPrefix(got.out, session+"\tcoder PENDING\n") {
		t.Errorf("completion: %+v", got)
	}
	for command, code := range map[string]int{"session show ses_none": 3, "sandbox exec sbx_none true": 3, "execution output exe_none": 3, "approval show apr_none": 3, "session messages ses_none -f": 3, "session show a/../b": 1} {
		if got := o.as(operatorToken, strings.Fields(command)...); got.code != code {
			t.Errorf("%s: %+v, want %d", command, got, code)
		}
	}
}

// A session is followed while the API restarts: every answer comes once, and the
// command ends with the session.
func TestFollowAcrossARestart(t *testing.T) {
	o := newOffice(t)
	o.status(ready("coder", "Writes code."))
	(&world{Database: o.Database, cli: o.cli}).agent()
	if got := o.as(operatorToken, "session", "start", "coder", "one", "--wait"); got.code != 0 || got.out != "you said: one\n" {
		t.Fatalf("%+v", got)
	}
	session := o.Query(`SELECT session_id FROM sessions`)
	cmd := exec.Command(o.cli, "session", "messages", session, "-f")
	cmd.Env = []string{"TULUAT_URL=" + o.url, "TULUAT_TOKEN=" + operatorToken}
	var out, errOut functiontest.Logs
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), "you said: one"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it prints %q %q", out.String(), errOut.String())
		}
	}
	if r := o.as(operatorToken, "session", "send", session, "run: echo hi", "--wait"); r.code != 0 || r.out != "it printed echo hi\n" || !strings.Contains(r.errOut, "executeShell $ echo hi\n") {
		t.Errorf("%+v", r)
	}
	o.stop()
	o.start()
	if r := o.as(operatorToken, "session", "send", session, "two", "--wait"); r.code != 0 || r.out != "you said: two\n" {
		t.Errorf("%+v", r)
	}
	if r := o.as(operatorToken, "session", "cancel", session, "--yes"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	err := cmd.Wait()
	for _, want := range []string{"  one\n", "  you said: one\n", "  run: echo hi\n", "executeShell $ echo hi\n", "  it printed echo hi\n", "  two\n", "  you said: two\n"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("%q is there %d times", want, strings.Count(out.String(), want))
		}
	}
	if err != nil || !strings.Contains(errOut.String(), "The session has ended: cancelled.") {
		t.Errorf("%v %q %q", err, out.String(), errOut.String())
	}
}
