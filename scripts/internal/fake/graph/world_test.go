package graph_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

const (
	numberID = "100000000000001"
	ada      = "15550001111"
	secret   = "test-app-secret"
	token    = "test-access-token"
)

// world is a server, its API and a webhook that keeps what it is told.
type world struct {
	t      *testing.T
	server *graph.Server
	api    *httptest.Server
	hook   *httptest.Server

	mu     sync.Mutex
	bodies [][]byte
	answer func(try int) int // nil: 200
	tries  int
}

func newWorld(t *testing.T, change func(*graph.Options)) *world {
	t.Helper()
	w := &world{t: t}
	w.hook = httptest.NewServer(http.HandlerFunc(w.hear))
	o := graph.Options{Seed: "test", Speed: 10_000, Numbers: []graph.Number{{
		PhoneNumberID: numberID, DisplayPhone: "15550009999", AppSecret: secret, AccessToken: token, VerifyToken: "test-verify-token", WebhookURL: w.hook.URL,
	}}}
	if change != nil {
		change(&o)
	}
	server, err := graph.New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.server, w.api = server, httptest.NewServer(server)
	if _, err := server.AddPerson(graph.Person{Phone: ada, BSUID: "US.9000000000000000001", Name: "Ada Test"}); err != nil {
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
	if r.Method == http.MethodGet {
		if r.FormValue("hub.verify_token") != "test-verify-token" || r.FormValue("hub.mode") != "subscribe" {
			out.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(out, r.FormValue("hub.challenge"))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || !hmac.Equal([]byte(r.Header.Get("X-Hub-Signature-256")), []byte(graph.Sign(secret, body))) {
		w.t.Errorf("a webhook is torn or not signed: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tries++
	status := http.StatusOK
	if w.answer != nil {
		status = w.answer(w.tries)
	}
	if status == http.StatusOK {
		w.bodies = append(w.bodies, body)
	}
	out.WriteHeader(status)
}

// settled waits until nothing goes on any more.
func (w *world) settled() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	if err := w.server.Settled(ctx); err != nil {
		w.t.Fatal(err)
	}
}

type told struct {
	Object string
	Entry  []struct {
		ID      string
		Changes []struct {
			Field string
			Value struct {
				Metadata struct {
					Phone string `json:"phone_number_id"`
				}
				Contacts []map[string]any
				Messages []map[string]any
				Statuses []map[string]any
			}
		}
	}
}

// heard returns all messages and statuses that were told, in their order.
func (w *world) heard() (messages, statuses, contacts []map[string]any) {
	w.t.Helper()
	w.settled()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, body := range w.bodies {
		var b told
		if err := json.Unmarshal(body, &b); err != nil || b.Object != "whatsapp_business_account" {
			w.t.Fatalf("%v in %s", err, body)
		}
		for _, e := range b.Entry {
			for _, c := range e.Changes {
				messages = append(messages, c.Value.Messages...)
				statuses = append(statuses, c.Value.Statuses...)
				contacts = append(contacts, c.Value.Contacts...)
			}
		}
	}
	return messages, statuses, contacts
}

func (w *world) say(all ...graph.Say) []person.Line {
	w.t.Helper()
	for i := range all {
		if all[i].From == "" {
			all[i].From = ada
		}
	}
	lines, err := w.server.Say(all...)
	if err != nil {
		w.t.Fatal(err)
	}
	return lines
}

// call makes an API call and returns the status, the answer and the error code.
func (w *world) call(method, path, bearer string, body any) (int, map[string]any, int) {
	w.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	request, err := http.NewRequest(method, w.api.URL+path, bytes.NewReader(text))
	if err != nil {
		w.t.Fatal(err)
	}
	if bearer != "" {
		request.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, 0
	}
	defer response.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	code := 0
	if e, ok := answer["error"].(map[string]any); ok {
		n, _ := e["code"].(float64)
		code = int(n)
	}
	return response.StatusCode, answer, code
}

// send sends a message and returns status and code.
func (w *world) send(fields map[string]any) (int, map[string]any, int) {
	w.t.Helper()
	all := map[string]any{"messaging_product": "whatsapp", "to": ada}
	for name, value := range fields {
		if value == nil {
			delete(all, name)
		} else {
			all[name] = value
		}
	}
	return w.call(http.MethodPost, "/v25.0/"+numberID+"/messages", token, all)
}

func text(body string) map[string]any {
	return map[string]any{"type": "text", "text": map[string]any{"body": body}}
}

func (w *world) upload(name, mimeType string, data []byte) (int, string) {
	w.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for k, v := range map[string]string{"messaging_product": "whatsapp", "type": mimeType} {
		if err := form.WriteField(k, v); err != nil {
			w.t.Fatal(err)
		}
	}
	part, err := form.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="file"; filename="` + name + `"`}, "Content-Type": {mimeType}})
	if err != nil {
		w.t.Fatal(err)
	}
	_, _ = part.Write(data)
	form.Close()
	request, err := http.NewRequest(http.MethodPost, w.api.URL+"/v25.0/"+numberID+"/media", strings.NewReader(body.String()))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Content-Type", form.FormDataContentType())
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct{ ID string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode, answer.ID
}
