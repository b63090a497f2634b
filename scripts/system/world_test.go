//go:build system

package system_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/jackc/pgx/v5/pgxpool"

	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/scripts/internal/devcluster"
	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/scripts/internal/pgproxy"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/schema"
)

// plan says what world a test wants.
type plan struct {
	agents       []agent
	faults       devcluster.Faults
	processes    int  // per Service
	noTicks      bool // the sweep does not run
	flaky        bool // the receiver of replies fails now and then
	seed         uint64
	atWire       func(service string) (before, after func(pgproxy.Exchange) bool)
	onPublish    func(eventType string)
	lease        time.Duration
	betweenTicks time.Duration
	ageing       time.Duration                               // how much older announcements get with every tick
	people       *crowd                                      // who is on WhatsApp and Telegram; nil: nobody
	script       *fake.Script                                // of the model, before what it says by itself; nil: none
	gated        bool                                        // the broker can be shut off
	archived     bool                                        // old log entries go to a bucket
	atModel      func(http.Handler) http.Handler             // what stands before the model; nil: nothing
	program      func(name string) string                    // the program of a function; nil or empty: as it is built now
	migrate      func(ctx context.Context, dsn string) error // makes the schema; nil: the newest
	more         func(service string, env map[string]string) // of the environment of a Service; nil: nothing
	traces       string                                      // where spans go; empty: nowhere
}

// hooks are the agents with a webhook.
func (p plan) hooks() []agent {
	all := slices.Clone(p.agents)
	if p.people != nil {
		for _, a := range p.people.askers {
			if a.hook.name != "" {
				all = append(all, a.hook)
			}
		}
	}
	return all
}

// world is the whole system on this machine, with everything outside it played.
type world struct {
	t        *testing.T
	plan     plan
	dir      string // logs and state; kept when the test fails
	sandboxs string // local sandboxes: a short path that others may pass
	evidence string // what commands leave, written by them through a bind

	server   *localpg.Server
	dsn      string                    // of the database, past every proxy; its port may change
	proxies  map[string]*pgproxy.Proxy // by Service
	own      *pgproxy.Proxy            // this test's, so that a restarted server is found
	db       *pgxpool.Pool
	model    *fake.Model
	modelURL string
	provider harness.Provider // whose wire the model speaks
	receiver *receiver
	set      *manifest.Set
	people   *messengers // nil: nobody is on WhatsApp and Telegram
	gate     *gate       // nil: functions reach the broker themselves
	bucket   *bucket     // nil: nothing is archived
	still    atomic.Bool // nobody ticks

	cluster *devcluster.Cluster
	stop    func() // of the cluster and its ticks
}

const (
	database = "tuluat"
	reaper   = "reaper" // the PingSource of the sweep
)

func newWorld(t *testing.T, p plan) *world {
	t.Helper()
	if p.lease == 0 {
		p.lease = 2 * time.Second
	}
	if p.betweenTicks == 0 {
		p.betweenTicks = time.Second
	}
	p.processes = max(p.processes, 1)
	w := &world{t: t, plan: p, proxies: map[string]*pgproxy.Proxy{}}
	bin := programDir(t)
	w.folders()
	w.startDatabase()
	home, err := checkout.Root()
	w.must(err)
	w.set, err = manifest.Read(filepath.Join(home, "config", "functions"), filepath.Join(home, "eventing"))
	w.must(err)
	for _, service := range w.set.Services {
		o := pgproxy.Options{Target: w.serverAddr()}
		if p.atWire != nil {
			o.Before, o.After = p.atWire(service.Name)
		}
		w.proxies[service.Name], err = pgproxy.Listen(o)
		w.must(err)
		t.Cleanup(w.proxies[service.Name].Close)
	}
	w.receiver = newReceiver(t, p.hooks(), p.seed, p.flaky)
	w.startModel()
	if p.archived {
		w.bucket = newBucket(w)
	}
	w.must(writeAgents(w.agentsDir(), p.agents, w.receiver.url))
	if p.gated {
		w.gate = newGate(w)
	}
	if p.people != nil {
		w.people = newMessengers(w, p.people)
	}
	w.start(bin)
	if w.people != nil {
		w.people.connect()
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// folders makes the world's folders. Sandboxes run as another user, who must be
// able to pass the folders above theirs.
func (w *world) folders() {
	dir, err := os.MkdirTemp("", "tuluat-system-")
	w.must(err)
	w.dir = dir
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("logs and state are kept in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			w.t.Error(err)
		}
	})
	w.must(os.Chmod(dir, 0o711))
	w.sandboxs, w.evidence = filepath.Join(dir, "sb"), filepath.Join(dir, "evidence")
	for _, folder := range []string{w.sandboxs, w.evidence, w.agentsDir(), w.logDir()} {
		w.must(os.Mkdir(folder, 0o711))
	}
	w.must(os.Chmod(w.evidence, 0o777))
	for _, file := range []string{startsFile, endsFile} {
		name := filepath.Join(w.evidence, file)
		w.must(os.WriteFile(name, nil, 0o666))
		w.must(os.Chmod(name, 0o666))
	}
}

func (w *world) agentsDir() string { return filepath.Join(w.dir, "agents") }
func (w *world) logDir() string    { return filepath.Join(w.dir, "logs") }

func (w *world) launchDatabase() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	server, err := localpg.Start(ctx, localpg.Options{Dir: filepath.Join(w.dir, "postgres"), Log: filepath.Join(w.logDir(), "postgres.log")})
	if err == nil {
		w.server = server
	}
	return err
}

// startDatabase starts a server that keeps what it commits, also when it dies.
func (w *world) startDatabase() {
	w.must(w.launchDatabase())
	w.dsn = w.server.DSN(database)
	w.t.Cleanup(func() {
		if err := w.server.Stop(); err != nil {
			w.t.Error(err)
		}
	})
	var err error
	w.own, err = pgproxy.Listen(pgproxy.Options{Target: w.serverAddr()})
	w.must(err)
	w.t.Cleanup(w.own.Close)
	ctx := w.t.Context()
	admin := w.pool("postgres")
	_, err = admin.Exec(ctx, "CREATE DATABASE "+database)
	admin.Close()
	w.must(err)
	if w.plan.migrate == nil {
		w.plan.migrate = migrate
	}
	w.must(w.plan.migrate(ctx, w.dsn))
	w.db = w.pool(database)
	w.t.Cleanup(w.db.Close)
}

// migrate brings a database to the newest schema.
func migrate(ctx context.Context, dsn string) error {
	return schema.Migrate(ctx, harness.Secret(dsn), slog.New(slog.DiscardHandler))
}

func (w *world) pool(name string) *pgxpool.Pool {
	dsn, err := w.own.DSN(w.server.DSN(name))
	w.must(err)
	pool, err := pgxpool.New(w.t.Context(), dsn)
	w.must(err)
	return pool
}

func (w *world) serverAddr() string {
	u, err := url.Parse(w.server.DSN(database))
	w.must(err)
	return u.Host
}

// crashDatabase ends the server as a crash does, without writing anything, and
// starts it again.
func (w *world) crashDatabase() error {
	if err := w.endDatabase(); err != nil {
		return err
	}
	return w.reviveDatabase()
}

func (w *world) endDatabase() error {
	text, err := os.ReadFile(filepath.Join(w.dir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		return err
	}
	<-w.server.Exited()
	return nil
}

func (w *world) reviveDatabase() error {
	if err := w.launchDatabase(); err != nil {
		return err
	}
	for _, p := range w.proxies {
		p.SetTarget(w.serverAddr())
	}
	w.own.SetTarget(w.serverAddr())
	return nil
}

// start runs the platform until the world's stop is called or the test ends,
// and returns when every agent can be talked to.
func (w *world) start(bin string) {
	w.t.Helper()
	log, err := os.OpenFile(filepath.Join(w.logDir(), "platform.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	w.must(err)
	w.cluster, err = devcluster.New(devcluster.Options{
		Manifest: w.set,
		Binary: func(importPath string) string {
			if w.plan.program != nil {
				if own := w.plan.program(path.Base(importPath)); own != "" {
					return own
				}
			}
			return filepath.Join(bin, path.Base(importPath))
		},
		Secret:    w.secret,
		Env:       func(s *manifest.Service) map[string]string { return w.env(s, bin) },
		AgentsDir: w.agentsDir(),
		LogDir:    w.logDir(),
		Log:       slog.New(slog.NewTextHandler(log, nil)),
		Processes: w.plan.processes,
		Faults:    w.plan.faults,
		OnPublish: w.published,
	})
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.cluster.Run(ctx); err != nil {
			w.t.Error("the platform: ", err)
		}
	})
	if !w.plan.noTicks {
		running.Go(func() { w.tick(ctx) })
	}
	w.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := log.Close(); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(w.stop)
	w.awaitRoutes()
}

// tick plays the sweep's PingSource faster than the minute its YAML can say.
func (w *world) tick(ctx context.Context) {
	ticker := time.NewTicker(w.plan.betweenTicks)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if w.still.Load() {
				continue
			}
			w.age(ctx)
			_ = w.cluster.Tick(ctx, reaper) // a killed sweep is one of the things that happen
		}
	}
}

// age makes time pass faster for what waits to be announced again, which takes
// half a minute and more by itself, or to be forgotten because a claim has crossed
// it, which takes ten. Clocks and leases are left alone, and so is
// what somebody has locked: they lock in an order of their own. While the database
// is down nothing ages.
func (w *world) age(ctx context.Context) {
	if w.plan.ageing == 0 {
		return
	}
	for _, sql := range []string{
		`UPDATE outbox SET due_at = due_at - $1::interval, created_at = created_at - $1::interval WHERE event_id IN (SELECT event_id FROM outbox FOR UPDATE SKIP LOCKED)`,
		`UPDATE sessions SET due_at = due_at - $1::interval, announced_at = announced_at - $1::interval
			WHERE session_id IN (SELECT session_id FROM sessions WHERE due_at IS NOT NULL AND lease_owner IS NULL FOR NO KEY UPDATE SKIP LOCKED)`,
	} {
		if _, err := w.db.Exec(ctx, sql, w.plan.ageing); err != nil {
			return
		}
	}
}

// awaitRoutes returns when agent-status has let every agent in.
func (w *world) awaitRoutes() {
	w.t.Helper()
	w.await(time.Minute, "agents are known", func() (bool, string) {
		var n int
		if err := w.db.QueryRow(w.t.Context(), "SELECT count(*) FROM channel_routes WHERE channel <> 'API'").Scan(&n); err != nil {
			return false, err.Error()
		}
		want := len(w.plan.hooks())
		if w.people != nil {
			want += messengerAccounts * (1 + len(w.plan.people.askers))
		}
		return n == want, fmt.Sprintf("%d of %d routes", n, want)
	})
}

// await asks until done says yes.
func (w *world) await(patience time.Duration, what string, done func() (bool, string)) {
	w.t.Helper()
	if state, ok := w.wait(patience, done); !ok {
		w.t.Fatalf("after %s not: %s (%s)", patience, what, state)
	}
}

func (w *world) wait(patience time.Duration, done func() (bool, string)) (string, bool) {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		ok, state := done()
		if ok {
			return state, true
		}
		select {
		case <-deadline.C:
			return state, false
		case <-again.C:
		}
	}
}

// secret is a Secret's key, as the platform would have it.
func (w *world) secret(name, key string) (string, bool) {
	if name == "database" {
		return w.dsn, true // replaced per Service by env
	}
	value, ok := map[string]string{
		"model/provider": string(w.provider),
		"model/name":     "tuluat-stand-in",
		"model/" + string(w.provider) + "-base-url": w.modelURL,
		"model/" + string(w.provider) + "-api-key":  modelKey,
	}[name+"/"+key]
	return value, ok
}

// env is what one machine needs beside the YAML, with waits shortened: a lease
// that a killed process leaves behind is what the rest of a turn waits for.
func (w *world) env(s *manifest.Service, bin string) map[string]string {
	env := map[string]string{"LEASE": w.plan.lease.String(), "LOG_LEVEL": "INFO"}
	dsn, err := w.proxies[s.Name].DSN(w.dsn)
	if err != nil {
		w.t.Error(err)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		w.t.Error(err)
		return env
	}
	if w.plan.traces != "" {
		env["OTEL_EXPORTER_OTLP_ENDPOINT"] = w.plan.traces
	}
	query := u.Query() // as its own role, with the least it needs
	query.Set("role", "tuluat_"+strings.ReplaceAll(s.Function(), "-", "_"))
	u.RawQuery = query.Encode()
	env["DATABASE_URL"] = u.String()
	if w.gate != nil {
		env["BROKER_URL"] = w.gate.url
	}
	if w.people != nil {
		w.people.env(s.Function(), env)
	}
	if w.bucket != nil {
		w.bucket.env(s.Function(), env)
	}
	switch s.Function() {
	case "agent-step": // whose agents may be peers of each other, as ann
		env["SECRETS"], env["REMOTE_ALLOW_PRIVATE"] = "environment", "true"
		env["PEER_HEADERS"] = "Authorization: Bearer " + tokenOf("ann")
	case "whatsapp-ingest", "telegram-ingest", "agent-status":
		env["SECRETS"] = "environment"
	case "management-api":
		env["ACCESS"], env["MANAGEMENT_TOKEN"] = "static", apiTokens
	case "webhook-ingest":
		env["CALLBACK_ALLOW_PRIVATE"], env["SECRETS"] = "true", "environment"
		for _, a := range w.plan.hooks() {
			env[a.secretVariable()] = a.key.Reveal()
		}
	case "reaper-cron":
		env["STAY"] = "0"
		w.sandboxEnv(env, bin)
	case "sandbox-exec":
		w.sandboxEnv(env, bin)
	}
	if w.plan.more != nil {
		w.plan.more(s.Name, env)
	}
	return env
}

func (w *world) sandboxEnv(env map[string]string, bin string) {
	env["SANDBOX_DRIVER"] = "local"
	env["SANDBOX_LOCAL_DIR"] = w.sandboxs
	env["SANDBOX_LOCAL_RUNNER"] = filepath.Join(bin, "runner")
	env["SANDBOX_LOCAL_BINDS"] = w.evidence + ":" + insideEvidence
}

func (w *world) published(e cloudevents.Event) {
	if w.plan.onPublish != nil {
		w.plan.onPublish(e.Type())
	}
}
