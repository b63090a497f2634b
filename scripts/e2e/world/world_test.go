package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/scripts/internal/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAccounts(t *testing.T) {
	const good = `{"numbers":[{"phoneNumberId":"1","appSecret":"a","accessToken":"b","verifyToken":"c"}],"bots":[{"username":"x_bot","token":"7:AA","secret":"s"}],"modelKey":"k","bucket":"files"}`
	a, err := readAccounts(good)
	if err != nil {
		t.Fatal(err)
	}
	o, err := newOutside(a, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if got := o.whatsapp.Numbers()[0]; got.WebhookURL != whatsappHook || got.AppSecret != "a" || got.AccessToken != "b" || got.VerifyToken != "c" {
		t.Errorf("%+v", got)
	}
	if got := o.telegram.Bots()[0]; got.WebhookURL != telegramHook+"x_bot" {
		t.Errorf("%+v", got)
	}
	if err := o.close(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "{", `{"numbers":[],"bots":[]}`} {
		if _, err := readAccounts(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func call(t *testing.T, method, url, body string) (int, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Signed", "yes")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, text
}

func TestRelayCarriesARequestAndItsAnswer(t *testing.T) {
	server := httptest.NewServer(control(fake.NewModel(fake.ModelOptions{})))
	defer server.Close()
	type given struct {
		status int
		body   []byte
	}
	asked := make(chan given, 1)
	go func() {
		status, body := call(t, http.MethodPost, server.URL+"/relay/some-service/a/b%20c?d=e", "the body")
		asked <- given{status, body}
	}()
	status, text := call(t, http.MethodGet, server.URL+"/relayed?wait=9s", "")
	var p passage
	if err := json.Unmarshal(text, &p); err != nil || status != http.StatusOK {
		t.Fatal(status, err, string(text))
	}
	if p.Service != "some-service" || p.Path != "/a/b%20c?d=e" || p.Method != http.MethodPost || string(p.Body) != "the body" || p.Header.Get("X-Signed") != "yes" {
		t.Errorf("%+v", p)
	}
	answered, err := json.Marshal(arrival{Status: http.StatusTeapot, Body: []byte("short")})
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := call(t, http.MethodPost, server.URL+"/relayed/"+p.ID, string(answered)); status != http.StatusOK {
		t.Error(status)
	}
	if got := <-asked; got.status != http.StatusTeapot || !bytes.Equal(got.body, []byte("short")) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if status, _ := call(t, http.MethodPost, server.URL+"/relayed/"+p.ID, string(answered)); status != http.StatusNotFound {
		t.Errorf("a second answer: %d", status)
	}
	if status, _ := call(t, http.MethodGet, server.URL+"/relayed", ""); status != http.StatusNoContent {
		t.Errorf("nothing waits: %d", status)
	}
}

func TestCallbacksAreKept(t *testing.T) {
	server := httptest.NewServer(control(fake.NewModel(fake.ModelOptions{})))
	defer server.Close()
	call(t, http.MethodPost, server.URL+"/callbacks", "one")
	_, text := call(t, http.MethodGet, server.URL+"/callbacks", "")
	var seen []callback
	if err := json.Unmarshal(text, &seen); err != nil || len(seen) != 1 || seen[0].Body != "one" {
		t.Error(err, string(text))
	}
}

func TestTouch(t *testing.T) {
	server := httptest.NewServer(control(fake.NewModel(fake.ModelOptions{})))
	defer server.Close()
	if status, text := call(t, http.MethodPost, server.URL+"/touch?url="+server.URL+"/healthz", ""); status != http.StatusOK || !strings.Contains(string(text), `"status":200`) {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := call(t, http.MethodPost, server.URL+"/touch?url=http://127.0.0.1:1/", ""); status != http.StatusBadGateway {
		t.Errorf("nobody listens: %d", status)
	}
}
