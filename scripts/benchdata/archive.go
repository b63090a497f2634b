package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3bolt"
)

const (
	archiveBucket = "archive"
	hotDays       = 3 // that stay in Postgres
)

// archived moves all log entries but those of a few days to the bucket by the sweep
// itself, as a process of its own, and measures how fast it is, what it holds in
// memory, what Postgres has before and after, and lists that read both.
func archived(ctx context.Context, dsn string, o options) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, fmt.Sprintf(`UPDATE agent_revisions SET spec = spec || '{"logs": {"retentionDays": %d, "archiveDays": 3650}}'`, hotDays)); err != nil {
		return err
	}
	s3, stop, err := serveS3(filepath.Join(o.dir, "s3.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	sandboxes, err := os.MkdirTemp("", "bd-") // whose path must be short
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sandboxes)) }()
	env := append(os.Environ(), "DATABASE_URL="+dsn, "BROKER_URL=http://127.0.0.1:1", "S3_ENDPOINT="+s3, "S3_BUCKET="+archiveBucket, "AWS_ACCESS_KEY_ID=bench", "AWS_SECRET_ACCESS_KEY=bench")
	sweep, err := begin(ctx, o.dir, "reaper-cron", append(env, "STAY=0", "SANDBOX_DRIVER=local", "SANDBOX_LOCAL_DIR="+sandboxes, "SANDBOX_LOCAL_RUNNER=/bin/true"))
	if err != nil {
		return err
	}
	err = sweepAll(ctx, conn, sweep)
	if err = errors.Join(err, sweep.end()); err != nil {
		return err
	}
	api, err := beginAPI(ctx, o.dir, env)
	if err != nil {
		return err
	}
	return errors.Join(spanning(ctx, conn, api, o.runs), api.end())
}

// serveS3 serves a bucket that is kept in a file.
func serveS3(file string) (address string, stop func() error, err error) {
	backend, err := s3bolt.NewFile(file)
	if err != nil {
		return "", nil, err
	}
	there, err := backend.BucketExists(archiveBucket)
	if err == nil && !there {
		err = backend.CreateBucket(archiveBucket)
	}
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server(), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() error {
		err := server.Close()
		if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
			err = errors.Join(err, failed)
		}
		return err
	}, nil
}

// sweepAll lets pass follow on pass until nothing is left to archive.
func sweepAll(ctx context.Context, conn *pgx.Conn, sweep *process) error {
	before, err := logSize(ctx, conn)
	if err != nil {
		return err
	}
	began := time.Now()
	fmt.Printf("%-6s %12s %12s %14s\n", "pass", "in archive", "entries/s", "peak memory")
	for n := 1; ; n++ {
		if err := sweep.tick(ctx, n); err != nil {
			return err
		}
		var findings map[string]struct {
			Found  int    `json:"found"`
			Reason string `json:"reason"`
		}
		var entries int64
		if err := conn.QueryRow(ctx, `SELECT (SELECT findings FROM sweep_reports ORDER BY sweep_report_id DESC LIMIT 1),
			(SELECT COALESCE(sum(entry_count), 0)::bigint FROM log_archives WHERE state = 'VERIFIED')`).Scan(&findings, &entries); err != nil {
			return err
		}
		fmt.Printf("%-6d %12d %12.0f %10d MiB\n", n, entries, float64(entries)/time.Since(began).Seconds(), sweep.peak()>>20)
		if f := findings["archive"]; f.Reason != "" {
			return errors.New(f.Reason)
		}
		if findings["archive"].Found+findings["log_days"].Found+findings["archive_removal"].Found == 0 {
			break
		}
	}
	var objects, bytes int64
	if err := conn.QueryRow(ctx, `SELECT count(*), COALESCE(sum(size_bytes), 0)::bigint FROM log_archives`).Scan(&objects, &bytes); err != nil {
		return err
	}
	after, err := logSize(ctx, conn)
	fmt.Printf("log in Postgres: %d MiB before, %d MiB after; %d objects of %d MiB in all; %s\n", before>>20, after>>20, objects, bytes>>20, time.Since(began).Round(time.Second))
	return err
}

func logSize(ctx context.Context, conn *pgx.Conn) (size int64, err error) {
	err = conn.QueryRow(ctx, `SELECT COALESCE(sum(pg_total_relation_size(inhrelid)), 0)::bigint + pg_total_relation_size('log_archives')
		FROM pg_inherits WHERE inhparent = 'agent_execution_logs'::regclass`).Scan(&size)
	return size, err
}

// spanning measures pages that begin among what Postgres has and end in the
// archive, and pages deep in that, as a caller of the API sees them.
func spanning(ctx context.Context, conn *pgx.Conn, api *process, runs int) error {
	var border time.Time
	if err := conn.QueryRow(ctx, `SELECT min(created_at) FROM agent_execution_logs`).Scan(&border); err != nil {
		return err
	}
	fmt.Printf("%-44s %9s %9s\n", "list", "p50 ms", "p99 ms")
	for _, c := range []struct {
		what, path string
		until      func(run int) time.Time
	}{
		{"an agent, over the border", "/agents/agent-01/logs", func(run int) time.Time { return border.Add(time.Duration(run%40) * time.Second / 10) }},
		{"all agents, over the border", "/logs", func(run int) time.Time { return border.Add(time.Duration(run%40) * 10 * time.Millisecond) }},
		{"an agent, in the archive", "/agents/agent-01/logs", func(run int) time.Time { return border.Add(-time.Duration(run+1) * time.Hour) }},
		{"an agent's errors, in the archive", "/agents/agent-01/logs?level=ERROR", func(run int) time.Time { return border.Add(-time.Duration(run+1) * time.Hour) }},
	} {
		var took []time.Duration
		for run := range runs {
			query := url.Values{"limit": {strconv.Itoa(pageRows)}, "until": {c.until(run).UTC().Format(time.RFC3339Nano)}}
			began := time.Now()
			p, err := api.list(ctx, c.path, query)
			if err == nil && len(p.Items) == 0 {
				err = errors.New("a page without entries")
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		fmt.Printf("%-44s %9.2f %9.2f\n", c.what, ms(took[len(took)/2]), ms(took[len(took)*99/100]))
	}
	fmt.Printf("peak memory of the API: %d MiB\n", api.peak()>>20)
	return nil
}
