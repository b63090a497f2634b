package botapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

const (
	token  = "7000000001:test-token"
	name   = "example_helper_bot"
	secret = "test-telegram-secret"
	ada    = 5000000001
)

// world is a server, its API and a webhook that keeps what it is told.
type world struct {
	t      *testing.T
	server *botapi.Server
	api    *httptest.Server
	hook   *httptest.Server

	mu      sync.Mutex
	updates []map[string]any
	answer  func(try int, update map[string]any, w http.ResponseWriter) // nil: 200
	tries   int
}

func newWorld(t *testing.T, hooked bool, change func(*botapi.Options)) *world {
	t.Helper()
	w := &world{t: t}
	w.hook = httptest.NewServer(http.HandlerFunc(w.hear))
	o := botapi.Options{Seed: "test", Speed: 10_000, FirstUpdate: 910000001, Bots: []botapi.Bot{{Token: token, Username: name, Name: "Helper"}}}
	if hooked {
		o.Bots[0].WebhookURL, o.Bots[0].Secret = w.hook.URL, secret
	}
	if change != nil {
		change(&o)
	}
	server, err := botapi.New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.server, w.api = server, httptest.NewServer(server)
	if _, err := server.AddPerson(botapi.Person{ID: ada, FirstName: "Ada", LastName: "Test", Username: "ada_test", Language: "en"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		w.api.Close()
		w.hook.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return w
}

func (w *world) hear(out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var update map[string]any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err != nil || decoder.Decode(&update) != nil || r.Header.Get("X-Telegram-Bot-Api-Secret-Token") != secret {
		w.t.Errorf("a webhook is torn or without its secret: %s", body)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tries++
	if w.answer != nil {
		w.answer(w.tries, update, out)
		return
	}
	w.updates = append(w.updates, update)
}

func (w *world) settled() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	if err := w.server.Settled(ctx); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) heard() []map[string]any {
	w.t.Helper()
	w.settled()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.updates
}

// reaches waits until a counter does.
func (w *world) reaches(counter string, n int) {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); w.server.Counters()[counter] < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %d, want %d", counter, w.server.Counters()[counter], n)
		}
	}
}

func (w *world) say(all ...botapi.Say) []person.Line {
	w.t.Helper()
	for i := range all {
		if all[i].From == 0 {
			all[i].From = ada
		}
	}
	lines, err := w.server.Say(all...)
	if err != nil {
		w.t.Fatal(err)
	}
	return lines
}

type answer struct {
	OK          bool
	Result      json.RawMessage
	Code        int `json:"error_code"`
	Description string
	Parameters  map[string]int64
	message     map[string]any
}

// call calls a method; a connection that was cut is code -1.
func (w *world) call(method string, params map[string]any) answer {
	w.t.Helper()
	text, err := json.Marshal(params)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := http.Post(w.api.URL+"/bot"+token+"/"+method, "application/json", bytes.NewReader(text))
	if _, cut := errors.AsType[*url.Error](err); cut {
		return answer{Code: -1}
	}
	defer response.Body.Close()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		w.t.Fatalf("%s: %v", method, err)
	}
	if a.OK != (response.StatusCode == 200) || !a.OK && a.Code != response.StatusCode {
		w.t.Errorf("%s: status %d, %+v", method, response.StatusCode, a)
	}
	_ = json.Unmarshal(a.Result, &a.message) // true is no message
	return a
}

func (w *world) send(text string, more map[string]any) answer {
	w.t.Helper()
	params := map[string]any{"chat_id": ada, "text": text}
	for k, v := range more {
		params[k] = v
	}
	return w.call("sendMessage", params)
}
