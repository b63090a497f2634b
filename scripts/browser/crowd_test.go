//go:build browser

package browser_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	mostPaint = time.Second // until something is on the screen
	mostBytes = 300 << 10   // of a page with all it brings
	mostGrown = 1.25        // of a tab's memory, from a fifth of the time to the end
)

// database connects as the superuser: rows by the thousand are made there, not by
// as many runs. The connection string is what the front has told the platform.
func database(t *testing.T) *pgx.Conn {
	t.Helper()
	holder, err := os.ReadFile(filepath.Join(dev.home, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	front := strings.TrimSpace(string(holder))
	threads, err := filepath.Glob(filepath.Join("/proc", front, "task", "*", "children")) // any of them may have started it
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	for _, thread := range threads {
		text, _ := os.ReadFile(thread) // it may have ended
		children = append(children, strings.Fields(string(text))...)
	}
	for _, child := range children {
		environ, err := os.ReadFile(filepath.Join("/proc", child, "environ"))
		if err != nil {
			continue // it has ended
		}
		for _, variable := range strings.Split(string(environ), "\x00") {
			value, ok := strings.CutPrefix(variable, "TULUAT_DEV_HANDOVER=")
			if !ok {
				continue
			}
			var told struct{ Postgres string }
			if err := json.Unmarshal([]byte(value), &told); err != nil {
				t.Fatal(err)
			}
			config, err := pgx.ParseConfig(told.Postgres)
			if err != nil {
				t.Fatal(err)
			}
			config.Database = "tuluat"
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(t.Context()) })
			return conn
		}
	}
	t.Fatal("the platform's database is not known")
	return nil
}

// manySQL makes sessions of the API's channel that have come to rest.
const manySQL = `
INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, message_seq, event_seq, step_seq, idle_seconds, created_at, updated_at)
SELECT 'ses_crowd' || to_char(n, 'FM00000000'), '` + coder + `', 'API', '` + coder + `', 'crowd-' || n, 'IDLE', 2, 2, 1, 86400, now() - n * interval '1 second', now() - n * interval '1 second'
FROM generate_series(1, $1) n ON CONFLICT DO NOTHING`

// The list of very many sessions is there within a second and is small.
func TestManySessions(t *testing.T) {
	if _, err := database(t).Exec(t.Context(), manySQL, *flagMany); err != nil {
		t.Fatal(err)
	}
	b := newTab(t, views[2])
	b.signIn()
	b.open(dev.URL+"/console/sessions", "main") // the function is awake
	b.open(dev.URL+"/console/sessions", "main")
	b.until(oneStep, "performance.getEntriesByName('first-contentful-paint').length > 0")
	paint := time.Duration(eval[float64](b, "performance.getEntriesByName('first-contentful-paint')[0].startTime")*1000) * time.Microsecond
	bytes := eval[float64](b, "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')].reduce((n, e) => n + e.decodedBodySize, 0)")
	t.Logf("%d sessions: first paint after %s, %.0f KB", *flagMany, paint, bytes/1024)
	if paint > mostPaint {
		t.Errorf("the first paint is after %s, at most %s are allowed", paint, mostPaint)
	}
	if bytes > mostBytes {
		t.Errorf("the page has %.0f bytes, at most %d are allowed", bytes, mostBytes)
	}
	b.screen("many-sessions")
}

// A tab that is left open while people talk does not grow.
func TestMemory(t *testing.T) {
	rows := []struct {
		name, url, ready string
		signed           bool
	}{
		{"phone", dev.Fakes.WhatsApp + "/phone/#" + ada, "#lines", false},
		{"sessions", dev.URL + "/console/sessions", "main", true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			b := newTab(t, views[2])
			if row.signed {
				b.signIn()
			}
			b.open(row.url, row.ready)
			stop := make(chan struct{})
			var people sync.WaitGroup
			for i := range *flagLive {
				people.Go(func() { chatter(t, i, stop) })
			}
			used := func() float64 {
				return eval[float64](b, "(globalThis.gc?.(), performance.memory.usedJSHeapSize)")
			}
			settle := *flagStay / 5
			time.Sleep(settle)
			before, nodes := used(), eval[int](b, "document.querySelectorAll('*').length")
			time.Sleep(*flagStay - settle)
			after, nodesAfter := used(), eval[int](b, "document.querySelectorAll('*').length")
			close(stop)
			people.Wait()
			t.Logf("%s with %d sessions: %.1f MB and %d elements, then %.1f MB and %d", *flagStay, *flagLive, before/1e6, nodes, after/1e6, nodesAfter)
			const noise = 2e6
			if after > before*mostGrown+noise {
				t.Errorf("the tab has grown from %.1f to %.1f MB", before/1e6, after/1e6)
			}
		})
	}
}

// chatter is one person who talks on WhatsApp until stop: all of them together say
// seven things a second, however many they are.
func chatter(t *testing.T, i int, stop <-chan struct{}) {
	phone := fmt.Sprintf("1555200%04d", i)
	if i == 0 {
		phone = ada // whose chat is open
	}
	pause := max(3*time.Second, time.Duration(*flagLive)*150*time.Millisecond)
	wait := pause * time.Duration(i) / time.Duration(*flagLive)
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(wait):
			wait = pause
		}
		if n == 0 && i > 0 {
			ask(t, http.MethodPost, dev.Fakes.WhatsApp+"/_fake/people", "", object{"phone": phone, "name": "Person " + phone}, nil)
		}
		ask(t, http.MethodPost, dev.Fakes.WhatsApp+"/_fake/say", "", object{"from": phone, "text": fmt.Sprint("hello ", n)}, nil)
	}
}
