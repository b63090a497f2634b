package telegram

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// wire is a Bot API that answers from a script, in order; the last answer repeats.
type wire struct {
	*httptest.Server
	client *Client
	log    *slog.Logger
	logs   functiontest.Logs
	mu     sync.Mutex
	script []string // STATUS BODY
	calls  []request
}

type request struct {
	method     string
	parameters map[string]any
	file, name string
}

const sentAnswer = `200 {"ok":true,"result":{"message_id":555}}`

func newWire(t testing.TB, script ...string) *wire {
	w := &wire{script: script}
	w.Server = httptest.NewServer(http.HandlerFunc(w.serve))
	w.client = NewClient(w.URL)
	w.log = slog.New(slog.NewJSONHandler(&w.logs, nil))
	t.Cleanup(func() {
		w.client.Close()
		w.Close()
		if strings.Contains(w.logs.String(), testToken) {
			t.Errorf("the token is in the log: %s", w.logs.String())
		}
	})
	return w
}

func (w *wire) serve(rw http.ResponseWriter, r *http.Request) {
	call := request{method: strings.TrimPrefix(r.URL.Path, "/bot"+testToken+"/"), parameters: map[string]any{}}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		if err := r.ParseMultipartForm(1 << 20); err == nil {
			for name, values := range r.MultipartForm.Value {
				call.parameters[name] = values[0]
			}
			for field, files := range r.MultipartForm.File {
				f, _ := files[0].Open()
				text, _ := io.ReadAll(f)
				call.file, call.name = field+":"+string(text), files[0].Filename
			}
		}
	} else if r.Method == http.MethodPost {
		value, _ := io.ReadAll(r.Body)
		v, _ := decode(value)
		call.parameters, _ = v.(map[string]any)
	}
	w.mu.Lock()
	w.calls = append(w.calls, call)
	answer := w.script[0]
	if len(w.script) > 1 {
		w.script = w.script[1:]
	}
	w.mu.Unlock()
	if answer == "CUT" {
		panic(http.ErrAbortHandler)
	}
	var status int
	var body string
	if _, err := fmt.Sscanf(answer, "%d", &status); err != nil {
		panic(err)
	}
	_, body, _ = strings.Cut(answer, " ")
	rw.WriteHeader(status)
	_, _ = io.WriteString(rw, body)
}

func (w *wire) taken() []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

func claim(text string) *postgres.ReplyClaim {
	return &postgres.ReplyClaim{
		ID: "rpl_1", State: harness.ReplyPlanned, Kind: harness.ReplyText, Format: harness.FormatRich, Text: text, Part: 1, Parts: 1,
		Address: "5000000001", Session: harness.Session{ID: "ses_1", Account: testBot},
	}
}

func begun(context.Context) error { return nil }

func (w *wire) send(t *testing.T, c *postgres.ReplyClaim) postgres.ReplyOutcome {
	t.Helper()
	o, err := NewTransport(w.client, nil, w.log).Send(t.Context(), testAccount(), c, begun)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(fmt.Sprint(o), testToken) {
		t.Errorf("the token is in the outcome: %+v", o)
	}
	return o
}

// What is sent, where, and how.
func TestRequests(t *testing.T) {
	type edit func(*postgres.ReplyClaim)
	number := func(n int64) json.Number { return json.Number(decimal(n)) }
	noPreview := map[string]any{"is_disabled": true}
	for name, c := range map[string]struct {
		edit edit
		want request
	}{
		"private": {func(*postgres.ReplyClaim) {}, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(5000000001), "text": "a <b>b</b> &lt;c", "parse_mode": "HTML", "link_preview_options": noPreview,
		}}},
		"no reply in a private chat": {func(c *postgres.ReplyClaim) { c.InReplyTo = "9" }, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(5000000001), "text": "a <b>b</b> &lt;c", "parse_mode": "HTML", "link_preview_options": noPreview,
		}}},
		"topic": {func(c *postgres.ReplyClaim) { c.Address, c.InReplyTo = "-1001;topic=7", "9" }, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(-1001), "message_thread_id": number(7), "text": "a <b>b</b> &lt;c", "parse_mode": "HTML", "link_preview_options": noPreview,
			"reply_parameters": map[string]any{"message_id": number(9), "allow_sending_without_reply": true},
		}}},
		"General, second part": {func(c *postgres.ReplyClaim) { c.Address, c.InReplyTo, c.Part = "-1001;topic=1", "9", 2 }, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(-1001), "text": "a <b>b</b> &lt;c", "parse_mode": "HTML", "link_preview_options": noPreview,
		}}},
		"direct": {func(c *postgres.ReplyClaim) { c.Address = "-1001;direct=8" }, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(-1001), "direct_messages_topic_id": number(8), "text": "a <b>b</b> &lt;c", "parse_mode": "HTML", "link_preview_options": noPreview,
		}}},
		"business": {func(c *postgres.ReplyClaim) { c.Address = "5;business=B%3BC" }, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(5), "business_connection_id": "B;C", "text": "a <b>b</b> &lt;c", "parse_mode": "HTML", "link_preview_options": noPreview,
		}}},
		"guest": {func(c *postgres.ReplyClaim) { c.Address = "-1001;guest=Q" }, request{method: "answerGuestQuery", parameters: map[string]any{
			"guest_query_id": "Q", "result": map[string]any{"type": "article", "id": "1", "title": "Answer", "input_message_content": map[string]any{
				"message_text": "a <b>b</b> &lt;c", "parse_mode": "HTML", "link_preview_options": noPreview,
			}},
		}}},
		"plain": {func(c *postgres.ReplyClaim) { c.Format = harness.FormatPlain }, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(5000000001), "text": "a **b** <c", "link_preview_options": noPreview,
		}}},
		"choices": {func(c *postgres.ReplyClaim) {
			c.Kind, c.Choices = harness.ReplyChoices, []harness.Choice{{ID: "y", Title: "Yes"}, {ID: "n", Title: "No"}}
		}, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(5000000001), "text": "a <b>b</b> &lt;c", "parse_mode": "HTML", "link_preview_options": noPreview,
			"reply_markup": map[string]any{"inline_keyboard": []any{[]any{map[string]any{"text": "Yes", "callback_data": "y"}}, []any{map[string]any{"text": "No", "callback_data": "n"}}}},
		}}},
		"choices too long for buttons": {func(c *postgres.ReplyClaim) {
			c.Kind, c.Choices = harness.ReplyChoices, []harness.Choice{{ID: strings.Repeat("y", 65), Title: "Yes"}, {ID: "n", Title: "No", Description: "not now"}}
		}, request{method: "sendMessage", parameters: map[string]any{
			"chat_id": number(5000000001), "text": "a <b>b</b> &lt;c\n\n1. Yes\n2. No: not now", "parse_mode": "HTML", "link_preview_options": noPreview,
		}}},
		"choices in words": {func(c *postgres.ReplyClaim) {
			c.Kind, c.Format, c.Choices = harness.ReplyChoices, harness.FormatPlain, []harness.Choice{{ID: "y", Title: "Yes"}}
		}, request{method: "sendMessage", parameters: map[string]any{"chat_id": number(5000000001), "text": "a **b** <c\n\n1. Yes", "link_preview_options": noPreview}}},
	} {
		w := newWire(t, sentAnswer)
		reply := claim("a **b** <c")
		c.edit(reply)
		if o := w.send(t, reply); o.State != harness.ReplySent || o.ProviderID != "555" {
			t.Errorf("%s: %+v", name, o)
		}
		if diff := cmp.Diff([]request{c.want}, w.taken(), cmp.AllowUnexported(request{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// What each answer makes of a part. No answer's words count.
func TestOutcomes(t *testing.T) {
	refusal := func(code int, more string) string {
		return fmt.Sprintf(`%d {"ok":false,"error_code":%d,"description":"D"%s}`, code, code, more)
	}
	lost := "Telegram's answer was lost; the message may have been sent and is not repeated"
	for name, c := range map[string]struct {
		answer, address string
		plain           bool
		want            postgres.ReplyOutcome
	}{
		"sent":          {sentAnswer, "5", false, postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: "555"}},
		"guest":         {`200 {"ok":true,"result":{"inline_message_id":"IM"}}`, "5;guest=q", false, postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: "IM"}},
		"sent unnamed":  {`200 {"ok":true,"result":true}`, "5", false, postgres.ReplyOutcome{State: harness.ReplySent}},
		"refused":       {refusal(400, ""), "5", false, postgres.ReplyOutcome{State: harness.ReplyPlanned, Code: 400, Reason: "Telegram answered 400 (D)", Format: harness.FormatPlain}},
		"refused plain": {refusal(400, ""), "5", true, postgres.ReplyOutcome{State: harness.ReplyFailed, Code: 400, Reason: "Telegram answered 400 (D)"}},
		"moved": {refusal(400, `,"parameters":{"migrate_to_chat_id":-1005}`), "-5", true, postgres.ReplyOutcome{
			State: harness.ReplyPlanned, Code: 400,
			Reason: "Telegram answered 400 (D)", MovedTo: "-1005",
		}},
		"blocked": {refusal(403, ""), "5", false, postgres.ReplyOutcome{State: harness.ReplyFailed, Code: 403, Reason: "Telegram answered 403 (D)", Blocked: "Telegram answered 403 (D)"}},
		"token":   {refusal(401, ""), "5", false, postgres.ReplyOutcome{State: harness.ReplyFailed, Code: 401, Reason: "Telegram refuses the bot's token"}},
		"no bot":  {refusal(404, ""), "5", false, postgres.ReplyOutcome{State: harness.ReplyFailed, Code: 404, Reason: "Telegram refuses the bot's token"}},
		"flood": {refusal(429, `,"parameters":{"retry_after":17}`), "5", false, postgres.ReplyOutcome{
			State: harness.ReplyPlanned, Code: 429, Reason: "Telegram answered 429 (D)",
			Retry: 17 * time.Second, Hold: 17 * time.Second,
		}},
		"flood for ever": {refusal(429, `,"parameters":{"retry_after":99999999999}`), "5", false, postgres.ReplyOutcome{
			State: harness.ReplyPlanned, Code: 429, Reason: "Telegram answered 429 (D)",
			Retry: time.Hour, Hold: time.Hour,
		}},
		"flood, unsaid": {`429 <html>`, "5", false, postgres.ReplyOutcome{State: harness.ReplyPlanned, Code: 429, Reason: "Telegram answered 429", Retry: time.Second, Hold: time.Second}},
		"broken":        {refusal(500, ""), "5", false, postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true, Code: 500, Reason: "Telegram answered 500 (D); the message may have been sent and is not repeated"}},
		"gateway":       {`502 <html>`, "5", false, postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true, Code: 502, Reason: "Telegram answered 502; the message may have been sent and is not repeated"}},
		"not the API":   {`200 <html>`, "5", false, postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true, Reason: lost}},
		"cut":           {`CUT`, "5", false, postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true, Reason: lost}},
		"no address":    {sentAnswer, "x", false, postgres.ReplyOutcome{State: harness.ReplyFailed, Reason: "the reply's address is not one of Telegram's"}},
	} {
		w := newWire(t, c.answer)
		reply := claim("hi")
		reply.Address = c.address
		if c.plain {
			reply.Format = harness.FormatPlain
		}
		if diff := cmp.Diff(c.want, w.send(t, reply)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// What surely did not leave is sent again; what may have left is not.
func TestLostAnswers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for name, base := range map[string]string{"nobody listens": closed, "no such host": "http://tuluat.invalid", "no address": "http://%zz"} {
		client := NewClient(base)
		o, err := NewTransport(client, nil, slog.New(slog.DiscardHandler)).Send(t.Context(), testAccount(), claim("hi"), begun)
		client.Close()
		if err != nil || o.State != harness.ReplyPlanned {
			t.Errorf("%s: %+v %v", name, o, err)
		}
		_, err = client.call(t.Context(), testToken, "getMe", nil)
		if err == nil || maybeDone(err) || strings.Contains(err.Error(), testToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := newWire(t, "CUT")
	if _, err := w.client.call(t.Context(), testToken, "getMe", nil); !maybeDone(err) || strings.Contains(err.Error(), testToken) {
		t.Errorf("cut: %v", err)
	}
	if o := NewTransport(w.client, nil, w.log).Settle(t.Context(), testAccount(), claim("hi")); o.State != harness.ReplyUnknown || !o.Final {
		t.Errorf("settled as %+v", o)
	}
}

// Nothing is sent when it could not be written down before, or without a token.
func TestNothingIsSentBeforeItsTime(t *testing.T) {
	w := newWire(t, sentAnswer)
	refused := errors.New("lease lost")
	_, err := NewTransport(w.client, nil, w.log).Send(t.Context(), testAccount(), claim("hi"), func(context.Context) error { return refused })
	if !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
	account := testAccount()
	account.Keys = nil
	o, err := NewTransport(w.client, nil, w.log).Send(t.Context(), account, claim("hi"), func(context.Context) error { t.Error("begun"); return nil })
	if err != nil || o.State != harness.ReplyPlanned || o.Retry == 0 {
		t.Errorf("%+v %v", o, err)
	}
	late := claim("more")
	late.Address, late.Part = "5;guest=Q", 2
	if o := w.send(t, late); o.State != harness.ReplyFailed {
		t.Errorf("a second answer to a guest: %+v", o)
	}
	if calls := w.taken(); len(calls) != 0 {
		t.Errorf("%+v was sent", calls)
	}
}

// A topic that is gone does not cost the answer: plain text goes without it.
func TestTopicThatIsGone(t *testing.T) {
	w := newWire(t, `400 {"ok":false,"error_code":400,"description":"D"}`, sentAnswer)
	c := claim("hi")
	c.Address, c.Format = "-1001;topic=7", harness.FormatPlain
	if o := w.send(t, c); o.State != harness.ReplySent {
		t.Errorf("%+v", o)
	}
	calls := w.taken()
	if len(calls) != 2 || calls[0].parameters["message_thread_id"] == nil || calls[1].parameters["message_thread_id"] != nil || calls[1].parameters["text"] != "hi" {
		t.Errorf("%+v", calls)
	}
}

func TestTokenIsComplainedOfOnce(t *testing.T) {
	bad := `401 {"ok":false,"error_code":401,"description":"Unauthorized"}`
	w := newWire(t, bad, bad, sentAnswer, bad)
	transport := NewTransport(w.client, nil, w.log)
	for range 4 {
		if _, err := transport.Send(t.Context(), testAccount(), claim("hi"), begun); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(w.logs.String(), "@BotFather"); n != 2 || !strings.Contains(w.logs.String(), testBot) {
		t.Errorf("said %d times: %s", n, w.logs.String())
	}
}

// The cases of sending that are Telegram's.
func TestOutCases(t *testing.T) {
	type outCase struct {
		Request      map[string]any `json:"request"`
		OriginalText string         `json:"original_text"`
		Response     struct {
			Status int             `json:"status"`
			Body   json.RawMessage `json:"body"`
		} `json:"response"`
		Reply struct {
			Text   string `json:"text"`
			Repeat struct {
				Unit  string `json:"unit"`
				Times int    `json:"times"`
			} `json:"text_repeat"`
		} `json:"reply"`
	}
	type outExpect struct {
		Outcome string         `json:"outcome"`
		MinWait int            `json:"min_wait_s"`
		Retry   bool           `json:"retry"`
		Request map[string]any `json:"request"`
		Chunks  int            `json:"chunks"`
		Units   int            `json:"max_utf16_units"`
		Joined  bool           `json:"joined_equals_input"`
	}
	load := func(name string) (c outCase, want outExpect) {
		readJSON(t, "testdata/cases/"+name+".json", &c)
		readJSON(t, "testdata/cases/"+name+".expect.json", &want)
		return c, want
	}
	answer := func(c outCase) string { return fmt.Sprintf("%d %s", c.Response.Status, c.Response.Body) }

	c, want := load("out-007-tg-429")
	if o := newWire(t, answer(c)).send(t, claim("hi")); want.Outcome != "retry" || o.State != harness.ReplyPlanned || o.Retry < time.Duration(want.MinWait)*time.Second {
		t.Errorf("429: %+v", o)
	}
	c, want = load("out-008-tg-parse-entities")
	w := newWire(t, answer(c), sentAnswer)
	reply := claim(c.OriginalText)
	first := w.send(t, reply)
	reply.Format = first.Format
	second := w.send(t, reply)
	got := w.taken()[1].parameters
	if want.Outcome != "resend" || first.State != harness.ReplyPlanned || second.State != harness.ReplySent || got["parse_mode"] != nil ||
		got["text"] != want.Request["text"] || fmt.Sprint(got["chat_id"]) != fmt.Sprintf("%.0f", want.Request["chat_id"]) {
		t.Errorf("parse error: %+v %+v %+v", first, second, got)
	}
	c, want = load("out-010-tg-blocked")
	if o := newWire(t, answer(c)).send(t, claim("hi")); want.Outcome != "fail" || want.Retry || o.State != harness.ReplyFailed || o.Blocked == "" {
		t.Errorf("blocked: %+v", o)
	}
	transport := NewTransport(nil, nil, nil)
	c, want = load("out-013-tg-split-emoji")
	text := strings.Repeat(c.Reply.Repeat.Unit, c.Reply.Repeat.Times)
	parts := transport.Split(text)
	if len(parts) != want.Chunks || want.Joined && strings.Join(parts, "") != text {
		t.Errorf("%d parts", len(parts))
	}
	for _, part := range parts {
		if units := utf16.Encode([]rune(part)); len(units) > want.Units || strings.ContainsRune(part, '\uFFFD') {
			t.Errorf("a part of %d units", len(units))
		}
	}
	c, want = load("out-015-empty-reply")
	if parts := transport.Split(c.Reply.Text); len(parts) != want.Chunks {
		t.Errorf("%q", parts)
	}
}

// Every part fits as it is and formatted, whatever the text.
func TestSplitFits(t *testing.T) {
	transport := NewTransport(nil, nil, nil)
	for _, text := range []string{
		strings.Repeat("<&> ", 3000), strings.Repeat("**bold** _it_ `code` ", 800), "```go\n" + strings.Repeat("if a < b && c > d {}\n", 900) + "```",
		strings.Repeat("[a](https://example.com/"+strings.Repeat("p", 400)+") ", 60), strings.Repeat("日本語", 4000), strings.Repeat("x", 9000),
	} {
		parts := transport.Split(text)
		if len(parts) < 2 {
			t.Errorf("%d parts of %d bytes", len(parts), len(text))
		}
		for _, part := range parts {
			if !fits(part) {
				t.Errorf("a part of %d bytes does not fit", len(part))
			}
		}
	}
	for html, want := range map[string]string{"a <b>b</b> &lt;c&gt; &amp;amp;": "a b <c> &amp;", `<a href="x&quot;y">t</a>`: "t", "": ""} {
		if got := visible(html); got != want {
			t.Errorf("visible(%q) = %q", html, got)
		}
	}
}

// store keeps objects in memory.
type store map[string]string

func (s store) Put(context.Context, string, io.Reader, int64, string) error { return nil }

func (s store) Get(_ context.Context, key string) (io.ReadCloser, int64, error) {
	switch text, ok := s[key]; {
	case key == "down":
		return nil, 0, harness.Errorf(harness.Unavailable, "down")
	case key == "torn":
		return io.NopCloser(io.MultiReader(strings.NewReader("half"), tornReader{})), 100_000, nil
	case !ok:
		return nil, 0, harness.Errorf(harness.NotFound, "no such object")
	default:
		return io.NopCloser(strings.NewReader(text)), int64(len(text)), nil
	}
}

type tornReader struct{}

func (tornReader) Read([]byte) (int, error) { return 0, errors.New("torn") }

func TestFiles(t *testing.T) {
	big := strings.Repeat("x", maxPhoto+1)
	objects := store{"pic": "PIC", "big": big, "empty": ""}
	for name, c := range map[string]struct {
		key, mimeType string
		bytes         int64
		format        harness.ReplyFormat
		method, file  string // "": not sent
		state         harness.ReplyState
	}{
		"photo":           {"pic", "image/png", 3, harness.FormatRich, "sendPhoto", "photo:PIC", harness.ReplySent},
		"refused photo":   {"pic", "image/png", 3, harness.FormatPlain, "sendDocument", "document:PIC", harness.ReplySent},
		"other picture":   {"pic", "image/webp", 3, harness.FormatRich, "sendDocument", "document:PIC", harness.ReplySent},
		"large picture":   {"big", "image/png", maxPhoto + 1, harness.FormatRich, "sendDocument", "document:" + big, harness.ReplySent},
		"too large":       {"pic", "a/b", maxDocument + 1, harness.FormatRich, "", "", harness.ReplyFailed},
		"empty":           {"empty", "a/b", 0, harness.FormatRich, "", "", harness.ReplyFailed},
		"missing":         {"none", "a/b", 3, harness.FormatRich, "", "", harness.ReplyFailed},
		"not kept":        {"", "a/b", 3, harness.FormatRich, "", "", harness.ReplyFailed},
		"store is down":   {"down", "a/b", 3, harness.FormatRich, "", "", harness.ReplyPlanned},
		"store breaks up": {"torn", "a/b", 100_000, harness.FormatRich, "", "", harness.ReplyPlanned},
	} {
		w := newWire(t, sentAnswer)
		reply := claim("**see** " + strings.Repeat("y", 2000))
		reply.Kind, reply.Format, reply.Address = harness.ReplyFile, c.format, "-1001;topic=7"
		reply.Attachment = &postgres.Attachment{Attachment: harness.Attachment{FileName: `a"b.png`, MimeType: c.mimeType, Bytes: c.bytes}, ObjectKey: c.key}
		o, err := NewTransport(w.client, objects, w.log).Send(t.Context(), testAccount(), reply, begun)
		if err != nil || o.State != c.state {
			t.Errorf("%s: %+v %v", name, o, err)
		}
		calls := w.taken()
		if c.method == "" {
			if len(calls) > 0 && c.key != "torn" {
				t.Errorf("%s: sent %+v", name, calls)
			}
			continue
		}
		p := calls[0].parameters
		if len(calls) != 1 || calls[0].method != c.method || calls[0].file != c.file || calls[0].name != "a_b.png" || p["chat_id"] != "-1001" || p["message_thread_id"] != "7" {
			t.Errorf("%s: %s %s", name, calls[0].method, calls[0].name)
		}
		if caption := p["caption"].(string); len(utf16.Encode([]rune(caption))) > maxCaption || !strings.HasSuffix(caption, "…") {
			t.Errorf("%s: caption of %d bytes", name, len(caption))
		}
	}
}

func TestPresence(t *testing.T) {
	ok := `200 {"ok":true,"result":true}`
	received := func(address, metadata string, state harness.MessageState) *postgres.Received {
		return &postgres.Received{Address: address, Metadata: json.RawMessage(metadata), State: state}
	}
	for name, c := range map[string]struct {
		m     *postgres.Received
		first bool
		want  []string
	}{
		"typing":            {received("5", `{}`, harness.MessageRunning), true, []string{`sendChatAction {"action":"typing","chat_id":5}`}},
		"in a topic":        {received("-5;topic=3", `{}`, harness.MessageRunning), true, []string{`sendChatAction {"action":"typing","chat_id":-5,"message_thread_id":3}`}},
		"business":          {received("5;business=BC", `{}`, harness.MessageRunning), true, []string{`sendChatAction {"action":"typing","business_connection_id":"BC","chat_id":5}`}},
		"button":            {received("5", `{"callbackQueryId":"77"}`, harness.MessageRunning), true, []string{`answerCallbackQuery {"callback_query_id":"77"}`, `sendChatAction {"action":"typing","chat_id":5}`}},
		"button, later":     {received("5", `{"callbackQueryId":"77"}`, harness.MessageRunning), false, []string{`sendChatAction {"action":"typing","chat_id":5}`}},
		"button, done":      {received("5", `{"callbackQueryId":"77"}`, harness.MessageDone), true, []string{`answerCallbackQuery {"callback_query_id":"77"}`}},
		"guest":             {received("-5;guest=Q", `{}`, harness.MessageRunning), true, nil},
		"direct to channel": {received("-5;direct=3", `{}`, harness.MessageRunning), true, nil},
	} {
		w := newWire(t, ok)
		if err := NewPresence(w.client, w.log).Show(t.Context(), testAccount(), c.m, c.first); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, call := range w.taken() {
			parameters, _ := json.Marshal(call.parameters)
			got = append(got, call.method+" "+string(parameters))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	w := newWire(t, `400 {"ok":false,"error_code":400}`, ok)
	p := NewPresence(w.client, w.log)
	if err := p.Show(t.Context(), testAccount(), received("5", `{"callbackQueryId":"77"}`, harness.MessageRunning), true); err != nil {
		t.Errorf("a press that is too old ends typing: %v", err)
	}
	if p.Every() >= 5*time.Second || p.Longest() != 2*time.Minute {
		t.Error("the sign of typing lasts five seconds")
	}
}

func TestDownload(t *testing.T) {
	found := `200 {"ok":true,"result":{"file_id":"F","file_path":"photos/file 1.jpg","file_size":5}}`
	for name, c := range map[string]struct {
		script []string
		bytes  int64
		kind   harness.Kind // of the error; "": none
		calls  int
	}{
		"fetched":           {[]string{found, `200 BYTES`}, 0, "", 2},
		"known to be large": {[]string{found}, 11 << 20, harness.Exhausted, 0},
		"told to be large":  {[]string{`200 {"ok":true,"result":{"file_path":"a","file_size":99999999}}`}, 0, harness.Exhausted, 1},
		"too big for bots":  {[]string{`400 {"ok":false,"error_code":400,"description":"Bad Request: file is too big"}`}, 0, harness.NotFound, 1},
		"token":             {[]string{`401 {"ok":false,"error_code":401}`}, 0, harness.Denied, 1},
		"flood":             {[]string{`429 {"ok":false,"error_code":429}`}, 0, harness.Unavailable, 1},
		"broken":            {[]string{`502 <html>`}, 0, harness.Unavailable, 1},
		"cut":               {[]string{`CUT`}, 0, harness.Unavailable, 1},
		"climbing path":     {[]string{`200 {"ok":true,"result":{"file_path":"../x"}}`}, 0, harness.NotFound, 1},
		"absolute path":     {[]string{`200 {"ok":true,"result":{"file_path":"/etc/x"}}`}, 0, harness.NotFound, 1},
		"gone":              {[]string{found, `404 no`}, 0, harness.Unavailable, 2},
		"cut file":          {[]string{found, `CUT`}, 0, harness.Unavailable, -1}, // a GET may be made again
		"more than told":    {[]string{found, `200 ` + strings.Repeat("z", 10<<20+1)}, 0, harness.Exhausted, 2},
	} {
		w := newWire(t, c.script...)
		body, known, err := NewDownloader(w.client, 10<<20).Download(t.Context(), testAccount(), postgres.Attachment{Attachment: harness.Attachment{ProviderID: "F", Bytes: c.bytes}})
		var text []byte
		if err == nil {
			text, err = io.ReadAll(body)
			if closed := body.Close(); closed != nil {
				t.Error(closed)
			}
		}
		if harness.KindOf(err) != c.kind || err != nil && strings.Contains(err.Error(), testToken) {
			t.Errorf("%s: %v", name, err)
		}
		if c.kind == "" && (string(text) != "BYTES" || known.Bytes != 5 || known.MimeType != "image/jpeg" || known.FileName != "file_1.jpg") {
			t.Errorf("%s: %q %+v", name, text, known)
		}
		calls := w.taken()
		if c.calls >= 0 && len(calls) != c.calls {
			t.Errorf("%s: %d calls", name, len(calls))
		}
		if len(calls) == 2 && calls[1].method != "/file/bot"+testToken+"/photos/file 1.jpg" {
			t.Errorf("%s: %s", name, calls[1].method)
		}
	}
}

var _ channel.Transport = (*Transport)(nil)
