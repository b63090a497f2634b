package whatsapp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func TestShow(t *testing.T) {
	p := newProvider(t, nil)
	m := &postgres.Received{ProviderID: "wamid.IN", Address: "15550001111"}
	if err := p.graph.Show(context.Background(), account(nil), m, true); err != nil {
		t.Fatal(err)
	}
	if len(p.calls()) != 1 || strings.TrimSpace(string(p.calls()[0].body)) != `{"messaging_product":"whatsapp","status":"read","message_id":"wamid.IN","typing_indicator":{"type":"text"}}` {
		t.Fatalf("%s", p.calls())
	}
	for _, m := range []*postgres.Received{{Address: "1"}, {ProviderID: "wamid.IN", Address: "group:G"}, {ProviderID: "wamid.IN", Session: harness.Session{Chat: "group:G"}}} {
		if err := p.graph.Show(context.Background(), account(nil), m, true); err != nil || len(p.calls()) != 1 {
			t.Errorf("%+v: %v", m, err)
		}
	}
	p = newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(400)
		_, _ = io.WriteString(w, graphError(131009, 0))
	})
	if err := p.graph.Show(context.Background(), account(nil), m, true); err == nil || strings.Contains(err.Error(), accessToken) {
		t.Error(err)
	}
	p.server.Close()
	if err := p.graph.Show(context.Background(), account(nil), m, true); harness.KindOf(err) != harness.Unavailable || strings.Contains(err.Error(), "http") {
		t.Error(err)
	}
}

// shelves is a provider whose files are on another host.
func shelves(t *testing.T, files http.HandlerFunc, size string) (*provider, *int) {
	located := 0
	var p *provider
	p = newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/files/") {
			files(w, r)
			return
		}
		located++
		if r.URL.Query().Get("phone_number_id") != ourID {
			t.Error(r.URL)
		}
		fmt.Fprintf(w, `{"url":"%s/files/%d?key=SECRET-URL","mime_type":"image/jpeg","sha256":"x","file_size":%s,"id":"400"}`, p.server.URL, located, size)
	})
	t.Cleanup(func() {
		if strings.Contains(p.logs.String(), "SECRET-URL") {
			t.Error("the address is in the log")
		}
	})
	return p, &located
}

func download(p *provider, a *channel.Account) (string, harness.Attachment, error) {
	body, found, err := p.graph.Download(context.Background(), a, postgres.Attachment{Attachment: harness.Attachment{ProviderID: "400", FileName: "x.jpg"}})
	if err != nil {
		return "", found, err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return string(text), found, err
}

func TestDownload(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	long := func(w http.ResponseWriter, _ *http.Request) {
		for range 30 {
			_, _ = w.Write(make([]byte, 100))
			w.(http.Flusher).Flush()
		}
	}
	for name, tt := range map[string]struct {
		files   http.HandlerFunc
		size    string
		kind    harness.Kind
		located int
	}{
		"there":          {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "bytes") }, "5", "", 1},
		"there, exactly": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) }, `"1000"`, "", 1},
		"gone at first": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(map[bool]int{true: 404, false: 200}[strings.HasPrefix(r.URL.Path, "/files/1")])
		}, "5", "", 2},
		"gone":             {status(404), "5", harness.NotFound, 2},
		"refused":          {status(401), "5", harness.Denied, 1},
		"busy":             {status(429), "5", harness.Unavailable, 1},
		"broken":           {status(500), "5", harness.Unavailable, 1},
		"said too large":   {status(200), "1001", harness.Exhausted, 1},
		"length too large": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1001") }, "0", harness.Exhausted, 1},
		"longer than said": {long, "5", harness.Exhausted, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, located := shelves(t, tt.files, tt.size)
			text, found, err := download(p, account(nil))
			if harness.KindOf(err) != tt.kind || *located != tt.located {
				t.Fatalf("%q %v after %d addresses", text, err, *located)
			}
			if err != nil && (strings.Contains(err.Error(), "SECRET-URL") || strings.Contains(err.Error(), accessToken)) {
				t.Error(err)
			}
			if err == nil && (found.MimeType != "image/jpeg" || found.FileName != "x.jpg" || found.Bytes == 0) {
				t.Errorf("%+v", found)
			}
		})
	}
}

func TestDownloadRefusals(t *testing.T) {
	for body, kind := range map[string]harness.Kind{
		graphError(100, 33): harness.NotFound, graphError(190, 463): harness.Denied, graphError(130429, 0): harness.Unavailable, "<html>": harness.NotFound,
	} {
		p := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			_, _ = io.WriteString(w, body)
		})
		if _, _, err := download(p, account(nil)); harness.KindOf(err) != kind {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, address := range []string{"", "http://169.254.169.254/x", "ftp://x/y", "/relative"} {
		p := newProvider(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"url":"%s"}`, address) })
		if _, _, err := download(p, account(nil)); harness.KindOf(err) != harness.Unavailable || len(p.calls()) != 1 {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, _, err := download(newProvider(t, nil), account(func(a *channel.Account) { a.Keys = nil })); harness.KindOf(err) != harness.Denied {
		t.Error(err)
	}
}

// TestRedirectLosesToken: another host is not told the token.
func TestRedirectLosesToken(t *testing.T) {
	var heard []string
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard = append(heard, r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, "bytes")
	}))
	defer other.Close()
	p, _ := shelves(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+"/x", http.StatusFound) }, "5")
	p.graph.client.Transport.(*http.Transport).TLSClientConfig = other.Client().Transport.(*http.Transport).TLSClientConfig
	text, _, err := download(p, account(nil))
	if err != nil || text != "bytes" || len(heard) != 1 || heard[0] != "" {
		t.Errorf("%q %v, the other host heard %q", text, err, heard)
	}
	endless, _ := shelves(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) }, "5")
	if _, _, err := download(endless, account(nil)); harness.KindOf(err) != harness.Unavailable || len(endless.calls()) != 1+maxRedirects {
		t.Errorf("%v after %d calls", err, len(endless.calls()))
	}
}
