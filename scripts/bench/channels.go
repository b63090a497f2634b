package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/shared/harness"
)

// side is one server of the channel measurement.
type side struct {
	name   string
	server *server
	ask    func(run int) asker
	rows   string // counts what it has stored
	note   string // why it is not there
	each   bool   // it stores each message by a statement of its own

	sent    int
	results []sideResult
}

type sideResult struct {
	loadResult
	cpu, database float64 // milliseconds per 1,000 requests: the server's processes, Postgres
}

const (
	poolSize = 4 // connections to Postgres of every side, as ours have by default
	sharing  = 2 // statements at once of a side that shares them, as channel.Desk
)

// channels loads whatsapp-ingest, the bare handler and the peers in turn, one
// signed message per POST, and telegram-ingest with its peer. Ours do more than
// the others per message: route, sender policy, conversation, numbered message,
// outbox row, and the wake event to a broker.
func channels(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	if err := prepareChannels(ctx, pg, "bench_channels"); err != nil {
		return nil, err
	}
	broker := newSink()
	defer broker.Close()
	sides, err := startSides(ctx, o, bin, channelEnv(pg.DSN("bench_channels"), broker.URL))
	defer func() {
		for _, s := range sides {
			if s.server != nil {
				s.server.stop()
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	database, err := pg.PID()
	if err != nil {
		return nil, err
	}
	for n := range o.pairs + 1 {
		for _, s := range sides {
			if s.note != "" {
				continue
			}
			r, err := s.measure(ctx, o.seconds, n, database)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			if n == 0 {
				continue // the first run warms caches, connections and compilers
			}
			s.results = append(s.results, r)
			say("run %d: %-32s %6.0f/s  p99 %6.1f ms  CPU per 1,000: server %4.0f ms, Postgres %4.0f ms", n, s.name, r.rate, r.p99, r.cpu, r.database)
		}
	}
	if err := checkRows(ctx, pg.DSN("bench_channels"), sides); err != nil {
		return nil, err
	}
	return channelFigures(sides), nil
}

func (s *side) measure(ctx context.Context, d time.Duration, run, database int) (sideResult, error) {
	pid := s.server.cmd.Process.Pid
	mine, err := cpuOf(pid)
	if err != nil {
		return sideResult{}, err
	}
	theirs, err := cpuOf(database)
	if err != nil {
		return sideResult{}, err
	}
	r := sideResult{}
	if r.loadResult, err = load(ctx, d, http.StatusOK, s.ask(run)); err != nil {
		return r, err
	}
	after, err := cpuOf(pid)
	if err != nil {
		return r, err
	}
	databaseAfter, err := cpuOf(database)
	if err != nil {
		return r, err
	}
	s.sent += r.answers
	per := float64(r.answers) / 1000
	r.cpu, r.database = figure.Milliseconds(after-mine)/per, figure.Milliseconds(databaseAfter-theirs)/per
	return r, nil
}

// checkRows makes sure that what was answered 200 is stored.
func checkRows(ctx context.Context, dsn string, sides []*side) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	sent := map[string]int{}
	for _, s := range sides {
		if s.note == "" {
			sent[s.rows] += s.sent
		}
	}
	for sql, want := range sent {
		var got int
		if err := conn.QueryRow(ctx, sql).Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%d requests were answered 200, %d rows are there: %s", want, got, sql)
		}
	}
	return nil
}

func channelFigures(sides []*side) []figure.Figure {
	figures := []figure.Figure{{Name: "whatsapp-ingest and telegram-ingest, more than the others:", Note: "route, sender policy, conversation, outbox row, wake event to a broker (202)"}}
	for _, s := range sides {
		if s.note != "" {
			figures = append(figures, figure.Figure{Name: s.name, Note: s.note})
			continue
		}
		figures = append(figures,
			s.figure("at 32 connections", "req/s", func(r sideResult) float64 { return r.rate }),
			s.figure("p99", "ms", func(r sideResult) float64 { return r.p99 }),
			s.figure("server CPU per 1,000", "ms", func(r sideResult) float64 { return r.cpu }),
			s.figure("Postgres CPU per 1,000", "ms", func(r sideResult) float64 { return r.database }),
		)
	}
	byName := map[string]*side{}
	for _, s := range sides {
		byName[s.name] = s
	}
	ours, bare := byName[whatsappIngest], byName[bareHandler]
	figures = append(figures, compare("whatsapp-ingest rate, ours / bare", ours, func(n int) float64 {
		return ours.results[n].rate / bare.results[n].rate
	}).AtLeast(1, "at least 1"))
	measured := map[bool][]*side{} // by each
	for _, s := range sides {
		against := byName[whatsappIngest]
		switch s.name {
		case whatsappIngest, bareHandler, telegramIngest:
			continue
		case grammY:
			against = byName[telegramIngest]
		}
		name := perCPU + against.name + " / " + s.name
		if s.note != "" {
			figures = append(figures, figure.Figure{Name: name, Note: s.note})
			continue
		}
		if against == ours {
			measured[s.each] = append(measured[s.each], s)
		}
		figures = append(figures, compare(name, ours, func(n int) float64 { return s.results[n].all() / against.results[n].all() }))
	}
	for _, each := range []bool{true, false} {
		better := perCPU + "whatsapp-ingest / better of the peers that " + map[bool]string{true: "store each message alone", false: "batch as ours"}[each]
		if len(measured[each]) == 0 {
			figures = append(figures, figure.Figure{Name: better, Note: "no peer was measured"})
			continue
		}
		figures = append(figures, compare(better, ours, func(n int) float64 {
			least := math.Inf(1)
			for _, s := range measured[each] {
				least = min(least, s.results[n].all())
			}
			return least / ours.results[n].all()
		}).AtLeast(2.5, "at least 2.5"))
	}
	return figures
}

const perCPU = "per CPU second of server and Postgres, "

// all is what 1,000 requests cost.
func (r sideResult) all() float64 { return r.cpu + r.database }

func (s *side) figure(what, unit string, value func(sideResult) float64) figure.Figure {
	var values []float64
	for _, r := range s.results {
		values = append(values, value(r))
	}
	return figure.Of(s.name+": "+what, unit, values...)
}

// compare is the figure of a ratio, run by run.
func compare(name string, of *side, ratio func(n int) float64) figure.Figure {
	var values []float64
	for n := range of.results {
		values = append(values, ratio(n))
	}
	return figure.Of(name, "ratio", values...)
}

const (
	whatsappIngest = "whatsapp-ingest"
	telegramIngest = "telegram-ingest"
	bareHandler    = "bare handler, WhatsApp"
	grammY         = "grammY, Node"
)

func channelEnv(dsn, broker string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + dsn, "DATABASE_MAX_CONNS=" + strconv.Itoa(poolSize), "BROKER_URL=" + broker, "METRICS_PORT=0",
		"SERVE=public", "LOG_LEVEL=ERROR", "SECRETS=environment", "HOOK_SECRET=" + hookSecret,
		"WHATSAPP_APP_SECRET=" + appSecret, "WHATSAPP_VERIFY_TOKEN=unused", "WHATSAPP_ACCESS_TOKEN=unused",
		"TELEGRAM_WEBHOOK_SECRET=" + webhookSecret, "TELEGRAM_BOT_TOKEN=7000000001:unused", "BOT=" + bot,
	}
}

// startSides starts every server. Those it has started are returned with an
// error too.
func startSides(ctx context.Context, o options, bin string, env []string) (sides []*side, err error) {
	start := func(name, rows string, program []string, env []string, ask func(base string, run int) asker) {
		if err != nil {
			return
		}
		s := &side{name: name, rows: rows}
		if s.server, err = startServer(ctx, program, env); err != nil {
			return
		}
		s.ask = func(run int) asker { return ask(s.server.url, run) }
		sides = append(sides, s)
	}
	whatsapp := func(path string) func(string, int) asker {
		return func(base string, run int) asker {
			return whatsappRequests(base+path, fmt.Sprint(filepath.Base(base), "-", run))
		}
	}
	const ours, peers = `SELECT count(*) FROM messages WHERE direction = 'INBOUND'`, `SELECT count(*) FROM peer`
	start(whatsappIngest, ours, []string{filepath.Join(bin, "whatsapp-ingest")}, env, whatsapp(whatsappPath))
	start(bareHandler, `SELECT count(*) FROM bare`, []string{filepath.Join(bin, "baseline")}, env, whatsapp("/whatsapp"))
	if err != nil {
		return sides, err
	}
	dir, missing := installPeers(ctx, filepath.Dir(bin))
	node := func(name, file string, each bool, ask func(string, int) asker) {
		name += ", Node"
		statements, together := sharing, 64
		if each {
			name += ", each alone"
			statements, together = poolSize, 1
		}
		if missing != nil {
			sides = append(sides, &side{name: name, note: missing.Error() + ": not measured"})
			return
		}
		more := []string{"NODE_ENV=production", "PROCESSES=" + strconv.Itoa(o.peers), "AT_ONCE=" + strconv.Itoa(statements), "TOGETHER=" + strconv.Itoa(together)}
		start(name, peers, []string{"node", filepath.Join(dir, file)}, append(more, env...), ask)
		if err == nil {
			sides[len(sides)-1].each = each
		}
	}
	for _, each := range []bool{true, false} {
		node("@kapso/whatsapp-cloud-api", "kapso.mjs", each, whatsapp("/"))
		node("whatsapp-api-js", "whatsapp-api-js.mjs", each, whatsapp("/"))
	}
	start(telegramIngest, ours, []string{filepath.Join(bin, "telegram-ingest")}, env, func(base string, run int) asker { return telegramRequests(base+telegramPath, run) })
	node("grammY", "grammy.mjs", false, func(base string, run int) asker { return telegramRequests(base+"/", run) })
	return sides, err
}

func prepareChannels(ctx context.Context, pg *localpg.Server, database string) error {
	if err := freshDatabase(ctx, pg, database); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, pg.DSN(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, `
		CREATE TABLE bare (id text PRIMARY KEY, body bytea NOT NULL);
		CREATE TABLE peer (
		    account text NOT NULL, provider_id text NOT NULL, chat text NOT NULL, channel_user_id text NOT NULL, text text NOT NULL, metadata jsonb NOT NULL,
		    received_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (account, provider_id));
		INSERT INTO agents (agent_name, revision, phase, digest) VALUES ('bench', 1, 'READY', 'x');
		INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('bench', 1, '{"name": "bench"}');`)
	for _, spec := range []harness.ChannelSpec{{Type: harness.ChannelWhatsApp, Account: number}, {Type: harness.ChannelTelegram, Account: bot}} {
		spec.Senders.Policy = harness.SendersOpen
		_, failed := conn.Exec(ctx, `INSERT INTO channel_routes (channel, account, agent_name, spec, open_to_all) VALUES ($1, $2, 'bench', $3, true)`, spec.Type, spec.Account, spec)
		err = errors.Join(err, failed)
	}
	return err
}
