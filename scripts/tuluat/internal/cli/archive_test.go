package cli_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// The archive is checked to its end, page by page; what is wrong is printed, and
// the exit code tells.
func TestLogsVerify(t *testing.T) {
	f := newFake(t)
	f.mux.HandleFunc("GET /api/v1/logs/archive", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("after") == "" {
			io.WriteString(w, `{"checked":50,"bytes":100,"findings":[],"next":"here"}`)
			return
		}
		io.WriteString(w, `{"checked":2,"bytes":1,"findings":[{"key":"logs/v1/a","problem":"CHANGED","detail":"its digest is another"}]}`)
	})
	got := f.run("logs", "verify")
	if got.code != 1 || !strings.Contains(got.out, "CHANGED  logs/v1/a  its digest is another") || !strings.Contains(got.errOut, "1 of 52 objects") {
		t.Errorf("%+v", got)
	}
	if got := f.run("logs", "verify", "-o", "json"); got.code != 1 || !strings.Contains(got.out, `"checked": 52`) {
		t.Errorf("%+v", got)
	}
	f = newFake(t)
	f.say("GET /api/v1/logs/archive", 200, `{"checked":3,"bytes":7,"findings":[]}`)
	if got := f.run("logs", "verify"); got.code != 0 || !strings.Contains(got.out, "3 objects, 7 bytes: all as they should be") {
		t.Errorf("%+v", got)
	}
}

// An export is copied as it comes, and one that breaks off is no success.
func TestLogsExport(t *testing.T) {
	f := newFake(t)
	f.mux.HandleFunc("GET /api/v1/logs/export", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		io.WriteString(w, `{"id":1}`+"\n")
		if r.URL.Query().Get("agent") == "broken" {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	if got := f.run("logs", "export", "--since", "2026-01-02T00:00:00Z", "--level", "WARN"); got.code != 0 || got.out != `{"id":1}`+"\n" {
		t.Errorf("%+v", got)
	}
	if got := f.run("logs", "export", "--agent", "broken"); got.code != 1 || got.out != `{"id":1}`+"\n" || got.errOut == "" {
		t.Errorf("%+v", got)
	}
}

// Who is to be forgotten must be meant, and the report says what went.
func TestForget(t *testing.T) {
	f := newFake(t)
	f.say("POST /api/v1/forgets", 202, `{"id":"fgt_1","channel":"TELEGRAM","state":"PENDING","requestedBy":"ann","counts":{},"left":[],"createdAt":"2026-01-02T03:04:05Z"}`)
	f.say("GET /api/v1/forgets/fgt_1", 200, `{"id":"fgt_1","channel":"TELEGRAM","state":"DONE","requestedBy":"ann","counts":{"messages":4},"left":["audit_log: kept"],"createdAt":"2026-01-02T03:04:05Z"}`)
	for _, args := range []string{"--channel telegram --user 7", "--channel nowhere --user 7 --yes", "--channel telegram --yes"} {
		if got := f.run(append([]string{"forget"}, strings.Fields(args)...)...); got.code != 2 {
			t.Errorf("%s: %+v", args, got)
		}
	}
	got := f.run("forget", "--channel", "telegram", "--user", "7", "--yes")
	if got.code != 0 || !strings.Contains(got.out, "forget/fgt_1 DONE") || !strings.Contains(got.out, "messages                 4") || !strings.Contains(got.out, "left: audit_log: kept") {
		t.Errorf("%+v", got)
	}
	if got := f.run("forget", "--channel", "telegram", "--user", "7", "--yes", "--wait", "0"); got.code != 0 || !strings.Contains(got.out, "fgt_1 PENDING") {
		t.Errorf("%+v", got)
	}
}
