package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/localport"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/schema"
)

const (
	connections = 32
	hookSecret  = "bench-secret-value"
	hookPath    = "/api/v1/channels/webhook/bench"
)

// ingest loads webhook-ingest, wake event and outbox on, and the bare handler
// in turn, each as a process of its own on one server, and compares pair by pair.
func ingest(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	if err := prepareIngest(ctx, pg); err != nil {
		return nil, err
	}
	broker := newSink()
	defer broker.Close()
	env := []string{
		"DATABASE_URL=" + pg.DSN("bench_ingest"), "HOOK_SECRET=" + hookSecret, "BROKER_URL=" + broker.URL, "METRICS_PORT=0",
		"SERVE=public", "LOG_LEVEL=ERROR",
	}
	ours, err := startServer(ctx, []string{filepath.Join(bin, "webhook-ingest")}, env)
	if err != nil {
		return nil, err
	}
	defer ours.stop()
	bare, err := startServer(ctx, []string{filepath.Join(bin, "baseline")}, env)
	if err != nil {
		return nil, err
	}
	defer bare.stop()
	var rates, tails, ourRates, bareRates, ourTails, bareTails []float64
	for n := range o.pairs + 1 {
		a, err := load(ctx, o.seconds, http.StatusAccepted, hookRequests(ours.url+hookPath, fmt.Sprint("a", n)))
		if err != nil {
			return nil, fmt.Errorf("webhook-ingest: %w", err)
		}
		b, err := load(ctx, o.seconds, http.StatusAccepted, hookRequests(bare.url+"/", fmt.Sprint("b", n)))
		if err != nil {
			return nil, fmt.Errorf("baseline: %w", err)
		}
		if n == 0 {
			continue // the first pair warms caches and connections
		}
		say("pair %d: webhook-ingest %.0f/s p99 %.1f ms, bare handler %.0f/s p99 %.1f ms", n, a.rate, a.p99, b.rate, b.p99)
		rates, tails = append(rates, a.rate/b.rate), append(tails, a.p99/b.p99)
		ourRates, bareRates = append(ourRates, a.rate), append(bareRates, b.rate)
		ourTails, bareTails = append(ourTails, a.p99), append(bareTails, b.p99)
	}
	return []figure.Figure{
		figure.Of("ingest at 32 connections: webhook-ingest", "req/s", ourRates...),
		figure.Of("ingest at 32 connections: bare handler", "req/s", bareRates...),
		figure.Of("ingest rate, ours / bare", "ratio", rates...).AtLeast(1, "at least 1"),
		figure.Of("ingest p99: webhook-ingest", "ms", ourTails...),
		figure.Of("ingest p99: bare handler", "ms", bareTails...),
		figure.Of("ingest p99, ours / bare", "ratio", tails...).AtMost(1, "at most 1"),
	}, nil
}

func prepareIngest(ctx context.Context, pg *localpg.Server) error {
	if err := freshDatabase(ctx, pg, "bench_ingest"); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, pg.DSN("bench_ingest"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	spec, err := json.Marshal(harness.ChannelSpec{
		Type: harness.ChannelWebhook, Account: "bench", Secret: harness.SecretRef{Name: "hook", Key: "secret"}, Senders: harness.ChannelSenders{Policy: harness.SendersOpen},
	})
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `
		CREATE TABLE bare (id text PRIMARY KEY, body bytea NOT NULL);
		INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('bench', 1, 'READY', 'x');
		INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('bench', 1, '{"name": "bench"}');`)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ('WEBHOOK', 'bench', 'bench', $1, true)`, spec)
	return err
}

// freshDatabase makes a migrated database called name.
func freshDatabase(ctx context.Context, pg *localpg.Server, name string) error {
	conn, err := pgx.Connect(ctx, pg.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return err
	}
	return schema.Migrate(ctx, harness.Secret(pg.DSN(name)), slog.New(slog.DiscardHandler))
}

type server struct {
	url string
	cmd *exec.Cmd
}

func startServer(ctx context.Context, program []string, env []string) (*server, error) {
	port, err := localport.Free()
	if err != nil {
		return nil, err
	}
	s := &server{url: fmt.Sprint("http://127.0.0.1:", port), cmd: exec.CommandContext(ctx, program[0], program[1:]...)}
	var errors bytes.Buffer
	s.cmd.Env, s.cmd.Stderr = append(slices.Clone(env), fmt.Sprint("PORT=", port)), &errors
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := untilReady(ctx, s.url+"/readyz", time.Now()); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w\n%s", filepath.Base(program[len(program)-1]), err, errors.String())
	}
	return s, nil
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// hookRequests are signed messages of 50 people.
func hookRequests(url, run string) asker {
	return func(c, n int) (*http.Request, error) {
		return hookRequest(url, fmt.Sprintf(`{"messageId":"%s-%d-%d","channelUserId":"user-%d","text":"hello %s"}`, run, c, n, (c+n)%50, strings.Repeat("x", 100)))
	}
}

func hookRequest(url, body string) (*http.Request, error) {
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	request.Header.Set("X-Tuluat-Timestamp", timestamp)
	request.Header.Set("X-Tuluat-Signature", "v1="+signature(hookSecret, timestamp+"."+body))
	request.Header.Set("Content-Type", "application/json")
	return request, nil
}

// signature is the hex HMAC-SHA256 of text.
func signature(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}
