package functiontest

import (
	"context"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// Database is a migrated database of one test. A statement that fails is fatal.
type Database struct {
	T     testing.TB
	DSN   harness.Secret
	Store *postgres.Store
}

// NewDatabase needs TEST_DATABASE_URL, as postgrestest does.
func NewDatabase(t testing.TB) *Database {
	t.Helper()
	d := &Database{T: t, DSN: postgrestest.DSN(t)}
	var err error
	if d.Store, err = postgres.Open(d.DSN, postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Store.Close)
	return d
}

// Exec runs one statement.
func (d *Database) Exec(sql string, args ...any) {
	d.T.Helper()
	if _, err := d.Store.Pool().Exec(context.Background(), sql, args...); err != nil {
		d.T.Fatal(err)
	}
}

// Query returns one value that the statement gives as text; NULL is "", no row is
// fatal.
func (d *Database) Query(sql string, args ...any) string {
	d.T.Helper()
	var value *string
	if err := d.Store.Pool().QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		d.T.Fatal(err)
	}
	if value == nil {
		return ""
	}
	return *value
}

// Await repeats a Query until it gives want; after 30 seconds it is fatal.
func (d *Database) Await(want, sql string, args ...any) {
	d.T.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got := d.Query(sql, args...)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			d.T.Fatalf("%s gives %q, never %q", sql, got, want)
		}
	}
}

// Agents adds agents that are READY, at revision 1, with nothing but a name.
func (d *Database) Agents(names ...string) {
	d.T.Helper()
	d.Exec(`INSERT INTO agents (agent_name, revision, phase, digest) SELECT unnest($1::text[]), 1, 'READY', 'd'`, names)
	d.Exec(`INSERT INTO agent_revisions (agent_name, revision, spec) SELECT agent_name, 1, jsonb_build_object('name', agent_name) FROM unnest($1::text[]) agent_name`, names)
}

// Route leads the channel and account of spec to agent. Senders other than
// allowed, if any, are denied.
func (d *Database) Route(agent string, spec harness.ChannelSpec, allowed ...string) {
	d.T.Helper()
	d.Exec(`INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all, senders) VALUES ($1, $2, $3, $4, $5, $6)`,
		spec.Type, spec.Account, agent, spec, len(allowed) == 0, append([]string{}, allowed...))
}

// PlanReply answers the one message of the database with text, as a step does,
// but under ids known beforehand: the message msg_out, of one reply, rpl_1. It
// returns its announcement and the message answered.
func (d *Database) PlanReply(text string) (announcement event.Event, answered harness.MessageID) {
	d.T.Helper()
	e := event.Event{ID: "e1", Type: event.MessageReply, Payload: event.Payload{Message: "msg_out"}}
	if err := d.Store.Pool().QueryRow(context.Background(), `SELECT session_id, agent_name, channel, message_id FROM sessions JOIN messages USING (session_id)`).
		Scan(&e.Session, &e.Agent, &e.Channel, &answered); err != nil {
		d.T.Fatal(err)
	}
	e.Payload.Session = e.Session
	d.Exec(`INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, text, in_reply_to) SELECT 'msg_out', session_id, 2, 'OUTBOUND', 'DONE', channel_user_id, 'x', message_id FROM messages`)
	d.Exec(`INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, due_at) VALUES ('rpl_1', 'msg_out', $1, 2, 1, 1, $2, 'PLANNED', now())`, e.Session, text)
	d.Exec(`UPDATE messages SET state = 'DONE' WHERE message_id = $1`, answered)
	return e, answered
}
