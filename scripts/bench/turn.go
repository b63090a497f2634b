package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/scripts/internal/devcluster"
	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/scripts/internal/pgproxy"
)

// maxRoundTrips is the promise for a plain turn: message in, answer out.
const maxRoundTrips = 12

const turnAgent = `apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata: {name: bench, annotations: {tuluat.ai/allow-open-code: "true"}}
spec:
  harness:
    type: BOTH
    maxSandboxes: 2
    sandbox: {imageRef: python, idleSeconds: 120}
    channels:
      - {type: WEBHOOK, name: bench, secretRef: {name: hook, key: secret}, callbackURL: %q, senders: {policy: open}}
`

// turns measures a message from its POST to the callback with its answer, with
// an instant model, through every function as a process of its own, and counts
// the SQL round trips at the wire. What the model takes is part of it: an
// instant one takes a millisecond or two.
func turns(ctx context.Context, o options, bin string, pg *localpg.Server) ([]Figure, error) {
	if err := freshDatabase(ctx, pg, "bench_turn"); err != nil {
		return nil, err
	}
	w, err := startWorld(ctx, bin, pg)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	var figures []Figure
	for _, kind := range []struct{ name, text string }{{"plain", "hello"}, {"command", "run: echo hi"}} {
		for range 5 { // processes start, caches and the sandbox warm up
			if _, err := w.turn(ctx, kind.text); err != nil {
				return nil, err
			}
		}
		say("turns: %d %s messages, one after the other", o.messages, kind.name)
		before := w.roundTrips()
		var took []float64
		for range o.messages {
			d, err := w.turn(ctx, kind.text)
			if err != nil {
				return nil, err
			}
			took = append(took, milliseconds(d))
		}
		// The last turn's own statements may still be on their way.
		time.Sleep(500 * time.Millisecond)
		trips := float64(w.roundTrips()-before) / float64(o.messages)
		slices.Sort(took)
		figures = append(figures,
			Figure{Name: "message to reply, " + kind.name + " turn: p50", Unit: "ms", Value: at(took, 0.5), Low: took[0], High: took[len(took)-1]},
			Figure{Name: "message to reply, " + kind.name + " turn: p99", Unit: "ms", Value: at(took, 0.99), Low: took[0], High: took[len(took)-1]},
		)
		count := figure("SQL round trips per "+kind.name+" turn", "", []float64{trips})
		if kind.name == "plain" {
			count = count.atMost(maxRoundTrips, "at most 12")
		}
		figures = append(figures, count)
	}
	return figures, nil
}

// world is the whole system, with the model and the receiver of replies played.
type world struct {
	url     string
	proxies []*pgproxy.Proxy
	stop    func()
	client  http.Client

	mu      sync.Mutex
	sent    int
	waiting map[string]chan time.Time // by message id
}

func startWorld(ctx context.Context, bin string, pg *localpg.Server) (*world, error) {
	w := &world{waiting: map[string]chan time.Time{}}
	receiver := httptest.NewServer(http.HandlerFunc(w.callback))
	model := httptest.NewServer(fake.NewModel(fake.ModelOptions{}))
	dir, err := os.MkdirTemp("", "tb") // short and passable: sandboxes live below
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			say("platform: %v", err)
		}
		for _, p := range w.proxies {
			p.Close()
		}
		receiver.Close()
		model.Close()
		_ = os.RemoveAll(dir)
	}
	cluster, err := w.cluster(bin, dir, pg, receiver.URL, model.URL+"/v1")
	if err != nil {
		ended <- nil
		w.stop()
		return nil, err
	}
	go func() { ended <- cluster.Run(ctx) }()
	w.url = cluster.GatewayURL() + hookPath
	if err := awaitRoute(ctx, pg.DSN("bench_turn")); err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

func (w *world) cluster(bin, dir string, pg *localpg.Server, receiver, model string) (*devcluster.Cluster, error) {
	agents, sandboxes, logs := filepath.Join(dir, "agents"), filepath.Join(dir, "sb"), filepath.Join(dir, "logs")
	for _, folder := range []string{dir, agents, sandboxes, logs} {
		if err := errors.Join(os.MkdirAll(folder, 0o711), os.Chmod(folder, 0o711)); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(agents, "bench.yaml"), fmt.Appendf(nil, turnAgent, receiver), 0o600); err != nil {
		return nil, err
	}
	root, err := checkout.Root()
	if err != nil {
		return nil, err
	}
	set, err := manifest.Read(filepath.Join(root, "config", "functions"), filepath.Join(root, "eventing"))
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(pg.DSN("bench_turn"))
	if err != nil {
		return nil, err
	}
	proxy, err := pgproxy.Listen(pgproxy.Options{Target: target.Host})
	if err != nil {
		return nil, err
	}
	w.proxies = append(w.proxies, proxy)
	dsn, err := proxy.DSN(pg.DSN("bench_turn"))
	if err != nil {
		return nil, err
	}
	secrets := map[string]string{
		"model/provider": "openai", "model/name": "instant", "model/openai-base-url": model, "model/openai-api-key": "none-needed",
	}
	return devcluster.New(devcluster.Options{
		Manifest: set, Binary: func(importPath string) string { return filepath.Join(bin, path.Base(importPath)) },
		Secret: func(name, key string) (string, bool) {
			if name == "database" {
				return dsn, true
			}
			v, ok := secrets[name+"/"+key]
			return v, ok
		},
		Env: func(*manifest.Service) map[string]string {
			return map[string]string{
				"HOOK_SECRET": hookSecret, "SECRETS": "environment", "CALLBACK_ALLOW_PRIVATE": "true", "LOG_LEVEL": "WARN", "SANDBOX_DRIVER": "local",
				"SANDBOX_LOCAL_DIR": sandboxes, "SANDBOX_LOCAL_RUNNER": filepath.Join(bin, "runner"),
			}
		},
		AgentsDir: agents, LogDir: logs, Log: slog.New(slog.DiscardHandler), IdleAfter: 5 * time.Minute,
	})
}

func awaitRoute(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		var n int
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM channel_routes`).Scan(&n); err != nil || n > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// turn sends one message and returns how long its answer took.
func (w *world) turn(ctx context.Context, text string) (time.Duration, error) {
	w.mu.Lock()
	w.sent++
	id := fmt.Sprint("m-", w.sent)
	answered := make(chan time.Time, 1)
	w.waiting[id] = answered
	w.mu.Unlock()
	body, err := json.Marshal(map[string]string{"messageId": id, "channelUserId": "user", "text": text})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	request, err := hookRequest(w.url, string(body))
	if err != nil {
		return 0, err
	}
	if err := send(ctx, &w.client, request, http.StatusAccepted); err != nil {
		return 0, err
	}
	select {
	case at := <-answered:
		return at.Sub(began), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(90 * time.Second):
		return 0, fmt.Errorf("no answer to %q in 90 s", text)
	}
}

func (w *world) callback(rw http.ResponseWriter, r *http.Request) {
	now := time.Now()
	var reply struct {
		InReplyTo string `json:"inReplyTo"`
	}
	if err := json.NewDecoder(r.Body).Decode(&reply); err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	answered := w.waiting[reply.InReplyTo]
	delete(w.waiting, reply.InReplyTo)
	w.mu.Unlock()
	if answered != nil {
		answered <- now
	}
	rw.WriteHeader(http.StatusNoContent)
}

func (w *world) roundTrips() (n int64) {
	for _, p := range w.proxies {
		n += p.RoundTrips()
	}
	return n
}
