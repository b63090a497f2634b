package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// provider plays both providers' servers: it takes everything, except where a
// case says what it answers.
type provider struct {
	URL    string
	server *http.Server
	ended  chan struct{}

	mu      sync.Mutex
	sent    []Sent
	next    *scripted // answer of the next request that sends
	updates *scripted // answer of the next getUpdates
	offset  int64     // of the newest getUpdates behind that answer
	polled  chan struct{}
	ids     int
}

type scripted struct {
	status int
	body   []byte
}

// startProvider listens on address.
func startProvider(address string) (*provider, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	p := &provider{URL: "http://" + listener.Addr().String(), ended: make(chan struct{})}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { // ends with close
		defer close(p.ended)
		_ = p.server.Serve(listener) // closed; what comes later is refused, and the cases say so
	}()
	return p, nil
}

func (p *provider) close() {
	_ = p.server.Close()
	<-p.ended
}

// reset forgets what was sent and what is to be answered.
func (p *provider) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent, p.next, p.updates, p.offset, p.polled = nil, nil, nil, 0, nil
}

// answerNext sets the answer of the next request that sends something.
func (p *provider) answerNext(status int, body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = &scripted{status, body}
}

// answerUpdates sets the answer of the next getUpdates. The channel is closed
// when another one has come after it.
func (p *provider) answerUpdates(status int, body []byte) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updates, p.offset, p.polled = &scripted{status, body}, 0, make(chan struct{})
	return p.polled
}

func (p *provider) nextOffset() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offset
}

// taken returns what was sent since the last reset.
func (p *provider) taken() []Sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Sent(nil), p.sent...)
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
	if err != nil {
		http.Error(w, "broken off", http.StatusBadRequest)
		return
	}
	body := fields(r, text)
	w.Header().Set("Content-Type", "application/json")
	if token, method, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/bot"), "/"); found && strings.HasPrefix(r.URL.Path, "/bot") && token != "" {
		p.telegram(w, r, method, body)
		return
	}
	p.whatsApp(w, r, body)
}

// fields reads JSON, a form or a query as one object.
func fields(r *http.Request, text []byte) map[string]any {
	if v, err := decode(text); err == nil {
		if body, ok := v.(map[string]any); ok {
			return body
		}
	}
	values := r.URL.Query()
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/x-www-form-urlencoded" {
		if form, err := url.ParseQuery(string(text)); err == nil {
			values = form
		}
	}
	body := map[string]any{}
	for key := range values {
		body[key] = values.Get(key)
	}
	return body
}

func (p *provider) telegram(w http.ResponseWriter, r *http.Request, method string, body map[string]any) {
	switch {
	case method == "getUpdates":
		p.getUpdates(w, r, body)
	case method == "getMe":
		reply(w, http.StatusOK, map[string]any{"ok": true, "result": map[string]any{"id": json.Number(botID), "is_bot": true, "first_name": "Helper", "username": botName}})
	case method == "getWebhookInfo":
		reply(w, http.StatusOK, map[string]any{"ok": true, "result": map[string]any{"url": "", "has_custom_certificate": false, "pending_update_count": 0}})
	case strings.HasPrefix(method, "send") && method != "sendChatAction":
		if s := p.record(r, body); s != nil {
			raw(w, s)
			return
		}
		result := map[string]any{"message_id": p.newID(), "date": time.Now().Unix(), "chat": map[string]any{"id": body["chat_id"], "type": "private"}, "text": body["text"]}
		reply(w, http.StatusOK, map[string]any{"ok": true, "result": result})
	default:
		reply(w, http.StatusOK, map[string]any{"ok": true, "result": true})
	}
}

// longPoll is how long a getUpdates without an answer is held.
const longPoll = 2 * time.Second

func (p *provider) getUpdates(w http.ResponseWriter, r *http.Request, body map[string]any) {
	p.mu.Lock()
	s := p.updates
	p.updates = nil
	if offset, err := strconv.ParseInt(scalar(body["offset"]), 10, 64); err == nil && s == nil && p.polled != nil && offset > 0 {
		p.offset = offset
		select {
		case <-p.polled:
		default:
			close(p.polled)
		}
	}
	p.mu.Unlock()
	if s != nil {
		raw(w, s)
		return
	}
	timer := time.NewTimer(longPoll)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
	reply(w, http.StatusOK, map[string]any{"ok": true, "result": []any{}})
}

func (p *provider) whatsApp(w http.ResponseWriter, r *http.Request, body map[string]any) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/messages") || body["status"] != nil {
		reply(w, http.StatusOK, map[string]any{"success": true})
		return
	}
	if s := p.record(r, body); s != nil {
		raw(w, s)
		return
	}
	to := scalar(body["to"])
	if to == "" {
		to = scalar(body["recipient"])
	}
	reply(w, http.StatusOK, map[string]any{
		"messaging_product": "whatsapp", "contacts": []any{map[string]any{"input": to, "wa_id": to}},
		"messages": []any{map[string]any{"id": fmt.Sprintf("wamid.SENT-%d", p.newID())}},
	})
}

// record keeps a request that sends and returns the answer that a case gave.
func (p *provider) record(r *http.Request, body map[string]any) *scripted {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := r.URL.Path
	if i := strings.LastIndex(path, "/"); i >= 0 {
		path = path[i:] // the rest of Telegram's holds the token
	}
	p.sent = append(p.sent, Sent{Path: path, Body: body})
	s := p.next
	p.next = nil
	return s
}

func (p *provider) newID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids++
	return 100_000 + p.ids
}

// A write fails when the client has gone; then nobody is there to tell.
func raw(w http.ResponseWriter, s *scripted) {
	w.WriteHeader(s.status)
	_, _ = w.Write(s.body)
}

func reply(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// recorder plays the broker: it takes every event and keeps which sessions had
// a message.received.
type recorder struct {
	URL    string
	server *http.Server
	ended  chan struct{}

	mu    sync.Mutex
	wakes []string
}

func startRecorder() (*recorder, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &recorder{URL: "http://" + listener.Addr().String(), ended: make(chan struct{})}
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: 10 * time.Second}
	go func() { // ends with close
		defer close(b.ended)
		_ = b.server.Serve(listener) // closed; what comes later is refused, and the cases say so
	}()
	return b, nil
}

func (b *recorder) close() {
	_ = b.server.Close()
	<-b.ended
}

func (b *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.Header.Get("Ce-Type"), "message.received") {
		b.mu.Lock()
		b.wakes = append(b.wakes, r.Header.Get("Ce-Tuluatsession"))
		b.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r.Body) // so that the connection is used again
	w.WriteHeader(http.StatusAccepted)
}

// take returns the sessions named since the last call, never nil.
func (b *recorder) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	wakes := b.wakes
	b.wakes = nil
	if wakes == nil {
		wakes = []string{}
	}
	return wakes
}
