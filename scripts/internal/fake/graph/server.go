// Package graph is WhatsApp's Cloud API as its vendor serves it: the Graph API's
// part for messages and media, webhooks with signatures, retries and batches,
// statuses, limits and error codes, and the people behind it. See README.md for
// its routes and for what it leaves out.
package graph

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/internal/fake/phone"
)

// Number is one business phone number.
type Number struct {
	PhoneNumberID string `json:"phoneNumberId"`
	DisplayPhone  string `json:"displayPhone"` // as people dial it
	AppSecret     string `json:"-"`            // signs webhooks
	AccessToken   string `json:"-"`            // the bearer
	VerifyToken   string `json:"-"`            // of the handshake
	WebhookURL    string `json:"webhookUrl"`   // empty: none; nothing is told
	AccountID     string `json:"accountId"`    // WhatsApp Business account; empty: made from PhoneNumberID
	Coexistence   bool   `json:"coexistence"`  // also used in the app: people may edit and take back
}

// Options says what a Server is. Numbers are needed.
type Options struct {
	Numbers []Number
	Limits  bool   // pair rate and throughput are enforced; see SetLimits
	Seed    string // part of every id; the same seed and calls give the same ids
	State   string // a file that keeps people, chats and files; empty: nothing is kept

	Templates   []Template    // the approved ones; nil: every template is approved
	StatusDelay time.Duration // before each status; 0: at once
	BatchWindow time.Duration // what happens within it is told in one POST; 0: each on its own
	Timeout     time.Duration // of a webhook's answer; 0: 20 s
	Speed       float64       // waits are so many times shorter; 0: 1

	Now func() time.Time // nil: time.Now
	Log *slog.Logger     // nil: silence

	// OnSend is called with every message that is about to be taken, after all
	// checks; nil for nothing. It may block.
	OnSend func(Sending)
}

// Template is an approved one.
type Template struct {
	Name, Language string
	Parameters     int    // of its body
	Body           string // with {{1}} and so on; empty: the parameters themselves
}

// Sending is a message that a number sends.
type Sending struct {
	Number string // its id
	Chat   string
	Type   string
	Text   string
	Opaque string // biz_opaque_callback_data
}

// Server is an http.Handler: the API, /_fake/ to play the people, and /phone/, a
// page that does.
type Server struct {
	options Options
	mux     *http.ServeMux
	play    http.Handler // /_fake/
	page    http.Handler // /phone/
	clock   *person.Clock
	lines   *person.Transcript
	faults  person.Faults
	counts  person.Counters
	calls   person.Calls
	jobs    *person.Jobs
	client  *http.Client
	slots   chan struct{} // webhooks at once

	mu       sync.Mutex
	numbers  map[string]*Number
	order    []string // of numbers
	people   []*Person
	groups   map[string]*Group
	media    map[string]*media
	links    map[string]link
	windows  map[pair]time.Time // when they wrote last
	tats     map[pair]time.Time // pair rate: theoretical arrival time
	sent     map[string][]time.Time
	limits   bool
	inbound  map[string]pair // message id -> where; for read receipts
	withheld []update
	pending  []update // wait for their batch
	waiting  []chan struct{}
	reorder  chan struct{} // closed when the next webhook was told
	ids      int64
}

// maxPosts is how many webhooks are posted at once.
const maxPosts = 100

type pair struct{ number, chat string }

// New returns a server that runs until Close.
func New(o Options) (*Server, error) {
	if len(o.Numbers) == 0 {
		return nil, fmt.Errorf("a server without numbers has nothing to serve")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Seed == "" && o.State != "" {
		o.Seed = rand.Text() // ids of a run that was killed never come again
	}
	o.Timeout = cmp.Or(o.Timeout, 20*time.Second)
	s := &Server{
		options: o, clock: person.NewClock(o.Now, o.Speed), jobs: person.NewJobs(), limits: o.Limits,
		client:  &http.Client{Timeout: o.Timeout, Transport: &http.Transport{MaxIdleConnsPerHost: maxPosts}, CheckRedirect: noRedirect},
		slots:   make(chan struct{}, maxPosts),
		numbers: map[string]*Number{}, groups: map[string]*Group{}, media: map[string]*media{}, links: map[string]link{},
		windows: map[pair]time.Time{}, tats: map[pair]time.Time{}, sent: map[string][]time.Time{}, inbound: map[string]pair{},
	}
	for _, n := range o.Numbers {
		if n.PhoneNumberID == "" || s.numbers[n.PhoneNumberID] != nil {
			return nil, fmt.Errorf("every number needs an id of its own")
		}
		if n.AppSecret == "" || n.AccessToken == "" || n.VerifyToken == "" {
			return nil, fmt.Errorf("number %s needs an app secret, an access token and a verify token", n.PhoneNumberID)
		}
		n.AccountID = cmp.Or(n.AccountID, "2"+n.PhoneNumberID)
		n.DisplayPhone = digits(cmp.Or(n.DisplayPhone, "15550009999"))
		s.numbers[n.PhoneNumberID] = &n
		s.order = append(s.order, n.PhoneNumberID)
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("the state of the WhatsApp fake: %w", err)
	}
	s.mux, s.play = s.routes(), person.Local(s.control())
	s.page = phone.Handler(phone.WhatsApp, s.lines, s.clock, s.jobs.Context().Done())
	if o.State != "" {
		s.jobs.Beside(func(ctx context.Context) { person.Keep(ctx, o.Log, s.version, s.Save) })
	}
	return s, nil
}

// noRedirect: a webhook that redirects has not answered 200.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close ends deliveries and everything else that goes on, and keeps the state.
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
	s.mux.ServeHTTP(w, r)
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_media/{id}", s.download)
	mux.HandleFunc("/{version}/{id}", s.node)
	mux.HandleFunc("POST /{version}/{id}/messages", s.messages)
	mux.HandleFunc("POST /{version}/{id}/media", s.upload)
	mux.HandleFunc("/", s.unknown)
	return mux
}

// number returns the number that r speaks for, or refuses. With id "" any number
// of the token is enough: media and the like.
func (s *Server) number(r *http.Request, id string) (Number, *apiError) {
	token, ok := bearer(r)
	if !ok {
		return Number{}, &apiError{Status: http.StatusUnauthorized, Code: 190, Type: "OAuthException", Message: "Invalid OAuth access token - Cannot parse access token"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := false
	for _, other := range s.order {
		n := s.numbers[other]
		if n.AccessToken != token {
			continue
		}
		known = true
		if id == "" || n.PhoneNumberID == id {
			return *n, nil
		}
	}
	if !known {
		return Number{}, &apiError{Status: http.StatusUnauthorized, Code: 190, Type: "OAuthException", Message: "Invalid OAuth access token - Cannot parse access token"}
	}
	return Number{}, unknownObject(r.Method, id)
}

// node serves one object: a number or a file.
func (s *Server) node(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s.mu.Lock()
	_, isNumber := s.numbers[id]
	s.mu.Unlock()
	if !isNumber {
		s.file(w, r, id)
		return
	}
	n, refused := s.number(r, id)
	switch {
	case refused != nil:
		s.refuse(w, r, n, nil, refused)
	case r.Method == http.MethodGet:
		s.answer(w, r, n, nil, map[string]any{
			"id": n.PhoneNumberID, "verified_name": "Test business", "display_phone_number": "+" + n.DisplayPhone,
			"quality_rating": "GREEN", "code_verification_status": "VERIFIED", "platform_type": "CLOUD_API",
			"throughput": map[string]any{"level": "STANDARD"}, "webhook_configuration": map[string]any{"phone_number": n.WebhookURL},
		})
	case r.Method == http.MethodPost:
		s.configure(w, r, n)
	default:
		s.refuse(w, r, n, nil, unknownObject(r.Method, id))
	}
}

// configure sets the webhook of one number, by the vendor's own call.
func (s *Server) configure(w http.ResponseWriter, r *http.Request, n Number) {
	var ask struct {
		Webhook *struct {
			URL    string `json:"override_callback_uri"`
			Verify string `json:"verify_token"`
		} `json:"webhook_configuration"`
	}
	body, refused := readBody(r)
	if refused == nil && (json.Unmarshal(body, &ask) != nil || ask.Webhook == nil) {
		refused = parameter("webhook_configuration is required")
	}
	if refused == nil {
		if err := s.register(r.Context(), n.PhoneNumberID, ask.Webhook.URL, ask.Webhook.Verify); err != nil {
			refused = &apiError{Status: http.StatusBadRequest, Code: 2200, Type: "OAuthException", Message: "(#2200) Callback verification failed: " + err.Error()}
		}
	}
	if refused != nil {
		s.refuse(w, r, n, body, refused)
		return
	}
	s.answer(w, r, n, body, map[string]any{"success": true})
}

func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	s.refuse(w, r, Number{}, nil, &apiError{Status: http.StatusBadRequest, Code: 2500, Type: "OAuthException", Message: "Unknown path components: " + r.URL.Path})
}

// Lines is what stands in all chats.
func (s *Server) Lines() *person.Transcript { return s.lines }

// Clock is the time the server goes by.
func (s *Server) Clock() *person.Clock { return s.clock }

// knownFaults are the kinds of a person.Fault that happen here, in words.
const knownFaults = "webhook drop, double, delay or reorder; send error, cutBefore, cutAfter, stall or delay; status drop, delay, withhold, reorder or fail; media error"

// Fault lets something go wrong.
func (s *Server) Fault(f person.Fault) error {
	if s.faults.Add(f) != nil {
		return fmt.Errorf("there is no fault %q on %q; known are: %s", f.Do, f.On, knownFaults)
	}
	return nil
}

// ClearFaults lets all go well again.
func (s *Server) ClearFaults() { s.faults.Clear() }

// SetLimits turns the pair rate and the throughput limit on or off.
func (s *Server) SetLimits(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = on
	clear(s.tats)
	clear(s.sent)
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

// Chat returns what stands in a chat of number, from a place on; number "" is the first.
func (s *Server) Chat(number, chat string, after int64) ([]person.Line, int64) {
	return s.lines.Lines(s.orFirst(number), s.key(chat), after)
}

// Wait is Chat, but waits until there is something or ctx ends.
func (s *Server) Wait(ctx context.Context, number, chat string, after int64) ([]person.Line, int64) {
	return s.lines.Wait(ctx, s.orFirst(number), s.key(chat), after)
}

func (s *Server) orFirst(number string) string {
	if number == "" {
		return s.order[0]
	}
	return number
}

// numberNamed returns the number with this id, the first one for "".
func (s *Server) numberNamed(id string) (Number, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.numbers[s.orFirst(id)]
	if n == nil {
		return Number{}, false
	}
	return *n, true
}

// next returns the next of the numbers that ids are made of. s.mu is held.
func (s *Server) next() int64 { s.ids++; return s.ids }
