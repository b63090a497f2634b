// Package phone is a page that plays the people of a fake messenger by hand: it
// looks like a chat app. What it does goes through the fake's own control API,
// /_fake/, as the CLI's does, and so through the real, signed webhook. It keeps
// nothing: what it shows is the fake's transcript.
package phone

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// Path is what everything here begins with.
const Path = "/phone/"

// Look is which messenger a phone shows.
type Look struct {
	Wire string // which of the control APIs phone.js speaks
	Name string // for people
}

// The two that are played.
var (
	WhatsApp = Look{"whatsapp", "WhatsApp"}
	Telegram = Look{"telegram", "Telegram"}
)

//go:embed page.html phone.css phone.js icon.svg
var files embed.FS

var page = template.Must(template.ParseFS(files, "page.html"))

// policy lets nothing in but this package's own files, and runs no word that
// somebody wrote.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

// Handler serves the page below Path, on this machine only. lines and clock are
// the fake's; the streams end when ends is closed.
func Handler(look Look, lines *person.Transcript, clock *person.Clock, ends <-chan struct{}) http.Handler {
	var shown bytes.Buffer
	if err := page.Execute(&shown, look); err != nil { // a template of this package
		panic(err)
	}
	f := feed{lines, clock, ends}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path+"{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(shown.Bytes()) // a client that is gone has nothing to be told
	})
	mux.HandleFunc("GET "+Path+"changes", f.serve)
	for _, name := range []string{"phone.css", "phone.js", "icon.svg"} {
		mux.HandleFunc("GET "+Path+name, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, name) })
	}
	return person.Local(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		mux.ServeHTTP(w, r)
	}))
}

// feed tells a page what changes.
type feed struct {
	lines *person.Transcript
	clock *person.Clock
	ends  <-chan struct{}
}

// News is one event of the stream GET /phone/changes?account=&chat=&after=.
type News struct {
	Lines  []person.Line `json:"lines"`  // of the chat that is open, added or changed
	Heads  []person.Line `json:"heads"`  // the newest of each chat where something happened
	Next   int64         `json:"next"`   // the place up to which this is all; also the event's id
	Typing bool          `json:"typing"` // our side writes in the open chat
	Now    time.Time     `json:"now"`    // on the fake's clock
	Cut    bool          `json:"cut"`    // the chat has older lines, which are not here
}

const (
	firstLines = 200                   // of a chat that is opened
	together   = 40 * time.Millisecond // what happens within it is one event
	beat       = 15 * time.Second      // a sign of life, so that a dead connection is noticed
	slowest    = 20 * time.Second      // a page that takes nothing for so long is gone
)

// serve streams until the page goes away or the fake ends. Last-Event-ID goes on
// where a stream was cut off.
func (f feed) serve(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	account, chat := r.FormValue("account"), r.FormValue("chat")
	after, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64)
	if err != nil {
		after, _ = strconv.ParseInt(r.FormValue("after"), 10, 64) // not a number: from the start
	}
	w.Header().Set("Content-Type", "text/event-stream")
	alive := time.NewTicker(beat)
	defer alive.Stop()
	typing, tell := false, true
	for {
		changed, jumped := f.lines.Changed(), f.clock.Jumped()
		news := f.look(account, chat, after)
		text := []byte(": alive\n\n")
		if tell = tell || news.Typing != typing || len(news.Lines)+len(news.Heads) > 0; tell {
			data, err := json.Marshal(news)
			if err != nil { // plain values
				panic(err)
			}
			text = fmt.Appendf(nil, "id: %d\ndata: %s\n\n", news.Next, data)
		}
		_ = out.SetWriteDeadline(time.Now().Add(slowest)) // a recorder of tests has none
		if _, err := w.Write(text); err != nil || out.Flush() != nil {
			return
		}
		after, typing, tell = news.Next, news.Typing, false
		stops := time.NewTimer(together)
		select {
		case <-r.Context().Done():
			return
		case <-f.ends:
			return
		case <-stops.C:
		}
		if typing {
			stops.Reset(time.Second) // to see it end
		}
		select {
		case <-r.Context().Done():
			return
		case <-f.ends:
			return
		case <-changed:
		case <-jumped:
			tell = true
		case <-stops.C:
		case <-alive.C:
		}
		stops.Stop()
	}
}

// look returns what a page does not know yet.
func (f feed) look(account, chat string, after int64) News {
	// What is looked at later may know more than Next says, and is told again then.
	lines, next := f.lines.Lines(account, chat, after)
	if account != "" { // chats that no account has to itself
		everybodys, _ := f.lines.Lines("", chat, after)
		lines = append(lines, everybodys...)
	}
	news := News{Lines: lines, Heads: f.lines.Heads(account, after), Next: next, Now: f.clock.Now()}
	if after == 0 && len(lines) > firstLines {
		news.Lines, news.Cut = lines[len(lines)-firstLines:], true
	}
	until := f.lines.TypingUntil(account, chat)
	if shared := f.lines.TypingUntil("", chat); shared.After(until) {
		until = shared
	}
	news.Typing = news.Now.Before(until)
	return news
}
