// Package channeltest is what every provider's side of a channel must hold,
// whatever its wire looks like.
package channeltest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Inbound is an Adapter under test.
type Inbound struct {
	// New returns the adapter of a function that serves accounts.
	New func(accounts map[string]*channel.Account) channel.Adapter
	// Ours and Theirs are two accounts with different secrets. Old is a secret
	// that Ours had before its newest one, kept in its Keys too.
	Ours, Theirs *channel.Account
	// Sign returns the request that carries body with the credential of an
	// account, by the secret at place key of its Keys.
	Sign func(account *channel.Account, key int, body []byte) *http.Request
	// Message returns the body with one text message to an account.
	Message func(account *channel.Account, id, text string) []byte
}

// TestInbound runs the suite.
func TestInbound(t *testing.T, s Inbound) {
	both := map[string]*channel.Account{s.Ours.Name: s.Ours, s.Theirs.Name: s.Theirs}
	take := func(adapter channel.Adapter, r *http.Request, body []byte) (postgres.Inbound, error) {
		proof, err := adapter.Verify(t.Context(), r, body)
		if err != nil {
			return postgres.Inbound{}, err
		}
		return adapter.Parse(body, proof)
	}
	denied := func(name string, accounts map[string]*channel.Account, r *http.Request, body []byte) {
		t.Helper()
		if _, err := s.New(accounts).Verify(t.Context(), r, body); harness.KindOf(err) != harness.Denied {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	body := s.Message(s.Ours, "1", "hello")

	in, err := take(s.New(both), s.Sign(s.Ours, 0, body), body)
	if err != nil || len(in.Arrivals) != 1 || in.Arrivals[0].Message.Text != "hello" || in.Arrivals[0].Account != s.Ours.Name {
		t.Fatalf("a good message: %+v %v", in, err)
	}
	if a := in.Arrivals[0]; a.ProviderID == "" || a.Chat == "" || a.Address == "" || a.Message.ChannelUserID == "" || a.Message.Channel != s.Ours.Spec.Type {
		t.Errorf("the arrival lacks something: %+v", a)
	}
	again, err := take(s.New(both), s.Sign(s.Ours, 0, body), body)
	if diff := cmp.Diff(in, again); err != nil || diff != "" {
		t.Errorf("the same bytes read twice (-first +second): %v\n%s", err, diff)
	}
	if len(s.Ours.Keys) > 0 {
		if in, err := take(s.New(both), s.Sign(s.Ours, 1, body), body); err != nil || len(in.Arrivals) != 1 {
			t.Errorf("the secret before the newest, while it is rotated: %+v %v", in, err)
		}
	}

	denied("the credential of another account's secret", map[string]*channel.Account{s.Ours.Name: s.Ours}, s.Sign(s.Theirs, 0, body), body)
	bare := s.Sign(s.Ours, 0, body)
	bare.Header = http.Header{"Content-Type": {"application/json"}}
	denied("no credential", both, bare, body)
	unset := *s.Ours
	unset.Keys = map[channel.Role][]harness.Secret{}
	empty := unset
	empty.Keys = map[channel.Role][]harness.Secret{channel.RoleAppSecret: {""}, channel.RoleWebhookSecret: {""}}
	for name, account := range map[string]*channel.Account{"no secret is set": &unset, "an empty secret is set": &empty} {
		denied(name, map[string]*channel.Account{account.Name: account}, s.Sign(s.Ours, 0, body), body)
		denied(name+", with an empty credential", map[string]*channel.Account{account.Name: account}, s.Sign(&empty, 0, body), body)
	}
	denied("nobody is served", nil, s.Sign(s.Ours, 0, body), body)

	// A signature proves only its own: what it says of another account is kept
	// as a notice and starts nothing.
	foreign := s.Message(s.Theirs, "2", "not yours")
	if in, err := take(s.New(both), s.Sign(s.Ours, 0, foreign), foreign); err != nil || len(in.Arrivals) > 0 && in.Arrivals[0].Account != s.Ours.Name {
		t.Errorf("a message to another account under our secret: %+v %v", in, err)
	}

	for name, torn := range map[string][]byte{"cut in the middle": body[:len(body)/2], "empty": {}, "text": []byte("hello"), "two values": append(bytes.Clone(body), body...)} {
		if in, err := take(s.New(both), s.Sign(s.Ours, 0, torn), torn); err == nil && len(in.Arrivals) > 0 || err != nil && harness.KindOf(err) != harness.Invalid {
			t.Errorf("a body that is %s: %+v %v", name, in, err)
		}
	}
	for _, text := range []string{"", " \n\t", "\x00", "a\x00b", "\u202eabc", strings.Repeat("long ", 100_000), "\ufffd", "😀"} {
		body := s.Message(s.Ours, "3", text)
		in, err := take(s.New(both), s.Sign(s.Ours, 0, body), body)
		if err != nil {
			t.Errorf("text %.20q: %v", text, err)
		}
		Storable(t, in)
	}
}

// Storable fails t unless everything in in can be stored and answered.
func Storable(t *testing.T, in postgres.Inbound) {
	t.Helper()
	check := func(what, text string) {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			t.Errorf("%s %.40q cannot be stored", what, text)
		}
	}
	data := func(what string, values map[string]any) {
		encoded, err := json.Marshal(values)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if check(what, string(encoded)); strings.Contains(strings.ReplaceAll(string(encoded), `\\`, ""), `\u0000`) {
			t.Errorf("%s holds a NUL: %.200s", what, encoded)
		}
	}
	for _, a := range in.Arrivals {
		for _, text := range append([]string{a.Account, a.ProviderID, a.Chat, a.Address, a.OtherID, a.Album, a.Message.ChannelUserID, a.Message.Text}, a.Aliases...) {
			check("an arrival's text", text)
		}
		for _, f := range a.Attachments {
			check("an attachment's text", f.ProviderID+f.FileName+f.MimeType)
		}
		if a.Account == "" || a.ProviderID == "" || a.Chat == "" || a.Address == "" || a.Message.ChannelUserID == "" || strings.TrimSpace(a.Message.Text) == "" {
			t.Errorf("an arrival that nobody can answer: %+v", a)
		}
		data("metadata", a.Message.Metadata)
	}
	for _, n := range in.Notices {
		check("a notice's text", n.Account+n.ProviderID+n.Chat+n.ChannelUserID+n.Ref)
		if n.ProviderID == "" || n.Kind == "" {
			t.Errorf("a notice that a repeat would double: %+v", n)
		}
		data("a notice", n.Data)
	}
	for _, s := range in.Statuses {
		check("a status' text", s.Account+s.ProviderID+string(s.Reply)+s.Reason)
		if s.ProviderID == "" && s.Reply == "" {
			t.Errorf("a status of nothing: %+v", s)
		}
	}
	for _, r := range in.Renames {
		check("a rename's text", r.Account+strings.Join(append(r.From, r.To...), ""))
	}
	for _, b := range in.Blocks {
		check("a block's text", b.Account+b.Chat+b.Reason)
	}
}

// Outbound is a Transport under test.
type Outbound struct {
	// New returns the transport that speaks to a provider at baseURL.
	New func(baseURL string) channel.Transport
	// Account has the secrets that sending needs; Secret is the one that must
	// show nowhere.
	Account *channel.Account
	Secret  harness.Secret
	// Address is where replies go.
	Address string
	// Sent is the provider's answer to a message it took.
	Sent string
}

func (s Outbound) claim(text string) *postgres.ReplyClaim {
	return &postgres.ReplyClaim{
		ID: "rpl_1", Attempts: 1, State: harness.ReplyPlanned, Message: "msg_1", Text: text, Part: 1, Parts: 1, Kind: harness.ReplyText, Format: harness.FormatRich,
		Address: s.Address, WindowOpen: true, Spec: &s.Account.Spec,
		Session: harness.Session{ID: "ses_1", Agent: "coder", Channel: s.Account.Spec.Type, Account: s.Account.Name, Chat: s.Address},
	}
}

// TestOutbound runs the suite.
func TestOutbound(t *testing.T, s Outbound) {
	provider := func(t *testing.T, h http.HandlerFunc) channel.Transport {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return s.New(server.URL)
	}
	send := func(t *testing.T, transport channel.Transport, c *postgres.ReplyClaim, begin func(context.Context) error) (postgres.ReplyOutcome, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		o, err := transport.Send(ctx, s.Account, c, begin)
		if s.Secret != "" && strings.Contains(fmt.Sprintf("%+v %v", o, err), s.Secret.Reveal()) {
			t.Error("the outcome shows a secret")
		}
		return o, err
	}
	t.Run("split", func(t *testing.T) {
		transport := s.New("http://127.0.0.1:1")
		for _, text := range []string{"", " ", "\n\n"} {
			if parts := transport.Split(text); len(parts) != 0 {
				t.Errorf("%q makes parts %q", text, parts)
			}
		}
		text := strings.Repeat("word ", 5000) + "```go\n" + strings.Repeat("code()\n", 200) + "```\n" + strings.Repeat("😀", 5000)
		parts := transport.Split(text)
		if len(parts) < 3 {
			t.Fatalf("%d parts", len(parts))
		}
		for _, part := range parts {
			if again := transport.Split(part); len(again) != 1 || again[0] != part {
				t.Errorf("a part is split once more, into %d", len(again))
			}
			if !utf8.ValidString(part) {
				t.Errorf("a part is not UTF-8")
			}
		}
	})
	t.Run("begins before it sends", func(t *testing.T) {
		var calls, begun atomic.Int32
		transport := provider(t, func(w http.ResponseWriter, _ *http.Request) {
			if calls.Add(1); begun.Load() == 0 {
				t.Error("something was sent before it began")
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, s.Sent)
		})
		o, err := send(t, transport, s.claim("hello"), func(context.Context) error { begun.Add(1); return nil })
		if err != nil || o.State != harness.ReplySent || o.ProviderID == "" || begun.Load() != 1 || calls.Load() != 1 {
			t.Errorf("outcome %+v %v after %d beginnings and %d calls", o, err, begun.Load(), calls.Load())
		}
	})
	t.Run("sends nothing that did not begin", func(t *testing.T) {
		var calls atomic.Int32
		transport := provider(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
		if _, err := send(t, transport, s.claim("hello"), func(context.Context) error { return postgres.ErrLeaseLost }); !errors.Is(err, postgres.ErrLeaseLost) || calls.Load() != 0 {
			t.Errorf("%v after %d calls", err, calls.Load())
		}
	})
	began := func(context.Context) error { return nil }
	t.Run("nobody there", func(t *testing.T) {
		if o, err := send(t, s.New("http://127.0.0.1:1"), s.claim("hello"), began); err != nil || o.State != harness.ReplyPlanned {
			t.Errorf("surely not sent, but %+v %v", o, err)
		}
	})
	for name, h := range map[string]http.HandlerFunc{
		"the connection breaks after the request": func(w http.ResponseWriter, r *http.Request) {
			_, _ = bytes.NewBuffer(nil).ReadFrom(r.Body)
			panic(http.ErrAbortHandler)
		},
		"a gateway's error page": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = fmt.Fprint(w, "<html>Bad Gateway</html>")
		},
		"a success that is no answer": func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "<html>ok</html>") },
		"a torn answer":               func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, s.Sent[:len(s.Sent)/2]) },
	} {
		t.Run(name, func(t *testing.T) {
			if o, err := send(t, provider(t, h), s.claim("hello"), began); err != nil || o.State != harness.ReplyUnknown {
				t.Errorf("it may have been sent, but %+v %v", o, err)
			}
		})
	}
	t.Run("no secret", func(t *testing.T) {
		account := *s.Account
		account.Keys = nil
		o, err := s.New("http://127.0.0.1:1").Send(t.Context(), &account, s.claim("hello"), began)
		if err != nil || o.State != harness.ReplyPlanned && o.State != harness.ReplyFailed || o.Reason == "" {
			t.Errorf("%+v %v", o, err)
		}
	})
	t.Run("settle", func(t *testing.T) {
		c := s.claim("hello")
		c.State = harness.ReplyUnknown
		if o := s.New("http://127.0.0.1:1").Settle(t.Context(), s.Account, c); o.State != harness.ReplyUnknown || !o.Final {
			t.Errorf("without evidence %+v", o)
		}
	})
}
