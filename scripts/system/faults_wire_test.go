//go:build system

package system_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/pgproxy"
	"tuluat.ai/harness/shared/archive"
	"tuluat.ai/harness/shared/archive/archivetest"
)

// mood is how something outside behaves at the moment.
type mood string

const (
	moodWell    mood = ""
	moodDown    mood = "down"    // the connection is cut
	moodSlow    mood = "slow"    // a second for each request
	moodAfter   mood = "after"   // done, and answered 500
	moodForgets mood = "forgets" // answered 200, and not done
	moodFlips   mood = "flips"   // one bit of what comes in is another
	moodFails   mood = "500"     // not done, and answered 500
	moodBusy    mood = "429"     // not done, and answered 429
	moodHangs   mood = "hangs"   // no answer for long, then the connection is cut
	moodTorn    mood = "torn"    // half an answer
	hangs            = 4 * time.Second
)

// front stands before a server of the test and has moods.
type front struct {
	mu    sync.Mutex
	mood  mood
	times int // requests that get it; -1: all
	given int // that got one
}

// set has the next requests, or all of them for -1, get the mood m.
func (f *front) set(m mood, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mood, f.times, f.given = m, times, 0
}

func (f *front) had() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.given
}

// next is the mood of one request.
func (f *front) next(suits func(mood) bool) mood {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.times == 0 || !suits(f.mood) {
		return moodWell
	}
	if f.times > 0 {
		f.times--
	}
	if f.mood != moodWell {
		f.given++
	}
	return f.mood
}

func (f *front) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m := f.next(func(m mood) bool {
			return m != moodForgets && m != moodFlips && m != moodAfter || r.Method == http.MethodPut
		})
		switch m {
		case moodDown:
			panic(http.ErrAbortHandler)
		case moodSlow:
			wait(r, time.Second)
		case moodHangs:
			wait(r, hangs)
			panic(http.ErrAbortHandler)
		case moodFails:
			http.Error(w, `{"error": {"message": "The server had an error", "type": "server_error"}}`, http.StatusInternalServerError)
			return
		case moodBusy:
			w.Header().Set("Retry-After", "1")
			http.Error(w, `{"error": {"message": "Rate limit reached", "type": "rate_limit_error"}}`, http.StatusTooManyRequests)
			return
		case moodForgets:
			_, _ = io.Copy(io.Discard, r.Body) // what cannot be read is not kept either
			return
		case moodFlips:
			data, err := io.ReadAll(r.Body)
			if err != nil || len(data) == 0 {
				panic(http.ErrAbortHandler)
			}
			data[len(data)/2] ^= 0x10
			r.Body = io.NopCloser(bytes.NewReader(data))
		case moodAfter, moodTorn:
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			if m == moodAfter {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			whole := answer.Body.Bytes()
			w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			_, _ = w.Write(whole[:len(whole)/2])
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

func wait(r *http.Request, d time.Duration) {
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}

// bucket is where old log entries go, with a front that has moods. The server
// behind it refuses the checksums that only AWS knows.
type bucket struct {
	front
	url     string
	store   *archive.Store // past the front
	objects *archivetest.Bucket
}

func newBucket(w *world) *bucket {
	b := &bucket{}
	b.store, b.objects = archivetest.New(w.t)
	target, err := url.Parse(b.objects.URL)
	w.must(err)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	w.t.Cleanup(transport.CloseIdleConnections)
	b.url = w.serve(b.before(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}))
	return b
}

func (b *bucket) env(function string, env map[string]string) {
	if function != "reaper-cron" && function != "management-api" {
		return
	}
	env["S3_ENDPOINT"], env["S3_BUCKET"], env["S3_PATH_STYLE"] = b.url, archivetest.Name, "true"
	env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"] = "key", "very-secret"
}

// wires is every Service's way to the database, with a hook that can be changed.
type wires struct {
	mu   sync.Mutex
	hook func(service string, m moment, e pgproxy.Exchange) bool
}

func (h *wires) set(hook func(service string, m moment, e pgproxy.Exchange) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

func (h *wires) atWire(service string) (before, after func(pgproxy.Exchange) bool) {
	at := func(m moment) func(pgproxy.Exchange) bool {
		return func(e pgproxy.Exchange) bool {
			h.mu.Lock()
			hook := h.hook
			h.mu.Unlock()
			return hook == nil || e.Failed || len(e.Statements) == 0 || hook(service, m, e)
		}
	}
	return at(beforeServer), at(afterServer)
}

var writes = regexp.MustCompile(`\b(INSERT INTO|DELETE FROM|UPDATE [a-z_]+ (. )?SET|create_log_partitions|forget_)`)

// writing names the write that an exchange is, by its statements; empty: it is none.
func writing(e pgproxy.Exchange) string {
	var all []string
	for _, s := range e.Statements {
		text := strings.Join(strings.Fields(s), " ")
		if at := writes.FindStringIndex(text); at != nil {
			text = text[at[0]:]
			if name := text[:min(len(text), 70)]; len(all) == 0 || all[len(all)-1] != name {
				all = append(all, name)
			}
		}
	}
	return strings.Join(all, "; ")
}
