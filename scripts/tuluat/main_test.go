package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/localport"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const secret = "cli-test-secret"

var binaries struct {
	once           sync.Once
	dir            string
	cli, ingestion string
	management     string
	err            error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if binaries.dir != "" {
		os.RemoveAll(binaries.dir)
	}
	os.Exit(code)
}

// build makes the programs once: the CLI and the functions it talks to.
func build(t *testing.T) (cli, ingestion string) {
	t.Helper()
	b := &binaries
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "tuluat-cli"); b.err != nil {
			return
		}
		b.cli, b.ingestion = filepath.Join(b.dir, "tuluat"), filepath.Join(b.dir, "webhook-ingest")
		b.management = filepath.Join(b.dir, "management-api")
		for out, pkg := range map[string]string{
			b.cli: ".", b.ingestion: "tuluat.ai/harness/functions/webhook-ingest", b.management: "tuluat.ai/harness/functions/management-api",
		} {
			if text, err := exec.Command("go", "build", "-o", out, pkg).CombinedOutput(); err != nil {
				b.err = errors.Join(b.err, fmt.Errorf("go build %s: %w: %s", pkg, err, text))
			}
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.cli, b.ingestion
}

// world is a database, webhook-ingest as a process, an agent driven by hand and
// a development state folder that leads there.
type world struct {
	*functiontest.Database
	cli   string
	home  string
	url   string
	stop  func() // ends webhook-ingest
	start func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cli, ingestion := build(t)
	w := &world{Database: functiontest.NewDatabase(t), cli: cli, home: t.TempDir()}
	w.Agents("coder", "helper")
	for agent, hook := range map[string]string{"coder": "coder-hook", "helper": "helper-hook"} {
		w.Route(agent, harness.ChannelSpec{Type: harness.ChannelWebhook, Account: hook, Secret: harness.SecretRef{Name: "cli", Key: "secret"}})
	}
	port := freePort(t)
	w.url = "http://127.0.0.1:" + port
	broker := "http://127.0.0.1:1"
	w.start = func() { w.serve(ingestion, "PORT="+port, "DATABASE_URL="+w.DSN.Reveal(), "BROKER_URL="+broker) }
	w.start()
	w.write("secret", secret+"\n")
	w.write("dev.json", fmt.Sprintf(`{"url": %q, "agentsDir": "config", "webhooks": {
		"coder": {"account": "coder-hook", "secretFile": "secret"}, "helper": {"account": "helper-hook", "secretFile": %q}}}`, w.url, filepath.Join(w.home, "secret")))
	return w
}

func (w *world) serve(binary string, env ...string) {
	w.T.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append([]string{"SERVE=public", "METRICS_PORT=0", "CLI_SECRET=" + secret}, env...)
	var logs functiontest.Logs
	cmd.Stderr = &logs
	if err := cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	w.stop = sync.OnceFunc(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			w.T.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			w.T.Errorf("%s: %v\n%s", filepath.Base(binary), err, logs.String())
		}
	})
	w.T.Cleanup(w.stop)
	deadline := time.Now().Add(30 * time.Second)
	for {
		response, err := http.Get(w.url + "/readyz")
		if err == nil {
			response.Body.Close()
			return
		}
		if time.Now().After(deadline) {
			w.T.Fatalf("%s does not answer: %v\n%s", filepath.Base(binary), err, logs.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := localport.Free()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

func (w *world) write(name, text string) {
	w.T.Helper()
	if err := os.WriteFile(filepath.Join(w.home, name), []byte(text), 0o600); err != nil {
		w.T.Fatal(err)
	}
}

// agent works every session until the test ends: "run: C" prints C as a
// command's output, "/new" ends the conversation, "silent" is never answered,
// "choose" offers choices,
// anything else is said back.
func (w *world) agent() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := w.work(ctx); err != nil && ctx.Err() == nil {
				w.T.Errorf("the agent: %v", err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	w.T.Cleanup(func() { cancel(); <-ended })
}

func (w *world) work(ctx context.Context) error {
	var session harness.SessionID
	if err := w.Store.Pool().QueryRow(ctx, `SELECT COALESCE((SELECT session_id FROM sessions WHERE due_at <= now() LIMIT 1), '')`).Scan(&session); err != nil || session == "" {
		return err
	}
	claim, err := w.Store.ClaimSession(ctx, session, postgres.Lease{Owner: "agent", For: time.Minute})
	if errors.Is(err, postgres.ErrNothingDue) {
		return nil
	}
	if err != nil || len(claim.Turns) == 0 {
		return err
	}
	text := claim.Turns[len(claim.Turns)-1].Text
	commit := postgres.StepCommit{Claim: claim, State: harness.SessionIdle, Start: true, End: text == "/new", Reply: []string{"you said: " + text}}
	switch command, isRun := strings.CutPrefix(text, "run: "); {
	case text == "silent":
		return nil
	case isRun:
		return w.run(ctx, claim, command)
	case text == "choose":
		commit.Reply, commit.Choices = []string{"Which", "one?"}, []harness.Choice{{ID: "c1", Title: "Tea"}, {ID: "c2", Title: "Black coffee", Description: "hot"}}
	case text == "/new":
		commit.Reply = []string{"A new conversation."}
	}
	_, err = w.Store.CommitStep(ctx, commit)
	return err
}

// run is the turn of a command that prints its own text, slowly, and exits 7.
func (w *world) run(ctx context.Context, claim *postgres.Claim, command string) error {
	call, execution := harness.NewToolCallID(time.Now()), harness.NewExecutionID(time.Now())
	arguments, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		return err
	}
	if _, err := w.Store.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Step: &postgres.NewStep{
		ID: harness.NewStepID(time.Now()), Calls: []postgres.NewCall{{
			CallOutcome: postgres.CallOutcome{ID: call, State: harness.ToolCallRunning}, ProviderID: "p", Name: harness.ToolExecuteShell, Arguments: string(arguments),
			Execution: &postgres.NewExecution{ID: execution, Command: command, Spec: harness.DefaultSandbox(), MaxSandboxes: 1, Nonce: "n"},
		}},
	}}); err != nil {
		return err
	}
	for _, sql := range []string{
		`INSERT INTO execution_output (execution_id, stream, start_byte, data) SELECT execution_id, 'stdout', 0, convert_to(command || E'\nsecond', 'UTF8') FROM executions WHERE execution_id = $1`,
		`INSERT INTO execution_output (execution_id, stream, start_byte, data) SELECT execution_id, 'stderr', 0, 'oops' FROM executions WHERE execution_id = $1`,
		`UPDATE executions SET state = 'FAILED', exit_code = 7, ended_at = now() WHERE execution_id = $1`,
		`UPDATE sessions SET due_at = now() FROM executions e WHERE e.session_id = sessions.session_id AND e.execution_id = $1`,
	} {
		if _, err := w.Store.Pool().Exec(ctx, sql, execution); err != nil {
			return err
		}
	}
	if claim, err = w.Store.ClaimSession(ctx, claim.ID, postgres.Lease{Owner: "agent", For: time.Minute}); err != nil {
		return err
	}
	_, err = w.Store.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Reply: []string{"it printed ", command},
		Results: []postgres.CallOutcome{{ID: call, State: harness.ToolCallDone, Result: "exit code 7"}},
	})
	return err
}

type result struct {
	code        int
	out, errOut string
}

// tuluat runs the CLI in a folder without a state, with TULUAT_HOME.
func (w *world) tuluat(stdin io.Reader, args ...string) result {
	w.T.Helper()
	return runCLI(w.T, w.cli, w.T.TempDir(), []string{"TULUAT_HOME=" + w.home, "USER=ann"}, stdin, args...)
}

func runCLI(t testing.TB, cli, dir string, env []string, stdin io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, cli, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, env, stdin
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() < 0) {
		t.Fatalf("tuluat %v: %v\n%s", args, err, errOut.String())
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}
