package markup

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestFormats(t *testing.T) {
	for _, test := range []struct{ name, markdown, telegram, whatsApp string }{
		{"plain", "hello", "hello", "hello"},
		{"blank", " \n\t\u200b", "", ""},
		{"escapes HTML", "1 < 2 & 3 > 2", "1 &lt; 2 &amp; 3 &gt; 2", "1 < 2 & 3 > 2"},
		{"raw HTML is text", "<b>x</b> <script>alert(1)</script>", "&lt;b&gt;x&lt;/b&gt; &lt;script&gt;alert(1)&lt;/script&gt;", "<b>x</b> <script>alert(1)</script>"},
		{"HTML block", "<div>\nx\n</div>", "&lt;div&gt;\nx\n&lt;/div&gt;", "<div>\nx\n</div>"},
		{"emphasis", "**b** *i* ~~s~~ ***bi***", "<b>b</b> <i>i</i> <s>s</s> <b><i>bi</i></b>", "*b* _i_ ~s~ *_bi_*"},
		{"emphasis over lines", "**a\nb**", "<b>a</b>\n<b>b</b>", "*a*\n*b*"},
		{"nested emphasis once", "**a __b__ c**", "<b>a b c</b>", "*a b c*"},
		{"heading", "# Big **one**", "<b>Big one</b>", "*Big one*"},
		{"code", "run `a<b && c` now", "run <code>a&lt;b &amp;&amp; c</code> now", "run `a<b && c` now"},
		{"code block", "```go\nif a < b {\n}\n```", "<pre><code class=\"language-go\">if a &lt; b {\n}</code></pre>", "```if a < b {\n}```"},
		{"language that is none", "```a\"b<c\nx\n```", "<pre>x</pre>", "```x```"},
		{"unclosed fence", "see\n```\nx", "see\n\n<pre>x</pre>", "see\n\n```x```"},
		{"fence with nothing in it", "```go\n```", "```go\n```", "ˋˋˋgo\nˋˋˋ"},
		{"text behind a fence", "x\n\n~~~ some words ~~~", "x\n\nsome words ~~~", "x\n\nsome words ∼∼∼"},
		{
			"links", "[a](https://x.y/?b=1&c=\"2\") [m](mailto:a@b.c) [t](tg://user?id=1)",
			`<a href="https://x.y/?b=1&amp;c=&quot;2&quot;">a</a> <a href="mailto:a@b.c">m</a> <a href="tg://user?id=1">t</a>`,
			`a (https://x.y/?b=1&c="2") m (mailto:a@b.c) t (tg://user?id=1)`,
		},
		{
			"links of other schemes are text", "[a](javascript:alert) [b](docs/x.md) [c](JaVaScRiPt:x) [d](http:x\u0085y)",
			"a (javascript:alert) b (docs/x.md) c (JaVaScRiPt:x) <a href=\"http:x\u0085y\">d</a>", "a (javascript:alert) b (docs/x.md) c (JaVaScRiPt:x) d (http:x\u0085y)",
		},
		{"link without text", "[](https://x.y)", `<a href="https://x.y">https://x.y</a>`, "https://x.y"},
		{"link of itself", "[https://x.y](https://x.y)", `<a href="https://x.y">https://x.y</a>`, "https://x.y"},
		{"image", "![cat](https://x.y/c.png)", `<a href="https://x.y/c.png">cat</a>`, "cat (https://x.y/c.png)"},
		{"image in a link", "[![cat](https://x.y/c.png)](https://z)", `<a href="https://z">cat</a>`, "cat (https://z)"},
		{"code in a link", "[`f`](https://z)", `<a href="https://z">f</a>`, "`f` (https://z)"},
		{"auto link", "<https://x.y/_a_>", "https://x.y/_a_", "https://x.y/_a_"},
		{"reference stays", "[a][1]\n\n[1]: https://x.y", "[a][1]\n\n[1]: https://x.y", "[a][1]\n\n[1]: https://x.y"},
		{"list", "- a\n- b\n  - c\n    d\n- [x] e", "• a\n• b\n  • c\n    d\n• ☑ e", "- a\n- b\n  - c\n    d\n- ☑ e"},
		{"numbers", "7. a\n8. b", "7. a\n8. b", "7. a\n8. b"},
		{"loose list", "- a\n\n- b", "• a\n\n• b", "- a\n\n- b"},
		{"code in a list", "- a\n  ```\n  x\n  ```", "• a\n<pre>x</pre>", "- a\n```x```"},
		{"list in a list", "- - a", "• • a", "- - a"},
		{"quote", "> a\n>\n> b\n> > c\n\nd", "<blockquote>a\n\nb\n\nc</blockquote>\n\nd", "> a\n> b\n> c\n\nd"},
		{"table", "| a | bc |\n|--:|:--|\n| 1 | **x** <y |", "<pre>a | bc\n--+-----\n1 | x &lt;y</pre>", "```a | bc\n--+-----\n1 | x <y```"},
		{"rule", "a\n\n---\n\nb", "a\n\n──────────\n\nb", "a\n\n──────────\n\nb"},
		{"entities", "&lt;b&gt; &amp;amp; &#0; &copy", "&lt;b&gt; &amp;amp; \uFFFD ©", "<b> &amp; \uFFFD ©"},
		{"backslash", `\*a\* \_b\_ c\\d`, `*a* _b_ c\d`, `∗a∗ ˍbˍ c\d`},
		{"marks that are no marks", "5 * 3 * 2, snake_case_name, ~5, a~b", "5 * 3 * 2, snake_case_name, ~5, a~b", "5 * 3 * 2, snake_case_name, ~5, a~b"},
		{"mark next to a real one", `\*a **b**`, `*a <b>b</b>`, `∗a *b*`},
		{"mark inside a word", "foo**bar**baz", "foo<b>bar</b>baz", "foobarbaz"},
		{"mark in an address", `https://x.y/\_a\_ \_b\_`, `https://x.y/_a_ _b_`, `https://x.y/_a_ ˍbˍ`},
		{"tick in code", "`` a`b ``", "<code>a`b</code>", "`aˋb`"},
		{"fence in code", "~~~\n```\n~~~", "<pre>```</pre>", "```ˋˋˋ```"},
		{"said, not quoted", `\> x`, "&gt; x", "＞ x"},
		{"control characters", "a\x00b\x01c\r\nd\x7f", "abc\nd", "abc\nd"},
		{"no UTF-8", "a\xffb\xed\xa0\x80", "a\uFFFDb\uFFFD", "a\uFFFDb\uFFFD"},
		{"right to left", "\u202eabc\u202c **\u05d0**", "\u202eabc\u202c <b>\u05d0</b>", "\u202eabc\u202c *\u05d0*"},
		{"emoji", "**👩‍🚀**", "<b>👩‍🚀</b>", "*👩‍🚀*"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.telegram, Telegram(test.markdown)); diff != "" {
				t.Errorf("Telegram (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.whatsApp, WhatsApp(test.markdown)); diff != "" {
				t.Errorf("WhatsApp (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlain(t *testing.T) {
	if got, want := Plain(" \n a_b *c\x00 \n"), "a_b *c"; got != want {
		t.Errorf("Plain = %q, want %q", got, want)
	}
}

func TestUTF16Len(t *testing.T) {
	for s, want := range map[string]int{"": 0, "abc": 3, "é": 1, "日本": 2, "😀": 2, "👩‍🚀": 5, "\xff": 1} {
		if got := UTF16Len(s); got != want {
			t.Errorf("UTF16Len(%q) = %d, want %d", s, got, want)
		}
	}
}

// hostile texts, most of them endless.
func hostile(size int) map[string]string {
	texts := map[string]string{}
	for name, unit := range map[string]string{
		"quotes": ">", "quotes apart": "> ", "lists": "- ", "numbers": "1. ", "brackets": "[", "images": "![](", "links": "[a](",
		"emphasis": "*a_ ", "stars": "*", "underscores": "_a", "ticks": "`", "code": "`a``", "strikes": "~~a ~", "tags": "<a ", "comments": "<!--",
		"entities": "&#", "backslashes": `\`, "columns": "|a", "rows": "|a|b\n|-|-\n", "fences": "```\n", "long fence": "`````", "items": "  - a\n",
		"lines": "\n", "a line": "x", "emoji": "👩‍🚀", "accents": "\u0301", "flags": "🇩🇪", "right to left": "\u202e", "no UTF-8": "\xff", "NUL": "\x00",
		"joiners": "\u200d", "words": "lorem ipsum. ", "tilde fences": "~~~ x\n",
	} {
		texts[name] = strings.Repeat(unit, size/len(unit)+1)
	}
	var stairs, table strings.Builder
	for i := range 180 {
		stairs.WriteString(strings.Repeat("  ", i) + "- a\n")
	}
	texts["stairs"] = stairs.String()
	table.WriteString(strings.Repeat("|a", 1000) + "\n" + strings.Repeat("|-", 1000) + "\n" + strings.Repeat("a\n", 5000))
	texts["wide table"] = table.String()
	texts["open fence"] = "```go\n" + strings.Repeat("a line of code\n", size/15)
	return texts
}

func TestHostile(t *testing.T) {
	for name, text := range hostile(richLimit - 10) {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			telegram, whatsApp := Telegram(text), WhatsApp(text)
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("took %v", took)
			}
			if err := wellFormed(telegram); err != nil {
				t.Error(err)
			}
			if !utf8.ValidString(whatsApp) {
				t.Error("WhatsApp: no UTF-8")
			}
			if len(telegram) > 40*len(text) || len(whatsApp) > 40*len(text) {
				t.Errorf("%d bytes became %d and %d", len(text), len(telegram), len(whatsApp))
			}
		})
	}
}

func TestNestedTenThousand(t *testing.T) {
	for _, text := range []string{strings.Repeat("> ", 10_000) + "x", strings.Repeat("- ", 10_000) + "x", strings.Repeat(">", 10_000) + "x"} {
		if err := wellFormed(Telegram(text)); err != nil {
			t.Error(err)
		}
		if !strings.Contains(WhatsApp(text), "x") {
			t.Error("the text is gone")
		}
	}
}

var (
	tagPattern    = regexp.MustCompile(`^<(/?)(b|i|s|code|pre|a|blockquote)( class="language-[A-Za-z0-9+#._-]+"| href="[^"<>]*")?>`)
	entityPattern = regexp.MustCompile(`^&(amp|lt|gt|quot);`)
)

// wellFormed says what Telegram's parser would not take of html.
func wellFormed(html string) error {
	if !utf8.ValidString(html) {
		return fmt.Errorf("no UTF-8")
	}
	var open []string
	for i := 0; i < len(html); {
		switch html[i] {
		case '<':
			m := tagPattern.FindStringSubmatch(html[i:min(len(html), i+20_000)])
			if m == nil {
				return fmt.Errorf("at %d: no tag that is known: %.40q", i, html[i:])
			}
			closing, tag, attribute := m[1] != "", m[2], m[3]
			switch {
			case closing && (len(open) == 0 || open[len(open)-1] != tag || attribute != ""):
				return fmt.Errorf("at %d: </%s> closes %v", i, tag, open)
			case closing:
				open = open[:len(open)-1]
			case strings.HasPrefix(attribute, " href") != (tag == "a") || (strings.HasPrefix(attribute, " class") && (tag != "code" || len(open) == 0 || open[len(open)-1] != "pre")):
				return fmt.Errorf("at %d: <%s%s>", i, tag, attribute)
			default:
				for _, o := range open {
					if o == tag || o == "code" || (o == "pre" && tag != "code") || (tag == "blockquote") {
						return fmt.Errorf("at %d: <%s> in %v", i, tag, open)
					}
				}
				open = append(open, tag)
			}
			i += len(m[0])
		case '>':
			return fmt.Errorf("at %d: a bare >", i)
		case '&':
			m := entityPattern.FindString(html[i:min(len(html), i+8)])
			if m == "" {
				return fmt.Errorf("at %d: a bare &", i)
			}
			i += len(m)
		default:
			i++
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("not closed: %v", open)
	}
	return nil
}
