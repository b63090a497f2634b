package reap_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"tuluat.ai/harness/functions/reaper-cron/internal/reap"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
	"tuluat.ai/harness/shared/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a database, a broker and a place where sandboxes exist.
type world struct {
	t        *testing.T
	store    *postgres.Store
	broker   *listener
	objects  *objects
	registry *prometheus.Registry
	stop     chan struct{}
	options  reap.Options
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, store: postgrestest.New(t), broker: listen(t), objects: &objects{}, registry: prometheus.NewRegistry(), stop: make(chan struct{})}
	publisher, err := function.NewPublisher(w.broker.URL, slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(publisher.Close)
	w.options = reap.Options{
		Store: w.store, Driver: w.objects, Poster: publisher, Batch: 200, Owner: "test", Log: slog.New(slog.DiscardHandler), Now: time.Now, Stop: w.stop,
	}
	return w
}

// sweep delivers one ping to a reaper with o.
func (w *world) sweep(o reap.Options) error {
	o.Metrics = prometheus.NewRegistry()
	return reap.New(o).Ping(context.Background(), event.Event{ID: "tick", Type: event.Ping})
}

// pass sweeps once and returns what the pass found, without what found nothing.
func (w *world) pass() map[string]postgres.Finding {
	w.t.Helper()
	before := query[int](w, `SELECT count(*) FROM sweep_reports WHERE completed_at > now() - interval '1 hour'`)
	if err := w.sweep(w.options); err != nil {
		w.t.Fatal(err)
	}
	if after := query[int](w, `SELECT count(*) FROM sweep_reports WHERE completed_at > now() - interval '1 hour'`); after != before+1 {
		w.t.Fatalf("%d reports of one pass", after-before)
	}
	return w.report()
}

// report is the newest report, without the items that found nothing.
func (w *world) report() map[string]postgres.Finding {
	w.t.Helper()
	var findings map[string]postgres.Finding
	if err := json.Unmarshal([]byte(query[string](w, `SELECT findings::text FROM sweep_reports ORDER BY sweep_report_id DESC LIMIT 1`)), &findings); err != nil {
		w.t.Fatal(err)
	}
	for name, f := range findings {
		if f == (postgres.Finding{}) {
			delete(findings, name)
		}
	}
	return findings
}

func (w *world) sql(statements ...string) {
	w.t.Helper()
	for _, sql := range statements {
		if _, err := w.store.Pool().Exec(context.Background(), sql); err != nil {
			w.t.Fatalf("%s: %v", sql, err)
		}
	}
}

func query[T any](w *world, sql string) (v T) {
	w.t.Helper()
	if err := w.store.Pool().QueryRow(context.Background(), sql).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// agent makes the agent "coder" that everything belongs to.
func (w *world) agent() {
	w.t.Helper()
	a := &harness.Agent{Name: "coder", Harness: harness.HarnessSpec{Enabled: true, Type: harness.HarnessBoth, Sandbox: harness.DefaultSandbox(), MaxSandboxes: 3, Channels: []harness.ChannelSpec{
		{Type: harness.ChannelWebhook, Account: "hook", CallbackURL: "http://callback.example", Senders: harness.ChannelSenders{Policy: harness.SendersOpen}},
	}}}
	if _, _, err := w.store.PutAgents(context.Background(), []postgres.AgentText{{Name: "coder", Source: "test", Agent: a}}, nil); err != nil {
		w.t.Fatal(err)
	}
}

// session makes a session with the given columns.
func (w *world) session(id, columns string) {
	w.t.Helper()
	w.sql(fmt.Sprintf(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('%[1]s', 'coder', 'WEBHOOK', 'hook', '%[1]s', 'PENDING')`, id),
		fmt.Sprintf(`UPDATE sessions SET %s WHERE session_id = '%s'`, columns, id))
}

// sandbox makes a sandbox row of a session of its own, and its object if exists.
func (w *world) sandbox(name, columns string, exists bool) {
	w.t.Helper()
	w.session("ses_of_"+name, `state = 'IDLE'`)
	w.sql(fmt.Sprintf(`INSERT INTO sandboxes (sandbox_id, sandbox_name, sandbox_uid, agent_name, session_id, spec, spec_digest, state, expires_at)
			VALUES ('sbx_%[1]s', '%[1]s', 'uid-%[1]s', 'coder', 'ses_of_%[1]s', '{"idleSeconds": 300}', 'd', 'READY', now() + interval '1 hour')`, name),
		fmt.Sprintf(`UPDATE sandboxes SET %s WHERE sandbox_id = 'sbx_%s'`, columns, name))
	if exists {
		w.objects.add(name, time.Now())
	}
}

// execution makes a command of the session.
func (w *world) execution(id, session, columns string) {
	w.t.Helper()
	w.sql(fmt.Sprintf(`INSERT INTO executions (execution_id, session_id, agent_name, cause, cause_id, command, spec, spec_digest, max_sandboxes, state, nonce)
			VALUES ('%[1]s', '%[2]s', 'coder', 'TOOL_CALL', '%[1]s', 'true', '{"idleSeconds": 300}', 'd', 3, 'PENDING', 'n')`, id, session),
		fmt.Sprintf(`UPDATE executions SET %s WHERE execution_id = '%s'`, columns, id))
}

// reply makes an outbound message with one part.
func (w *world) reply(id, session, columns string) {
	w.t.Helper()
	w.sql(fmt.Sprintf(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text) VALUES ('msg_%s', '%s', 50, 'OUTBOUND', 'DONE', 'u', 't')`, id, session),
		fmt.Sprintf(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state) VALUES ('rpl_%[1]s', 'msg_%[1]s', '%[2]s', 50, 1, 1, 't', 'PLANNED')`, id, session),
		fmt.Sprintf(`UPDATE replies SET %s WHERE reply_id = 'rpl_%s'`, columns, id))
}

func (w *world) announcement(id string, kind event.Type, subject, columns string) {
	w.t.Helper()
	w.sql(fmt.Sprintf(`INSERT INTO outbox (event_id, event_type, subject, session_id, payload, due_at) VALUES ('%s', '%s', '%s', '%[3]s', '{"session": "%[3]s"}', now())`, id, kind, subject),
		fmt.Sprintf(`UPDATE outbox SET %s WHERE event_id = '%s'`, columns, id))
}

// listener is an HTTP server that takes events.
type listener struct {
	*httptest.Server
	mu     sync.Mutex
	ids    []string
	status int           // 0: 202
	hold   chan struct{} // if not nil, requests wait for its close
}

func listen(t *testing.T) *listener {
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.ids = append(l.ids, r.Header.Get("Ce-Id"))
		status, hold := l.status, l.hold
		l.mu.Unlock()
		if hold != nil {
			<-hold
		}
		rw.WriteHeader(max(status, http.StatusAccepted))
	}))
	t.Cleanup(l.Server.Close)
	return l
}

// heard returns the ids of the events so far, sorted, and forgets them.
func (l *listener) heard() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := slices.Sorted(slices.Values(l.ids))
	l.ids = nil
	return ids
}

// objects is where sandboxes exist: the far end that the sweep compares with.
type objects struct {
	mu         sync.Mutex
	found      []sandbox.Found
	listErr    error
	terminate  func(name string) error // before anything is removed
	terminated []string
}

func (o *objects) add(name string, created time.Time) {
	o.found = append(o.found, sandbox.Found{Name: name, UID: "uid-" + name, CreatedAt: created})
}

func (o *objects) List(context.Context) ([]sandbox.Found, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.found), o.listErr
}

func (o *objects) Terminate(_ context.Context, sb sandbox.Sandbox) error {
	if o.terminate != nil {
		if err := o.terminate(sb.Name); err != nil {
			return err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.found = slices.DeleteFunc(o.found, func(f sandbox.Found) bool {
		if f.Name != sb.Name || sb.UID != "" && f.UID != sb.UID {
			return false
		}
		o.terminated = append(o.terminated, f.Name)
		return true
	})
	return nil
}

// names returns what exists, sorted.
func (o *objects) names() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for _, f := range o.found {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

var errDown = harness.Wrap(harness.Unavailable, errors.New("refused"), "the place does not answer")
