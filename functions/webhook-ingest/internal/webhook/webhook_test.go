package webhook

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

func TestPublicAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.215.14": true, "2606:2800:21f:cb07::1": true, "1.1.1.1": true, "172.32.0.1": true,
		"127.0.0.1": false, "127.9.9.9": false, "0.0.0.0": false, "0.1.2.3": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false,
		"169.254.169.254": false, "100.64.0.1": false, "192.0.0.1": false, "198.18.0.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "fe80::1": false, "fc00::1": false, "fd12::1": false, "fec0::1": false, "ff02::1": false,
		"::ffff:10.0.0.1": false, "::ffff:93.184.215.14": true, "::127.0.0.1": false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false, "2001::1": false,
	} {
		if got := public(netip.MustParseAddr(address)); got != want {
			t.Errorf("public(%s) = %v", address, got)
		}
	}
}

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
