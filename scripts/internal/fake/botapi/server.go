// Package botapi is Telegram's Bot API as its vendor serves it: methods, HTML
// that is really parsed, flood control, webhooks with their retry rules, long
// polls, files, and the people and groups behind it. See README.md for its
// routes and for what it leaves out.
package botapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/internal/fake/phone"
)

// Bot is one bot.
type Bot struct {
	Token      string `json:"-"` // its id, a colon, its secret
	Username   string `json:"username"`
	Name       string `json:"name"`
	WebhookURL string `json:"webhookUrl"` // empty: none is set
	Secret     string `json:"-"`          // of the webhook's header
	ReadsAll   bool   `json:"readsAll"`   // privacy mode is off
	ID         int64  `json:"id"`         // of Token
}

// Options says what a Server is. Bots are needed.
type Options struct {
	Bots   []Bot
	Limits bool   // flood control is on; see SetLimits
	Seed   string // part of every id; the same seed and calls give the same ids
	State  string // a file that keeps people, chats, files and updates; empty: nothing is kept

	FirstUpdate int64         // the first update_id of every bot; 0: made from Seed
	Timeout     time.Duration // of a webhook's answer; 0: 60 s
	Speed       float64       // waits are so many times shorter; 0: 1

	Now func() time.Time // nil: time.Now
	Log *slog.Logger     // nil: silence

	// OnSend is called with every message that is about to be taken, after all
	// checks; nil for nothing. It may block.
	OnSend func(Sending)
}

// Sending is a message that a bot sends.
type Sending struct {
	Bot    string // its username
	Chat   int64
	Method string
	Text   string // as the phone shows it
}

// Server is an http.Handler: the API, /_fake/ to play the people, and /phone/, a
// page that does.
type Server struct {
	options Options
	play    http.Handler // /_fake/
	page    http.Handler // /phone/
	clock   *person.Clock
	lines   *person.Transcript
	faults  person.Faults
	counts  person.Counters
	calls   person.Calls
	jobs    *person.Jobs
	client  *http.Client

	mu       sync.Mutex
	bots     []*bot
	people   map[int64]*Person
	chats    map[int64]*Chat // groups and channels
	links    map[string]Business
	messages map[string]map[string]any // by chat and id, as the API gives them
	last     map[int64]int64           // message ids, by chat
	files    map[string]*file
	queries  map[string]*query
	tats     map[string]time.Time // flood control: theoretical arrival times
	limits   bool
	reorder  chan struct{} // closed when the next webhook was told
	ids      int64
}

// bot is a Bot and what waits for it.
type bot struct {
	Bot
	next    int64 // update_id
	allowed []string
	most    int // connections
	waiting map[string][]*queued
	changed chan struct{} // closed when an update comes
	hook    *hook         // nil: none
	poll    *poller       // nil: nobody polls
	set     time.Time     // the last setWebhook
	failed  time.Time
	failure string
	gone    time.Time // since when 410 is answered
}

var (
	validToken  = regexp.MustCompile(`^([1-9][0-9]{0,18}):[A-Za-z0-9_-]+$`)
	validSecret = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)
)

// New returns a server that runs until Close.
func New(o Options) (*Server, error) {
	if len(o.Bots) == 0 {
		return nil, fmt.Errorf("a server without bots has nothing to serve")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Seed == "" && o.State != "" {
		o.Seed = rand.Text() // ids of a run that was killed never come again
	}
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	s := &Server{
		options: o, clock: person.NewClock(o.Now, o.Speed), jobs: person.NewJobs(), limits: o.Limits,
		client: &http.Client{Timeout: o.Timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 64}, CheckRedirect: noRedirect},
		people: map[int64]*Person{}, chats: map[int64]*Chat{}, links: map[string]Business{}, messages: map[string]map[string]any{},
		last: map[int64]int64{}, files: map[string]*file{}, queries: map[string]*query{}, tats: map[string]time.Time{},
	}
	for _, b := range o.Bots {
		id := validToken.FindStringSubmatch(b.Token)
		if id == nil {
			return nil, fmt.Errorf("the token of bot %q is not ID:SECRET", b.Username)
		}
		b.ID, _ = strconv.ParseInt(id[1], 10, 64) // digits, by the expression
		b.Username = strings.TrimPrefix(b.Username, "@")
		b.Name = cmp.Or(b.Name, b.Username)
		if b.Username == "" || s.named(b.Username) != nil || s.withToken(b.Token) != nil {
			return nil, fmt.Errorf("every bot needs a username and a token of its own")
		}
		first := o.FirstUpdate
		if first == 0 {
			first = 100_000_000 + int64(number(o.Seed, b.Username)%100_000_000)
		}
		s.bots = append(s.bots, &bot{Bot: b, next: first, most: 40, waiting: map[string][]*queued{}, changed: make(chan struct{})})
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("the state of the Telegram fake: %w", err)
	}
	s.play = person.Local(s.control())
	s.page = phone.Handler(phone.Telegram, s.lines, s.clock, s.jobs.Context().Done())
	for _, b := range s.bots {
		if b.WebhookURL != "" {
			if err := s.SetWebhook(b.Username, b.WebhookURL, b.Secret); err != nil {
				return nil, err
			}
		}
	}
	if o.State != "" {
		s.jobs.Beside(func(ctx context.Context) { person.Keep(ctx, o.Log, s.version, s.Save) })
	}
	return s, nil
}

func number(parts ...string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join(parts, "|"))) // never fails
	return h.Sum64()
}

// noRedirect: a webhook that redirects has not answered 2xx.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close ends deliveries, polls and everything else that goes on, and keeps the state.
func (s *Server) Close() error {
	s.jobs.Close()
	s.client.CloseIdleConnections()
	return s.Save()
}

// Settled waits until nothing is being told or tried again.
func (s *Server) Settled(ctx context.Context) error { return s.jobs.Settled(ctx) }

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/_fake/") {
		s.play.ServeHTTP(w, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, phone.Path) {
		s.page.ServeHTTP(w, r)
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/file/bot"); ok {
		token, path, _ := strings.Cut(rest, "/")
		s.download(w, r, token, path)
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/bot")
	token, method, two := strings.Cut(rest, "/")
	if !ok || !two {
		s.answer(w, nil, call{method: r.URL.Path}, fail(http.StatusNotFound, "Not Found"))
		return
	}
	s.mu.Lock()
	b := s.withToken(token)
	s.mu.Unlock()
	c := call{method: strings.ToLower(method)}
	switch {
	case !validToken.MatchString(token):
		s.answer(w, nil, c, fail(http.StatusNotFound, "Not Found"))
		return
	case b == nil:
		s.answer(w, nil, c, fail(http.StatusUnauthorized, "Unauthorized"))
		return
	}
	if refused := c.read(w, r); refused != nil {
		s.answer(w, b, c, refused)
		return
	}
	s.answer(w, b, c, s.do(r.Context(), b, c))
}

// named and withToken find a bot, or nil. s.mu is held, or New runs.
func (s *Server) named(username string) *bot {
	for _, b := range s.bots {
		if strings.EqualFold(b.Username, strings.TrimPrefix(username, "@")) {
			return b
		}
	}
	return nil
}

func (s *Server) withToken(token string) *bot {
	for _, b := range s.bots {
		if b.Token == token {
			return b
		}
	}
	return nil
}

// bot finds a bot by its username; the first one for "". s.mu is held.
func (s *Server) bot(username string) (*bot, error) {
	if username == "" {
		return s.bots[0], nil
	}
	if b := s.named(username); b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("there is no bot %q", username)
}

// Lines is what stands in all chats.
func (s *Server) Lines() *person.Transcript { return s.lines }

// Clock is the time the server goes by.
func (s *Server) Clock() *person.Clock { return s.clock }

// knownFaults are the kinds of a person.Fault that happen here, in words.
const knownFaults = "webhook drop, double, delay or reorder; send error, cutBefore, cutAfter, stall or delay; media error"

// Fault lets something go wrong. Bots are told no statuses, so none goes wrong.
func (s *Server) Fault(f person.Fault) error {
	if f.On == "status" || s.faults.Add(f) != nil {
		return fmt.Errorf("there is no fault %q on %q; known are: %s", f.Do, f.On, knownFaults)
	}
	return nil
}

// ClearFaults lets all go well again.
func (s *Server) ClearFaults() { s.faults.Clear() }

// SetLimits turns flood control on or off.
func (s *Server) SetLimits(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = on
	clear(s.tats)
}

// Limits reports whether they are on.
func (s *Server) Limits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits
}

// Counters returns what was counted; README.md says what.
func (s *Server) Counters() map[string]int { return s.counts.All() }

// Calls returns the newest calls of the API.
func (s *Server) Calls() []person.Call { return s.calls.All() }

// Chat returns what stands in a chat with a bot, from a place on; bot "" is the
// first. In groups the bot makes no difference.
func (s *Server) Chat(bot string, chat int64, after int64) ([]person.Line, int64) {
	return s.lines.Lines(s.account(bot, chat), strconv.FormatInt(chat, 10), after)
}

// Wait is Chat, but waits until there is something or ctx ends.
func (s *Server) Wait(ctx context.Context, bot string, chat int64, after int64) ([]person.Line, int64) {
	return s.lines.Wait(ctx, s.account(bot, chat), strconv.FormatInt(chat, 10), after)
}

// account is whose transcript a chat stands in: a group is everybody's.
func (s *Server) account(bot string, chat int64) string {
	if chat < 0 {
		return ""
	}
	if bot == "" {
		return s.bots[0].Username
	}
	if b := s.named(bot); b != nil { // bots do not come and go
		return b.Username
	}
	return bot
}

// Bots lists the bots.
func (s *Server) Bots() []Bot {
	s.mu.Lock()
	defer s.mu.Unlock()
	bots := []Bot{}
	for _, b := range s.bots {
		shown := b.Bot
		shown.WebhookURL = ""
		if b.hook != nil {
			shown.WebhookURL = b.hook.url
		}
		bots = append(bots, shown)
	}
	return bots
}
