package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
)

const (
	leastHistory  = 1000
	historyCost   = 1.2 // a turn's time on the most history to that on the least, at most
	flatSlope     = 0.1 // of what must not grow, at most
	perSession    = 20  // messages of a conversation of the history
	ownShare      = 10  // one in so many messages is of one conversation
	mostAgents    = 10_000
	growthTurns   = 40
	mostSandboxes = 10 // that an agent may have
)

// growth measures what a turn costs beside more and more history, agents and
// sandboxes. The least history and the growing one are measured in turn, by the
// same functions.
func growth(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	least, err := startGrown(ctx, bin, pg, "bench_least")
	if err != nil {
		return nil, err
	}
	defer least.stop()
	if err := least.grow(ctx, leastHistory); err != nil {
		return nil, err
	}
	grown, err := startGrown(ctx, bin, pg, "bench_grown")
	if err != nil {
		return nil, err
	}
	defer grown.stop()
	var figures []figure.Figure
	var messages, times, rows, held []float64
	for n := leastHistory; n <= max(o.growth, leastHistory); n *= 10 {
		say("growth: making %d messages", n)
		if err := grown.grow(ctx, n); err != nil {
			return nil, err
		}
		f, m, err := compareGrown(ctx, least, grown, fmt.Sprintf("%d messages", n))
		if err != nil {
			return nil, err
		}
		f[2] = f[2].AtMost(historyCost, "at most 1.2")
		figures = append(figures, f...)
		messages, times, rows, held = append(messages, float64(n)), append(times, m.time), append(rows, m.rows), append(held, m.held)
	}
	sizes, err := grown.sizes(ctx, float64(grown.messages))
	if err != nil {
		return nil, err
	}
	figures = append(append(figures, slopes("messages", messages, times, rows, held)...), sizes...)
	more, err := manyAgents(ctx, least, grown)
	if err != nil {
		return nil, err
	}
	figures = append(figures, more...)
	more, err = manySandboxes(ctx, bin, pg)
	return append(figures, more...), err
}

// slopes says how each thing grows with x: 0 not at all, 1 as x does.
func slopes(of string, x, times, rows, held []float64) []figure.Figure {
	if len(x) < 2 {
		return nil
	}
	return []figure.Figure{
		figure.Of("slope of a turn's time over "+of+", both logarithmic", "", figure.Slope(x, times)).AtMost(flatSlope, "at most 0.1"),
		figure.Of("slope of a turn's rows read over "+of, "", figure.Slope(x, rows)).AtMost(flatSlope, "at most 0.1"),
		figure.Of("slope of the functions' memory over "+of, "", figure.Slope(x, held)).AtMost(flatSlope, "at most 0.1"),
	}
}

// grownWorld is a world whose database has a history.
type grownWorld struct {
	*world
	conn     *pgx.Conn
	messages int // made so far
	agents   int
	runs     int
	own      string // a person with a tenth of all messages in one conversation
}

func startGrown(ctx context.Context, bin string, pg *localpg.Server, database string) (*grownWorld, error) {
	w, err := startWorld(ctx, bin, pg, worldOptions{database: database, model: instant})
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, pg.DSN(database))
	if err != nil {
		w.stop()
		return nil, err
	}
	g := &grownWorld{world: w, conn: conn, own: "talks-much"}
	stop := w.stop
	g.world.stop = func() {
		_ = conn.Close(context.WithoutCancel(ctx))
		stop()
	}
	for range 3 {
		if _, err := g.turn(ctx, g.own, "hello"); err != nil {
			g.stop()
			return nil, err
		}
	}
	return g, nil
}

// historySQL makes conversations $1 to $2, of a year, that have ended. Triggers
// and references are off meanwhile: the statements keep them.
const historySQL = `
INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, message_seq, event_seq, step_seq, idle_seconds, traceparent, created_at, updated_at, ended_at)
SELECT made_session(n), 'bench', 'WEBHOOK', 'bench', 'made-' || n, 'COMPLETED', %[3]d, %[3]d, %[3]d / 2, 86400, '', made_at(n), made_at(n), made_at(n) FROM generate_series(%[1]d, %[2]d) n;
INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, provider_id, text, in_reply_to, created_at)
SELECT made_message(n, s), made_session(n), s, CASE WHEN s %% 2 = 1 THEN 'INBOUND' ELSE 'OUTBOUND' END, 'DONE', 'made-' || n, 'made/' || n || '/' || s,
       CASE WHEN s %% 2 = 1 THEN 'please look at case ' || n ELSE 'case ' || n || ' is in order, nothing needs to be done about it' END, CASE WHEN s %% 2 = 0 THEN made_message(n, s - 1) END, made_at(n)
FROM generate_series(%[1]d, %[2]d) n, generate_series(1, %[3]d) s;
INSERT INTO inbox (channel, account, provider_id, message_id, received_at)
SELECT 'WEBHOOK', 'bench', 'made/' || n || '/' || s, made_message(n, s), made_at(n) FROM generate_series(%[1]d, %[2]d) n, generate_series(1, %[3]d, 2) s;
INSERT INTO steps (step_id, session_id, message_id, seq, text, model, input_tokens, output_tokens, created_at)
SELECT 'stp' || substr(made_message(n, s), 4), made_session(n), made_message(n, s), (s + 1) / 2, 'case ' || n || ' is in order, nothing needs to be done about it', 'instant', 20, 8, made_at(n)
FROM generate_series(%[1]d, %[2]d) n, generate_series(1, %[3]d, 2) s;
INSERT INTO model_attempts (session_id, agent_name, message_id, step_seq, attempts, purpose, provider, model, input_tokens, output_tokens, millis, created_at)
SELECT made_session(n), 'bench', made_message(n, s), (s + 1) / 2, 1, 'TURN', 'openai', 'instant', 20, 8, 1, made_at(n) FROM generate_series(%[1]d, %[2]d) n, generate_series(1, %[3]d, 2) s;
INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, reason, created_at, updated_at)
SELECT 'rpl' || substr(made_message(n, s), 4), made_message(n, s), made_session(n), s, 1, 1, 'case ' || n || ' is in order, nothing needs to be done about it', 'DELIVERED', '', made_at(n), made_at(n)
FROM generate_series(%[1]d, %[2]d) n, generate_series(2, %[3]d, 2) s;
INSERT INTO session_events (session_id, seq, kind, ref, created_at)
SELECT made_session(n), s, CASE WHEN s %% 2 = 1 THEN 'TURN' ELSE 'REPLY' END, made_message(n, s), made_at(n) FROM generate_series(%[1]d, %[2]d) n, generate_series(1, %[3]d) s`

// ownSQL makes a conversation that goes on longer by %[1]d messages.
const ownSQL = `
CREATE TEMP TABLE own AS SELECT session_id, message_seq, event_seq, step_seq FROM sessions WHERE session_id = (SELECT session_id FROM messages WHERE channel_user_id = '%[2]s' LIMIT 1);
INSERT INTO messages (message_id, session_id, seq, direction, state, channel_user_id, provider_id, text, in_reply_to, created_at)
SELECT 'msg_own_' || message_seq + s, session_id, message_seq + s, CASE WHEN s %% 2 = 1 THEN 'INBOUND' ELSE 'OUTBOUND' END, 'DONE', '%[2]s', 'own/' || message_seq + s, 'what we talked about at ' || s,
       CASE WHEN s %% 2 = 0 THEN 'msg_own_' || message_seq + s - 1 END, now() FROM own, generate_series(1, %[1]d) s;
INSERT INTO steps (step_id, session_id, message_id, seq, text, model, input_tokens, output_tokens, created_at)
SELECT 'stp_own_' || message_seq + s, session_id, 'msg_own_' || message_seq + s, step_seq + (s + 1) / 2, 'what we talked about', 'instant', 20, 8, now() FROM own, generate_series(1, %[1]d, 2) s;
INSERT INTO model_attempts (session_id, agent_name, message_id, step_seq, attempts, purpose, provider, model, input_tokens, output_tokens, millis, created_at)
SELECT session_id, 'bench', 'msg_own_' || message_seq + s, step_seq + (s + 1) / 2, 1, 'TURN', 'openai', 'instant', 20, 8, 1, now() - interval '1 hour' FROM own, generate_series(1, %[1]d, 2) s;
INSERT INTO replies (reply_id, message_id, session_id, seq, part, parts, text, state, reason, created_at, updated_at)
SELECT 'rpl_own_' || message_seq + s, 'msg_own_' || message_seq + s, session_id, message_seq + s, 1, 1, 'what we talked about', 'DELIVERED', '', now(), now() FROM own, generate_series(2, %[1]d, 2) s;
INSERT INTO session_events (session_id, seq, kind, ref, created_at)
SELECT session_id, event_seq + s, CASE WHEN s %% 2 = 1 THEN 'TURN' ELSE 'REPLY' END, 'msg_own_' || message_seq + s, now() FROM own, generate_series(1, %[1]d) s;
UPDATE sessions SET message_seq = sessions.message_seq + %[1]d, event_seq = sessions.event_seq + %[1]d, step_seq = sessions.step_seq + %[1]d / 2 FROM own WHERE sessions.session_id = own.session_id;
DROP TABLE own`

const madeSQL = `
CREATE FUNCTION made_session(n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'ses_0' || to_char(n, 'FM0000000000') $$;
CREATE FUNCTION made_message(n int, s int) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'msg_0' || to_char(n, 'FM0000000000') || to_char(s, 'FM000') $$;
CREATE FUNCTION made_at(n int) RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT now() - interval '365 days' + n * interval '10 seconds' $$`

// grow adds history up to so many messages in all.
func (g *grownWorld) grow(ctx context.Context, messages int) error {
	if g.messages == 0 {
		if _, err := g.conn.Exec(ctx, madeSQL); err != nil {
			return err
		}
	}
	more := messages - g.messages
	own := max(more/ownShare, 2) / 2 * 2
	first, last := g.messages/perSession, (messages-own)/perSession
	if _, err := g.conn.Exec(ctx, `SET session_replication_role = replica; SET statement_timeout = 0`); err != nil {
		return err
	}
	// In pieces, so that no transaction is larger than the server's memory likes.
	const piece = 20_000
	for from := first; from < last; from += piece {
		if _, err := g.conn.Exec(ctx, fmt.Sprintf(historySQL, from, min(from+piece, last)-1, perSession)); err != nil {
			return err
		}
	}
	if _, err := g.conn.Exec(ctx, fmt.Sprintf(ownSQL, own, g.own)); err != nil {
		return err
	}
	g.messages = messages
	_, err := g.conn.Exec(ctx, `RESET session_replication_role; ANALYZE; CHECKPOINT`)
	return err
}

// grownCost is what turns on a history cost.
type grownCost struct {
	time, rows, held float64 // milliseconds, the median; rows read per turn; bytes that functions hold
}

// reads is how many rows the database has read so far.
func (g *grownWorld) reads(ctx context.Context) (n float64, err error) {
	time.Sleep(1200 * time.Millisecond) // until the sessions have said what they read
	err = g.conn.QueryRow(ctx, `SELECT sum(COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0))::float8 FROM pg_stat_user_tables`).Scan(&n)
	return n, err
}

// compareGrown measures turns on the least history and on the other, in turn:
// half of new people, half of one who has talked much.
func compareGrown(ctx context.Context, least, grown *grownWorld, name string) ([]figure.Figure, grownCost, error) {
	say("growth: %d turns beside %s", growthTurns, name)
	for _, g := range []*grownWorld{least, grown} {
		g.runs++
		for range 3 { // what the load has pushed out of memory is read again
			if _, err := g.turn(ctx, g.own, "hello"); err != nil {
				return nil, grownCost{}, err
			}
		}
	}
	before, err := grown.reads(ctx)
	if err != nil {
		return nil, grownCost{}, err
	}
	var base, took, ratio []float64
	for n := range growthTurns {
		var ms [2]float64
		for i, g := range []*grownWorld{least, grown} {
			person := g.own
			if n%2 == 0 {
				person = fmt.Sprintf("new-%d-%d", g.runs, n)
			}
			d, err := g.turn(ctx, person, "hello")
			if err != nil {
				return nil, grownCost{}, err
			}
			ms[i] = figure.Milliseconds(d)
		}
		base, took, ratio = append(base, ms[0]), append(took, ms[1]), append(ratio, ms[1]/ms[0])
	}
	after, err := grown.reads(ctx)
	if err != nil {
		return nil, grownCost{}, err
	}
	_, held, err := functionsRunning()
	ours := figure.Of("a turn beside "+name, "ms", took...)
	c := grownCost{time: ours.Value, rows: math.Max((after-before)/growthTurns, 1), held: held / 2} // of two worlds
	return []figure.Figure{
		ours,
		figure.Of("a turn beside 1000 messages, in turn with it", "ms", base...),
		figure.Of("a turn beside "+name+" / beside 1000", "ratio", ratio...),
		figure.Of("rows read by a turn beside "+name, "", c.rows),
		figure.Of("memory of the functions beside "+name, "MiB", c.held/(1<<20)),
	}, c, err
}

// sizes are what the largest tables and their indexes take.
func (g *grownWorld) sizes(ctx context.Context, messages float64) ([]figure.Figure, error) {
	rows, err := g.conn.Query(ctx, `SELECT relname::text, pg_table_size(relid)::float8, pg_indexes_size(relid)::float8 FROM pg_stat_user_tables ORDER BY pg_total_relation_size(relid) DESC LIMIT 6`)
	if err != nil {
		return nil, err
	}
	type size struct {
		name           string
		table, indexes float64
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s size, err error) {
		return s, row.Scan(&s.name, &s.table, &s.indexes)
	})
	var figures []figure.Figure
	total := 0.0
	for _, s := range all {
		total += s.table + s.indexes
		figures = append(figures, figure.Of(fmt.Sprintf("table %s at %.0f messages", s.name, messages), "MiB", s.table/(1<<20)), figure.Of("its indexes", "MiB", s.indexes/(1<<20)))
	}
	return append(figures, figure.Of("tables and indexes per message of history", "B", total/messages)), err
}

const agentsSQL = `
INSERT INTO agents (agent_name, revision, phase, digest, generation) SELECT 'made-' || n, 1, 'READY', n::text, 1 FROM generate_series(%[1]d, %[2]d) n;
INSERT INTO agent_revisions (agent_name, revision, spec) SELECT 'made-' || n, 1, jsonb_build_object('name', 'made-' || n) FROM generate_series(%[1]d, %[2]d) n;
INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) SELECT 'WEBHOOK', 'made-' || n, 'made-' || n, '{}', true FROM generate_series(%[1]d, %[2]d) n`

// manyAgents measures turns beside more and more agents that nobody writes to.
func manyAgents(ctx context.Context, least, grown *grownWorld) ([]figure.Figure, error) {
	var figures []figure.Figure
	var agents, times, rows, held []float64
	for n := 10; n <= mostAgents; n *= 10 {
		if _, err := grown.conn.Exec(ctx, fmt.Sprintf(agentsSQL, grown.agents+1, n)); err != nil {
			return nil, err
		}
		grown.agents = n
		if _, err := grown.conn.Exec(ctx, `ANALYZE agents, agent_revisions, channel_routes`); err != nil {
			return nil, err
		}
		f, m, err := compareGrown(ctx, least, grown, fmt.Sprintf("%d agents and all messages", n))
		if err != nil {
			return nil, err
		}
		figures = append(figures, f...)
		agents, times, rows, held = append(agents, float64(n)), append(times, m.time), append(rows, m.rows), append(held, m.held)
	}
	return append(figures, slopes("agents", agents, times, rows, held)...), nil
}

// manySandboxes measures commands in 1 to 10 warm sandboxes at once.
func manySandboxes(ctx context.Context, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	w, err := startWorld(ctx, bin, pg, worldOptions{database: "bench_boxes", model: fake.NewModel(fake.ModelOptions{})})
	if err != nil {
		return nil, err
	}
	defer w.stop()
	var figures []figure.Figure
	var at, per, held []float64
	for _, n := range []int{1, 2, 5, mostSandboxes} {
		say("growth: commands in %d sandboxes at once", n)
		var took []float64
		for range 4 {
			began := time.Now()
			if err := w.commandAtOnce(ctx, n); err != nil {
				return nil, err
			}
			took = append(took, figure.Milliseconds(time.Since(began)))
		}
		peak, err := peakOf("sandbox-exec")
		if err != nil {
			return nil, err
		}
		all := figure.Of(fmt.Sprintf("a command in each of %d sandboxes at once, until the last answer", n), "ms", took[1:]...) // the first starts them
		figures = append(figures, all, figure.Of(fmt.Sprintf("sandbox-exec: most memory held with %d", n), "MiB", peak/(1<<20)))
		at, per, held = append(at, float64(n)), append(per, all.Value/float64(n)), append(held, peak)
	}
	return append(figures,
		figure.Of("slope of the time of a command, each of those at once, over sandboxes", "", figure.Slope(at, per)).AtMost(flatSlope, "at most 0.1"),
		figure.Of("slope of sandbox-exec's memory over sandboxes", "", figure.Slope(at, held)),
	), nil
}

func (w *world) commandAtOnce(ctx context.Context, n int) error {
	var running sync.WaitGroup
	failed := make([]error, n)
	for i := range n {
		running.Go(func() { _, failed[i] = w.turn(ctx, fmt.Sprint("box-", i), "run: true") })
	}
	running.Wait()
	return errors.Join(failed...)
}
