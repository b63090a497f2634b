package telegram

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const (
	testBot    = "example_helper_bot"
	testToken  = "7000000001:AAtest-token-value"
	testSecret = "test-telegram-secret"
)

// bots are the accounts of a test.
type bots map[string]*channel.Account

func (b bots) All(context.Context) (map[string]*channel.Account, error) { return b, nil }

func testAccount() *channel.Account {
	return &channel.Account{
		Name: testBot, Agent: "coder", Spec: harness.ChannelSpec{Type: harness.ChannelTelegram, Account: testBot},
		Keys: map[channel.Role][]harness.Secret{channel.RoleBotToken: {testToken}, channel.RoleWebhookSecret: {testSecret}},
	}
}

// expectation is one right outcome of a case.
type expectation struct {
	Status         int               `json:"http_status"`
	Messages       []expectedMessage `json:"messages"`
	MetadataAbsent []string          `json:"metadataAbsent"`
	Recorded       map[string]string `json:"recorded"`
	NextOffset     int64             `json:"next_offset"`
	AlsoOK         []expectation     `json:"also_ok"`
}

type expectedMessage struct {
	Channel      string         `json:"channel"`
	User         string         `json:"channelUserId"`
	UserAnyOf    []string       `json:"channelUserIdAnyOf"`
	Text         *string        `json:"text"`
	TextAnyOf    []string       `json:"textAnyOf"`
	TextContains []string       `json:"textContains"`
	Metadata     map[string]any `json:"metadata"`
}

type caseRequest struct {
	Sequence bool              `json:"sequence"`
	Sign     string            `json:"sign"`
	Headers  map[string]string `json:"headers"`
	Mode     string            `json:"mode"`
}

// result is what came of a case: repeats count once, as the store sees to it.
type result struct {
	status []int
	in     postgres.Inbound
	next   int64
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(path, err)
	}
}

func TestCases(t *testing.T) {
	paths, err := filepath.Glob("testdata/cases/tg-*.expect.json")
	if err != nil || len(paths) != 35 {
		t.Fatalf("%d cases, %v", len(paths), err)
	}
	for _, path := range paths {
		base := strings.TrimSuffix(path, ".expect.json")
		t.Run(filepath.Base(base), func(t *testing.T) {
			var want expectation
			readJSON(t, path, &want)
			got := runCase(t, base)
			if problem := meets(want, got); problem != "" {
				t.Errorf("%s\ngot %+v", problem, got)
			}
			for what, wrong := range mutations(want) {
				if meets(wrong, got) == "" {
					t.Errorf("the comparison does not see %s", what)
				}
			}
		})
	}
}

// mutations are outcomes that are surely not right.
func mutations(want expectation) map[string]expectation {
	all := map[string]expectation{}
	more := want
	more.AlsoOK = nil
	more.Messages = append(slices.Clone(want.Messages), expectedMessage{}, expectedMessage{}, expectedMessage{})
	all["missing messages"] = more
	other := want
	other.AlsoOK, other.Status = nil, http.StatusTeapot
	all["another status"] = other
	if len(want.Messages) > 0 {
		changed := want
		changed.AlsoOK, changed.Messages = nil, slices.Clone(want.Messages)
		changed.Messages[0].Metadata = map[string]any{"messageId": "0"}
		all["other metadata"] = changed
	}
	return all
}

func runCase(t *testing.T, base string) result {
	t.Helper()
	var request caseRequest
	if _, err := os.Stat(base + ".request.json"); err == nil {
		readJSON(t, base+".request.json", &request)
	}
	body, err := os.ReadFile(base + ".json")
	if err != nil {
		t.Fatal(err)
	}
	got, seen := result{}, map[string]bool{}
	if request.Mode == "getUpdates" {
		a, readable := readAnswer(http.StatusOK, body)
		if !readable || !a.ok {
			t.Fatal("the answer is not read")
		}
		updates, err := readUpdates(testAccount(), a.result, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range updates {
			got.add(u.in, seen)
			got.next = u.next
		}
		return got
	}
	bodies := []json.RawMessage{body}
	if request.Sequence {
		if err := json.Unmarshal(body, &bodies); err != nil {
			t.Fatal(err)
		}
	}
	for _, body := range bodies {
		header := http.Header{secretHeader: {testSecret}}
		if request.Sign != "" {
			header = http.Header{}
		}
		for name, value := range request.Headers {
			header.Set(name, value)
		}
		in, status := deliver(testAccount(), testBot, header, body)
		got.status = append(got.status, status)
		got.add(in, seen)
	}
	return got
}

// deliver verifies and parses, and gives the status that the pipeline would answer.
func deliver(account *channel.Account, bot string, header http.Header, body []byte) (postgres.Inbound, int) {
	adapter := NewAdapter(bots{account.Name: account})
	r := httptest.NewRequest(http.MethodPost, Path+bot, nil)
	r.SetPathValue("bot", bot)
	r.Header = header
	proof, err := adapter.Verify(context.Background(), r, body)
	var in postgres.Inbound
	if err == nil {
		in, err = adapter.Parse(body, proof)
	}
	switch {
	case err == nil:
		return in, http.StatusOK
	case harness.KindOf(err) == harness.Denied:
		return in, http.StatusUnauthorized
	case harness.KindOf(err) == harness.Invalid:
		return in, http.StatusBadRequest
	}
	return in, http.StatusServiceUnavailable
}

func (r *result) add(in postgres.Inbound, seen map[string]bool) {
	for _, a := range in.Arrivals {
		if !seen[a.ProviderID] {
			seen[a.ProviderID] = true
			r.in.Arrivals = append(r.in.Arrivals, a)
		}
	}
	r.in.Notices = append(r.in.Notices, in.Notices...)
	r.in.Renames = append(r.in.Renames, in.Renames...)
	r.in.Blocks = append(r.in.Blocks, in.Blocks...)
}

func meets(want expectation, got result) string {
	var problems []string
	for _, outcome := range append([]expectation{want}, want.AlsoOK...) {
		problem := compare(outcome, got)
		if problem == "" {
			return ""
		}
		problems = append(problems, problem)
	}
	return strings.Join(problems, "\nor else: ")
}

func compare(want expectation, got result) string {
	for _, status := range got.status {
		if status != want.Status {
			return fmt.Sprintf("status %d, want %d", status, want.Status)
		}
	}
	if got.status == nil && want.Status != 0 {
		return "no request has a status"
	}
	if want.NextOffset != got.next {
		return fmt.Sprintf("next offset %d, want %d", got.next, want.NextOffset)
	}
	for key, value := range want.Recorded {
		if !slices.ContainsFunc(got.in.Notices, func(n postgres.Notice) bool { return n.Data[key] == value }) {
			return fmt.Sprintf("%s %s is not recorded", key, value)
		}
	}
	if len(got.in.Arrivals) != len(want.Messages) {
		return fmt.Sprintf("%d messages, want %d", len(got.in.Arrivals), len(want.Messages))
	}
	if len(got.in.Arrivals)+len(got.in.Notices) == 0 && want.Status == http.StatusOK {
		return "it was dropped without a record"
	}
	for i, m := range want.Messages {
		if problem := compareMessage(m, want.MetadataAbsent, got.in.Arrivals[i]); problem != "" {
			return problem
		}
	}
	return ""
}

func compareMessage(want expectedMessage, absent []string, a postgres.Arrival) string {
	got := a.Message
	if err := sound(a); err != nil {
		return err.Error()
	}
	if string(got.Channel) != want.Channel {
		return "channel " + string(got.Channel)
	}
	if got.ChannelUserID != want.User && !slices.Contains(want.UserAnyOf, got.ChannelUserID) {
		return "user " + got.ChannelUserID
	}
	if want.Text != nil && got.Text != *want.Text && !slices.Contains(want.TextAnyOf, got.Text) {
		return "text " + got.Text
	}
	for _, part := range want.TextContains {
		if !strings.Contains(got.Text, part) {
			return fmt.Sprintf("text %q lacks %q", got.Text, part)
		}
	}
	for key, value := range want.Metadata {
		if fmt.Sprint(got.Metadata[key]) != fmt.Sprint(value) {
			return fmt.Sprintf("metadata %s is %v, want %v", key, got.Metadata[key], value)
		}
	}
	for _, key := range absent {
		if got.Metadata[key] != nil {
			return fmt.Sprintf("metadata %s is %v, want none", key, got.Metadata[key])
		}
	}
	return ""
}

// sound reports what no arrival may be.
func sound(a postgres.Arrival) error {
	if _, err := json.Marshal(a.Message.Metadata); err != nil {
		return err
	}
	if strings.TrimSpace(a.Message.Text) == "" || a.ProviderID == "" || a.Chat == "" || a.Address == "" || a.Message.ChannelUserID == "" {
		return fmt.Errorf("an arrival lacks something: %+v", a)
	}
	if _, err := parseAddress(a.Address); err != nil {
		return err
	}
	all := a.Message.Text + a.ProviderID + a.Chat + a.Album + a.Message.ChannelUserID + fmt.Sprint(a.Message.Metadata, a.Attachments)
	if !utf8.ValidString(all) || strings.Contains(all, "\x00") {
		return errors.New("an arrival cannot be stored")
	}
	return nil
}
