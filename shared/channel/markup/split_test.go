package markup

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
)

// runes returns a fits for texts of at most n runes.
func runes(n int) func(string) bool {
	return func(part string) bool { return utf8.RuneCountInString(part) <= n }
}

func TestSplit(t *testing.T) {
	for _, test := range []struct {
		name, text string
		limit      int
		want       []string
	}{
		{"empty", "", 10, nil},
		{"blank", " \n\t \u200b\n", 10, nil},
		{"fits", " hello \n", 10, []string{" hello"}},
		{"between blocks", "aaaa aaaa\n\nbbbb bbbb", 12, []string{"aaaa aaaa", "bbbb bbbb"}},
		{"block before line", "aa\n\nbb\ncc", 7, []string{"aa", "bb\ncc"}},
		{"a full part before a block", "a\n\nbbb bbb bbb", 12, []string{"a\n\nbbb bbb", "bbb"}},
		{"between lines", "one\ntwo\nthree", 8, []string{"one\ntwo", "three"}},
		{"indentation stays", "- one\n  - two\n  - three", 15, []string{"- one\n  - two", "  - three"}},
		{"between sentences", "One two. Three four five", 14, []string{"One two.", "Three four", "five"}},
		{"a number is no sentence", "abc 1. def ghi jkl", 12, []string{"abc 1. def", "ghi jkl"}},
		{"between words", "alpha beta gamma", 11, []string{"alpha beta", "gamma"}},
		{"not inside emphasis", "alpha alpha **beta gamma** x", 20, []string{"alpha alpha", "**beta gamma** x"}},
		{"inside a word", "abcdefghij", 4, []string{"abcd", "efgh", "ij"}},
		{"wide", "日本語。中文字", 5, []string{"日本語。", "中文字"}},
		{"not inside a character", "e\u0301e\u0301e\u0301", 3, []string{"e\u0301", "e\u0301", "e\u0301"}},
		{"flags", "🇩🇪🇫🇷🇮🇹", 3, []string{"🇩🇪", "🇫🇷", "🇮🇹"}},
		{"a character that is too long", "👩‍🚀", 2, []string{"👩\u200d", "🚀"}},
		{"code stays whole", "text text\n```go\nf()\n```\nmore", 16, []string{"text text", "```go\nf()\n```", "more"}},
		{"long code", "```go\na()\nb()\nc()\n```\nend", 18, []string{"```go\na()\nb()\n```", "```go\nc()\n```\nend"}},
		{"long code, unclosed", "```go\na()\nb()\nc()\nd()", 18, []string{"```go\na()\nb()\n```", "```go\nc()\nd()"}},
		{"longest code that needs no second block", "```\na\nb\n```", 11, []string{"```\na\nb\n```"}},
		{"long line of code", "```\nabcdef\n```", 11, []string{"```\nabc\n```", "```\ndef\n```"}},
		{"no room for a fence", "```\nabc\n```", 4, []string{"```", "abc", "```"}},
		{"tilde fence", "~~~\n```\nb\n~~~", 11, []string{"~~~\n```\n~~~", "~~~\nb\n~~~"}},
		{"nothing fits", "ab", 0, []string{"a", "b"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Split(test.text, runes(test.limit))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Split (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSplitEmoji(t *testing.T) {
	text := strings.Repeat("😀", 2100)
	parts := Split(text, func(part string) bool { return UTF16Len(part) <= 4096 })
	if len(parts) != 2 || strings.Join(parts, "") != text || UTF16Len(parts[0]) > 4096 {
		t.Errorf("%d parts, the first of %d units", len(parts), UTF16Len(parts[0]))
	}
}

func TestSplitWhenFitsIsMoody(t *testing.T) {
	text := "one two three four five six seven"
	for _, fits := range []func(string) bool{
		func(part string) bool { return len(part)%2 == 0 },
		func(part string) bool { return len(part) > 5 },
		func(string) bool { return false },
	} {
		if diff := cmp.Diff(visible(text), visible(strings.Join(Split(text, fits), ""))); diff != "" {
			t.Errorf("joined (-want +got):\n%s", diff)
		}
	}
}

func TestSplitHostile(t *testing.T) {
	fits := func(part string) bool {
		html := Telegram(part)
		return UTF16Len(html) <= 4096 && len(html) <= 32<<10
	}
	for name, text := range hostile(1 << 16) {
		t.Run(name, func(t *testing.T) { checkParts(t, text, Split(text, fits), fits) })
	}
}

// Splitting itself takes linear time: a text of 1 MB takes a second, far less
// than the square of what 64 KB take.
func TestSplitLarge(t *testing.T) {
	for name, text := range hostile(1 << 20) {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			parts := Split(text, runes(4096))
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
			checkParts(t, text, parts, runes(4096))
		})
	}
}

// visible returns the runes of s that a part must keep.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if shown(r) {
			return r
		}
		return -1
	}, harness.CleanText(s))
}

// checkParts checks what holds for the parts of any text.
func checkParts(t *testing.T, text string, parts []string, fits func(string) bool) {
	t.Helper()
	for i, part := range parts {
		if !utf8.ValidString(part) || blank(part) {
			t.Errorf("part %d: %.80q", i, part)
		}
		if !fits(part) && utf8.RuneCountInString(strings.TrimSpace(part)) > 1 {
			t.Errorf("part %d does not fit: %.80q", i, part)
		}
	}
	want, got := visible(text), visible(strings.Join(parts, "\n"))
	if len(findFences(harness.CleanText(text))) == 0 {
		if want != got {
			t.Errorf("joined: %d bytes became %d", len(want), len(got))
		}
		return
	}
	rest := got // with fences that Split added
	for _, r := range want {
		i := strings.IndexRune(rest, r)
		if i < 0 {
			t.Errorf("joined: %q is missing", r)
			return
		}
		rest = rest[i+utf8.RuneLen(r):]
	}
}

func FuzzMarkup(f *testing.F) {
	f.Add("# T **b** `c`\n\n- a\n  1. b\n\n> q\n\n```go\nx\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n", 20)
	for _, text := range hostile(400) {
		f.Add(text, 33)
	}
	f.Add("[a](http://x \"t\") ![i](<u>) \\* &amp; <b> ~~s~~ **x *y*** __z__ [x]: y", 5)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if len(text) > 1<<14 {
			t.Skip()
		}
		limit = max(limit, -limit) % 5000
		if err := wellFormed(Telegram(text)); err != nil {
			t.Errorf("Telegram: %v", err)
		}
		if whatsApp := WhatsApp(text); !utf8.ValidString(whatsApp) || strings.ContainsRune(whatsApp, 0) {
			t.Error("WhatsApp: not storable")
		}
		if blank(readable(text)) != blank(Telegram(text)) || blank(readable(text)) != blank(WhatsApp(text)) {
			t.Errorf("something became nothing: %q %q", Telegram(text), WhatsApp(text))
		}
		fits := runes(limit)
		parts := Split(text, fits)
		checkParts(t, text, parts, fits)
		if again := Split(text, fits); !cmp.Equal(parts, again) {
			t.Error("not the same twice")
		}
		for _, part := range parts {
			if err := wellFormed(Telegram(part)); err != nil {
				t.Errorf("a part's HTML: %v", err)
			}
			if strings.IndexFunc(part, func(r rune) bool { return !unicode.IsSpace(r) }) < 0 {
				t.Error("a blank part")
			}
		}
	})
}
