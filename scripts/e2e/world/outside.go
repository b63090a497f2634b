package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
)

// accounts is what WORLD_ACCOUNTS holds.
type accounts struct {
	Numbers []struct {
		PhoneNumberID string `json:"phoneNumberId"`
		AppSecret     string `json:"appSecret"`
		AccessToken   string `json:"accessToken"`
		VerifyToken   string `json:"verifyToken"`
	} `json:"numbers"`
	Bots []struct {
		Username string `json:"username"`
		Token    string `json:"token"`
		Secret   string `json:"secret"`
	} `json:"bots"`
	ModelKey string `json:"modelKey"`
	Bucket   string `json:"bucket"`
}

func readAccounts(text string) (accounts, error) {
	var a accounts
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return a, fmt.Errorf("WORLD_ACCOUNTS: %w", err)
	}
	if len(a.Numbers) == 0 || len(a.Bots) == 0 || a.ModelKey == "" || a.Bucket == "" {
		return a, errors.New("WORLD_ACCOUNTS needs numbers, bots, modelKey and bucket")
	}
	return a, nil
}

// The ports of the world.
const (
	portGraph   = "8081"
	portBot     = "8082"
	portModel   = "8083"
	portStore   = "8084"
	portControl = "8085"
)

// The paths of the product's public Services, whose names the relay takes first.
const (
	whatsappHook = "http://127.0.0.1:" + portControl + "/relay/whatsapp-ingest/api/v1/channels/whatsapp/webhook"
	telegramHook = "http://127.0.0.1:" + portControl + "/relay/telegram-ingest/api/v1/channels/telegram/webhook/"
)

// outside is what is not the product.
type outside struct {
	servers  map[string]http.Handler // by port
	whatsapp *graph.Server
	telegram *botapi.Server
}

func newOutside(a accounts, log *slog.Logger) (*outside, error) {
	var numbers []graph.Number
	for _, n := range a.Numbers {
		numbers = append(numbers, graph.Number{
			PhoneNumberID: n.PhoneNumberID, AppSecret: n.AppSecret, AccessToken: n.AccessToken, VerifyToken: n.VerifyToken, WebhookURL: whatsappHook,
		})
	}
	var bots []botapi.Bot
	for _, b := range a.Bots {
		bots = append(bots, botapi.Bot{Username: b.Username, Token: b.Token, Secret: b.Secret, WebhookURL: telegramHook + b.Username})
	}
	whatsapp, err := graph.New(graph.Options{Numbers: numbers, Log: log, Timeout: relayPatience})
	if err != nil {
		return nil, err
	}
	telegram, err := botapi.New(botapi.Options{Bots: bots, Log: log, Timeout: relayPatience})
	if err != nil {
		return nil, errors.Join(err, whatsapp.Close())
	}
	store := s3mem.New()
	if err := store.CreateBucket(a.Bucket); err != nil {
		return nil, errors.Join(err, whatsapp.Close(), telegram.Close())
	}
	model := fake.NewModel(fake.ModelOptions{Key: a.ModelKey, Log: log})
	return &outside{whatsapp: whatsapp, telegram: telegram, servers: map[string]http.Handler{
		portGraph:   whatsapp,
		portBot:     telegram,
		portModel:   model,
		portStore:   gofakes3.New(store, gofakes3.WithLogger(gofakes3.DiscardLog())).Server(),
		portControl: control(model),
	}}, nil
}

func (o *outside) close() error { return errors.Join(o.whatsapp.Close(), o.telegram.Close()) }

// control is for the tests.
func control(model *fake.Model) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /touch", touch)
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, _ *http.Request) { answer(w, model.Requests()) })
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { answer(w, model.Faults()) })
	relay := newRelay()
	mux.Handle("/relay/", relay)
	mux.HandleFunc("GET /relayed", relay.next)
	mux.HandleFunc("POST /relayed/{id}", relay.answered)
	calls := &callbacks{}
	mux.HandleFunc("POST /callbacks", calls.receive)
	mux.HandleFunc("GET /callbacks", calls.list)
	return mux
}

// touch asks a URL of the cluster, so that a function that sleeps wakes up, and
// tells how it answered.
func touch(w http.ResponseWriter, r *http.Request) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.FormValue("url"), nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	client := &http.Client{Timeout: relayPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	answer(w, map[string]int{"status": response.StatusCode})
}

// callbacks are what was POSTed to a place that no callback may lead to: the
// address of a Pod is a private one.
type callbacks struct {
	mu   sync.Mutex
	seen []callback
}

type callback struct {
	At   time.Time `json:"at"`
	Body string    `json:"body"`
}

func (c *callbacks) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, callback{time.Now(), string(body)})
}

func (c *callbacks) list(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer(w, append([]callback{}, c.seen...))
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // a client that is gone has nothing to be told
}
