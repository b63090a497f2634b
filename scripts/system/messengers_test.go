//go:build system

package system_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

// crowd says how the providers of a test behave.
type crowd struct {
	onWhatsApp func(graph.Sending) // at every message that is about to be taken
	onTelegram func(botapi.Sending)
	asks       bool    // the agent asks before every command
	streams    bool    // people see the agent's answers grow
	askers     []asker // agents that ask people before they run a command
}

// messengers are WhatsApp and Telegram as the functions of a world see them, the
// people on them, and the store that keeps their files.
type messengers struct {
	world    *world
	whatsapp *graph.Server
	telegram *botapi.Server
	urls     map[string]string // of the APIs, by function
	storeURL string
	door     *door
}

// The accounts of the agent that people talk to.
const (
	peopleAgent = "people"
	phoneNumber = "100000000000001"
	botName     = "people_bot"
	botToken    = "700000001:token-of-the-played-bot"
	hookSecret  = "webhook-secret-of-the-played-bot"
	appSecret   = "app-secret-of-the-played-number"
	accessToken = "access-token-of-the-played-number"
	verifyToken = "verify-token-of-the-played-number"
)

const messengerAccounts = 2

// messengerSecrets are the variables that stand for the agent's Secrets.
var messengerSecrets = map[string]string{
	"PEOPLE_WHATSAPP_APP_SECRET": appSecret, "PEOPLE_WHATSAPP_ACCESS_TOKEN": accessToken, "PEOPLE_WHATSAPP_VERIFY_TOKEN": verifyToken,
	"PEOPLE_TELEGRAM_BOT_TOKEN": botToken, "PEOPLE_TELEGRAM_WEBHOOK_SECRET": hookSecret,
}

const peopleYAML = `apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: ` + peopleAgent + `
  annotations:
    tuluat.ai/allow-open-code: "true"
spec:
  description: Does what the test says, for people.
  systemPrompt: You run commands.
  harness:
    type: BOTH
    sandbox:
      cpu: "1"
      memory: 64Mi
      volumeSize: 8Mi
      timeoutSeconds: 30
      ttlSeconds: 120
      idleSeconds: 10
      egress: none
    maxSandboxes: 2
    channels:
      - type: WHATSAPP
        phoneNumberId: "` + phoneNumber + `"
        phoneNumber: "+15550009999"
        verifyTokenSecretRef: {name: people-whatsapp, key: verify-token}
        appSecretSecretRef: {name: people-whatsapp, key: app-secret}
        accessTokenSecretRef: {name: people-whatsapp, key: access-token}
        senders:
          policy: open
      - type: TELEGRAM
        bot: ` + botName + `
        botTokenSecretRef: {name: people-telegram, key: bot-token}
        webhookSecretRef: {name: people-telegram, key: webhook-secret}
        senders:
          policy: open
`

// newMessengers serves the providers; nothing is told to anybody before connect.
func newMessengers(w *world, c *crowd) *messengers {
	m := &messengers{world: w, urls: map[string]string{}}
	agentYAML := peopleYAML
	if c.asks {
		agentYAML += "  approvals:\n    policy: always\n    timeout: 30m\n"
	}
	if c.streams {
		agentYAML += "  model:\n    stream: true\n"
	}
	w.must(os.WriteFile(filepath.Join(w.agentsDir(), peopleAgent+".yaml"), []byte(agentYAML), 0o644))
	numbers := []graph.Number{{PhoneNumberID: phoneNumber, AppSecret: appSecret, AccessToken: accessToken, VerifyToken: verifyToken}}
	bots := []botapi.Bot{{Token: botToken, Username: botName}}
	for _, a := range c.askers {
		w.must(os.WriteFile(filepath.Join(w.agentsDir(), a.name+".yaml"), []byte(a.yaml(w.receiver.url)), 0o644))
		numbers = append(numbers, graph.Number{PhoneNumberID: a.number, AppSecret: appSecret, AccessToken: accessToken, VerifyToken: verifyToken})
		bots = append(bots, botapi.Bot{Token: a.token, Username: a.bot})
	}
	var err error
	m.whatsapp, err = graph.New(graph.Options{Numbers: numbers, OnSend: c.onWhatsApp})
	w.must(err)
	m.telegram, err = botapi.New(botapi.Options{Bots: bots, OnSend: c.onTelegram})
	w.must(err)
	m.urls["whatsapp-ingest"], m.urls["telegram-ingest"] = w.serve(m.whatsapp), w.serve(m.telegram)
	w.t.Cleanup(func() {
		for _, err := range []error{m.whatsapp.Close(), m.telegram.Close()} {
			if err != nil {
				w.t.Error(err)
			}
		}
	})
	store := s3mem.New()
	w.must(store.CreateBucket(database))
	m.storeURL = w.serve(gofakes3.New(store, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	return m
}

// serve serves h until the test ends and returns its URL.
func (w *world) serve(h http.Handler) string {
	server := httptest.NewServer(h)
	w.t.Cleanup(server.Close)
	return server.URL
}

// connect tells the providers where updates go: through a door that writes down
// how each was answered.
func (m *messengers) connect() {
	m.door = newDoor(m.world, m.world.cluster.GatewayURL())
	m.hook(m.door.url)
}

// hook sets the providers' webhooks to paths of base.
func (m *messengers) hook(base string) {
	m.world.t.Helper()
	m.world.must(m.whatsapp.SetWebhook("", base+whatsappPath))
	m.world.must(m.telegram.SetWebhook("", base+telegramPath, hookSecret))
	for _, a := range m.world.plan.people.askers {
		m.world.must(m.whatsapp.SetWebhook(a.number, base+whatsappPath))
		m.world.must(m.telegram.SetWebhook(a.bot, base+telegramHooks+a.bot, hookSecret))
	}
}

const (
	whatsappPath  = "/api/v1/channels/whatsapp/webhook"
	telegramHooks = "/api/v1/channels/telegram/webhook/"
	telegramPath  = telegramHooks + botName
)

// env is what a function needs beside its YAML.
func (m *messengers) env(function string, env map[string]string) {
	switch function {
	case "whatsapp-ingest":
		env["WHATSAPP_API_URL"] = m.urls[function]
	case "telegram-ingest":
		env["TELEGRAM_API_URL"] = m.urls[function]
	case "sandbox-exec":
	default:
		return
	}
	env["S3_ENDPOINT"], env["S3_BUCKET"], env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"] = m.storeURL, database, "test", "test"
	if function != "sandbox-exec" {
		for name, value := range messengerSecrets {
			env[name] = value
		}
		for _, a := range m.world.plan.people.askers {
			a.secrets(env)
		}
	}
}

// phone is one provider as its people use it. A chat is a person's with the
// agent, by the person's number.
type phone interface {
	channel() string
	join(name string) (chat string)
	say(chat, text string) (id string)
	lines(chat string) []person.Line
	counters() map[string]int
}

type whatsappPhone struct {
	*messengers
	joined *int
}

type telegramPhone struct {
	*messengers
	joined *int
}

func (m *messengers) phones() []phone {
	return []phone{whatsappPhone{m, new(int)}, telegramPhone{m, new(int)}}
}

func (whatsappPhone) channel() string { return "WHATSAPP" }
func (telegramPhone) channel() string { return "TELEGRAM" }

func (p whatsappPhone) join(name string) string {
	*p.joined++
	made, err := p.whatsapp.AddPerson(graph.Person{Phone: fmt.Sprintf("1555200%04d", *p.joined), Name: name})
	p.world.must(err)
	return made.ID
}

func (p telegramPhone) join(name string) string {
	*p.joined++
	made, err := p.telegram.AddPerson(botapi.Person{ID: 5000 + int64(*p.joined), FirstName: name})
	p.world.must(err)
	return strconv.FormatInt(made.ID, 10)
}

func (p whatsappPhone) say(chat, text string) string {
	lines, err := p.whatsapp.Say(graph.Say{From: chat, Text: text})
	p.world.must(err)
	return lines[0].ID
}

func (p telegramPhone) say(chat, text string) string {
	lines, err := p.telegram.Say(botapi.Say{From: telegramID(chat), Text: text})
	p.world.must(err)
	return lines[0].ID
}

func telegramID(chat string) int64 {
	id, _ := strconv.ParseInt(chat, 10, 64) // made by join
	return id
}

func (p whatsappPhone) lines(chat string) []person.Line {
	lines, _ := p.whatsapp.Chat("", chat, 0)
	return lines
}

func (p telegramPhone) lines(chat string) []person.Line {
	lines, _ := p.telegram.Chat("", telegramID(chat), 0)
	return lines
}

func (p whatsappPhone) counters() map[string]int { return p.whatsapp.Counters() }
func (p telegramPhone) counters() map[string]int { return p.telegram.Counters() }

// answers are our side's lines of a chat, in the order of the chat.
func answers(lines []person.Line) []person.Line {
	var ours []person.Line
	for _, l := range lines {
		if l.From == "" {
			ours = append(ours, l)
		}
	}
	return ours
}

// told reports whether the webhook of what a person said was answered 200.
func told(lines []person.Line, id string) bool {
	for _, l := range lines {
		if l.ID == id && l.From != "" {
			return l.Ticks == person.Delivered || l.Ticks == person.Read
		}
	}
	return false
}

// door passes webhooks on and writes down their answers.
type door struct {
	url string

	mu     sync.Mutex
	knocks []knock
}

type knock struct {
	at     time.Time
	path   string
	status int
	took   time.Duration
}

func newDoor(w *world, to string) *door {
	target, err := url.Parse(to)
	w.must(err)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.MaxIdleConnsPerHost = nil, 64
	w.t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport}
	d := &door{}
	d.url = w.serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		began, answer := time.Now(), &answered{ResponseWriter: rw}
		proxy.ServeHTTP(answer, r)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.knocks = append(d.knocks, knock{began, r.URL.Path, answer.status, time.Since(began)})
	}))
	return d
}

type answered struct {
	http.ResponseWriter
	status int
}

func (a *answered) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// statuses counts the answers of knocks within a time, by provider and status,
// and returns the longest wait for one.
func (d *door) statuses(from, to time.Time) (counts map[string]int, longest time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts = map[string]int{}
	for _, k := range d.knocks {
		if k.at.Before(from) || k.at.After(to) {
			continue
		}
		channel := "WHATSAPP"
		if strings.Contains(k.path, "telegram") {
			channel = "TELEGRAM"
		}
		counts[fmt.Sprintf("%s %d", channel, k.status)]++
		longest = max(longest, k.took)
	}
	return counts, longest
}

// gate is the functions' way to the broker.
type gate struct {
	url string

	mu    sync.Mutex
	state gateState
	next  chan struct{} // closed when the state changes
	held  int           // events that came while it was not open

	mixing sync.WaitGroup // what is passed on later
}

type gateState int

const (
	gateOpen gateState = iota
	gateSilent
	gateRefusing
	gateLosing   // takes every event and loses it
	gateDoubling // takes every event twice
	gateMixing   // takes every event, and passes it on in another order
)

func newGate(w *world) *gate {
	g := &gate{next: make(chan struct{})}
	w.t.Cleanup(g.mixing.Wait)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.MaxIdleConnsPerHost = nil, 64
	w.t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		target, err := url.Parse(w.cluster.BrokerURL("tuluat-system", "default"))
		if err != nil {
			w.t.Error(err)
			return
		}
		r.Out.URL, r.Out.Host = target, target.Host
	}}
	g.url = w.serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		state, next := g.now()
		switch state {
		case gateSilent:
			select {
			case <-r.Context().Done():
			case <-next:
			}
			panic(http.ErrAbortHandler)
		case gateRefusing:
			panic(http.ErrAbortHandler)
		case gateLosing:
			rw.WriteHeader(http.StatusAccepted)
			return
		case gateDoubling:
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			again := r.Clone(r.Context())
			r.Body, again.Body = io.NopCloser(bytes.NewReader(body)), io.NopCloser(bytes.NewReader(body))
			proxy.ServeHTTP(httptest.NewRecorder(), again)
		case gateMixing:
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			later := r.Clone(w.t.Context())
			later.Body = io.NopCloser(bytes.NewReader(body))
			g.mixing.Go(func() {
				time.Sleep(rand.N(500 * time.Millisecond)) // nobody is told when
				proxy.ServeHTTP(httptest.NewRecorder(), later)
			})
			rw.WriteHeader(http.StatusAccepted)
			return
		}
		proxy.ServeHTTP(rw, r)
	}))
	return g
}

func (g *gate) now() (gateState, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != gateOpen {
		g.held++
	}
	return g.state, g.next
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

func (g *gate) set(state gateState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = state
	close(g.next)
	g.next = make(chan struct{})
}
