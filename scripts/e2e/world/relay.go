package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// relayPatience is how long a webhook waits for its answer. The first one of a
// test waits for a Pod to start.
const relayPatience = time.Minute

// relay hands webhooks to whoever can reach the cluster's ingress, and their
// answers back. A Pod often cannot: the ingress may be a port of the machine
// that the tests run on.
//
//	ANY  /relay/SERVICE/PATH  waits for its answer; 502 when nobody fetches it
//	GET  /relayed?wait=30s    the next webhook, or 204
//	POST /relayed/ID          its answer: {status, body}
type relay struct {
	waiting chan *passage

	mu   sync.Mutex
	last int
	out  map[string]*passage // fetched, not answered
}

// passage is one webhook on its way.
type passage struct {
	ID      string      `json:"id"`
	Service string      `json:"service"`
	Method  string      `json:"method"`
	Path    string      `json:"path"` // with its query
	Header  http.Header `json:"header"`
	Body    []byte      `json:"body"`

	done chan arrival
}

// arrival is how a webhook was answered.
type arrival struct {
	Status int    `json:"status"`
	Body   []byte `json:"body"`
}

func newRelay() *relay { return &relay{waiting: make(chan *passage), out: map[string]*passage{}} }

// ServeHTTP takes a webhook.
func (r *relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	service, path, ok := strings.Cut(strings.TrimPrefix(req.URL.EscapedPath(), "/relay/"), "/")
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 4<<20))
	if !ok || err != nil {
		http.Error(w, "a relayed request needs a Service, a path and a readable body", http.StatusBadRequest)
		return
	}
	path = "/" + path
	if req.URL.RawQuery != "" {
		path += "?" + req.URL.RawQuery
	}
	p := &passage{Service: service, Method: req.Method, Path: path, Header: req.Header.Clone(), Body: body, done: make(chan arrival, 1)}
	ctx, cancel := context.WithTimeout(req.Context(), relayPatience)
	defer cancel()
	select {
	case r.waiting <- p:
	case <-ctx.Done():
		http.Error(w, "nobody relays", http.StatusBadGateway)
		return
	}
	select {
	case a := <-p.done:
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body) // a client that is gone has nothing to be told
	case <-ctx.Done():
		r.forget(p.ID)
		http.Error(w, "the relay does not answer", http.StatusBadGateway)
	}
}

func (r *relay) forget(id string) *passage {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.out[id]
	delete(r.out, id)
	return p
}

// next gives the next webhook to be carried.
func (r *relay) next(w http.ResponseWriter, req *http.Request) {
	wait, _ := time.ParseDuration(req.FormValue("wait")) // none: whatever waits now
	ctx, cancel := context.WithTimeout(req.Context(), max(wait, time.Millisecond))
	defer cancel()
	select {
	case p := <-r.waiting:
		r.mu.Lock()
		r.last++
		p.ID = fmt.Sprint(r.last)
		r.out[p.ID] = p
		r.mu.Unlock()
		answer(w, p)
	case <-ctx.Done():
		w.WriteHeader(http.StatusNoContent)
	}
}

// answered brings a webhook's answer back.
func (r *relay) answered(w http.ResponseWriter, req *http.Request) {
	var a arrival
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 4<<20)).Decode(&a); err != nil || a.Status < 200 || a.Status > 599 {
		http.Error(w, "an answer needs a status", http.StatusBadRequest)
		return
	}
	p := r.forget(req.PathValue("id"))
	if p == nil {
		http.Error(w, "nobody waits for this answer any more", http.StatusNotFound)
		return
	}
	p.done <- a
}
