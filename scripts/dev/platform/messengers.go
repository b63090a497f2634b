package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
)

// messengers are WhatsApp and Telegram on this machine: fakes that speak the
// real wires, with people that the CLI can play. Where a person has set the
// address of a real API, there is no fake of it.
type messengers struct {
	state    string
	secrets  *secrets
	log      *slog.Logger
	whatsapp *messenger // nil: the real one is used
	telegram *messenger
	urls     services // where the functions call
	fakes    services // of them, those served here
}

// services are addresses of the messengers' APIs, as the CLI reads them.
type services struct {
	WhatsApp string `json:"whatsapp,omitempty"`
	Telegram string `json:"telegram,omitempty"`
}

// messenger serves one fake, which is made anew when its accounts change: its
// people and chats are kept in a file.
type messenger struct {
	served   *loopback
	mu       sync.RWMutex
	now      server // nil: no agent has an account there
	accounts any
}

type server interface {
	http.Handler
	io.Closer
	Lines() *person.Transcript
}

// lines is what stands in the chats of the fake as it is now; nil: there is none.
func (m *messenger) lines() *person.Transcript {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.now == nil {
		return nil
	}
	return m.now.Lines()
}

func (m *messenger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.RLock()
	now := m.now
	m.mu.RUnlock()
	if now == nil && strings.HasPrefix(r.URL.Path, "/_fake/") {
		person.Refuse(w, http.StatusServiceUnavailable, "no agent has an account here")
		return
	}
	if now == nil {
		function.WriteProblem(w, http.StatusServiceUnavailable, "no agent has an account here")
		return
	}
	now.ServeHTTP(w, r)
}

// use makes the fake anew if its accounts are others than before.
func (m *messenger) use(accounts any, none bool, open func() (server, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if reflect.DeepEqual(m.accounts, accounts) {
		return nil
	}
	if err := m.end(); err != nil || none {
		return err
	}
	next, err := open()
	if err != nil {
		return err
	}
	m.now, m.accounts = next, accounts
	return nil
}

// end ends the fake. m.mu is held.
func (m *messenger) end() error {
	if m.now == nil {
		return nil
	}
	err := m.now.Close()
	m.now, m.accounts = nil, nil
	return err
}

// serveMessengers listens. The fakes are made once the accounts are known.
func serveMessengers(state string, s *secrets, getenv func(string) string, log *slog.Logger) (*messengers, error) {
	m := &messengers{state: state, secrets: s, log: log, urls: services{WhatsApp: getenv("WHATSAPP_API_URL"), Telegram: getenv("TELEGRAM_API_URL")}}
	var err error
	if m.urls.WhatsApp == "" {
		if m.whatsapp, m.urls.WhatsApp, err = listenMessenger(log); err != nil {
			return nil, err
		}
		m.fakes.WhatsApp = m.urls.WhatsApp
	}
	if m.urls.Telegram == "" {
		if m.telegram, m.urls.Telegram, err = listenMessenger(log); err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.fakes.Telegram = m.urls.Telegram
	}
	return m, nil
}

// String says where the messengers are, for a person.
func (m *messengers) String() string {
	say := func(name, url string, played *messenger) string {
		if played != nil {
			return name + " is played at " + url
		}
		return name + " is the real one at " + url
	}
	return say("WhatsApp", m.urls.WhatsApp, m.whatsapp) + ", " + say("Telegram", m.urls.Telegram, m.telegram)
}

func listenMessenger(log *slog.Logger) (*messenger, string, error) {
	m := &messenger{}
	l, err := serveLoopback(m, log)
	if err != nil {
		return nil, "", err
	}
	m.served = l
	return m, l.url, nil
}

// environment tells a function where its messenger is.
func (m *messengers) environment(function string) map[string]string {
	switch function {
	case "whatsapp-ingest":
		return map[string]string{"WHATSAPP_API_URL": m.urls.WhatsApp}
	case "telegram-ingest":
		return map[string]string{"TELEGRAM_API_URL": m.urls.Telegram}
	}
	return nil
}

// register makes the numbers and bots of the agents known to the fakes, with
// webhooks at gateway.
func (m *messengers) register(gateway string, all map[string][]channel) error {
	var numbers []graph.Number
	var bots []botapi.Bot
	seen := map[string]bool{}
	for _, agent := range slices.Sorted(maps.Keys(all)) {
		for _, c := range all[agent] {
			if key := string(c.Type) + c.Account; seen[key] {
				continue // the older agent keeps it; agent-status says so
			} else {
				seen[key] = true
			}
			switch c.Type {
			case harness.ChannelWhatsApp:
				numbers = append(numbers, m.number(gateway, c.spec))
			case harness.ChannelTelegram:
				bots = append(bots, m.bot(gateway, c.spec))
			}
		}
	}
	var problems []error
	if m.whatsapp != nil {
		problems = append(problems, m.whatsapp.use(numbers, len(numbers) == 0, func() (server, error) {
			return castWhatsApp(graph.New(graph.Options{Numbers: numbers, State: filepath.Join(m.state, "whatsapp.json"), Log: m.log}))
		}))
	}
	if m.telegram != nil {
		problems = append(problems, m.telegram.use(bots, len(bots) == 0, func() (server, error) {
			return castTelegram(botapi.New(botapi.Options{Bots: bots, State: filepath.Join(m.state, "telegram.json"), Log: m.log}))
		}))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("the messengers of this machine: %w", err)
	}
	return nil
}

func (m *messengers) number(gateway string, spec harness.ChannelSpec) graph.Number {
	return graph.Number{
		PhoneNumberID: spec.Account, DisplayPhone: spec.PhoneNumber, WebhookURL: gateway + "/api/v1/channels/whatsapp/webhook",
		AppSecret: m.secret(spec.AppSecret), AccessToken: m.secret(spec.AccessToken), VerifyToken: m.secret(spec.VerifyToken),
	}
}

func (m *messengers) bot(gateway string, spec harness.ChannelSpec) botapi.Bot {
	bot := botapi.Bot{Token: m.secret(spec.BotToken), Username: spec.Account}
	if spec.Transport != harness.TransportPoll {
		bot.WebhookURL, bot.Secret = gateway+"/api/v1/channels/telegram/webhook/"+spec.Account, m.secret(spec.WebhookSecret)
	}
	return bot
}

// secret is the newest value of ref: while it is rotated it has several.
func (m *messengers) secret(ref harness.SecretRef) string {
	value, _ := m.secrets.read(ref.Name, ref.Key)
	newest, _, _ := strings.Cut(value, ",")
	return strings.TrimSpace(newest)
}

func (m *messengers) close() error {
	var problems []error
	for _, one := range []*messenger{m.whatsapp, m.telegram} {
		if one == nil {
			continue
		}
		problems = append(problems, one.served.close())
		one.mu.Lock()
		problems = append(problems, one.end())
		one.mu.Unlock()
	}
	return errors.Join(problems...)
}
