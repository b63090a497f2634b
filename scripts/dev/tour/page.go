package tour

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

//go:embed page.html tour.css tour.js icon.svg
var files embed.FS

var page = template.Must(template.ParseFS(files, "page.html"))

// policy lets nothing in but this package's own files.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

const (
	lookEvery = time.Second      // while a page is open
	beat      = 15 * time.Second // a sign of life
	slowest   = 20 * time.Second // a page that takes nothing for so long is gone
)

func (t *Tour) routes() {
	t.mux.HandleFunc("GET /{$}", t.show)
	t.mux.HandleFunc("GET /progress", t.progress)
	t.mux.HandleFunc("POST /again", func(w http.ResponseWriter, r *http.Request) {
		t.again()
		http.Redirect(w, r, "/", http.StatusSeeOther)
	})
	for _, name := range []string{"tour.css", "tour.js", "icon.svg"} {
		t.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, name) })
	}
}

// Handler serves the page, on this machine only.
func (t *Tour) Handler() http.Handler {
	return person.Local(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // without one, a form's request would come from nowhere
		h.Set("Cache-Control", "no-cache")
		t.mux.ServeHTTP(w, r)
	}))
}

func (t *Tour) show(w http.ResponseWriter, r *http.Request) {
	t.look(r.Context())
	var shown bytes.Buffer
	if err := page.Execute(&shown, map[string]any{"Steps": t.steps(), "Options": t.options}); err != nil { // a template of this package
		panic(err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(shown.Bytes()) // a client that is gone has nothing to be told
}

// progress streams the steps, whenever they are others than before, until the
// page goes away. It is what looks.
func (t *Tour) progress(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	var last []byte
	var told time.Time
	for {
		t.mu.Lock()
		over := t.found.over()
		t.mu.Unlock()
		if !over {
			t.look(r.Context())
		}
		now, err := json.Marshal(t.steps())
		if err != nil { // plain values
			panic(err)
		}
		text := []byte(": alive\n\n")
		if !bytes.Equal(now, last) {
			text = fmt.Appendf(nil, "data: %s\n\n", now)
		}
		if !bytes.Equal(now, last) || time.Since(told) > beat {
			_ = out.SetWriteDeadline(time.Now().Add(slowest)) // a recorder of tests has none
			if _, err := w.Write(text); err != nil || out.Flush() != nil {
				return
			}
			told, last = time.Now(), now
		}
		select {
		case <-r.Context().Done():
			return
		case <-every.C:
		}
	}
}
