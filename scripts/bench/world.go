package main

import (
	"cmp"
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
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/scripts/internal/devcluster"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/scripts/internal/pgproxy"
	"tuluat.ai/harness/shared/harness"
)

const benchAgent = `apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata: {name: bench, annotations: {tuluat.ai/allow-open-code: "true"}}
spec:
  harness:
    type: BOTH
    maxSandboxes: 10
    sandbox: {imageRef: python, memory: 1Gi, volumeSize: 512Mi, idleSeconds: 120}
    channels:
      - {type: WEBHOOK, name: bench, secretRef: {name: hook, key: secret}, callbackURL: %q, senders: {policy: open}}
`

// worldOptions say what is special about a world.
type worldOptions struct {
	database string
	model    http.Handler
	counted  bool          // every function's statements pass a proxy that counts them
	profile  string        // folder for CPU profiles of functions; empty: none
	idle     time.Duration // after which a process is stopped; 0: 5 minutes
	always   bool          // a process of every Service is kept
	output   int           // bytes of a stream that are stored; 0: as usual
}

// world is the whole system on one machine, every function a process of its own,
// with the model and the receiver of replies played by this one.
type world struct {
	url     string
	cluster *devcluster.Cluster
	proxies map[string]*pgproxy.Proxy // by function
	stop    func()
	client  http.Client

	mu      sync.Mutex
	sent    int
	waiting map[string]chan time.Time // by message id
}

func startWorld(ctx context.Context, bin string, pg *localpg.Server, o worldOptions) (*world, error) {
	if err := freshDatabase(ctx, pg, o.database); err != nil {
		return nil, err
	}
	w := &world{waiting: map[string]chan time.Time{}, proxies: map[string]*pgproxy.Proxy{}}
	w.client.Transport = &http.Transport{MaxIdleConnsPerHost: 1000}
	receiver := httptest.NewServer(http.HandlerFunc(w.callback))
	model := httptest.NewServer(o.model)
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
		w.client.CloseIdleConnections()
		receiver.Close()
		model.Close()
		_ = os.RemoveAll(dir)
	}
	if err := w.wire(bin, dir, pg, receiver.URL, model.URL+"/v1", o); err != nil {
		ended <- nil
		w.stop()
		return nil, err
	}
	go func() { ended <- w.cluster.Run(ctx) }()
	w.url = w.cluster.GatewayURL() + hookPath
	if err := awaitRoute(ctx, pg.DSN(o.database)); err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

func (w *world) wire(bin, dir string, pg *localpg.Server, receiver, model string, o worldOptions) error {
	agents, sandboxes, logs := filepath.Join(dir, "agents"), filepath.Join(dir, "sb"), filepath.Join(dir, "logs")
	for _, folder := range []string{dir, agents, sandboxes, logs} {
		if err := errors.Join(os.MkdirAll(folder, 0o711), os.Chmod(folder, 0o711)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(agents, "bench.yaml"), fmt.Appendf(nil, benchAgent, receiver), 0o600); err != nil {
		return err
	}
	root, err := checkout.Root()
	if err != nil {
		return err
	}
	set, err := manifest.Read(filepath.Join(root, "config", "functions"), filepath.Join(root, "eventing"))
	if err != nil {
		return err
	}
	if o.idle > 0 {
		set.Pings = nil // ticks are measured apart
	}
	for _, service := range set.Services {
		if o.always {
			service.Spec.Template.Annotations[manifest.MinScale] = "1"
		}
	}
	dsns := map[string]string{}
	for _, f := range functions {
		dsns[f] = pg.DSN(o.database)
		if !o.counted {
			continue
		}
		target, err := url.Parse(dsns[f])
		if err != nil {
			return err
		}
		if w.proxies[f], err = pgproxy.Listen(pgproxy.Options{Target: target.Host}); err != nil {
			return err
		}
		if dsns[f], err = w.proxies[f].DSN(dsns[f]); err != nil {
			return err
		}
	}
	secrets := map[string]string{
		"model/provider": "openai", "model/name": "instant", "model/openai-base-url": model, "model/openai-api-key": "none-needed",
	}
	w.cluster, err = devcluster.New(devcluster.Options{
		Manifest: set, Binary: func(importPath string) string { return filepath.Join(bin, path.Base(importPath)) },
		Secret: func(name, key string) (string, bool) {
			if name == "database" {
				dsn, ok := dsns[key]
				return dsn, ok
			}
			v, ok := secrets[name+"/"+key]
			return v, ok
		},
		Env: func(*manifest.Service) map[string]string {
			env := map[string]string{
				"HOOK_SECRET": hookSecret, "SECRETS": "environment", "CALLBACK_ALLOW_PRIVATE": "true", "LOG_LEVEL": "WARN", "SANDBOX_DRIVER": "local",
				"SANDBOX_LOCAL_DIR": sandboxes, "SANDBOX_LOCAL_RUNNER": filepath.Join(bin, "runner"),
			}
			if o.output > 0 {
				env["MAX_OUTPUT_BYTES"] = strconv.Itoa(o.output)
			}
			if o.profile != "" {
				env["CPU_PROFILE_DIR"] = o.profile
			}
			return env
		},
		AgentsDir: agents, LogDir: logs, Log: slog.New(slog.DiscardHandler), IdleAfter: cmp.Or(o.idle, 5*time.Minute),
	})
	return err
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
		var wrong string
		if err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM channel_routes), COALESCE((SELECT phase || ': ' || reason FROM agents WHERE phase <> 'READY' LIMIT 1), '')`).Scan(&n, &wrong); err != nil {
			return err
		}
		if n > 0 && wrong != "" { // each message would be refused, which is no turn
			return fmt.Errorf("the bench's agent is %s", wrong)
		}
		if n > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// turn sends one message of a person and returns how long its answer took.
func (w *world) turn(ctx context.Context, user, text string) (time.Duration, error) {
	w.mu.Lock()
	w.sent++
	id := fmt.Sprint("m-", w.sent)
	answered := make(chan time.Time, 1)
	w.waiting[id] = answered
	w.mu.Unlock()
	body, err := json.Marshal(map[string]string{"messageId": id, "channelUserId": user, "text": text})
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
	late := time.NewTimer(90 * time.Second)
	defer late.Stop()
	select {
	case at := <-answered:
		return at.Sub(began), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-late.C:
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

// wire is what the functions have sent to the database and heard from it.
type traffic struct {
	trips, bytes int64
	by           map[string]int64 // round trips by function
}

func (w *world) traffic() traffic {
	t := traffic{by: map[string]int64{}}
	for name, p := range w.proxies {
		t.by[name] = p.RoundTrips()
		t.trips, t.bytes = t.trips+p.RoundTrips(), t.bytes+p.Bytes()
	}
	return t
}

// instant is a model that answers the same at once.
var instant = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	var question struct{ Model string }
	if err := json.NewDecoder(r.Body).Decode(&question); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,"finish_reason":"stop",`+
		`"message":{"role":"assistant","content":"Hello. What can I do for you?"}}],"usage":{"prompt_tokens":20,"completion_tokens":8,"total_tokens":28}}`, question.Model)
})

// commands is a model that has every message run as a command, and then answers.
var commands = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	var question struct {
		Model    string
		Messages []struct {
			Role    string
			Content json.RawMessage // a text, or parts with a text
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&question); err != nil || len(question.Messages) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	last := question.Messages[len(question.Messages)-1]
	message, reason := map[string]any{"role": "assistant", "content": "done"}, "stop"
	if last.Role == "user" {
		var text string
		var parts []struct{ Text string }
		if json.Unmarshal(last.Content, &text) != nil && json.Unmarshal(last.Content, &parts) == nil && len(parts) > 0 {
			text = parts[0].Text
		}
		arguments, _ := json.Marshal(map[string]string{"command": text}) // of strings: it cannot fail
		message, reason = map[string]any{"role": "assistant", "tool_calls": []any{map[string]any{
			"id": "call_" + strconv.Itoa(len(question.Messages)), "type": "function", "function": map[string]string{"name": harness.ToolExecuteShell, "arguments": string(arguments)},
		}}}, "tool_calls"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // its reader may be gone
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": question.Model,
		"choices": []any{map[string]any{"index": 0, "finish_reason": reason, "message": message}}, "usage": map[string]int{"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28},
	})
})
