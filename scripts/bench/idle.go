package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/pgproxy"
	"tuluat.ai/harness/shared/event"
)

const (
	ticksPerHour    = 60
	messagesPerHour = 20.0 // of a quiet agent
	idleShare       = 0.2  // of the always-on layout's process time, at most
)

// idle measures what the system costs when little or nothing happens: the minute
// tick, messages that each find no process, and the same functions kept running.
func idle(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	perMessage, err := quietMessages(ctx, o, bin, pg)
	if err != nil {
		return nil, err
	}
	figures, tick, err := ticks(ctx, o, bin, pg)
	if err != nil {
		return nil, err
	}
	always, err := alwaysOn(ctx, o, bin, pg)
	if err != nil {
		return nil, err
	}
	// A pod is kept for the window of its Service behind its last request.
	const reaperWindow = 6.0
	hour := ticksPerHour * (tick.seconds + reaperWindow)
	quiet := hour + messagesPerHour*perMessage.seconds
	return append(figures,
		figure.Of("an idle hour: process-seconds, the Service's window of 6 s behind each tick", "s", hour),
		figure.Of("an idle hour: CPU of functions", "s", ticksPerHour*tick.cpu),
		figure.Of("an idle hour: CPU of Postgres by the ticks", "s", ticksPerHour*tick.postgres),
		figure.Of("an idle hour: rows written", "", ticksPerHour*tick.rows),
		figure.Of("always on, an idle hour: process-seconds", "s", 3600*always.processes),
		figure.Of("always on, an idle hour: CPU of functions", "s", 3600*always.cpu),
		figure.Of("always on: memory", "MiB", always.memory/(1<<20)),
		figure.Of("1,000 messages that find no process: process-seconds", "s", 1000*perMessage.seconds),
		figure.Of("1,000 messages that find no process: CPU of functions", "s", 1000*perMessage.cpu),
		figure.Of("1,000 messages that find no process: CPU of Postgres", "s", 1000*perMessage.postgres),
		figure.Of("1,000 messages: rows written", "", 1000*perMessage.rows),
		figure.Of("process-seconds of an hour with 20 messages, ours / always on", "ratio", quiet/(3600*always.processes)).AtMost(idleShare, "at most 0.2"),
	), nil
}

// cost is what one tick or message costs.
type cost struct {
	seconds  float64 // of processes
	cpu      float64 // of functions, seconds
	postgres float64 // CPU, seconds
	rows     float64 // inserted, updated or deleted
}

const idleDatabase = "bench_idle"

// rowsWritten reads what the database has written so far. Sessions say it when
// they end, or about a second after their last statement.
func rowsWritten(ctx context.Context, conn *pgx.Conn) (n float64, err error) {
	err = conn.QueryRow(ctx, `SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::float8 FROM pg_stat_user_tables`).Scan(&n)
	return n, err
}

// quietMessages sends messages so far apart that each finds no process.
func quietMessages(ctx context.Context, o options, bin string, pg *localpg.Server) (cost, error) {
	w, err := startWorld(ctx, bin, pg, worldOptions{database: idleDatabase, model: instant, idle: o.window})
	if err != nil {
		return cost{}, err
	}
	defer w.stop()
	conn, err := pgx.Connect(ctx, pg.DSN(idleDatabase))
	if err != nil {
		return cost{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	say("idle: %d messages, each of which finds no process; one is kept %s behind its last request", o.quiet, o.window)
	if err := awaitNone(ctx); err != nil { // what the first look at agents has started
		return cost{}, err
	}
	before, err := readUsage(pg)
	if err != nil {
		return cost{}, err
	}
	children, err := childrenCPU()
	if err != nil {
		return cost{}, err
	}
	rows, err := rowsWritten(ctx, conn)
	if err != nil {
		return cost{}, err
	}
	var c cost
	for n := range o.quiet {
		sampled := sample(ctx)
		_, err := w.turn(ctx, fmt.Sprint("quiet-", n), "hello")
		if err == nil {
			err = awaitNone(ctx)
		}
		c.seconds += sampled()
		if err != nil {
			return cost{}, err
		}
	}
	after, err := readUsage(pg)
	if err != nil {
		return cost{}, err
	}
	childrenAfter, err := childrenCPU()
	if err != nil {
		return cost{}, err
	}
	written, err := rowsWritten(ctx, conn)
	n := float64(o.quiet)
	return cost{c.seconds / n, (childrenAfter - children).Seconds() / n, (after.postgres - before.postgres).Seconds() / n, (written - rows) / n}, err
}

// childrenCPU is what the functions have used that have ended.
func childrenCPU() (time.Duration, error) {
	all, err := allRunning()
	return time.Duration(all[os.Getpid()].waited) * tickTime, err
}

// awaitNone returns when no function runs.
func awaitNone(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, fmt.Errorf("functions do not end"))
	defer cancel()
	for {
		n, _, err := functionsRunning()
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(sampleTime):
		}
	}
}

const sampleTime = 200 * time.Millisecond

// sample adds up how long functions run until the function it returns is called,
// which gives their process-seconds.
func sample(ctx context.Context) (sum func() float64) {
	ctx, cancel := context.WithCancel(ctx)
	seconds := 0.0
	var sampling sync.WaitGroup
	sampling.Go(func() {
		last := time.Now()
		for ctx.Err() == nil {
			time.Sleep(sampleTime)
			n, _, err := functionsRunning()
			if err != nil {
				continue // the next one counts for both
			}
			now := time.Now()
			seconds += float64(n) * now.Sub(last).Seconds()
			last = now
		}
	})
	return func() float64 {
		cancel()
		sampling.Wait()
		return seconds
	}
}

// ticks measures the minute tick on a database in which nothing is open: by a
// process that is started for it and ends behind it, and by one that runs.
func ticks(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, cost, error) {
	conn, err := pgx.Connect(ctx, pg.DSN(idleDatabase))
	if err != nil {
		return nil, cost{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	target, err := url.Parse(pg.DSN(idleDatabase))
	if err != nil {
		return nil, cost{}, err
	}
	proxy, err := pgproxy.Listen(pgproxy.Options{Target: target.Host})
	if err != nil {
		return nil, cost{}, err
	}
	defer proxy.Close()
	dsn, err := proxy.DSN(pg.DSN(idleDatabase))
	if err != nil {
		return nil, cost{}, err
	}
	sandboxes, err := os.MkdirTemp("", "tb")
	if err != nil {
		return nil, cost{}, err
	}
	defer os.RemoveAll(sandboxes)
	env := []string{
		"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + dsn, "BROKER_URL=http://127.0.0.1:1/", "METRICS_PORT=0", "LOG_LEVEL=ERROR",
		"SANDBOX_DRIVER=local", "SANDBOX_LOCAL_DIR=" + sandboxes, "SANDBOX_LOCAL_RUNNER=" + filepath.Join(bin, "runner"),
	}
	program := []string{filepath.Join(bin, "reaper-cron")}
	say("idle: %d ticks, each of a process of its own and of one that runs, in turn", o.ticks)
	warm, err := startServer(ctx, program, env)
	if err != nil {
		return nil, cost{}, err
	}
	defer warm.stop()
	var cold, work, cpu, database, rows, wal, trips []float64
	for n := range o.ticks + 1 {
		before, err := readTick(ctx, conn, pg, proxy)
		if err != nil {
			return nil, cost{}, err
		}
		began := time.Now()
		s, err := startServer(ctx, program, env)
		if err != nil {
			return nil, cost{}, err
		}
		err = ping(ctx, s.url)
		s.stop()
		took := time.Since(began)
		if err != nil {
			return nil, cost{}, err
		}
		after, err := readTick(ctx, conn, pg, proxy)
		if err != nil {
			return nil, cost{}, err
		}
		began = time.Now()
		if err := ping(ctx, warm.url); err != nil {
			return nil, cost{}, err
		}
		if n == 0 {
			continue // the first finds what the messages have left behind, and makes partitions
		}
		work = append(work, figure.Milliseconds(time.Since(began)))
		cold, cpu = append(cold, figure.Milliseconds(took)), append(cpu, figure.Milliseconds(cpuUsed(s.cmd)))
		database, rows = append(database, figure.Milliseconds(after.cpu-before.cpu)), append(rows, after.rows-before.rows)
		wal, trips = append(wal, after.wal-before.wal), append(trips, after.trips-before.trips)
	}
	figures := []figure.Figure{
		figure.Of("a tick when nothing is open: process from start to end", "ms", cold...),
		figure.Of("a tick when nothing is open: in a process that runs", "ms", work...),
		figure.Of("a tick when nothing is open: CPU of its process", "ms", cpu...),
		figure.Of("a tick when nothing is open: CPU of Postgres", "ms", database...),
		figure.Of("a tick when nothing is open: SQL round trips", "", trips...),
		figure.Of("a tick when nothing is open: rows written", "", rows...),
		figure.Of("a tick when nothing is open: WAL", "B", wal...),
	}
	mean := func(values []float64) float64 {
		sum := 0.0
		for _, v := range values {
			sum += v
		}
		return sum / float64(len(values))
	}
	return figures, cost{seconds: mean(cold) / 1000, cpu: mean(cpu) / 1000, postgres: mean(database) / 1000, rows: mean(rows)}, nil
}

func cpuUsed(cmd *exec.Cmd) time.Duration {
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// tickReading is what the server has done so far.
type tickReading struct {
	cpu              time.Duration
	rows, wal, trips float64
}

func readTick(ctx context.Context, conn *pgx.Conn, pg *localpg.Server, proxy *pgproxy.Proxy) (tickReading, error) {
	time.Sleep(1200 * time.Millisecond) // until the sessions have said what they wrote
	r := tickReading{trips: float64(proxy.RoundTrips())}
	u, err := readUsage(pg)
	if err != nil {
		return r, err
	}
	r.cpu = u.postgres
	if err := conn.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8`).Scan(&r.wal); err != nil {
		return r, err
	}
	r.rows, err = rowsWritten(ctx, conn)
	return r, err
}

// ping sends a tick as the PingSource does.
func ping(ctx context.Context, base string) error {
	request, err := http.NewRequest(http.MethodPost, base+"/events", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Ce-Id": fmt.Sprint("tick-", time.Now().UnixNano()), "Ce-Type": string(event.Ping), "Ce-Source": "/bench", "Ce-Specversion": "1.0", "Content-Type": "application/json",
	} {
		request.Header.Set(name, value)
	}
	return send(ctx, http.DefaultClient, request, http.StatusAccepted)
}

// standing is what the always-on layout costs while nobody writes.
type standing struct{ processes, cpu, memory float64 } // cpu: of a second

// alwaysOn keeps a process of every Service running, as min-scale 1 does.
func alwaysOn(ctx context.Context, o options, bin string, pg *localpg.Server) (standing, error) {
	w, err := startWorld(ctx, bin, pg, worldOptions{database: "bench_always", model: instant, always: true})
	if err != nil {
		return standing{}, err
	}
	defer w.stop()
	for range 3 { // every one has worked, and holds what that needs
		if _, err := w.turn(ctx, "user", "hello"); err != nil {
			return standing{}, err
		}
	}
	say("idle: the same functions always on, for %s", o.still)
	before, err := readUsage(pg)
	if err != nil {
		return standing{}, err
	}
	select {
	case <-ctx.Done():
		return standing{}, ctx.Err()
	case <-time.After(o.still):
	}
	after, err := readUsage(pg)
	if err != nil {
		return standing{}, err
	}
	n, bytes, err := functionsRunning()
	var used time.Duration
	for _, d := range after.minus(before).functions {
		used += d
	}
	return standing{processes: float64(n), cpu: used.Seconds() / o.still.Seconds(), memory: bytes}, err
}
