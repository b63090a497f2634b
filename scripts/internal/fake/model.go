// Package fake holds stand-ins for the vendors the product talks to. They
// speak the vendors' wires over HTTP and are as strict as the vendors are, so
// that what passes here is not refused there. No production binary knows them.
package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

// ModelOptions says how a Model behaves. The zero value is a model that
// answers as Converse does and accepts every key, also none.
type ModelOptions struct {
	Script *Script      // its rules come before the conversation; nil for none
	Key    string       // the only key accepted; empty for any
	Models []string     // the only models known; empty for any
	Keep   int          // how many requests are remembered whole; 0 means 1000
	Thinks bool         // on Anthropic's wire it thinks before it calls a tool, and looks whether its thoughts come back as they were
	Log    *slog.Logger // nil for silence

	Now func() time.Time // nil for time.Now
}

// Model is a deterministic language model on both providers' wires:
//
//	POST /v1/chat/completions   OpenAI, plain and streamed
//	POST /v1/messages           Anthropic, plain and streamed
//	GET  /v1/models             both
//
// The same conversation always gets the same answer, ids included.
type Model struct {
	options ModelOptions
	mux     *http.ServeMux

	mu       sync.Mutex
	requests []ModelRequest
	count    int
	sessions map[string]int
	fired    map[firing]int
	faults   map[string]int
}

// ModelRequest is one request a Model received.
type ModelRequest struct {
	At       time.Time   `json:"at"`
	Wire     string      `json:"wire"` // openai or anthropic
	Header   http.Header `json:"header"`
	Body     []byte      `json:"body"`
	Session  string      `json:"session"`
	UserText string      `json:"userText"` // the last one; empty for a refused request
	Refused  string      `json:"refused"`  // why the request broke the wire's rules; empty when it did not
	Rule     string      `json:"rule"`     // that it broke
}

const (
	wireOpenAI    = "openai"
	wireAnthropic = "anthropic"

	maxModelBody = 32 << 20
)

// NewModel returns a model; it is an http.Handler.
func NewModel(o ModelOptions) *Model {
	if o.Keep == 0 {
		o.Keep = 1000
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &Model{options: o, mux: http.NewServeMux(), sessions: map[string]int{}, fired: map[firing]int{}, faults: map[string]int{}}
	m.mux.Handle("POST /v1/chat/completions", m.endpoint(openAIFormat{}))
	m.mux.Handle("POST /v1/messages", m.endpoint(anthropicFormat{}))
	m.mux.HandleFunc("GET /v1/models", m.listModels)
	m.mux.HandleFunc("/", m.notFound)
	return m
}

func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// Requests returns the newest requests received, oldest first, at most
// ModelOptions.Keep of them.
func (m *Model) Requests() []ModelRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]ModelRequest(nil), m.requests...)
}

// Count returns how many requests were received.
func (m *Model) Count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// Sessions returns how many requests were received per session key: the part
// of the Idempotency-Key header before its first slash, else a name made from
// the conversation's first message.
func (m *Model) Sessions() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.sessions)
}

// format is one provider's wire.
type format interface {
	name() string
	// key returns the key a request presents.
	key(http.Header) string
	// parse reads a request strictly.
	parse(http.Header, []byte) (conversation, *refusal)
	// refuse writes an error in the provider's shape.
	refuse(http.ResponseWriter, refusal)
	// write writes an answer, streamed when the request asked for that.
	write(http.ResponseWriter, conversation, answer)
}

// refusal is an error of the provider.
type refusal struct {
	Status  int    `json:"status,omitempty"`
	Type    string `json:"type,omitempty"` // empty: what the wire uses for the status
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`

	param  string // where it is, on OpenAI's wire
	broken rule   // empty for what a script says
}

// conversation is a request on either wire.
type conversation struct {
	Model       string
	Stream      bool
	StreamUsage bool
	Tools       []string
	Turns       []turn
}

type turn struct {
	Role    string // user, assistant or tool
	Text    string
	Images  int `json:",omitempty"`
	Calls   []call
	Results []result
}

type call struct {
	ID        string
	Name      string
	Arguments string
}

type result struct {
	CallID string
	Text   string
	Failed bool
}

// answer is a response on either wire.
type answer struct {
	ID    string // without the wire's prefix
	Text  string
	Calls []call
	Stop  string        // end, tool_calls, length, refusal, or the provider's own word
	Pace  time.Duration // between two pieces of it, streamed

	Thinks bool // as the model's options say
}

func (m *Model) endpoint(f format) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxModelBody))
		if _, big := errors.AsType[*http.MaxBytesError](err); big {
			m.fault(f.name(), ruleSize)
			f.refuse(w, refusal{Status: http.StatusRequestEntityTooLarge, Message: "Request exceeds the maximum size"})
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // its sender is gone
		}
		chat, refused := m.admit(f, r.Header, body)
		session := m.record(f, r.Header, body, chat, refused)
		if refused != nil {
			m.options.Log.Info("model request refused", "wire", f.name(), "status", refused.Status, "reason", refused.Message)
			f.refuse(w, *refused)
			return
		}
		if rule := m.match(session, chat); rule != nil {
			m.play(w, r, f, chat, rule.Respond)
			return
		}
		said, wait := converse(chat)
		said.Thinks = m.options.Thinks
		if !sleep(r.Context(), wait) {
			return
		}
		f.write(w, chat, said)
	})
}

// admit checks key, form and model, in the order the providers do.
func (m *Model) admit(f format, header http.Header, body []byte) (conversation, *refusal) {
	key := f.key(header)
	if m.options.Key != "" && key != m.options.Key {
		said := "Incorrect API key provided: " + masked(key)
		if key == "" {
			said = "You didn't provide an API key."
		}
		return conversation{}, &refusal{Status: http.StatusUnauthorized, Code: "invalid_api_key", Message: said, broken: ruleKey}
	}
	chat, refused := f.parse(header, body)
	if refused != nil {
		return conversation{}, refused
	}
	if known := m.options.Models; len(known) > 0 && !contains(known, chat.Model) {
		return conversation{}, &refusal{Status: http.StatusNotFound, Code: "model_not_found", Message: "The model `" + chat.Model + "` does not exist", broken: ruleModel}
	}
	return chat, nil
}

// masked shows parts of a key, as the providers do: whoever passes the text on
// leaks them.
func masked(key string) string {
	if len(key) < 8 {
		return key
	}
	return key[:4] + "****" + key[len(key)-4:]
}

func (m *Model) record(f format, header http.Header, body []byte, chat conversation, refused *refusal) string {
	session, _, _ := strings.Cut(header.Get("Idempotency-Key"), "/")
	if session == "" {
		session = "conversation-" + digest(firstUserText(chat))[:12]
	}
	request := ModelRequest{At: m.options.Now(), Wire: f.name(), Header: header.Clone(), Body: body, Session: session, UserText: lastUserText(chat)}
	if refused != nil {
		request.Refused, request.Rule = refused.Message, string(refused.broken)
		m.fault(f.name(), refused.broken)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	m.sessions[session]++
	m.requests = append(m.requests, request)
	if extra := len(m.requests) - m.options.Keep; extra > 0 {
		m.requests = append(m.requests[:0:0], m.requests[extra:]...)
	}
	return session
}

func (m *Model) listModels(w http.ResponseWriter, r *http.Request) {
	names := m.options.Models
	if len(names) == 0 {
		names = []string{"tuluat-stand-in"}
	}
	type entry map[string]any
	data := []entry{}
	anthropicWire := r.Header.Get("Anthropic-Version") != ""
	for _, name := range names {
		if anthropicWire {
			data = append(data, entry{"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"})
		} else {
			data = append(data, entry{"id": name, "object": "model", "created": created, "owned_by": "tuluat"})
		}
	}
	if anthropicWire {
		writeJSON(w, http.StatusOK, entry{"data": data, "has_more": false, "first_id": names[0], "last_id": names[len(names)-1]})
		return
	}
	writeJSON(w, http.StatusOK, entry{"object": "list", "data": data})
}

func (m *Model) notFound(w http.ResponseWriter, r *http.Request) {
	m.fault(wireOpenAI, ruleAddress)
	openAIFormat{}.refuse(w, refusal{Status: http.StatusNotFound, Code: "unknown_url", Message: "Unknown request URL: " + r.Method + " " + r.URL.Path})
}

// created is when every answer says it was made: the same request, the same
// bytes.
const created = 1735689600

func writeJSON(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil { // plain values of this package
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that is gone has nothing to be told
}

// sleep waits and reports false when the client went away first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
