package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tuluat.ai/harness/shared/harness"
)

const connections = 32

// BenchmarkIngest is a message taken for real: wake event and outbox on.
func BenchmarkIngest(b *testing.B) {
	w := newWorld(b)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", map[string]string{"LOG_LEVEL": "ERROR"})
	drive(b, w, p.URL+hooksPath+"hook")
}

// BenchmarkBare is what it is measured against: HMAC and one INSERT.
func BenchmarkBare(b *testing.B) {
	w := newWorld(b)
	w.Exec(`CREATE TABLE bare (id text PRIMARY KEY, body bytea NOT NULL)`)
	config, err := pgxpool.ParseConfig(w.DSN.Reveal())
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, 1<<20))
		if err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(r.Header.Get("X-Tuluat-Timestamp") + "."))
		mac.Write(body)
		if !hmac.Equal([]byte("v1="+hex.EncodeToString(mac.Sum(nil))), []byte(r.Header.Get("X-Tuluat-Signature"))) {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		if _, err := pool.Exec(r.Context(), `INSERT INTO bare (id, body) VALUES ($1, $2)`, harness.NewID("bare", time.Now()), body); err != nil {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		rw.WriteHeader(http.StatusAccepted)
	}))
	defer server.Close()
	drive(b, w, server.URL)
}

// drive sends b.N messages of 50 people over kept connections.
func drive(b *testing.B, w *world, url string) {
	var mu sync.Mutex
	var took []time.Duration
	next := make(chan int, connections)
	var running sync.WaitGroup
	runtime.GC()
	goBefore, pgBefore := processTime(), w.serverTime()
	b.ResetTimer()
	for range connections {
		running.Go(func() {
			var mine []time.Duration
			for n := range next {
				body := fmt.Sprintf(`{"messageId":"m-%d","channelUserId":"user-%d","text":"run: echo %s","metadata":{"n":%d}}`, n, n%50, strings.Repeat("x", 100), n)
				began := time.Now()
				response, err := w.Client.Do(signed(http.MethodPost, url, body, secret, began))
				if err != nil {
					b.Error(err)
					continue
				}
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode != http.StatusAccepted {
					b.Errorf("status %d", response.StatusCode)
				}
				mine = append(mine, time.Since(began))
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	for n := range b.N {
		next <- n
	}
	close(next)
	running.Wait()
	b.StopTimer()
	perMessage := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N) }
	b.ReportMetric(perMessage(processTime()-goBefore), "go-us/op") // caller and broker included
	b.ReportMetric(perMessage(w.serverTime()-pgBefore), "postgres-us/op")
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// processTime and serverTime are processor time: on a busy machine they tell
// more than the clock does.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverTime is that of this database's connections, where /proc shows it.
func (w *world) serverTime() time.Duration {
	rows, err := w.Store.Pool().Query(context.Background(), `SELECT pid FROM pg_stat_activity WHERE datname = current_database()`)
	if err != nil {
		w.T.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		w.T.Fatal(err)
	}
	var sum time.Duration
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if err != nil {
			return 0
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err == nil {
			sum += time.Duration(ns)
		}
	}
	return sum
}
