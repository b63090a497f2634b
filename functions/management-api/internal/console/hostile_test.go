package console_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/net/html"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
)

// hostile are texts that people, models and programs may write.
var hostile = []string{
	`<script>alert(1)</script>`,
	`<img src=x onerror=alert(1)>`,
	`"><svg onload=alert(1)>`,
	`' onmouseover='alert(1)`,
	`</pre><script>alert(1)</script>`,
	`</textarea><script>alert(1)</script>`,
	`</title><script>alert(1)</script>`,
	`<!-- <script>alert(1)</script>`,
	`--><script>alert(1)</script>`,
	`<![CDATA[<script>alert(1)</script>]]>`,
	`javascript:alert(1)`,
	`data:text/html,<script>alert(1)</script>`,
	`{{.}} {{template "layout"}}`,
	`${alert(1)} {{constructor.constructor('alert(1)')()}}`,
	`<a href="javascript:alert(1)">click</a>`,
	`<form action="https://evil.example"><button>Approve</button></form>`,
	`<div hx-get="/console/halt" hx-trigger="load"></div>`,
	`<style>body{display:none}</style>`,
	`<meta http-equiv="refresh" content="0;url=https://evil.example">`,
	`<base href="https://evil.example">`,
	`<iframe srcdoc="<script>alert(1)</script>">`,
	`&lt;script&gt;alert(1)&lt;/script&gt;`,
	`&#60;script&#62;`,
	"\x1b[31mred\x1b[0m",
	"\x1b]0;title\x07\x1b[2J",
	"\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\",
	"before\rafter",
	"bell\x07 backspace\b\b\b form\f vertical\v delete\x7f",
	"user\u202egnp.exe",
	"\u2066\u2067isolates\u2069\u2069",
	"zero\u200bwidth\ufeffspace\u00adsoft",
	"\u202dltr\u202c \u061cmark",
	"tags\U000e0041\U000e0042",
	"line\u2028separator\u2029here",
	"c1\u0085\u009b31m",
	"\u05e9\u05dc\u05d5\u05dd and \u0645\u0631\u062d\u0628\u0627",
	"e\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301 zalgo",
	"\U0001f468\u200d\U0001f469\u200d\U0001f467 family",
	strings.Repeat("W", 1<<20),
	strings.Repeat("<b>", 20000),
}

// skeleton is a page without its words: what its elements are and how they look.
func skeleton(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.CommentNode {
			b.WriteString("<!-->")
		}
		if d.Type != html.ElementNode {
			continue
		}
		fmt.Fprintf(&b, "<%s", d.Data)
		for _, a := range d.Attr {
			fmt.Fprintf(&b, " %s", a.Key)
			if strings.HasPrefix(a.Key, "hx-") || a.Key == "class" || a.Key == "type" || a.Key == "name" {
				b.WriteString("=" + keep(a.Val))
			}
		}
		b.WriteString(">")
	}
	return b.String()
}

// keep is a value without ids, which differ from run to run.
func keep(value string) string {
	path, _, _ := strings.Cut(value, "?")
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, strings.Split(path, "_")[0])
}

// words are all texts of a page, and what its fields hold.
func words(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		switch {
		case d.Type == html.TextNode:
			b.WriteString(d.Data + "\n")
		case d.Type == html.ElementNode && d.Data == "input":
			b.WriteString(attr(d, "value") + "\n")
		}
	}
	return b.String()
}

// asSeen is text as a page has it, written down again here: whatever is no letter,
// mark or sign of its own is a sign for it.
func asSeen(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < 0x20:
			b.WriteRune(0x2400 + r)
		case r == 0x7f:
			b.WriteRune(0x2421)
		case r == 0x200d:
			b.WriteRune(r)
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			fmt.Fprintf(&b, "[U+%04X]", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// What is hostile is text wherever it is shown: the page has the elements that it has
// of a harmless text, the text is there as it is, and nothing in it is unseen.
func TestHostileTexts(t *testing.T) {
	w := newWorld(t)
	f := w.fill("HARMLESS")
	b := w.as(access.RoleAdmin)
	s := string(f.session)
	pages := []string{
		"/console/", "/console/approvals", "/console/approvals/" + string(f.approval), "/console/sessions", "/console/sessions/" + s, "/console/sandboxes/" + f.sandbox,
		"/console/deadletters", "/console/deadletters/" + f.letter, "/console/logs", "/console/agents/coder", "/console/channels", "/console/usage",
	}
	write := func(text string) {
		t.Helper()
		f.Exec(`UPDATE messages SET text = $1, channel_user_id = $2`, text, limited(text, 200))
		f.Exec(`UPDATE steps SET text = $1, model = $2`, text, limited(text, 200))
		f.Exec(`UPDATE tool_calls SET result = $1, arguments = $2`, text, arguments(text))
		f.Exec(`UPDATE executions SET command = $1, reason = $2`, text, limited(text, 200))
		f.Exec(`UPDATE execution_output SET data = convert_to($1, 'UTF8')`, limited(text, 3000))
		f.Exec(`UPDATE executions SET stdout_bytes = octet_length($1)`, limited(text, 3000))
		f.Exec(`UPDATE approvals SET title = $1, input = $2, context = jsonb_build_object('note', $3::text)`, limited(text, 400), subject(text), limited(text, 400))
		f.Exec(`UPDATE sessions SET reason = $1`, limited(text, 200))
		f.Exec(`UPDATE dead_letters SET cause = $1`, limited(text, 1000))
		f.Exec(`UPDATE sandboxes SET message = $1`, limited(text, 400))
		f.Exec(`UPDATE agent_execution_logs SET message = $1`, text)
	}
	// Beside a character that hides or joins nobody is offered an editor.
	want := map[bool]map[string]string{}
	for _, harmless := range []string{"HARMLESS", "HARM\x01LESS"} {
		write(harmless)
		of := map[string]string{}
		for _, path := range pages {
			of[path] = skeleton(b.see(path).page(t))
		}
		want[harmless != "HARMLESS"] = of
	}
	for i, text := range hostile {
		write(text)
		short := limited(text, 150)
		want := want[strings.ContainsFunc(text, func(r rune) bool {
			return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
		})]
		for _, path := range pages {
			a := b.see(path)
			page := a.page(t)
			if got := skeleton(page); len(text) < 1000 && got != want[path] {
				at := 0
				for at < min(len(got), len(want[path])) && got[at] == want[path][at] {
					at++
				}
				t.Errorf("%d %s: the page has other elements: …%.200s, want …%.200s", i, path, got[max(0, at-60):], want[path][max(0, at-60):])
			}
			if len(a.body) > 400_000 {
				t.Errorf("%d %s has %d bytes", i, path, len(a.body))
			}
			if path == "/console/sessions/"+s && !strings.Contains(words(page), asSeen(short)) {
				t.Errorf("%d: the session does not show %q", i, short)
			}
			for _, r := range words(page) {
				if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Cf, r) && r != 0x200d {
					t.Errorf("%d %s: %U is in the page, unseen", i, path, r)
					break
				}
			}
		}
	}
}

// limited is the beginning of text.
func limited(text string, most int) string {
	runes := []rune(text)
	return string(runes[:min(most, len(runes))])
}

func arguments(text string) string {
	out, _ := json.Marshal(map[string]string{"command": text})
	return string(out)
}

func subject(text string) []byte {
	spec := harness.DefaultSandbox()
	out, _ := json.Marshal(harness.ApprovalSubject{Agent: "coder", Tool: harness.ToolExecuteShell, Arguments: []byte(arguments(text)), Sandbox: &spec})
	return out
}
