package functiontest

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// Broker takes every event (202) and keeps its headers.
type Broker struct {
	URL    string
	mu     sync.Mutex
	heard  []http.Header
	status int
}

func newBroker(t testing.TB) *Broker {
	b := &Broker{status: http.StatusAccepted}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.heard = append(b.heard, r.Header.Clone())
		w.WriteHeader(b.status)
	}))
	t.Cleanup(server.Close)
	b.URL = server.URL
	return b
}

// Fail makes the broker answer status from now on; it keeps the headers still.
func (b *Broker) Fail(status int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = status
}

// Take returns the headers of what has come since the last Take, in order.
func (b *Broker) Take() []http.Header {
	b.mu.Lock()
	defer b.mu.Unlock()
	heard := b.heard
	b.heard = nil
	return heard
}

// Logs keeps what is written to it, and may be read meanwhile. The zero Logs is
// empty.
type Logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
