package botapi

import (
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// control is the people's side over HTTP. README.md says what its routes take
// and give.
func (s *Server) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/_fake/", func(w http.ResponseWriter, r *http.Request) {
		person.Refuse(w, http.StatusNotFound, "there is no "+r.Method+" "+r.URL.Path+": the routes are in scripts/internal/fake/botapi/README.md")
	})
	mux.HandleFunc("GET /_fake/accounts", func(w http.ResponseWriter, _ *http.Request) { person.Answer(w, http.StatusOK, s.Bots()) })
	mux.HandleFunc("GET /_fake/people", func(w http.ResponseWriter, _ *http.Request) { person.Answer(w, http.StatusOK, s.People()) })
	mux.HandleFunc("POST /_fake/people", func(w http.ResponseWriter, r *http.Request) { add(w, r, s.AddPerson) })
	mux.HandleFunc("GET /_fake/groups", func(w http.ResponseWriter, _ *http.Request) { person.Answer(w, http.StatusOK, s.Chats()) })
	mux.HandleFunc("POST /_fake/groups", func(w http.ResponseWriter, r *http.Request) { add(w, r, s.AddChat) })
	mux.HandleFunc("POST /_fake/business", func(w http.ResponseWriter, r *http.Request) { add(w, r, s.AddBusiness) })
	mux.HandleFunc("POST /_fake/block", func(w http.ResponseWriter, r *http.Request) {
		type block struct {
			Bot     string
			Person  int64
			Blocked bool
		}
		add(w, r, func(in block) (block, error) { return in, s.Block(in.Bot, in.Person, in.Blocked) })
	})
	mux.HandleFunc("POST /_fake/kick", func(w http.ResponseWriter, r *http.Request) {
		type kick struct {
			Bot      string
			Chat, By int64
			Out      bool
		}
		add(w, r, func(in kick) (kick, error) { return in, s.Kick(in.Bot, in.Chat, in.By, in.Out) })
	})
	mux.HandleFunc("POST /_fake/migrate", func(w http.ResponseWriter, r *http.Request) {
		add(w, r, func(in struct{ Chat, By int64 }) (Chat, error) { return s.Migrate(in.Chat, in.By) })
	})
	mux.HandleFunc("POST /_fake/say", s.controlSay)
	mux.HandleFunc("POST /_fake/update", func(w http.ResponseWriter, r *http.Request) {
		type update struct {
			Bot, Chat, Kind string
			Value           json.RawMessage
		}
		add(w, r, func(in update) (map[string]int64, error) {
			id, err := s.Update(in.Bot, in.Chat, in.Kind, in.Value)
			return map[string]int64{"updateId": id}, err
		})
	})
	mux.HandleFunc("GET /_fake/chats", func(w http.ResponseWriter, r *http.Request) {
		chats := s.lines.Chats(r.FormValue("account"))
		slices.Sort(chats)
		person.Answer(w, http.StatusOK, slices.Compact(chats))
	})
	mux.HandleFunc("GET /_fake/chats/{chat}", s.controlChat)
	mux.HandleFunc("GET /_fake/files/{id}", s.controlFile)
	mux.HandleFunc("POST /_fake/webhooks", func(w http.ResponseWriter, r *http.Request) {
		add(w, r, func(in struct{ Account, URL, Secret string }) (map[string]string, error) {
			return map[string]string{"url": in.URL}, s.SetWebhook(in.Account, in.URL, in.Secret)
		})
	})
	mux.HandleFunc("POST /_fake/post", s.controlPost)
	mux.HandleFunc("GET /_fake/faults", func(w http.ResponseWriter, _ *http.Request) { person.Answer(w, http.StatusOK, s.faults.All()) })
	mux.HandleFunc("POST /_fake/faults", func(w http.ResponseWriter, r *http.Request) {
		add(w, r, func(f person.Fault) (person.Fault, error) { return f, s.Fault(f) })
	})
	mux.HandleFunc("DELETE /_fake/faults", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearFaults()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /_fake/limits", func(w http.ResponseWriter, _ *http.Request) {
		person.Answer(w, http.StatusOK, map[string]bool{"on": s.Limits()})
	})
	mux.HandleFunc("POST /_fake/limits", func(w http.ResponseWriter, r *http.Request) {
		add(w, r, func(l struct{ On bool }) (struct{ On bool }, error) { s.SetLimits(l.On); return l, nil })
	})
	mux.HandleFunc("POST /_fake/clock", func(w http.ResponseWriter, r *http.Request) {
		add(w, r, func(l struct{ Jump person.Duration }) (map[string]time.Time, error) {
			s.clock.Jump(time.Duration(l.Jump))
			return map[string]time.Time{"now": s.clock.Now()}, nil
		})
	})
	mux.HandleFunc("GET /_fake/counters", func(w http.ResponseWriter, _ *http.Request) { person.Answer(w, http.StatusOK, s.Counters()) })
	mux.HandleFunc("GET /_fake/calls", func(w http.ResponseWriter, _ *http.Request) { person.Answer(w, http.StatusOK, s.Calls()) })
	return mux
}

// add reads a value, does something with it and answers with what came of it.
func add[In, Out any](w http.ResponseWriter, r *http.Request, do func(In) (Out, error)) {
	var in In
	if !person.Decode(w, r, &in) {
		return
	}
	out, err := do(in)
	if err != nil {
		person.Refuse(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	person.Answer(w, http.StatusOK, out)
}

// controlSay takes one Say or an array of them and answers with the lines.
func (s *Server) controlSay(w http.ResponseWriter, r *http.Request) {
	var raw json.RawMessage
	if !person.Decode(w, r, &raw) {
		return
	}
	if len(raw) > 0 && raw[0] == '{' {
		raw = append(append([]byte{'['}, raw...), ']')
	}
	var all []Say
	if err := json.Unmarshal(raw, &all); err != nil {
		person.Refuse(w, http.StatusBadRequest, "this is no Say: "+err.Error())
		return
	}
	lines, err := s.Say(all...)
	if err != nil {
		person.Refuse(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	person.Answer(w, http.StatusOK, lines)
}

// Page is what GET /_fake/chats/{chat} gives.
type Page struct {
	Lines  []person.Line `json:"lines"`
	Next   int64         `json:"next"`   // the after of the next request
	Typing bool          `json:"typing"` // the bot writes
}

const longestWait = 60 * time.Second

func (s *Server) controlChat(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("chat"), 10, 64)
	if err != nil {
		person.Refuse(w, http.StatusNotFound, "a chat is a number")
		return
	}
	account, chat := s.account(r.FormValue("account"), id), strconv.FormatInt(id, 10)
	after, _ := strconv.ParseInt(r.FormValue("after"), 10, 64) // not a number: from the start
	var page Page
	if wait, _ := time.ParseDuration(r.FormValue("wait")); wait > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), min(wait, longestWait))
		defer cancel()
		defer context.AfterFunc(s.jobs.Context(), cancel)()
		page.Lines, page.Next = s.lines.Wait(ctx, account, chat, after)
	} else {
		page.Lines, page.Next = s.lines.Lines(account, chat, after)
	}
	page.Typing = s.clock.Now().Before(s.lines.TypingUntil(account, chat))
	person.Answer(w, http.StatusOK, page)
}

func (s *Server) controlFile(w http.ResponseWriter, r *http.Request) {
	f, data, ok := s.File(r.PathValue("id"))
	if !ok {
		person.Refuse(w, http.StatusNotFound, "there is no such file")
		return
	}
	// Whatever people and agents send is shown by nobody's browser as a page.
	w.Header().Set("Content-Type", f.MimeType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Security-Policy", "sandbox")
	if !strings.HasPrefix(f.MimeType, "image/") || strings.HasPrefix(f.MimeType, "image/svg") {
		w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": f.Name}))
	}
	_, _ = w.Write(data) // a client that is gone has nothing to be told
}

// controlPost posts the body as it is, with the bot's secret.
func (s *Server) controlPost(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
	status := 0
	if err == nil {
		status, err = s.Post(r.Context(), r.FormValue("account"), body)
	}
	if err != nil {
		person.Refuse(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	person.Answer(w, http.StatusOK, map[string]int{"status": status})
}
