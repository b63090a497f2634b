//go:build browser

package browser_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// hostile are strings of people and programs that mean harm, or only trouble.
// A page shows each as the text it is. What would run sets window.hostile; what
// would become an element is an x-hostile.
var hostile = []string{
	`<script>window.hostile=1</script>`,
	`<img src=x onerror="window.hostile=2">`,
	`<svg onload=window.hostile=3><x-hostile>`,
	`"><x-hostile onmouseover=window.hostile=4>`,
	`'><x-hostile style="position:fixed;inset:0">`,
	`</textarea></title></script><x-hostile>`,
	`<iframe src="javascript:window.hostile=5"></iframe>`,
	`<a href="javascript:window.hostile=6">tap</a>`,
	`javascript:window.hostile=7`,
	`data:text/html,<script>window.hostile=8</script>`,
	`<!--`, `]]>`, `<![CDATA[<x-hostile>]]>`,
	`&lt;x-hostile&gt; &amp;amp; &#60;b&#62;`,
	`{{.Token}} {{printf "%s" "x"}} {{template "page"}}`,
	`${7*7} #{7*7} <%= 7*7 %> {% raw %} [[7*7]]`,
	`<div hx-get="/api/v1/whoami" hx-trigger="load">x</div>`,
	`<base href="https://evil.example/">`,
	`<meta http-equiv=refresh content="0;url=https://evil.example/">`,
	`<style>*{display:none}</style>`,
	`<form action=/again method=post><button>x</button></form>`,
	"\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J",
	"\x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
	"\u202egnp.exe\u202c reversed",
	"\u2067\u2066isolates\u2069\u2069",
	"\u0639\u0631\u0628\u064a and \u05e2\u05d1\u05e8\u05d9\u05ea mixed",
	"zero\u200bwidth\u200djoined\u2060\ufeff",
	"nul\x00inside",
	"line\r\nbreaks\u2028and\u2029more\x0b\x0c\x85",
	"data: {\"id\":1}\n\nevent: x\ndata: y",
	"\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466 \U0001F3F3\ufe0f\u200d\U0001F308 \U0001F1FA\U0001F1F3",
	"Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319A\u0334\u0335\u031c\u0330L\u036f",
	"a\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308\u0309\u030a",
	"\xff\xfe broken \xc3\x28 bytes",
	"\ufffe\uffff and \U000e0001 tags",
	`../../../../etc/passwd %2e%2e%2f %00 %0d%0aSet-Cookie:a=b`,
	`'; DROP TABLE sessions; -- " OR 1=1`,
	`$(touch /tmp/x) ` + "`id`" + ` | ; && \ \\`,
	`__proto__ constructor toString [object Object] null undefined NaN`,
	strings.Repeat("W", 300) + " " + strings.Repeat("\u0416", 300),
}

// longLine is one more, too long to be compared as a whole.
var longLine = "long " + strings.Repeat("m", 1<<20)

// plain is what is left of a text wherever it went: without the characters that
// have no shape, and without the signs that a page may show in their place, like
// ␀ or [U+202E]; and no difference between kinds of blanks.
func plain(text string) string {
	text = signs.ReplaceAllString(strings.ToValidUTF8(text, " "), " ")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == 0xfffd || r >= 0xfffe && r <= 0xffff || r >= 0x2400 && r <= 0x2426 ||
			unicode.In(r, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) {
			return ' '
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

var signs = regexp.MustCompile(`\[U\+[0-9A-F]{4,6}\]`)

// untouched fails the test unless the page is only what it says itself.
func (b *tab) untouched() {
	b.t.Helper()
	found := eval[[]string](b, `[
		...(window.hostile === undefined ? [] : ['a script ran: ' + window.hostile]),
		...[...document.querySelectorAll('x-hostile, iframe, object, embed, base, script:not([src]), [onerror], [onload], [onmouseover], [hx-get="/api/v1/whoami"], [href^="javascript:" i], [href^="data:text" i], [src^="javascript:" i]')].map((e) => 'an element: ' + e.outerHTML.slice(0, 200)),
	]`)
	for _, f := range found {
		b.t.Error(f)
	}
}

// shows fails the test for each text that the page does not have as text. NUL may
// have been dropped on the way, as what PostgreSQL cannot keep.
func (b *tab) shows(texts []string) {
	b.t.Helper()
	shown := plain(eval[string](b, "document.body.textContent"))
	for i, text := range texts {
		if want := plain(text); !strings.Contains(shown, want) && !strings.Contains(shown, plain(strings.ReplaceAll(text, "\x00", ""))) {
			b.t.Errorf("text %d is not shown: %q", i, want)
		}
	}
}

// Hostile names, of people and groups, in lists and headers.
func TestHostileNames(t *testing.T) {
	for i, text := range hostile {
		name := strings.TrimSpace(plain(text[:min(len(text), 90)]))
		if i%2 == 0 {
			name = strings.ToValidUTF8(text[:min(len(text), 90)], "?") // as it comes
		}
		play(t, dev.Fakes.WhatsApp, "people", object{"phone": fmt.Sprintf("1555100%04d", i), "name": name}, nil)
		play(t, dev.Fakes.WhatsApp, "groups", object{"id": fmt.Sprintf("hostile-%d", i), "subject": name, "people": []string{ada}}, nil)
		play(t, dev.Fakes.Telegram, "people", object{"id": 5_100_000_000 + i, "firstName": name}, nil)
	}
	for _, at := range []string{dev.Fakes.WhatsApp + "/phone/", dev.Fakes.Telegram + "/phone/"} {
		for _, v := range []view{views[0], views[3]} {
			b := newTab(t, v)
			b.open(at, "#list a")
			b.until(oneStep, "document.querySelectorAll('#list a').length >= 40")
			b.untouched()
			var names []string
			for _, text := range hostile {
				names = append(names, strings.ToValidUTF8(text[:min(len(text), 60)], ""))
			}
			b.shows(names)
			if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > int(v.width) {
				t.Errorf("%s: the page is %d pixels wide, of %d", at, wide, v.width)
			}
			b.screen(fmt.Sprintf("hostile-names-%d", v.width))
		}
	}
}

// Hostile messages, and the same from the agent, which repeats them.
func TestHostileMessages(t *testing.T) {
	const who = "15559990001"
	play(t, dev.Fakes.WhatsApp, "people", object{"phone": who, "name": "Mallory"}, nil)
	var last line
	for _, text := range hostile {
		last = says(t, dev.Fakes.WhatsApp, object{"from": who, "text": text})
	}
	answer(t, dev.Fakes.WhatsApp, "", who, last, nil)
	says(t, dev.Fakes.WhatsApp, object{"from": who, "text": longLine})
	b := newTab(t, views[0])
	b.open(dev.Fakes.WhatsApp+"/phone/#"+who, "#lines li")
	b.until(oneStep, said("mine", "long mmm"))
	b.shows(hostile)
	b.untouched()
	b.screen("hostile-messages")
	await(t, answerTime, "an answer to each message", func() bool {
		var page struct{ Lines []line }
		ask(t, http.MethodGet, dev.Fakes.WhatsApp+"/_fake/chats/"+who, "", nil, &page)
		answers := 0
		for _, l := range page.Lines {
			if l.From == "" {
				answers++
			}
		}
		return answers >= len(hostile)
	})
	b.untouched()
	var page struct{ Items []struct{ ID string } }
	dev.call(t, http.MethodGet, "/api/v1/sessions?channel=WHATSAPP&channelUserId="+who+"&limit=1", nil, &page)
	if len(page.Items) == 0 {
		t.Fatal("there is no session of this person")
	}
	onConsole(t, page.Items[0].ID, hostile)
}

// What commands print is hostile too, byte by byte.
func TestHostileOutput(t *testing.T) {
	const who = "15559990002"
	play(t, dev.Fakes.WhatsApp, "people", object{"phone": who, "name": "Trudy"}, nil)
	bytes := []byte(strings.Join(hostile, "\n"))
	said := says(t, dev.Fakes.WhatsApp, object{"from": who, "text": "run: echo " + base64.StdEncoding.EncodeToString(bytes[:2000]) + " | base64 -d"})
	answer(t, dev.Fakes.WhatsApp, "", who, said, nil)
	b := newTab(t, views[2])
	b.open(dev.Fakes.WhatsApp+"/phone/#"+who, "#lines li")
	b.until(oneStep, "document.querySelectorAll('#lines > li:not(.mine):not(.day)').length > 0")
	b.untouched()
	var page struct{ Items []struct{ ID string } }
	dev.call(t, http.MethodGet, "/api/v1/sessions?channel=WHATSAPP&channelUserId="+who+"&limit=1", nil, &page)
	if len(page.Items) == 0 {
		t.Fatal("there is no session of this person")
	}
	onConsole(t, page.Items[0].ID, nil)
}

// An API that is given bytes that are no text says so, and a page that asks with
// hostile words in its address shows them as text.
func TestHostileAddresses(t *testing.T) {
	for i, text := range hostile {
		t.Run(fmt.Sprint(i), func(t *testing.T) { // each tab is closed: a browser has six connections to one address
			b := newTab(t, views[0])
			b.open(dev.Fakes.WhatsApp+"/phone/?account="+url.QueryEscape(text)+"&text="+url.QueryEscape(text)+"#"+url.PathEscape(text), "#list a")
			b.untouched()
		})
	}
	body := append([]byte(`{"agent":"`+coder+`","text":"`), 0xff, 0xfe, '"', '}')
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, dev.URL+"/api/v1/sessions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+dev.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var problem struct{ Status int }
	if err := json.NewDecoder(response.Body).Decode(&problem); response.StatusCode/100 == 5 || err != nil {
		t.Errorf("bytes that are no text: got %d, %v", response.StatusCode, err)
	}
}

// onConsole looks at a session where the console shows it: everything hostile in
// it is text there as well.
func onConsole(t *testing.T, session string, texts []string) {
	for _, path := range []string{"/console/sessions/" + session, "/console/sessions", "/console/", "/console/agents/" + coder} {
		for _, v := range []view{views[0], views[3]} {
			t.Run(path+" "+v.String(), func(t *testing.T) { // each tab is closed before the next
				b := newTab(t, v)
				b.signIn()
				b.open(dev.URL+path, "main")
				b.untouched()
				if strings.HasSuffix(path, session) {
					b.shows(texts)
					b.screen(fmt.Sprintf("hostile-console-%d", v.width))
				}
				if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > int(v.width) {
					t.Errorf("the page is %d pixels wide, of %d", wide, v.width)
				}
			})
		}
	}
}
