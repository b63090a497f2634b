package whatsapp

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const (
	appSecret   = "test-app-secret"
	verifyToken = "test-verify-token"
	accessToken = "test-access-token-that-must-not-show"
	ourID       = "100000000000001"
	ourPhone    = "+1 555 000-9999"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// numbers is an Accounts that never changes.
type numbers map[string]*channel.Account

func (n numbers) All(context.Context) (map[string]*channel.Account, error) { return n, nil }

type noNumbers struct{}

func (noNumbers) All(context.Context) (map[string]*channel.Account, error) {
	return nil, harness.Errorf(harness.Unavailable, "the database does not answer")
}

func number1(change func(*channel.Account)) numbers {
	account := &channel.Account{
		Name: ourID, Agent: "helper",
		Spec: harness.ChannelSpec{Type: harness.ChannelWhatsApp, Account: ourID, PhoneNumber: ourPhone},
		Keys: map[channel.Role][]harness.Secret{
			channel.RoleAppSecret: {appSecret}, channel.RoleVerifyToken: {verifyToken}, channel.RoleAccessToken: {accessToken},
		},
	}
	if change != nil {
		change(account)
	}
	return numbers{ourID: account}
}

func adapter(accounts Accounts) *Adapter {
	return NewAdapter(accounts, func() time.Time { return now })
}

func hmacHex(key string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

func posted(body []byte, header string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	if header != "" {
		r.Header.Set("X-Hub-Signature-256", header)
	}
	return r
}

// caseOutcome is one right outcome of a case.
type caseOutcome struct {
	Status   int `json:"http_status"`
	Messages []struct {
		Channel            string            `json:"channel"`
		ChannelUserID      string            `json:"channelUserId"`
		ChannelUserIDAnyOf []string          `json:"channelUserIdAnyOf"`
		Text               *string           `json:"text"`
		TextContains       []string          `json:"textContains"`
		TextExcludes       []string          `json:"textExcludes"`
		TextAnyOf          []string          `json:"textAnyOf"`
		Metadata           map[string]string `json:"metadata"`
	} `json:"messages"`
	MetadataOrText []string          `json:"metadataOrText"`
	Recorded       *caseRecord       `json:"recorded"`
	BodyExact      *string           `json:"body_exact"`
	TypeNot        string            `json:"content_type_not"`
	AlsoOK         []json.RawMessage `json:"also_ok"`
}

type caseRecord struct {
	Wamid string `json:"wamid"`
	Code  int    `json:"code"`
}

type caseRequest struct {
	Method         string            `json:"method"`
	Headers        map[string]string `json:"headers"`
	Sign           string            `json:"sign"`
	Repeat         int               `json:"repeat"`
	Sequence       bool              `json:"sequence"`
	Pad            int               `json:"pad_with_spaces_to"`
	QueryFromBody  bool              `json:"query_from_body"`
	Concurrent     int               `json:"concurrent_last"`
	ConfiguredOnly []string          `json:"configured_numbers"`
}

// answer is what the case came to: HTTP statuses as the shared handler gives
// them, and rows.
type answer struct {
	statuses []int
	body     string
	header   http.Header
	inbound  postgres.Inbound
}

func TestCases(t *testing.T) {
	paths, err := filepath.Glob("testdata/cases/wa-*.expect.json")
	if err != nil || len(paths) < 42 {
		t.Fatalf("%d cases, %v", len(paths), err)
	}
	for _, path := range paths {
		base := strings.TrimSuffix(path, ".expect.json")
		t.Run(filepath.Base(base), func(t *testing.T) {
			text := read(t, path)
			var want caseOutcome
			decode(t, text, &want)
			got := play(t, base)
			problem := compare(want, got)
			for _, other := range want.AlsoOK {
				var also caseOutcome
				decode(t, other, &also)
				if problem != "" {
					if compare(also, got) == "" {
						problem = ""
					}
				}
			}
			if problem != "" {
				t.Error(problem)
			}
		})
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func decode(t testing.TB, text []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// play sends the requests of a case through Verify and Parse, or the handshake.
func play(t *testing.T, base string) answer {
	request := caseRequest{Repeat: 1}
	if _, err := os.Stat(base + ".request.json"); err == nil {
		decode(t, read(t, base+".request.json"), &request)
	}
	body := read(t, base+".json")
	if request.Method == http.MethodGet {
		fields, query := map[string]string{}, url.Values{}
		decode(t, body, &fields)
		for name, v := range fields {
			query.Set(name, v)
		}
		w := httptest.NewRecorder()
		NewHandshake(number1(nil), slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?"+query.Encode(), nil))
		return answer{statuses: []int{w.Code}, body: w.Body.String(), header: w.Header()}
	}
	bodies := []json.RawMessage{body}
	if request.Sequence {
		bodies = nil
		decode(t, body, &bodies)
	}
	a, got := adapter(number1(nil)), answer{header: http.Header{}}
	for range max(request.Repeat, 1) {
		for _, body := range bodies {
			for len(body) < request.Pad {
				body = append(body, ' ')
			}
			r := posted(body, "")
			for name, v := range request.Headers {
				r.Header.Set(name, v)
			}
			if request.Sign == "" {
				r.Header.Set("X-Hub-Signature-256", hmacHex(appSecret, body))
			}
			proof, err := a.Verify(context.Background(), r, body)
			var in postgres.Inbound
			if err == nil {
				in, err = a.Parse(body, proof)
			}
			switch harness.KindOf(err) {
			case "":
				got.statuses = append(got.statuses, 200)
			case harness.Denied:
				got.statuses = append(got.statuses, 401)
			case harness.Invalid:
				got.statuses = append(got.statuses, 400)
			default:
				got.statuses = append(got.statuses, 500)
			}
			got.inbound.Notices = append(got.inbound.Notices, in.Notices...)
			for _, arrival := range in.Arrivals { // the database drops repeats
				if !slices.ContainsFunc(got.inbound.Arrivals, func(a postgres.Arrival) bool { return a.ProviderID == arrival.ProviderID }) {
					got.inbound.Arrivals = append(got.inbound.Arrivals, arrival)
				}
			}
		}
	}
	return got
}

func compare(want caseOutcome, got answer) string {
	for _, status := range got.statuses {
		if status != want.Status {
			return fmt.Sprintf("answered %d, not %d", status, want.Status)
		}
	}
	if want.BodyExact != nil && (*want.BodyExact != got.body || got.header.Get("X-Content-Type-Options") != "nosniff") {
		return fmt.Sprintf("body %q, headers %v", got.body, got.header)
	}
	if want.TypeNot != "" && strings.HasPrefix(got.header.Get("Content-Type"), want.TypeNot) {
		return "type " + got.header.Get("Content-Type")
	}
	if len(want.Messages) != len(got.inbound.Arrivals) {
		return fmt.Sprintf("%d messages, not %d: %+v, notices %+v", len(got.inbound.Arrivals), len(want.Messages), got.inbound.Arrivals, got.inbound.Notices)
	}
	for i, m := range want.Messages {
		a := got.inbound.Arrivals[i]
		metadata, err := json.Marshal(a.Message.Metadata)
		if err != nil {
			return err.Error()
		}
		switch {
		case string(a.Message.Channel) != m.Channel:
			return "channel " + string(a.Message.Channel)
		case a.Message.ChannelUserID != m.ChannelUserID && !slices.Contains(m.ChannelUserIDAnyOf, a.Message.ChannelUserID):
			return "user " + a.Message.ChannelUserID
		case blank(a.Message.Text):
			return "empty text"
		case m.TextAnyOf != nil && !slices.Contains(m.TextAnyOf, a.Message.Text), m.TextAnyOf == nil && m.Text != nil && *m.Text != a.Message.Text:
			return "text " + a.Message.Text
		}
		for _, word := range m.TextContains {
			if !strings.Contains(a.Message.Text, word) {
				return word + " is not in " + a.Message.Text
			}
		}
		for _, word := range m.TextExcludes {
			if strings.Contains(a.Message.Text, word) {
				return fmt.Sprintf("%q is in %q", word, a.Message.Text)
			}
		}
		for _, word := range want.MetadataOrText {
			if !strings.Contains(a.Message.Text, word) && !strings.Contains(string(metadata), word) {
				return word + " is nowhere"
			}
		}
		for name, v := range m.Metadata {
			if a.Message.Metadata[name] != v {
				return fmt.Sprintf("metadata %s is %v, not %s", name, a.Message.Metadata[name], v)
			}
		}
	}
	if want.Recorded != nil && !slices.ContainsFunc(got.inbound.Notices, func(n postgres.Notice) bool {
		return n.Kind == harness.NoticeDelivery && n.Ref == want.Recorded.Wamid && fmt.Sprint(n.Data["code"]) == fmt.Sprint(want.Recorded.Code) && n.Data["opaque"] == "turn-25"
	}) {
		return fmt.Sprintf("%+v is not recorded: %+v", want.Recorded, got.inbound.Notices)
	}
	return ""
}

func TestVerifyProvesOnlyItsOwn(t *testing.T) {
	accounts := number1(func(a *channel.Account) { a.Keys[channel.RoleAppSecret] = []harness.Secret{"new-secret", appSecret} })
	accounts["2"] = &channel.Account{Name: "2", Keys: map[channel.Role][]harness.Secret{channel.RoleAppSecret: {"other-secret"}}}
	accounts["3"] = &channel.Account{Name: "3", Keys: map[channel.Role][]harness.Secret{channel.RoleAppSecret: {""}}}
	accounts["4"] = &channel.Account{Name: "4", Keys: map[channel.Role][]harness.Secret{channel.RoleAppSecret: {appSecret}}}
	body := []byte(`{"a": 1}`)
	for name, tt := range map[string]struct {
		header string
		want   []string
	}{
		"newest":          {hmacHex("new-secret", body), []string{ourID}},
		"older, shared":   {hmacHex(appSecret, body), []string{ourID, "4"}},
		"other":           {hmacHex("other-secret", body), []string{"2"}},
		"upper case hex":  {"sha256=" + strings.ToUpper(hmacHex("other-secret", body)[7:]), []string{"2"}},
		"empty secret":    {hmacHex("", body), nil},
		"unknown secret":  {hmacHex("?", body), nil},
		"none":            {"", nil},
		"no prefix":       {hmacHex(appSecret, body)[7:], nil},
		"other algorithm": {"sha1=" + hmacHex(appSecret, body)[7:], nil},
		"short":           {hmacHex(appSecret, body)[:70], nil},
		"not hex":         {"sha256=" + strings.Repeat("zz", 32), nil},
	} {
		t.Run(name, func(t *testing.T) {
			proof, err := adapter(accounts).Verify(context.Background(), posted(body, tt.header), body)
			var got []string
			for account := range proof.Accounts {
				got = append(got, account)
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) || (tt.want == nil) != (harness.KindOf(err) == harness.Denied) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	if _, err := adapter(numbers{}).Verify(context.Background(), posted(body, hmacHex("", body)), body); harness.KindOf(err) != harness.Denied {
		t.Errorf("without any secret: %v", err)
	}
	if _, err := adapter(noNumbers{}).Verify(context.Background(), posted(body, hmacHex(appSecret, body)), body); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("without a database: %v", err)
	}
	if _, err := adapter(noNumbers{}).Verify(context.Background(), posted(body, ""), body); harness.KindOf(err) != harness.Denied {
		t.Errorf("unsigned, without a database: %v", err)
	}
}

func TestHandshake(t *testing.T) {
	get := func(accounts Accounts, mode, token, challenge string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		query := url.Values{"hub.mode": {mode}, "hub.verify_token": {token}, "hub.challenge": {challenge}}
		NewHandshake(accounts, slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?"+query.Encode(), nil))
		return w
	}
	empty := number1(func(a *channel.Account) { a.Keys[channel.RoleVerifyToken] = []harness.Secret{""} })
	for name, tt := range map[string]struct {
		w      *httptest.ResponseRecorder
		status int
		body   string
	}{
		"right":            {get(number1(nil), "subscribe", verifyToken, "1158201444"), 200, "1158201444"},
		"wrong token":      {get(number1(nil), "subscribe", "x", "1"), 403, ""},
		"no token":         {get(empty, "subscribe", "", "1"), 403, ""},
		"other mode":       {get(number1(nil), "unsubscribe", verifyToken, "1"), 403, ""},
		"no challenge":     {get(number1(nil), "subscribe", verifyToken, ""), 403, ""},
		"longest":          {get(number1(nil), "subscribe", verifyToken, strings.Repeat("1", 200)), 200, strings.Repeat("1", 200)},
		"too long":         {get(number1(nil), "subscribe", verifyToken, strings.Repeat("1", 201)), 403, ""},
		"without database": {get(noNumbers{}, "subscribe", verifyToken, "1"), 503, ""},
	} {
		if tt.w.Code != tt.status || tt.w.Body.String() != tt.body {
			t.Errorf("%s: %d %q", name, tt.w.Code, tt.w.Body)
		}
	}
}

func TestNotJSON(t *testing.T) {
	for _, body := range []string{"", " ", "\xef\xbb\xbf{}", "{}{}", "{", `{"a":1} x`, strings.Repeat("[", 20000) + strings.Repeat("]", 20000)} {
		_, err := adapter(number1(nil)).Parse([]byte(body), channel.Proof{})
		if harness.KindOf(err) != harness.Invalid || errors.Unwrap(err) != nil {
			t.Errorf("%.20q: %v", body, err)
		}
	}
}
