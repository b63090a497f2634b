package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/schema"
)

const (
	sweepDatabase = "benchdata_sweep"
	sweepTarget   = 10 * time.Second // of a pass, whatever waits

	sweepSessions  = 100_000
	sweepSandboxes = 5_000
	sweepOutbox    = 1_000_000
)

// backlogSQL: what waits of each kind. A tenth of the sandboxes are past their
// time, as many have no object, and objects without a row are made beside them.
// 15,000 sessions were heard by nobody, 20,000 conversations are to end. Three in
// ten announcements are due, one in ten is of a session that has ended. Of the rest
// there are a few of each, which a pass must do whole beside the others.
var backlogSQL = []struct{ what, sql string }{
	{"", `SET session_replication_role = replica; SET synchronous_commit = off; SET timezone = 'UTC'`},
	{"agents", `INSERT INTO agents (agent_name, revision, phase, digest, generation) SELECT 'agent-' || n, 1, 'READY', n::text, 1 FROM generate_series(0, 19) n;
		INSERT INTO agent_revisions (agent_name, revision, spec) SELECT agent_name, 1, jsonb_build_object('name', agent_name) FROM agents`},
	{"sessions", fmt.Sprintf(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, idle_seconds, due_at, created_at, updated_at, ended_at)
		SELECT 'ses_' || n, 'agent-' || n %% 20, 'API', 'agent-' || n %% 20, 'chat-' || n,
			CASE WHEN n %% 20 < 3 THEN 'PENDING' WHEN n %% 20 < 10 THEN 'COMPLETED' ELSE 'IDLE' END, 86400,
			CASE WHEN n %% 20 < 3 THEN now() - interval '1 hour' END, now() - interval '3 days', CASE WHEN n %% 20 BETWEEN 10 AND 13 THEN now() - interval '2 days' ELSE now() END,
			CASE WHEN n %% 20 BETWEEN 3 AND 9 THEN now() END FROM generate_series(1, %d) n`, sweepSessions)},
	{"sandboxes", fmt.Sprintf(`INSERT INTO sandboxes (sandbox_id, sandbox_name, sandbox_uid, agent_name, session_id, spec, spec_digest, state, expires_at)
		SELECT 'sbx_' || n, 'tuluat-' || n, 'uid-' || n, 'agent-' || n %% 20, 'ses_' || n * 20 - 1, '{"idleSeconds": 86400}', 'd', 'READY',
			now() + CASE WHEN n %% 10 = 0 THEN -interval '1 minute' ELSE interval '1 day' END FROM generate_series(1, %d) n`, sweepSandboxes)},
	{"announcements", fmt.Sprintf(`INSERT INTO outbox (event_id, event_type, subject, session_id, agent_name, payload, attempts, due_at, created_at)
		SELECT 'session.due:' || n, 'ai.tuluat.session.due.v1', 'ses_' || s, 'ses_' || s, 'agent-0', jsonb_build_object('session', 'ses_' || s), 1 + n %% 4,
			now() + CASE WHEN n %% 10 < 3 THEN -interval '1 hour' ELSE interval '9 minutes' END, now() - interval '20 minutes'
		FROM (SELECT n, CASE WHEN n %% 10 = 9 THEN (n %% 5000) * 20 + 5 ELSE (n %% 5000) * 20 + n %% 3 END AS s FROM generate_series(1, %d) n) n`, sweepOutbox)},
	{"commands", `INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce, due_at)
		SELECT 'exe_' || n, 'ses_' || n * 20 + 15, 'agent-1', 'API', 'c' || n, 'true', '{}', 'd', 3, 'PENDING', 'n', now() - interval '1 minute' FROM generate_series(1, 50) n`},
	{"replies", `INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) SELECT 'msg_' || n, 'ses_' || n * 20 + 16, 1, 'OUTBOUND', 'DONE', 'u', 't' FROM generate_series(1, 50) n;
		INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) SELECT 'rpl_' || n, 'msg_' || n, 'ses_' || n * 20 + 16, 1, 1, 1, 't', 'PLANNED', now() - interval '1 minute' FROM generate_series(1, 50) n`},
	{"what is old", `INSERT INTO inbox (channel, account, provider_id, message_id, received_at) SELECT 'API', 'a', n::text, 'm', now() - interval '31 days' FROM generate_series(1, 1000) n;
		INSERT INTO sweep_reports (started_at, completed_at, findings) SELECT now() - interval '8 days', now() - interval '8 days', '{}' FROM generate_series(1, 1000) n;
		INSERT INTO figure_changes (figure_name, agent_name, label, model, amount) SELECT 'RUNS', 'agent-1', 'COMPLETED', '', 1 FROM generate_series(1, 20000) n`},
	{"statistics", `VACUUM ANALYZE`},
}

// swept measures passes of the sweep, as a process of its own, over a backlog that
// no pass can do whole. It fails when the first one takes longer than the target, or
// leaves an item out.
func swept(ctx context.Context, pg *localpg.Server, o options) (err error) {
	admin, err := pgx.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		return err
	}
	defer admin.Close(context.WithoutCancel(ctx))
	for _, sql := range []string{`DROP DATABASE IF EXISTS ` + sweepDatabase, `CREATE DATABASE ` + sweepDatabase} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	dsn := pg.DSN(sweepDatabase)
	if err := schema.Migrate(ctx, harness.Secret(dsn), slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, s := range backlogSQL {
		if err := step(ctx, conn, s.what, s.sql); err != nil {
			return err
		}
	}
	sandboxes, err := os.MkdirTemp("", "bd-") // whose path must be short
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sandboxes)) }()
	if err := errors.Join(os.Chmod(sandboxes, 0o711), makeObjects(sandboxes)); err != nil {
		return err
	}
	broker, heard, stop, err := serveBroker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	sweep, err := begin(ctx, o.dir, "reaper-cron", append(os.Environ(), "DATABASE_URL="+dsn+"&role=tuluat_reaper_cron", "BROKER_URL="+broker, "STAY=0",
		"SANDBOX_DRIVER=local", "SANDBOX_LOCAL_DIR="+sandboxes, "SANDBOX_LOCAL_RUNNER=/bin/true"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sweep.end()) }()
	return passes(ctx, conn, sweep, filepath.Join(o.dir, "reaper-cron.log"), heard)
}

// makeObjects makes sandboxes as the local driver finds them: nine in ten of those
// that have a row, and a tenth as many that have none.
func makeObjects(dir string) error {
	old := time.Now().Add(-time.Hour)
	for n := range sweepSandboxes + sweepSandboxes/10 {
		if n < sweepSandboxes && n%10 == 1 {
			continue
		}
		name := filepath.Join(dir, fmt.Sprintf("tuluat-%d", n))
		if err := errors.Join(os.Mkdir(name, 0o755), os.Chtimes(name, old, old)); err != nil {
			return err
		}
	}
	return nil
}

// serveBroker takes events and counts them.
func serveBroker() (url string, heard *atomic.Int64, stop func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, nil, err
	}
	heard = &atomic.Int64{}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // what cannot be read was not sent
		heard.Add(1)
		w.WriteHeader(http.StatusAccepted)
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), heard, func() error {
		err := server.Close()
		if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
			err = errors.Join(err, failed)
		}
		return err
	}, nil
}

// finding is what a pass says of an item.
type finding struct {
	Found  int    `json:"found"`
	Done   int    `json:"done"`
	Left   int    `json:"left"`
	Reason string `json:"reason"`
	Note   string `json:"note"`
}

// whole are the items of which there is little: a pass does all of it, whatever
// waits beside.
var whole = map[string]int{"executions": 50, "replies": 50, "old_inbox": 1000, "old_reports": 1000, "figures": 20000}

func passes(ctx context.Context, conn *pgx.Conn, sweep *process, log string, heard *atomic.Int64) error {
	var failures error
	for n := 1; n <= 3; n++ {
		began, before := time.Now(), heard.Load()
		if err := sweep.tick(ctx, n); err != nil {
			return err
		}
		took := time.Since(began)
		var findings map[string]finding
		if err := conn.QueryRow(ctx, `SELECT findings FROM sweep_reports ORDER BY sweep_report_id DESC LIMIT 1`).Scan(&findings); err != nil {
			return err
		}
		times, err := lastTimes(log)
		if err != nil {
			return err
		}
		fmt.Printf("\npass %d: %s, %d events told, peak memory %d MiB\n%-18s %9s %9s %9s %9s  %s\n", n, took.Round(time.Millisecond), heard.Load()-before, sweep.peak()>>20, "item", "found", "done", "left", "time", "")
		for _, name := range slices.Sorted(maps.Keys(findings)) {
			f := findings[name]
			if f != (finding{}) || times[name] != "" {
				fmt.Printf("%-18s %9d %9d %9d %9s  %s\n", name, f.Found, f.Done, f.Left, times[name], f.Reason+f.Note)
			}
			if f.Reason != "" {
				failures = errors.Join(failures, fmt.Errorf("%s: %s", name, f.Reason))
			}
			if n == 1 && f.Done < whole[name] {
				failures = errors.Join(failures, fmt.Errorf("%s: %d done, want %d: it starves", name, f.Done, whole[name]))
			}
		}
		for _, name := range []string{"sessions", "announcements", "sandboxes", "leaks", "conversations"} {
			if n == 1 && findings[name].Done == 0 {
				failures = errors.Join(failures, fmt.Errorf("%s: nothing was done: it starves", name))
			}
		}
		if took > sweepTarget {
			failures = errors.Join(failures, fmt.Errorf("pass %d took %s, want at most %s", n, took.Round(time.Millisecond), sweepTarget))
		}
	}
	return failures
}

// tick has the sweep run one pass.
func (p *process) tick(ctx context.Context, n int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/events", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Ce-Id": fmt.Sprint("tick-", n), "Ce-Type": string(event.Ping), "Ce-Source": "/benchdata", "Ce-Specversion": "1.0", "Content-Type": "application/json"} {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("the sweep answers %s: %w", response.Status, err)
	}
	return nil
}

// lastTimes is how long each item of the last pass took, as the function's log says.
func lastTimes(log string) (map[string]string, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	var last map[string]string
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Msg   string            `json:"msg"`
			Times map[string]string `json:"times"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "pass over" {
			last = entry.Times
		}
	}
	if last == nil {
		return nil, errors.New("the log of the sweep has no pass")
	}
	return last, nil
}
