package webhook

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "99999": 10 * time.Minute, "99999999999999": 0, "soon": 0,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:03:05 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("retryAfter(%q) = %s, want %s", value, got, want)
		}
	}
}

// Whatever comes in, what goes to the store is storable and within its limits.
func FuzzParse(f *testing.F) {
	for _, body := range []string{
		`{"messageId":"1","channelUserId":"u","text":"hi","metadata":{"a":[1,2.50,null,"x\u0000"]}}`, `{"text":"\ud800"}`, `[`, `{"messageId":"1","messageId":2}`,
		"\uFEFF{}", `{"metadata":{"a\u0000":1,"a":2},"messageId":"1","channelUserId":"u","text":"t"}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := parse(body, "hook", "", fields{})
		if err != nil {
			return
		}
		encoded, err := json.Marshal(a.Message.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{a.ProviderID, a.Chat, a.Message.ChannelUserID, a.Message.Text, string(encoded)} {
			if !utf8.ValidString(s) || strings.Contains(s, "\x00") || strings.Contains(s, `\u0000`) && !strings.Contains(s, `\\u0000`) {
				t.Errorf("%q cannot be stored", s)
			}
		}
		if a.Message.Channel != harness.ChannelWebhook || a.ProviderID == "" || a.Chat == "" || a.Message.Text == "" || len(a.Message.Text) > maxText {
			t.Errorf("parsed %+v", a)
		}
	})
}
