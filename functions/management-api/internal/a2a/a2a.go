// Package a2a is an agent as others see it by the Agent2Agent protocol (0.3,
// https://a2a-protocol.org): a card, and JSON-RPC over HTTP with streaming. An
// agent has it while its block a2a is on.
//
// A context of the protocol is a session, a task is one message of it and what came
// of it. A task whose session waits for a human is input-required, and the next
// message of that task is the decision. Everything is asked of the API with the
// caller's own token (package loopback); nothing is kept here.
package a2a

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/a2asrv"

	"tuluat.ai/harness/functions/management-api/internal/loopback"
	"tuluat.ai/harness/shared/harness"
)

// Prefix is where the agents are, each under its name.
const Prefix = "/a2a/"

// protocolVersion is that of the card and of the SDK's types.
const protocolVersion = "0.3.0"

// Options say how agents are shown.
type Options struct {
	API        http.Handler
	Log        *slog.Logger
	Drain      <-chan struct{} // closed when the process ends
	StreamTime time.Duration   // the longest a stream lives
	WaitTime   time.Duration   // the longest a blocking message/send waits; 0: 60 s
	LookEvery  time.Duration   // how often a task that is followed is looked at; 0: 1 s
	Problem    func(w http.ResponseWriter, r *http.Request, status int, detail string)

	waits chan struct{} // one for each request that may follow a task
}

// maxWaits is how many requests of a process may follow tasks at once.
const maxWaits = 50

// Register adds the agents' endpoints to mux, which lets only known callers in.
func Register(mux *http.ServeMux, o Options) {
	if o.WaitTime == 0 {
		o.WaitTime = time.Minute
	}
	if o.LookEvery == 0 {
		o.LookEvery = time.Second
	}
	o.waits = make(chan struct{}, maxWaits)
	mux.HandleFunc("GET "+Prefix+"{name}"+a2asrv.WellKnownAgentCardPath, o.card)
	mux.HandleFunc("POST "+Prefix+"{name}", func(w http.ResponseWriter, r *http.Request) {
		p, ok := o.peer(w, r)
		if !ok {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		a2asrv.NewJSONRPCHandler(p, a2asrv.WithKeepAlive(keepAlive)).ServeHTTP(w, r)
	})
}

// keepAlive is how often a stream says that it lives.
const keepAlive = 15 * time.Second

// peer is one agent for one request of a caller.
type peer struct {
	a2asrv.RequestHandler // of what is not offered

	Options
	token       string
	agent       harness.AgentName
	description string
	skills      []skill
}

type skill struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// peer finds the agent of r, or answers itself: 404 for one that is not there or
// whose block is off, and what the API says to this caller.
func (o Options) peer(w http.ResponseWriter, r *http.Request) (*peer, bool) {
	p := &peer{RequestHandler: none, Options: o, token: r.Header.Get("Authorization"), agent: harness.AgentName(r.PathValue("name"))}
	var agent struct {
		Spec struct {
			Description string `json:"description"`
			A2A         *struct {
				Enabled *bool `json:"enabled"`
			} `json:"a2a"`
			Skills *struct {
				Enabled *bool   `json:"enabled"`
				Items   []skill `json:"items"`
			} `json:"skills"`
		} `json:"spec"`
	}
	answer, err := loopback.Do(r.Context(), o.API, loopback.Request{Method: http.MethodGet, Path: "/api/v1/agents/" + url.PathEscape(string(p.agent)), Token: p.token})
	switch {
	case err != nil:
		o.Problem(w, r, http.StatusNotFound, "there is no such agent")
		return nil, false
	case !answer.OK():
		o.Problem(w, r, answer.Status, detailOf(answer))
		return nil, false
	}
	on := func(enabled *bool) bool { return enabled == nil || *enabled }
	if err := json.Unmarshal(answer.Body, &agent); err != nil || agent.Spec.A2A == nil || !on(agent.Spec.A2A.Enabled) {
		o.Problem(w, r, http.StatusNotFound, "the agent's block a2a is off, so it is no peer")
		return nil, false
	}
	p.description = agent.Spec.Description
	if s := agent.Spec.Skills; s != nil && on(s.Enabled) {
		p.skills = s.Items
	}
	return p, true
}

// none is a handler whose every method says that it is not supported.
var none = a2asrv.NewHandler(nil)

// card answers the agent's card. Its address is the one that it was asked at.
func (o Options) card(w http.ResponseWriter, r *http.Request) {
	p, ok := o.peer(w, r)
	if !ok {
		return
	}
	scheme := "http"
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	card := a2a.AgentCard{
		ProtocolVersion: protocolVersion, Name: string(p.agent), Description: p.description, Version: "v1",
		URL: (&url.URL{Scheme: scheme, Host: r.Host, Path: Prefix + string(p.agent)}).String(), PreferredTransport: a2a.TransportProtocolJSONRPC,
		Capabilities:      a2a.AgentCapabilities{Streaming: true},
		DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
		SecuritySchemes: a2a.NamedSecuritySchemes{"bearer": a2a.HTTPAuthSecurityScheme{Scheme: "Bearer"}},
		Security:        []a2a.SecurityRequirements{{"bearer": a2a.SecuritySchemeScopes{}}},
		Skills:          []a2a.AgentSkill{{ID: "talk", Name: string(p.agent), Description: p.description, Tags: []string{"conversation"}}},
	}
	for _, s := range p.skills {
		card.Skills = append(card.Skills, a2a.AgentSkill{ID: s.Name, Name: s.Name, Description: s.Description, Tags: []string{"skill"}})
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.NewEncoder(w).Encode(card); err != nil {
		o.Log.Debug("a card was not read to its end", "agent", string(p.agent), "err", err)
	}
}

// ask asks the API for path and reads its answer into v, or returns why not in the
// protocol's terms.
func (p *peer) ask(ctx context.Context, r loopback.Request, v any) error {
	r.Token, r.Path = p.token, "/api/v1"+r.Path
	answer, err := loopback.Do(ctx, p.API, r)
	if err != nil {
		return a2a.NewError(a2a.ErrInvalidParams, "the id cannot be one of ours")
	}
	if !answer.OK() {
		return refused(answer)
	}
	if err := json.Unmarshal(answer.Body, v); err != nil {
		return a2a.NewError(a2a.ErrInternalError, "the API's answer cannot be read")
	}
	return nil
}

// refused is a problem of the API in the protocol's terms, and in its own words.
func refused(answer loopback.Answer) error {
	kind := a2a.ErrInternalError
	switch answer.Status {
	case http.StatusNotFound:
		kind = a2a.ErrTaskNotFound
	case http.StatusUnauthorized:
		kind = a2a.ErrUnauthenticated
	case http.StatusForbidden:
		kind = a2a.ErrUnauthorized
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusConflict, http.StatusRequestEntityTooLarge:
		kind = a2a.ErrInvalidParams
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		kind = a2a.ErrServerError
	}
	return a2a.NewError(kind, detailOf(answer))
}

func detailOf(answer loopback.Answer) string {
	var problem struct {
		Detail string `json:"detail"`
	}
	if json.Unmarshal(answer.Body, &problem) != nil || problem.Detail == "" {
		return http.StatusText(answer.Status)
	}
	return problem.Detail
}
