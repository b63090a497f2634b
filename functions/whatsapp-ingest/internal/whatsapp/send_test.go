package whatsapp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is one scripted Graph API.
type provider struct {
	t      *testing.T
	graph  *Graph
	logs   *bytes.Buffer
	server *httptest.Server
	answer func(w http.ResponseWriter, r *http.Request)
	begun  atomic.Int32

	mu    sync.Mutex
	heard []call
}

// calls are what the provider has heard.
func (p *provider) calls() []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.heard)
}

type call struct {
	path, auth, contentType string
	body                    []byte
}

func newProvider(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) *provider {
	p := &provider{t: t, answer: answer, logs: &bytes.Buffer{}}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.heard = append(p.heard, call{r.Method + " " + r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("Content-Type"), body})
		p.mu.Unlock()
		if p.answer == nil {
			_, _ = io.WriteString(w, `{"messaging_product":"whatsapp","messages":[{"id":"wamid.SENT"}]}`)
			return
		}
		p.answer(w, r)
	}))
	p.graph = NewGraph(GraphOptions{BaseURL: p.server.URL, Version: "v25.0", Log: slog.New(slog.NewTextHandler(p.logs, nil)), MaxMedia: 1000, Objects: shelf{"k": "file bytes"}})
	t.Cleanup(func() {
		p.server.Close()
		p.graph.Close()
		if strings.Contains(p.logs.String(), accessToken) {
			t.Error("the token is in the log: " + p.logs.String())
		}
	})
	return p
}

// shelf is an object store.
type shelf map[string]string

func (s shelf) Put(context.Context, string, io.Reader, int64, string) error {
	return errors.New("nothing is stored here")
}

func (s shelf) Get(_ context.Context, key string) (io.ReadCloser, int64, error) {
	text, ok := s[key]
	if !ok {
		return nil, 0, harness.Errorf(harness.NotFound, "no such object")
	}
	return io.NopCloser(strings.NewReader(text)), int64(len(text)), nil
}

func account(change func(*channel.Account)) *channel.Account { return number1(change)[ourID] }

func withTemplate(a *channel.Account) {
	a.Spec.Template = &harness.ChannelTemplate{Name: "news", Language: "en_US"}
}

func claim(change func(*postgres.ReplyClaim)) *postgres.ReplyClaim {
	c := &postgres.ReplyClaim{
		ID: "rpl_1", Attempts: 1, State: harness.ReplyPlanned, Text: "hello", Part: 1, Parts: 1, InReplyTo: "wamid.IN", Kind: harness.ReplyText, Format: harness.FormatRich,
		Address: "15550001111", WindowOpen: true, Session: harness.Session{Chat: "15550001111", Channel: harness.ChannelWhatsApp, Account: ourID},
	}
	if change != nil {
		change(c)
	}
	return c
}

func (p *provider) send(a *channel.Account, c *postgres.ReplyClaim) postgres.ReplyOutcome {
	p.t.Helper()
	o, err := p.graph.Send(context.Background(), a, c, func(context.Context) error { p.begun.Add(1); return nil })
	if err != nil {
		p.t.Fatal(err)
	}
	return o
}

func TestMessages(t *testing.T) {
	choices := func(n int, title string) func(c *postgres.ReplyClaim) {
		return func(c *postgres.ReplyClaim) {
			c.Kind = harness.ReplyChoices
			for i := range n {
				c.Choices = append(c.Choices, harness.Choice{ID: fmt.Sprint("id", i), Title: fmt.Sprint(title, i)})
			}
		}
	}
	all := func(changes ...func(c *postgres.ReplyClaim)) func(c *postgres.ReplyClaim) {
		return func(c *postgres.ReplyClaim) {
			for _, change := range changes {
				change(c)
			}
		}
	}
	group := func(c *postgres.ReplyClaim) { c.Address, c.Session.Chat = "group:GRP-1", "group:GRP-1" }
	text := func(s string) func(c *postgres.ReplyClaim) { return func(c *postgres.ReplyClaim) { c.Text = s } }
	closed := func(c *postgres.ReplyClaim) { c.WindowOpen = false }
	const head = `"messaging_product":"whatsapp","biz_opaque_callback_data":"rpl_1",`
	const person = head + `"recipient_type":"individual","to":"15550001111",`
	for name, tt := range map[string]struct {
		account *channel.Account
		claim   func(c *postgres.ReplyClaim)
		want    string
	}{
		"phone":           {nil, nil, `{` + person + `"type":"text","text":{"body":"hello","preview_url":false}}`},
		"BSUID":           {nil, func(c *postgres.ReplyClaim) { c.Address = "US.9000000000000000003" }, `{` + head + `"recipient_type":"individual","recipient":"US.9000000000000000003","type":"text","text":{"body":"hello","preview_url":false}}`},
		"group":           {nil, group, `{` + head + `"recipient_type":"group","to":"GRP-1","context":{"message_id":"wamid.IN"},"type":"text","text":{"body":"hello","preview_url":false}}`},
		"group, 2nd part": {nil, all(group, func(c *postgres.ReplyClaim) { c.Part = 2 }), `{` + head + `"recipient_type":"group","to":"GRP-1","type":"text","text":{"body":"hello","preview_url":false}}`},
		"no address":      {nil, func(c *postgres.ReplyClaim) { c.Address = "" }, `{` + person + `"type":"text","text":{"body":"hello","preview_url":false}}`},
		"formatted":       {nil, text("**bold** <a&b>"), `{` + person + `"type":"text","text":{"body":"*bold* <a&b>","preview_url":false}}`},
		"plain":           {nil, all(text("**bold**"), func(c *postgres.ReplyClaim) { c.Format = harness.FormatPlain }), `{` + person + `"type":"text","text":{"body":"**bold**","preview_url":false}}`},
		"buttons": {nil, choices(2, "Yes "), `{` + person + `"type":"interactive","interactive":{"type":"button","body":{"text":"hello"},"action":{"buttons":[
			{"type":"reply","reply":{"id":"id0","title":"Yes 0"}},{"type":"reply","reply":{"id":"id1","title":"Yes 1"}}]}}}`},
		"list for four": {nil, choices(4, "T"), `{` + person + `"type":"interactive","interactive":{"type":"list","body":{"text":"hello"},"action":{"button":"Choose","sections":[{"rows":[
			{"id":"id0","title":"T0"},{"id":"id1","title":"T1"},{"id":"id2","title":"T2"},{"id":"id3","title":"T3"}]}]}}}`},
		"list for a long title":  {nil, choices(1, "Twenty characters ab "), `{` + person + `"type":"interactive","interactive":{"type":"list","body":{"text":"hello"},"action":{"button":"Choose","sections":[{"rows":[{"id":"id0","title":"Twenty characters ab 0"}]}]}}}`},
		"list for a long body":   {nil, all(text(strings.Repeat("x", 1025)), choices(1, "T")), `{` + person + `"type":"interactive","interactive":{"type":"list","body":{"text":"` + strings.Repeat("x", 1025) + `"},"action":{"button":"Choose","sections":[{"rows":[{"id":"id0","title":"T0"}]}]}}}`},
		"text for longer titles": {nil, choices(1, "Twenty-five characters ab"), `{` + person + `"type":"text","text":{"body":"hello\n\n1. Twenty-five characters ab0","preview_url":false}}`},
		"text for eleven":        {nil, choices(11, "T"), `{` + person + `"type":"text","text":{"body":"hello\n\n1. T0\n2. T1\n3. T2\n4. T3\n5. T4\n6. T5\n7. T6\n8. T7\n9. T8\n10. T9\n11. T10","preview_url":false}}`},
		"text in groups":         {nil, all(group, choices(1, "T")), `{` + head + `"recipient_type":"group","to":"GRP-1","context":{"message_id":"wamid.IN"},"type":"text","text":{"body":"hello\n\n1. T0","preview_url":false}}`},
		"text for equal titles": {nil, func(c *postgres.ReplyClaim) {
			c.Kind, c.Choices = harness.ReplyChoices, []harness.Choice{{ID: "a", Title: "T"}, {ID: "b", Title: "T", Description: "the other"}}
		}, `{` + person + `"type":"text","text":{"body":"hello\n\n1. T\n2. T – the other","preview_url":false}}`},
		"template": {account(withTemplate), all(closed, text("# Done\n\n**It**\tworks.   Really    now")), `{` + person + `"type":"template","template":{"name":"news","language":{"code":"en_US"},
			"components":[{"type":"body","parameters":[{"type":"text","text":"# Done **It** works. Really now"}]}]}}`},
		"template when asked for": {account(withTemplate), func(c *postgres.ReplyClaim) { c.Format = harness.FormatTemplate }, `{` + person + `"type":"template","template":{"name":"news","language":{"code":"en_US"},
			"components":[{"type":"body","parameters":[{"type":"text","text":"hello"}]}]}}`},
		"template, cut": {account(withTemplate), all(closed, text(strings.Repeat("é", 1001))), `{` + person + `"type":"template","template":{"name":"news","language":{"code":"en_US"},
			"components":[{"type":"body","parameters":[{"type":"text","text":"` + strings.Repeat("é", 999) + `…"}]}]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, nil)
			if tt.account == nil {
				tt.account = account(nil)
			}
			o := p.send(tt.account, claim(tt.claim))
			if diff := cmp.Diff(postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: "wamid.SENT"}, o); diff != "" {
				t.Fatal(diff)
			}
			if len(p.calls()) != 1 || p.begun.Load() != 1 || p.calls()[0].path != "POST /v25.0/"+ourID+"/messages" || p.calls()[0].auth != "Bearer "+accessToken {
				t.Fatalf("%+v, begun %d", p.calls(), p.begun.Load())
			}
			var want, got any
			decode(t, []byte(tt.want), &want)
			decode(t, p.calls()[0].body, &got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNotSent is about what is decided without a call.
func TestNotSent(t *testing.T) {
	for name, tt := range map[string]struct {
		account *channel.Account
		change  func(c *postgres.ReplyClaim)
		want    harness.ReplyState
		code    int
		reason  string
	}{
		"empty":                      {account(nil), func(c *postgres.ReplyClaim) { c.Text = " \n " }, harness.ReplyFailed, 0, "nothing to send"},
		"too long":                   {account(nil), func(c *postgres.ReplyClaim) { c.Text = strings.Repeat("x", 4097) }, harness.ReplyFailed, 0, "4096"},
		"window closed, no template": {account(nil), func(c *postgres.ReplyClaim) { c.WindowOpen = false }, harness.ReplyFailed, 131047, "channels[].template"},
		"window closed, a file":      {account(withTemplate), func(c *postgres.ReplyClaim) { c.WindowOpen, c.Kind = false, harness.ReplyFile }, harness.ReplyFailed, 131047, "file"},
		"no token":                   {account(func(a *channel.Account) { a.Keys = nil }), nil, harness.ReplyPlanned, 0, "accessTokenSecretRef"},
		"file not kept":              {account(nil), file("gone", "text/plain", 1), harness.ReplyFailed, 0, "not kept"},
		"file too large":             {account(nil), file("k", "text/plain", 100<<20+1), harness.ReplyFailed, 0, "100 MB"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, nil)
			o := p.send(tt.account, claim(tt.change))
			if o.State != tt.want || o.Code != tt.code || !strings.Contains(o.Reason, tt.reason) || len(p.calls()) != 0 || p.begun.Load() != 0 {
				t.Errorf("%+v after %d calls, begun %d", o, len(p.calls()), p.begun.Load())
			}
		})
	}
	p := newProvider(t, nil)
	lost := errors.New("lease lost")
	if _, err := p.graph.Send(context.Background(), account(nil), claim(nil), func(context.Context) error { return lost }); !errors.Is(err, lost) || len(p.calls()) != 0 {
		t.Errorf("%v after %d calls", err, len(p.calls()))
	}
}

func file(key, mimeType string, size int64) func(c *postgres.ReplyClaim) {
	return func(c *postgres.ReplyClaim) {
		c.Kind, c.Text = harness.ReplyFile, "**see**"
		c.Attachment = &postgres.Attachment{ObjectKey: key, Attachment: harness.Attachment{FileName: `../o "ffer".md`, MimeType: mimeType, Bytes: size}}
	}
}

func TestFiles(t *testing.T) {
	for mimeType, want := range map[string]string{
		"image/png":               `{"type":"image","image":{"id":"MEDIA1","caption":"*see*"}}`,
		"text/markdown; x=y":      `{"type":"document","document":{"id":"MEDIA1","caption":"*see*","filename":"o__ffer_.md"}}`,
		"application/pdf":         `{"type":"document","document":{"id":"MEDIA1","caption":"*see*","filename":"o__ffer_.md"}}`,
		"image/webp":              `{"type":"document","document":{"id":"MEDIA1","caption":"*see*","filename":"o__ffer_.md"}}`,
		"broken\r\nX-Evil: 1; ;;": `{"type":"document","document":{"id":"MEDIA1","caption":"*see*","filename":"o__ffer_.md"}}`,
	} {
		t.Run(mimeType, func(t *testing.T) {
			var p *provider
			p = newProvider(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/media") {
					if p.begun.Load() != 0 {
						t.Error("uploaded after the beginning of the send")
					}
					_, _ = io.WriteString(w, `{"id":"MEDIA1"}`)
					return
				}
				_, _ = io.WriteString(w, `{"messages":[{"id":"wamid.F"}]}`)
			})
			if o := p.send(account(nil), claim(file("k", mimeType, 10))); o.ProviderID != "wamid.F" || len(p.calls()) != 2 {
				t.Fatalf("%+v %+v", o, p.calls())
			}
			r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(p.calls()[0].body))
			r.Header.Set("Content-Type", p.calls()[0].contentType)
			if err := r.ParseMultipartForm(1 << 20); err != nil {
				t.Fatal(err)
			}
			sent, header, err := r.FormFile("file")
			if err != nil {
				t.Fatal(err)
			}
			content, _ := io.ReadAll(sent)
			if string(content) != "file bytes" || header.Filename != "o__ffer_.md" || r.FormValue("messaging_product") != "whatsapp" || r.FormValue("type") != uploadType(mimeType) {
				t.Errorf("%q %+v %v", content, header, r.Form)
			}
			var got map[string]any
			decode(t, p.calls()[1].body, &got)
			for _, name := range []string{"messaging_product", "recipient_type", "to", "biz_opaque_callback_data"} {
				delete(got, name)
			}
			text, _ := json.Marshal(got)
			var wantAny, gotAny any
			decode(t, []byte(want), &wantAny)
			decode(t, text, &gotAny)
			if diff := cmp.Diff(wantAny, gotAny); diff != "" {
				t.Error(diff)
			}
		})
	}
	p := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(400)
		_, _ = io.WriteString(w, `{"error":{"code":100,"message":"Param file must be a file"}}`)
	})
	if o := p.send(account(nil), claim(file("k", "application/zip", 10))); o.State != harness.ReplyFailed || o.Code != 100 || p.begun.Load() != 0 {
		t.Errorf("%+v, begun %d", o, p.begun.Load())
	}
}

func graphError(code, subcode int) string {
	return fmt.Sprintf(`{"error":{"message":"(#%d) test","type":"OAuthException","code":%d,"error_subcode":%d,"error_data":{"messaging_product":"whatsapp","details":"test detail"}}}`, code, code, subcode)
}

func TestOutcomes(t *testing.T) {
	const planned, gone, unsure, sent = harness.ReplyPlanned, harness.ReplyFailed, harness.ReplyUnknown, harness.ReplySent
	type want struct {
		state harness.ReplyState
		retry time.Duration // at least
		hold  bool
		alert bool
	}
	tests := map[string]struct {
		status int
		body   string
		want   want
	}{
		"200":                     {200, `{"messages":[{"id":"wamid.1"}]}`, want{state: sent}},
		"200 without id":          {200, `{"messages":[]}`, want{state: unsure}},
		"200 HTML":                {200, `<html>`, want{state: unsure}},
		"HTML 502":                {502, `<html>bad gateway</html>`, want{state: unsure}},
		"HTML 503":                {503, `<html>`, want{state: planned, retry: evidenceTime}},
		"HTML 400":                {400, `<html>`, want{state: gone}},
		"HTML 401":                {401, `<html>`, want{state: gone, alert: true}},
		"HTML 403":                {403, `<html>`, want{state: gone, alert: true}},
		"HTML 429":                {429, `<html>`, want{state: planned, retry: time.Second}},
		"redirect":                {302, ``, want{state: gone}},
		"unknown code 400":        {400, graphError(987654, 0), want{state: gone}},
		"unknown code 500":        {500, graphError(987654, 0), want{state: planned, retry: time.Second}},
		"unknown code, transient": {400, `{"error":{"code":987654,"is_transient":true}}`, want{state: planned, retry: time.Second}},
		"code as text":            {400, `{"error":{"code":"130429"}}`, want{state: planned, retry: time.Second}},
		"error without code":      {400, `{"error":{"message":"190"}}`, want{state: gone}},
		"error is text":           {400, `{"error":"190"}`, want{state: gone}},
	}
	for _, code := range []int{4, 80007} {
		tests[fmt.Sprint("hourly ", code)] = struct {
			status int
			body   string
			want   want
		}{400, graphError(code, 0), want{state: planned, retry: time.Minute}}
	}
	for _, code := range []int{130429, 131057, 131000, 131016, 1, 2} {
		tests[fmt.Sprint("again ", code)] = struct {
			status int
			body   string
			want   want
		}{400, graphError(code, 0), want{state: planned, retry: time.Second}}
	}
	for _, code := range []int{0, 3, 10, 190, 200, 250, 299, 131031, 368, 131042, 131048, 132001} {
		tests[fmt.Sprint("operator ", code)] = struct {
			status int
			body   string
			want   want
		}{400, graphError(code, 463), want{state: gone, alert: true}}
	}
	for _, code := range []int{100, 131009, 131026, 131030, 131021, 131049, 131050, 131051, 131047} {
		tests[fmt.Sprint("never ", code)] = struct {
			status int
			body   string
			want   want
		}{400, graphError(code, 0), want{state: gone}}
	}
	tests["pair"] = struct {
		status int
		body   string
		want   want
	}{400, graphError(131056, 0), want{state: planned, retry: 4 * time.Second, hold: true}}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "https://example.com/")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			o := p.send(account(nil), claim(nil))
			if o.State != tt.want.state || o.Retry < tt.want.retry || (tt.want.retry == 0) != (o.Retry == 0) || (o.Hold > 0) != tt.want.hold || o.Final != (o.State == unsure) {
				t.Errorf("%+v", o)
			}
			if alert := strings.Contains(p.logs.String(), "level=ERROR"); alert != tt.want.alert || alert && (strings.Count(p.logs.String(), "level=ERROR") != 1 || !strings.Contains(p.logs.String(), ourID)) {
				t.Errorf("the log says %q", p.logs)
			}
			if len(p.calls()) != 1 || o.State != sent && o.Reason == "" {
				t.Errorf("%d calls, %+v", len(p.calls()), o)
			}
		})
	}
}

func TestTemplateAfterRefusal(t *testing.T) {
	p := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(400)
		_, _ = io.WriteString(w, graphError(131047, 0))
	})
	if o := p.send(account(withTemplate), claim(nil)); o.State != harness.ReplyPlanned || o.Format != harness.FormatTemplate || o.Retry != 0 || o.Code != 131047 {
		t.Errorf("%+v", o)
	}
	if o := p.send(account(withTemplate), claim(func(c *postgres.ReplyClaim) { c.Format = harness.FormatTemplate })); o.State != harness.ReplyFailed {
		t.Errorf("a refused template is not tried again: %+v", o)
	}
}

func TestPairBackoff(t *testing.T) {
	for attempt, want := range map[int]time.Duration{0: 4 * time.Second, 1: 4 * time.Second, 2: 16 * time.Second, 3: 64 * time.Second, 6: 4096 * time.Second, 20: 4096 * time.Second} {
		if got := pairBackoff(attempt); got != want {
			t.Errorf("attempt %d: %s", attempt, got)
		}
	}
}

// TestNoAnswer is about what nobody can know, and what surely was not sent.
func TestNoAnswer(t *testing.T) {
	cut := func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = connection.Close()
		}
	}
	p := newProvider(t, cut)
	if o := p.send(account(nil), claim(nil)); o.State != harness.ReplyUnknown || !o.Final || len(p.calls()) != 1 {
		t.Errorf("cut after the request: %+v after %d calls", o, len(p.calls()))
	}
	if o := p.send(account(nil), claim(file("k", "application/pdf", 10))); o.State != harness.ReplyPlanned || p.begun.Load() != 1 {
		t.Errorf("cut while uploading: %+v, begun %d", o, p.begun.Load())
	}
	p = newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"mess`)
	})
	if o := p.send(account(nil), claim(nil)); o.State != harness.ReplyUnknown {
		t.Errorf("cut in the answer: %+v", o)
	}
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p = newProvider(t, func(http.ResponseWriter, *http.Request) {
		cancel() // the request has arrived
		<-release
	})
	o, err := p.graph.Send(ctx, account(nil), claim(nil), func(context.Context) error { return nil })
	close(release)
	if err != nil || o.State != harness.ReplyUnknown {
		t.Errorf("no answer in time: %+v %v", o, err)
	}
	p = newProvider(t, nil)
	p.server.Close()
	if o := p.send(account(nil), claim(nil)); o.State != harness.ReplyPlanned || o.Retry == 0 || o.Final {
		t.Errorf("nobody listens: %+v", o)
	}
	if o := p.graph.Settle(context.Background(), account(nil), claim(nil)); o.State != harness.ReplyUnknown || !o.Final {
		t.Errorf("settled as %+v", o)
	}
}

func TestSplit(t *testing.T) {
	p := newProvider(t, nil)
	for name, text := range map[string]string{
		"words": strings.Repeat("some words, **bold ones** and `code`. ", 400),
		"emoji": strings.Repeat("😀", 5000),
		"code":  "Look:\n\n```go\n" + strings.Repeat("x := 1 // a line of code\n", 300) + "```\nThat was it.",
	} {
		parts := p.graph.Split(text)
		if len(parts) < 2 {
			t.Errorf("%s: %d parts", name, len(parts))
		}
		for _, part := range parts {
			if o := p.send(account(nil), claim(func(c *postgres.ReplyClaim) { c.Text = part })); o.State != harness.ReplySent {
				t.Fatalf("%s: %+v", name, o)
			}
		}
	}
	for _, c := range p.calls() {
		var sent struct{ Text struct{ Body string } }
		decode(t, c.body, &sent)
		if n := len([]rune(sent.Text.Body)); n > 4096 || n == 0 {
			t.Errorf("a part of %d characters", n)
		}
	}
	if parts := p.graph.Split(" \n \u200b"); len(parts) != 0 {
		t.Errorf("an empty reply has %d parts", len(parts))
	}
}
