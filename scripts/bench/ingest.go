package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/localpg"
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
func ingest(ctx context.Context, o options, bin string, pg *localpg.Server) ([]Figure, error) {
	if err := prepareIngest(ctx, pg); err != nil {
		return nil, err
	}
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer broker.Close()
	env := []string{
		"DATABASE_URL=" + pg.DSN("bench_ingest"), "HOOK_SECRET=" + hookSecret, "BROKER_URL=" + broker.URL, "METRICS_PORT=0",
		"SERVE=public", "LOG_LEVEL=ERROR",
	}
	ours, err := startServer(ctx, filepath.Join(bin, "webhook-ingest"), env)
	if err != nil {
		return nil, err
	}
	defer ours.stop()
	bare, err := startServer(ctx, filepath.Join(bin, "baseline"), env)
	if err != nil {
		return nil, err
	}
	defer bare.stop()
	var rates, tails, ourRates, bareRates, ourTails, bareTails []float64
	for n := range o.pairs + 1 {
		a, err := load(ctx, ours.url+hookPath, o.seconds, fmt.Sprint("a", n))
		if err != nil {
			return nil, fmt.Errorf("webhook-ingest: %w", err)
		}
		b, err := load(ctx, bare.url+"/", o.seconds, fmt.Sprint("b", n))
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
	return []Figure{
		figure("ingest at 32 connections: webhook-ingest", "req/s", ourRates),
		figure("ingest at 32 connections: bare handler", "req/s", bareRates),
		figure("ingest rate, ours / bare", "ratio", rates).atLeast(0.7, "at least 0.7"),
		figure("ingest p99: webhook-ingest", "ms", ourTails),
		figure("ingest p99: bare handler", "ms", bareTails),
		figure("ingest p99, ours / bare", "ratio", tails).atMost(2, "at most 2"),
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

func startServer(ctx context.Context, program string, env []string) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	s := &server{url: "http://" + address, cmd: exec.CommandContext(ctx, program)}
	var errors bytes.Buffer
	s.cmd.Env, s.cmd.Stderr = append(slices.Clone(env), "PORT="+port), &errors
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := untilReady(ctx, s.url+"/readyz", time.Now()); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, errors.String())
	}
	return s, nil
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

type loadResult struct{ rate, p99 float64 }

// load sends signed messages of 50 people over kept connections for d. Any
// answer but 202 ends the measurement: a fast refusal is no figure.
func load(ctx context.Context, url string, d time.Duration, run string) (loadResult, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var running sync.WaitGroup
	began := time.Now()
	for c := range connections {
		running.Go(func() {
			var mine []time.Duration
			var err error
			for n := 0; err == nil && time.Since(began) < d; n++ {
				sent := time.Now()
				err = post(ctx, client, url, fmt.Sprintf(`{"messageId":"%s-%d-%d","channelUserId":"user-%d","text":"hello %s"}`, run, c, n, (c+n)%50, strings.Repeat("x", 100)))
				mine = append(mine, time.Since(sent))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			if err != nil {
				failed = err
			}
		})
	}
	running.Wait()
	elapsed := time.Since(began)
	if failed != nil {
		return loadResult{}, failed
	}
	slices.Sort(took)
	return loadResult{rate: float64(len(took)) / elapsed.Seconds(), p99: milliseconds(at(took, 0.99))}, nil
}

func post(ctx context.Context, client *http.Client, url, body string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	sign(request, body)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("status %d: %s", response.StatusCode, answer)
	}
	return nil
}

func sign(r *http.Request, signed string) {
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte(timestamp + "." + signed))
	r.Header.Set("X-Tuluat-Timestamp", timestamp)
	r.Header.Set("X-Tuluat-Signature", "v1="+hex.EncodeToString(mac.Sum(nil)))
	r.Header.Set("Content-Type", "application/json")
}
