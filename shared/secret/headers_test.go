package secret_test

import (
	"strings"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

func TestHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want string // of Authorization and X-Key
		says string
	}{
		"two lines":        {"Authorization: Bearer abc\nX-Key: k:1\n", "Bearer abc k:1", ""},
		"rotated":          {"Authorization: Bearer new,Authorization: Bearer old", "Bearer new ", ""},
		"Windows' lines":   {"Authorization: Bearer abc\r\nx-key:1\r\n", "Bearer abc 1", ""},
		"nothing":          {"", "", "has no value"},
		"no colon":         {"Bearer hidden-value", "", "is not"},
		"a comma":          {"Accept: a, hidden-value", "", "comma"},
		"a name of spaces": {"My Key: hidden-value", "", "is not"},
		"a control":        {"X-Key: a\x01hidden-value", "", "is not"},
		"another's host":   {"Host: hidden-value", "", "Host is set by the request"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := secret.Headers(secret.Split(c.text))
			if c.says != "" {
				if harness.KindOf(err) != harness.Invalid || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hidden") {
					t.Fatalf("got %v, want an error that says %q and nothing of the value", err, c.says)
				}
				return
			}
			if got := h.Get("Authorization") + " " + h.Get("X-Key"); err != nil || got != c.want {
				t.Fatalf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestHeaderSecrets(t *testing.T) {
	h, err := secret.Headers([]harness.Secret{"Authorization: Bearer abcdefghijk\nX-Key: lmnopqrstuv"})
	if err != nil {
		t.Fatal(err)
	}
	if got := harness.Redact("a Bearer abcdefghijk b abcdefghijk c lmnopqrstuv d", secret.HeaderSecrets(h)); got != "a [secret] b [secret] c [secret] d" {
		t.Fatalf("got %q", got)
	}
}
