package guardrail_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/guardrail"
	"tuluat.ai/harness/shared/harness"
)

// key has the form of a credential, and is put together here so that nobody's
// search for leaked ones stops at this file.
func key(prefix string, n int, end string) string {
	return prefix + strings.Repeat("aB3dE5gH7", n/9+1)[:n] + end
}

func TestDetectors(t *testing.T) {
	for name, c := range map[string]struct{ found, not []string }{
		"PRIVATE_KEY": {
			[]string{"-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl", "-----BEGIN PGP PRIVATE KEY BLOCK-----"},
			[]string{"-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "BEGIN PRIVATE KEY"},
		},
		"AWS_KEY":        {[]string{"AKIAIOSFODNN7EXAMPLE", "key=ASIAIOSFODNN7EXAMPLE;"}, []string{"AKIAIOSFODNN7EXAMPL", "XAKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLEX", "akiaiosfodnn7example"}},
		"GOOGLE_KEY":     {[]string{key("AI"+"za", 35, "")}, []string{key("AI"+"za", 30, ""), key("XAI"+"za", 35, "")}},
		"GITHUB_TOKEN":   {[]string{key("gh"+"p_", 36, ""), key("github"+"_pat_", 22, "_"+key("", 59, ""))}, []string{key("gh"+"p_", 20, ""), key("gh"+"x_", 36, "")}},
		"GITLAB_TOKEN":   {[]string{key("gl"+"pat-", 20, "")}, []string{key("gl"+"pat-", 10, "")}},
		"SLACK_TOKEN":    {[]string{key("xo"+"xb-1234567890-", 24, "")}, []string{"xo" + "xb-short", key("xo"+"xz-1234567890-", 24, "")}},
		"STRIPE_KEY":     {[]string{key("sk_"+"test_", 24, ""), key("rk_"+"live_", 24, "")}, []string{key("pk_"+"live_", 24, ""), "sk_" + "live_x"}},
		"OPENAI_KEY":     {[]string{key("sk-"+"proj-", 40, "T3BlbkFJ"+key("", 40, ""))}, []string{key("sk-"+"proj-", 80, "")}},
		"ANTHROPIC_KEY":  {[]string{key("sk-"+"ant-api03-", 93, "")}, []string{"sk-" + "ant-api03-short"}},
		"TELEGRAM_TOKEN": {[]string{key("123456789:"+"AA", 33, ""), key("bot 123456789:"+"AA", 33, ".")}, []string{key("123456789:"+"AA", 34, ""), key("1234567:"+"AA", 33, "")}},
		"JWT":            {[]string{"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"}, []string{"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0", "a.b.c"}},
		"URL_PASSWORD":   {[]string{"postgres://app:hunter2@db/x", "https://me:p4ssphrase@example.com"}, []string{"https://example.com:443/@x", "postgres://user:password@db/x", "postgres://app:$PASSWORD@db", "https://me@example.com"}},
		"ASSIGNED":       {[]string{`api_key = "q8Zr71mKx0PvT4bLs9"`, "Authorization: Bearer q8Zr71mKx0PvT4bLs9wE", `{"token":"q8Zr71mKx0PvT4bLs9"}`}, []string{"token = aaaaaaaaaaaaaaaaaaaa1", "password: letters-and-no-number", "the token of 2026 is gone", "token: short1"}},

		"EMAIL":      {[]string{"write to ann.lee+x@mail.example.org.", "A@B.CO"}, []string{"ann@localhost", "@ann", "ann@-x.org", "a@b"}},
		"PHONE":      {[]string{"+49 30 901820", "call (415) 555-2671 now", "0044 20 7946 0958", "+15550009999"}, []string{"2026-01-02 03:04:05", "12345", "version 1.2.3", "+12", "1234567890123456789"}},
		"CARD":       {[]string{"4111 1111 1111 1111", "5500-0000-0000-0004", "card 4111111111111111, 12/30", "4111 1111 1111 1111 2030"}, []string{"4111 1111 1111 1112", "0000000000000000", "x4111111111111111", "41111111111111110000000000", "2222222222222222"}},
		"IBAN":       {[]string{"DE89 3704 0044 0532 0130 00", "gb82west12345698765432", "IBAN: FR1420041010050500013M02606.", "TR330006100519786457841326"}, []string{"DE88 3704 0044 0532 0130 00", "XX89370400440532013000", "DE893704004405320130001"}},
		"US_SSN":     {[]string{"078-05-1120"}, []string{"000-05-1120", "666-05-1120", "900-05-1120", "078-00-1120", "078-05-0000", "1078-05-1120", "078-05-11201"}},
		"TR_ID":      {[]string{"10000000146", "TC 10000000146."}, []string{"10000000145", "00000000146", "100000001461", "x10000000146"}},
		"IP_ADDRESS": {[]string{"from 93.184.215.14.", "8.8.8.8:53"}, []string{"10.0.0.1", "127.0.0.1", "192.168.1.1", "999.1.1.1", "1.2.3"}},
	} {
		of := harness.GuardrailPII
		if slices.Contains(guardrail.Detectors(harness.GuardrailSecret), name) {
			of = harness.GuardrailSecret
		}
		for _, text := range c.found {
			if got := guardrail.Detect(text, of, []string{name}); len(got) != 1 {
				t.Errorf("%s finds %v in %q, want one", name, got, text)
			}
		}
		for _, text := range c.not {
			if got := guardrail.Detect(text, of, []string{name}); len(got) != 0 {
				t.Errorf("%s finds %v in %q, want none", name, got, text)
			}
		}
	}
	if n := len(guardrail.Detectors(harness.GuardrailSecret)) + len(guardrail.Detectors(harness.GuardrailPII)); n != 20 {
		t.Errorf("%d detectors, and 20 are tested", n)
	}
}

func TestRedact(t *testing.T) {
	spans := func(text string) (all []guardrail.Span) {
		for _, f := range guardrail.Detect(text, harness.GuardrailPII, nil) {
			all = append(all, f.Span)
		}
		return all
	}
	for text, want := range map[string]string{
		"a@b.co c@d.org":                      "[redacted] [redacted]",
		"pay 4111 1111 1111 1111 to a@b.co!":  "pay [redacted] to [redacted]!",
		"é a@b.co é":                          "é [redacted] é",
		"nothing":                             "nothing",
		"4111111111111111 4111 1111 1111 111": "[redacted] 4111 1111 1111 111",
	} {
		if got := guardrail.Redact(text, spans(text)); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	if got := guardrail.Redact("abcdef", []guardrail.Span{{0, 3}, {1, 2}, {2, 5}}); got != "[redacted]f" {
		t.Errorf("overlapping: %q", got)
	}
}

// What judges is bounded whatever it judges: the longest text, of what each
// detector likes to begin with and then does not find.
func TestDetectorsTakeTheirTimeInProportion(t *testing.T) {
	detect := func(piece string, size int) time.Duration {
		text := strings.Repeat(piece, size/len(piece))
		began := time.Now()
		guardrail.Detect(text, harness.GuardrailSecret, nil)
		guardrail.Detect(text, harness.GuardrailPII, nil)
		return time.Since(began)
	}
	for _, piece := range []string{"1", "4", "4 ", "a", "a@", "eyJ", "-----BEGIN PRIVATE KEY-----", "sk-ant-", "token=", "+1 ", "1.", "DE00 ", "http://a:b"} {
		part := min(detect(piece, guardrail.MaxText/64), detect(piece, guardrail.MaxText/64))
		whole := min(detect(piece, guardrail.MaxText/2), detect(piece, guardrail.MaxText/2))
		t.Logf("%q: %s, and a 32nd of it %s", piece, whole, part)
		if whole > 512*part { // a square would take 1,024 times as long
			t.Errorf("%d bytes of %q take %s, and a 32nd of them %s", guardrail.MaxText/2, piece, whole, part)
		}
	}
}

func TestPatternsAreSmall(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		at       int
		what     string
	}{
		{[]string{"a", `^rm\s`, `(?i)drop table`}, 0, ""},
		{[]string{"a", "("}, 1, "is not a regular expression"},
		{[]string{"a(?=b)"}, 0, "is not a regular expression"},
		{[]string{"a", `(\w{1,30}){1,30}(\w{1,30}){1,30}(\w{1,30}){1,30}`}, 1, "cost too much"},
		{slices.Repeat([]string{`\w{0,500}`}, 30), 4, "cost too much"},
	} {
		_, at, what := guardrail.CompilePatterns(c.patterns)
		if at != c.at && c.what != "" || !strings.Contains(what, c.what) || (what == "") != (c.what == "") {
			t.Errorf("%.60q: %d %q, want %d %q", c.patterns, at, what, c.at, c.what)
		}
	}
}

func TestRules(t *testing.T) {
	for text, want := range map[string]string{
		"text.contains('x')":                          "",
		"stage == 'INPUT' && person != 'ann'":         "",
		"has(arguments.path) && size(text) > 10":      "",
		"text.matches('^a+$')":                        "",
		"text":                                        "neither true nor false",
		"text.matches(person)":                        "no literal text",
		"text.matches('(')":                           "is not a regular expression",
		"text.contains(":                              "is not CEL that fits",
		"nobody == ''":                                "is not CEL that fits",
		"text == '" + strings.Repeat("x", 5000) + "'": "is over 4096 bytes",
		strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200): "is not CEL that fits",
	} {
		_, what := guardrail.CompileRule(text)
		if (what == "") != (want == "") || !strings.Contains(what, want) {
			t.Errorf("%.60s: %q, want %q", text, what, want)
		}
	}
	costly, what := guardrail.CompileRule(`[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, text.matches('(a|b|aa|ab)*c$') || true)))`)
	if what != "" {
		t.Fatal(what)
	}
	began := time.Now()
	if _, err := costly.Hits(guardrail.Step{Text: strings.Repeat("ab", guardrail.MaxText/2)}); err == nil {
		t.Error("a rule may cost anything")
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it was ended after %s", took)
	}
}
