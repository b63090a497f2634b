package cli_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/tuluat/internal/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	numberID = "100000000000001"
	botName  = "example_helper_bot"
	botToken = "7000000001:test-token"
)

// world is both fakes, a state folder, and a system with one agent that says
// back what it is told: the wire of the ingest functions and nothing behind it.
type world struct {
	t                        *testing.T
	home                     string
	whatsApp                 *graph.Server
	telegram                 *botapi.Server
	system                   *httptest.Server
	whatsAppURL, telegramURL string

	mu      sync.Mutex
	secrets map[string]string // what the system holds
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, home: t.TempDir(), secrets: map[string]string{
		"APP_SECRET": "app-secret", "VERIFY_TOKEN": "verify-token", "ACCESS_TOKEN": "access-token",
		"BOT_TOKEN": botToken, "WEBHOOK_SECRET": "webhook-secret", "SIGNING": "hook-secret",
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/channels/whatsapp/webhook", w.handshake)
	mux.HandleFunc("POST /api/v1/channels/whatsapp/webhook", w.hearWhatsApp)
	mux.HandleFunc("POST /api/v1/channels/telegram/webhook/{bot}", w.hearTelegram)
	mux.HandleFunc("GET /api/v1/channels/webhook/coder-hook/stream", w.stream)
	w.system = httptest.NewServer(mux)
	var err error
	if w.whatsApp, err = graph.New(graph.Options{Seed: "test", Numbers: []graph.Number{{
		PhoneNumberID: numberID, AppSecret: "app-secret", AccessToken: "access-token", VerifyToken: "verify-token",
		WebhookURL: w.system.URL + "/api/v1/channels/whatsapp/webhook",
	}}}); err != nil {
		t.Fatal(err)
	}
	if w.telegram, err = botapi.New(botapi.Options{Seed: "test", Bots: []botapi.Bot{{Token: botToken, Username: botName}}}); err != nil {
		t.Fatal(err)
	}
	wa, tg := httptest.NewServer(w.whatsApp), httptest.NewServer(w.telegram)
	w.whatsAppURL, w.telegramURL = wa.URL, tg.URL
	t.Cleanup(func() {
		for _, close := range []func() error{w.whatsApp.Close, w.telegram.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
		wa.Close()
		tg.Close()
		w.system.Close()
		http.DefaultClient.CloseIdleConnections()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	files := map[string]string{}
	for role, value := range w.secrets {
		files[role] = filepath.Join(w.home, role)
		w.write(role, value+"\n")
	}
	state := map[string]any{
		"url": w.system.URL, "webhooks": map[string]any{"coder": map[string]any{"account": "coder-hook", "secretFile": files["SIGNING"]}},
		"fakes": map[string]any{"whatsapp": wa.URL, "telegram": tg.URL},
		"channels": map[string]any{"coder": []any{
			map[string]any{"type": "WHATSAPP", "account": numberID, "secretFiles": map[string]any{"APP_SECRET": "APP_SECRET", "VERIFY_TOKEN": files["VERIFY_TOKEN"], "ACCESS_TOKEN": files["ACCESS_TOKEN"]}},
			map[string]any{"type": "TELEGRAM", "account": botName, "secretFiles": map[string]any{"BOT_TOKEN": files["BOT_TOKEN"], "WEBHOOK_SECRET": files["WEBHOOK_SECRET"]}},
		}},
	}
	text, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	w.write("dev.json", string(text))
	return w
}

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.home, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// state changes dev.json.
func (w *world) state(change func(string) string) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.home, "dev.json"))
	if err != nil {
		w.t.Fatal(err)
	}
	changed := change(string(text))
	if changed == string(text) {
		w.t.Fatalf("nothing to change in %s", text)
	}
	w.write("dev.json", changed)
}

func (w *world) secret(role string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.secrets[role]
}

func (w *world) handshake(out http.ResponseWriter, r *http.Request) {
	if r.FormValue("hub.verify_token") != w.secret("VERIFY_TOKEN") {
		out.WriteHeader(http.StatusForbidden)
		return
	}
	_, _ = io.WriteString(out, r.FormValue("hub.challenge"))
}

func (w *world) hearWhatsApp(out http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if !hmac.Equal([]byte(graph.Sign(w.secret("APP_SECRET"), body)), []byte(r.Header.Get("X-Hub-Signature-256"))) {
		out.WriteHeader(http.StatusUnauthorized)
		return
	}
	var told struct {
		Entry []struct {
			Changes []struct {
				Value struct {
					Messages []struct {
						From, Type  string
						Text        struct{ Body string }
						Interactive struct {
							Reply struct{ ID, Title string } `json:"button_reply"`
						}
					}
				}
			}
		}
	}
	if err := json.Unmarshal(body, &told); err != nil {
		w.t.Errorf("%v in %s", err, body)
	}
	for _, e := range told.Entry {
		for _, c := range e.Changes {
			for _, m := range c.Value.Messages {
				answer := map[string]any{"messaging_product": "whatsapp", "to": m.From, "type": "text", "text": map[string]any{"body": "you said: " + m.Text.Body}}
				switch {
				case m.Type == "interactive":
					answer["text"] = map[string]any{"body": "you pressed: " + m.Interactive.Reply.ID}
				case m.Text.Body == "buttons":
					answer["type"] = "interactive"
					answer["interactive"] = map[string]any{"type": "button", "body": map[string]any{"text": "Sure?"}, "action": map[string]any{"buttons": []any{
						map[string]any{"type": "reply", "reply": map[string]any{"id": "yes", "title": "Yes"}}, map[string]any{"type": "reply", "reply": map[string]any{"id": "no", "title": "No"}},
					}}}
				}
				w.post(w.whatsAppURL+"/v25.0/"+numberID+"/messages", "Bearer "+w.secret("ACCESS_TOKEN"), answer)
			}
		}
	}
}

func (w *world) hearTelegram(out http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Telegram-Bot-Api-Secret-Token") != w.secret("WEBHOOK_SECRET") || r.PathValue("bot") != botName {
		out.WriteHeader(http.StatusUnauthorized)
		return
	}
	var update struct {
		Message struct {
			Chat struct{ ID int64 }
			Text string
		}
		Query struct {
			From struct{ ID int64 }
			Data string
		} `json:"callback_query"`
	}
	if err := json.NewDecoder(r.Body).Decode(&update); err != nil {
		w.t.Error(err)
	}
	answer := map[string]any{"chat_id": update.Message.Chat.ID, "text": "you said: " + update.Message.Text}
	switch {
	case update.Query.Data != "":
		answer["chat_id"], answer["text"] = update.Query.From.ID, "you pressed: "+update.Query.Data
	case update.Message.Text == "":
		return
	case update.Message.Text == "buttons":
		answer["text"], answer["reply_markup"] = "Sure?", map[string]any{"inline_keyboard": [][]any{{map[string]any{"text": "Yes", "callback_data": "yes"}, map[string]any{"text": "No", "callback_data": "no"}}}}
	}
	w.post(w.telegramURL+"/bot"+botToken+"/sendMessage", "", answer)
}

func (w *world) post(to, bearer string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		w.t.Error(err)
	}
	request, err := http.NewRequest(http.MethodPost, to, bytes.NewReader(text))
	if err != nil {
		w.t.Error(err)
		return
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", bearer)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Error(err)
		return
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		w.t.Errorf("the fake answers %d: %s", response.StatusCode, body)
	}
}

func (w *world) stream(out http.ResponseWriter, r *http.Request) {
	mac := hmac.New(sha256.New, []byte(w.secret("SIGNING")))
	mac.Write([]byte(r.Header.Get("X-Tuluat-Timestamp") + "." + r.URL.RequestURI()))
	if r.Header.Get("X-Tuluat-Signature") != "v1="+hex.EncodeToString(mac.Sum(nil)) {
		out.WriteHeader(http.StatusUnauthorized)
	}
}

type result struct {
	code        int
	out, errOut string
}

// run runs the CLI with the world's state.
func (w *world) run(stdin string, args ...string) result {
	w.t.Helper()
	return runCLI(w.t, w.t.Context(), map[string]string{"TULUAT_HOME": w.home, "USER": "ann"}, stdin, args...)
}

func runCLI(t *testing.T, ctx context.Context, env map[string]string, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := cli.Main(ctx, args, cli.System{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errOut, Getenv: func(name string) string { return env[name] }})
	for _, secret := range []string{"app-secret", "access-token", "webhook-secret", "test-token", "hook-secret"} {
		if strings.Contains(out.String()+errOut.String(), secret) {
			t.Errorf("%v prints a secret: %s%s", args, out.String(), errOut.String())
		}
	}
	return result{code, out.String(), errOut.String()}
}

func (w *world) setWebhook() {
	w.t.Helper()
	if got := w.run("", "telegram", "set-webhook", botName); got.code != 0 {
		w.t.Fatalf("%+v", got)
	}
}

func TestTelegramCommands(t *testing.T) {
	w := newWorld(t)
	if _, err := w.telegram.AddPerson(botapi.Person{ID: 5000000001}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.telegram.Say(botapi.Say{From: 5000000001, Text: "waits"}); err != nil {
		t.Fatal(err)
	}
	if got := w.run("", "telegram", "info", "@"+botName); got.code != 0 || !strings.Contains(got.out, "none: updates are polled") || !strings.Contains(got.out, "pending      1") {
		t.Errorf("info: %+v", got)
	}
	got := w.run("", "telegram", "set-webhook", botName, "--url", w.system.URL+"/", "--max-connections", "7")
	if got.code != 0 || !strings.HasPrefix(got.out, "Webhook was set.\n") || !strings.Contains(got.out, w.system.URL+"/api/v1/channels/telegram/webhook/"+botName) || strings.Contains(got.out, "not asked for") {
		t.Errorf("set-webhook: %+v", got)
	}
	if err := w.telegram.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.telegram.Counters(); n["webhooksTold"] != 1 || n["backlogsDropped"] != 0 {
		t.Errorf("what waited was not told: %v", n)
	}
	var info struct {
		URL     string   `json:"url"`
		Most    int      `json:"max_connections"`
		Allowed []string `json:"allowed_updates"`
	}
	if got := w.run("", "telegram", "info", botName, "-o", "json"); json.Unmarshal([]byte(got.out), &info) != nil || info.Most != 7 || len(info.Allowed) != 12 {
		t.Errorf("info: %+v", got)
	}
	if err := w.telegram.SetWebhook(botName, w.system.URL, "webhook-secret"); err != nil {
		t.Fatal(err)
	}
	post(t, w.telegramURL+"/bot"+botToken+"/setWebhook", `{"url":"`+w.system.URL+`","allowed_updates":[]}`)
	if got := w.run("", "telegram", "info", botName); !strings.Contains(got.out, "not asked for: message_reaction; set") {
		t.Errorf("with the default kinds: %+v", got)
	}
	post(t, w.telegramURL+"/bot"+botToken+"/setWebhook", `{"url":"`+w.system.URL+`","allowed_updates":["message"]}`)
	if got := w.run("", "telegram", "info", botName); !strings.Contains(got.out, "not asked for: edited_message channel_post") {
		t.Errorf("with messages only: %+v", got)
	}
	for base, want := range map[string]string{
		"/api/v1/channels/telegram/webhook/" + botName: "it is read as " + w.system.URL + ".\n", "/api/v1/": "it is read as " + w.system.URL + ".\n",
		"/api": "without /api at its end", "/sub": "",
	} {
		got := w.run("", "telegram", "set-webhook", "@Example_Helper_BOT", "--url", w.system.URL+base)
		if got.code != 0 || !strings.Contains(got.errOut, want) || want == "" && got.errOut != "" || strings.Contains(got.out, "v1/api") || strings.Count(got.out, "telegram") != 1 {
			t.Errorf("--url with %s: %+v", base, got)
		}
	}
	if got := w.run("", "telegram", "set-webhook", botName, "--url", w.system.URL+"?a=b"); got.code != 1 || !strings.Contains(got.errOut, "must end before") {
		t.Errorf("--url with a query: %+v", got)
	}
	if got := w.run("", "telegram", "delete", botName, "--drop-pending"); got.code != 0 || !strings.HasPrefix(got.out, "Webhook was deleted.\n") || w.telegram.Counters()["backlogsDropped"] != 1 {
		t.Errorf("delete: %+v", got)
	}
	if got := w.run("", "telegram", "info", "nobody_bot"); got.code != 1 || !strings.Contains(got.errOut, "set TELEGRAM_BOT_TOKEN; bots known here: "+botName) {
		t.Errorf("another bot: %+v", got)
	}
	w.write("BOT_TOKEN", "7000000001:wrong")
	if got := w.run("", "telegram", "set-webhook", botName); got.code != 1 || !strings.Contains(got.errOut, "401: Unauthorized") {
		t.Errorf("a wrong token: %+v", got)
	}
	env := map[string]string{"TELEGRAM_BOT_TOKEN": botToken, "TELEGRAM_API_URL": w.telegramURL, "TULUAT_HOME": t.TempDir()}
	if got := runCLI(t, t.Context(), env, "", "telegram", "info", botName); got.code == 0 {
		t.Errorf("a state folder without a state: %+v", got)
	}
	t.Chdir(t.TempDir())
	delete(env, "TULUAT_HOME")
	if got := runCLI(t, t.Context(), env, "", "telegram", "info", botName); got.code != 0 {
		t.Errorf("from the environment: %+v", got)
	}
	env["TELEGRAM_API_URL"] = "http://127.0.0.1:1"
	if got := runCLI(t, t.Context(), env, "", "telegram", "info", botName); got.code != 1 || !strings.Contains(got.errOut, "does not answer") {
		t.Errorf("nobody there: %+v", got)
	}
}

func TestChatVia(t *testing.T) {
	w := newWorld(t)
	w.setWebhook()
	for _, channel := range []string{"whatsapp", "telegram"} {
		got := w.run("hello\nbuttons\n2\n", "chat", "coder", "--via", channel)
		if got.code != 0 || got.out != "you said: hello\nSure?\nyou pressed: no\n" || !strings.Contains(got.errOut, "[1] Yes") {
			t.Errorf("%s: %+v", channel, got)
		}
	}
	got := w.run("hello\n", "chat", "coder", "--via", "whatsapp", "-v", "--as", "15550002222")
	for _, want := range []string{"✓✓ its message is read", "✓✓ your message is delivered"} {
		if !strings.Contains(got.errOut, want) {
			t.Errorf("no %q in %q", want, got.errOut)
		}
	}
	if err := w.whatsApp.SetWebhook("", ""); err != nil {
		t.Fatal(err)
	}
	if got := w.run("hello\n", "chat", "coder", "--via", "whatsapp", "--timeout", "50ms"); got.code != 4 || !strings.Contains(got.errOut, "do not allow 15550001111") || !strings.Contains(got.errOut, ".tuluat/secrets/NAME/KEY") {
		t.Errorf("without an answer: %+v", got)
	}
	w.state(func(state string) string {
		return strings.Replace(state, `"ACCESS_TOKEN"`, `"PAIRING_CODE": "/secrets/w/code", "ACCESS_TOKEN"`, 1)
	})
	if got := w.run("hello\n", "chat", "coder", "--via", "whatsapp", "--timeout", "50ms"); got.code != 4 || !strings.Contains(got.errOut, "say the pairing code first, which is in /secrets/w/code") {
		t.Errorf("not paired: %+v", got)
	}
	if got := w.run("", "doctor", "--deep", "--timeout", "50ms"); !strings.Contains(got.out, "neither paired nor allowed there: say the pairing code first, which is in /secrets/w/code") {
		t.Errorf("the doctor of somebody not paired: %+v", got)
	}
	for args, want := range map[string]result{
		"coder --via fax":               {code: 2, errOut: "whatsapp or telegram"},
		"nobody --via telegram":         {code: 3, errOut: "known: coder"},
		"coder --via telegram --as ann": {code: 1, errOut: "is a number"},
		"coder --via whatsapp --as ada": {code: 1, errOut: "a phone number in digits"},
		"coder --via whatsapp --hook h": {code: 2, errOut: "--hook has no meaning with --via"},
		"coder --via whatsapp --chat c": {code: 2, errOut: "--chat has no meaning with --via"},
		"coder --via whatsapp --url h":  {code: 2, errOut: "--url has no meaning with --via"},
		"coder --as 15550001111":        {code: 2, errOut: "--as has no meaning without --via"},
		"coder -v":                      {code: 2, errOut: "--verbose has no meaning without --via"},
		"coder --loud":                  {code: 2, errOut: "See tuluat chat --help."},
	} {
		if got := w.run("", append([]string{"chat"}, strings.Fields(args)...)...); got.code != want.code || !strings.Contains(got.errOut, want.errOut) {
			t.Errorf("chat %s: %+v", args, got)
		}
	}
	w.state(func(state string) string {
		return strings.Replace(state, `"coder":[{"account"`, `"plain":[],"coder":[{"account"`, 1)
	})
	if got := w.run("", "chat", "plain", "--via", "telegram"); got.code != 3 || !strings.Contains(got.errOut, "no channel of type TELEGRAM here; agents that have one: coder") {
		t.Errorf("without such a channel: %+v", got)
	}
}

// A file goes over both messengers with its name and caption.
func TestFileVia(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "a table.json")
	if err := os.WriteFile(path, []byte("{\"a\":1}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, channel := range []string{"whatsapp", "telegram"} {
		got := w.run(`/file "`+path+`" what is it?`+"\n", "chat", "coder", "--via", channel, "--timeout", "50ms")
		if got.code != 4 {
			t.Errorf("%s: %+v", channel, got)
		}
		if got := w.run("/file /nowhere/x.csv\n", "chat", "coder", "--via", channel); got.code != 1 || !strings.Contains(got.errOut, "/nowhere/x.csv") {
			t.Errorf("%s without the file: %+v", channel, got)
		}
	}
	wa, _ := w.whatsApp.Chat("", "15550001111", 0)
	tg, _ := w.telegram.Chat("", 5000000001, 0)
	for _, lines := range [][]person.Line{wa, tg} {
		if len(lines) == 0 || lines[0].File == nil || lines[0].File.Name != "a table.json" || lines[0].File.MimeType != "application/json" || lines[0].File.Bytes != 7 || lines[0].Text != "what is it?" {
			t.Errorf("lines %+v", lines)
		}
	}
}

// What is no command of ours is a usage error, wherever it stands.
func TestUsage(t *testing.T) {
	for args, want := range map[string]result{
		"fake signal":               {code: 2, errOut: `unknown command "signal" for "tuluat fake"`},
		"telegram list":             {code: 2, errOut: "See tuluat telegram --help."},
		"conformance agents":        {code: 2, errOut: `unknown command "agents" for "tuluat conformance"`},
		"fake whatsapp --number x":  {code: 2, errOut: "--number must be the id"},
		"fake whatsapp --phone ada": {code: 2, errOut: "--phone must be a phone number in digits"},
		"fake telegram --bot a-b":   {code: 2, errOut: "--bot must be a username"},
		"fake":                      {out: "stand-in for Telegram's Bot API"},
		"telegram":                  {out: "set-webhook"},
		"--help":                    {out: "TULUAT_WEBHOOK_SECRET"},
	} {
		if got := runCLI(t, t.Context(), nil, "", strings.Fields(args)...); got.code != want.code || !strings.Contains(got.errOut, want.errOut) || !strings.Contains(got.out, want.out) {
			t.Errorf("tuluat %s: %+v", args, got)
		}
	}
}

func TestDoctor(t *testing.T) {
	w := newWorld(t)
	got := w.run("", "doctor")
	if got.code != 1 || !strings.Contains(got.out, "fix: tuluat telegram set-webhook "+botName+" --url "+w.system.URL) || strings.Count(got.out, "✗") != 1 || !strings.Contains(got.errOut, "1 of 12 checks failed") {
		t.Errorf("without a webhook: %+v", got)
	}
	w.setWebhook()
	if got := w.run("", "doctor", "coder", "--deep"); got.code != 0 || strings.Count(got.out, "✓") != 14 {
		t.Errorf("well: %+v", got)
	}
	w.mu.Lock()
	for role := range w.secrets {
		if role != "BOT_TOKEN" && role != "ACCESS_TOKEN" {
			w.secrets[role] = "rotated-" + role
		}
	}
	w.mu.Unlock()
	w.write("ACCESS_TOKEN", "expired")
	w.write("BOT_TOKEN", "7000000001:gone")
	var checks []struct {
		Channel, Check, Problem, Fix string
		OK                           bool
	}
	got = w.run("", "doctor", "-o", "json")
	if err := json.Unmarshal([]byte(got.out), &checks); err != nil || got.code != 1 {
		t.Fatalf("%v: %+v", err, got)
	}
	failed := map[string]string{}
	for _, c := range checks {
		if !c.OK {
			failed[c.Channel+" "+c.Check] = c.Fix
		}
	}
	for check, fix := range map[string]string{
		"WEBHOOK a signed request is taken":            "the secret here",
		"WHATSAPP a signed request is taken":           "the app secret here",
		"WHATSAPP the handshake succeeds":              "the verify token here",
		"WHATSAPP the provider accepts the credential": "make a new access token",
		"TELEGRAM a signed request is taken":           "the webhook secret here",
		"TELEGRAM the provider accepts the credential": "put the token that @BotFather shows",
	} {
		if !strings.Contains(failed[check], fix) {
			t.Errorf("%s: %q, want %q", check, failed[check], fix)
		}
		delete(failed, check)
	}
	if len(failed) > 0 {
		t.Errorf("these failed too: %v", failed)
	}
	w.system.Close()
	if got := w.run("", "doctor"); got.code != 1 || !strings.Contains(got.out, "start the system with `make dev`") {
		t.Errorf("nothing runs: %+v", got)
	}
	if got := w.run("", "doctor", "nobody"); got.code != 3 {
		t.Errorf("nobody: %+v", got)
	}
}

// lines hands out what is written, and ends a command when enough was seen.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	seen chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if s := l.text.String(); strings.HasSuffix(s, "\n") {
		select {
		case l.seen <- strings.TrimSpace(s):
		default:
		}
	}
	return len(p), nil
}

func TestFakes(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state.json")
	for _, c := range []struct {
		name, say, chat string
		people          map[string]any
		variables       []string
	}{
		{"whatsapp", `{"from":"15550001111","text":"hello"}`, "15550001111", map[string]any{"phone": "15550001111"}, []string{"WHATSAPP_APP_SECRET=", "WHATSAPP_ACCESS_TOKEN=", "WHATSAPP_VERIFY_TOKEN="}},
		{"telegram", `{"from":5000000001,"text":"hello"}`, "5000000001", map[string]any{"id": 5000000001}, []string{"TELEGRAM_BOT_TOKEN=7000000001:", "TELEGRAM_WEBHOOK_SECRET="}},
	} {
		for range 2 { // the second time with what the first has kept
			ctx, cancel := context.WithCancel(t.Context())
			out, errOut := &lines{seen: make(chan string, 1)}, &bytes.Buffer{}
			ended := make(chan int)
			go func() {
				ended <- cli.Main(ctx, []string{"fake", c.name, "--addr", "127.0.0.1:0", "--state", state + c.name}, cli.System{
					Stdin: strings.NewReader(""), Stdout: out, Stderr: errOut, Getenv: func(string) string { return "" },
				})
			}()
			var at string
			select {
			case at = <-out.seen:
			case code := <-ended:
				t.Fatalf("%s ended with %d: %s", c.name, code, errOut)
			case <-time.After(20 * time.Second):
				t.Fatalf("%s does not start", c.name)
			}
			people, _ := json.Marshal(c.people)
			for path, body := range map[string]string{"/_fake/people": string(people)} {
				post(t, at+path, body)
			}
			post(t, at+"/_fake/say", c.say)
			response, err := http.Get(at + "/_fake/chats/" + c.chat)
			if err != nil {
				t.Fatal(err)
			}
			var page struct{ Lines []person.Line }
			if err := json.NewDecoder(response.Body).Decode(&page); err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			if len(page.Lines) == 0 || page.Lines[0].Text != "hello" {
				t.Errorf("%s: %+v", c.name, page)
			}
			cancel()
			if code := <-ended; code != 0 {
				t.Errorf("%s ends with %d: %s", c.name, code, errOut)
			}
			for _, variable := range c.variables {
				if strings.Count(errOut.String(), variable) != 1 {
					t.Errorf("%s does not print %s once: %s", c.name, variable, errOut)
				}
			}
		}
	}
	if got := runCLI(t, t.Context(), nil, "", "fake", "whatsapp", "--addr", "0.0.0.0:0"); got.code != 1 || !strings.Contains(got.errOut, "must be on this machine") {
		t.Errorf("for everyone: %+v", got)
	}
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	if got := runCLI(t, t.Context(), nil, "", "fake", "telegram", "--addr", taken.Listener.Addr().String()); got.code != 1 || !strings.Contains(got.errOut, "give another --addr") {
		t.Errorf("a port that is taken: %+v", got)
	}
}

func post(t *testing.T, to, body string) {
	t.Helper()
	response, err := http.Post(to, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		t.Fatal(fmt.Sprint(response.StatusCode, " ", string(text)))
	}
}
