// Package person is what the fake messengers have in common: what stands on
// people's phones, a clock that can be moved, faults to inject and what was
// counted. Everything in it may be used by several goroutines.
package person

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Duration is a time.Duration that is text in JSON, like "1.5s".
type Duration time.Duration

// MarshalText writes d as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	read, err := time.ParseDuration(string(text))
	*d = Duration(read)
	return err
}

// Counters counts by name.
type Counters struct {
	mu sync.Mutex
	n  map[string]int
}

// Add counts one more of name.
func (c *Counters) Add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name]++
}

// All returns what was counted.
func (c *Counters) All() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		return map[string]int{}
	}
	return maps.Clone(c.n)
}

// Call is one request to the provider's API and its answer.
type Call struct {
	At      time.Time `json:"at"`
	Account string    `json:"account,omitempty"`
	Method  string    `json:"method"` // HTTP's, or the Bot API's
	Path    string    `json:"path"`   // without a token
	Body    string    `json:"body,omitempty"`
	Status  int       `json:"status"` // 0: the connection was cut
	Answer  string    `json:"answer,omitempty"`
}

// Calls remembers the newest calls.
type Calls struct {
	mu   sync.Mutex
	kept []Call
}

const keepCalls = 2000

// Add remembers c.
func (c *Calls) Add(call Call) {
	const most = 16 << 10 // of a body: files are not kept here
	if len(call.Body) > most {
		call.Body = call.Body[:most]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, call)
	if len(c.kept) > 2*keepCalls {
		c.kept = append(c.kept[:0:0], c.kept[len(c.kept)-keepCalls:]...)
	}
}

// All returns the newest calls, oldest first.
func (c *Calls) All() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Call{}, c.kept[max(0, len(c.kept)-keepCalls):]...)
}

// Local lets only requests through that were meant for this machine: a page
// from elsewhere cannot drive the fakes, not even by a name that leads here, and
// none of this machine's other pages can post.
func Local(h http.Handler) http.Handler {
	sameOrigin := http.NewCrossOriginProtection()
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		Refuse(w, http.StatusForbidden, "the fakes take no orders from other pages")
	}))
	h = sameOrigin.Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if u, err := url.Parse(origin); !loopback(r.Host) || origin != "" && (err != nil || !loopback(u.Host)) {
			Refuse(w, http.StatusForbidden, "the fakes answer on this machine only")
			return
		}
		h.ServeHTTP(w, r)
	})
}

func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// Answer writes value as JSON.
func Answer(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil { // plain values of the fakes
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that is gone has nothing to be told
}

// Refuse answers a request to the control API that cannot be done.
func Refuse(w http.ResponseWriter, status int, why string) {
	Answer(w, status, map[string]string{"error": why})
}

// Decode reads the JSON body of a request to the control API into value. It
// answers itself and returns false where that fails.
func Decode(w http.ResponseWriter, r *http.Request, value any) bool {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, 160<<20)) // a file of 100 MB in base64
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		Refuse(w, http.StatusBadRequest, err.Error())
		return false
	}
	return true
}
