package markup

import (
	"slices"
	"strings"
)

var htmlEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

// telegramHTML writes blocks as Telegram's HTML. Quotes are never nested and code
// has no other style: Telegram takes neither.
func telegramHTML(blocks []block) string {
	var out strings.Builder
	quote := 0
	for _, b := range blocks {
		if b.quote != quote && quote != 0 {
			out.WriteString("</blockquote>")
		}
		out.WriteString(strings.Repeat("\n", b.gap))
		if b.quote != quote && b.quote != 0 {
			out.WriteString("<blockquote>")
		}
		quote = b.quote
		if b.pre {
			if strings.TrimSpace(b.first) != "" { // the item has nothing before its code
				out.WriteString(htmlEscape.Replace(strings.TrimRight(b.first, " ")) + "\n")
			}
			telegramCode(&out, b)
			continue
		}
		for i, line := range b.lines {
			if i == 0 {
				out.WriteString(b.first)
			} else {
				out.WriteString("\n" + b.rest)
			}
			telegramLine(&out, line)
		}
	}
	if quote != 0 {
		out.WriteString("</blockquote>")
	}
	return strings.TrimSpace(out.String())
}

func telegramCode(out *strings.Builder, b block) {
	if !languageName(b.lang) {
		out.WriteString("<pre>" + htmlEscape.Replace(b.body) + "</pre>")
		return
	}
	out.WriteString(`<pre><code class="language-` + b.lang + `">` + htmlEscape.Replace(b.body) + "</code></pre>")
}

// languageName reports whether lang can stand in a class as it is.
func languageName(lang string) bool {
	return lang != "" && len(lang) <= 32 && strings.IndexFunc(lang, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+#._-", r)
	}) < 0
}

// The tags of the styles, outermost first.
var telegramTags = []struct {
	style style
	tag   string
}{{bold, "b"}, {italic, "i"}, {strike, "s"}, {code, "code"}}

// telegramLine writes one line. What is opened in it is closed in it.
func telegramLine(out *strings.Builder, line []span) {
	var open []int // indexes into telegramTags
	link := ""
	for _, s := range append(line, span{}) {
		as := s.style
		switch {
		case s.link != "":
			as &^= code
		case as&code != 0:
			as = code
		}
		keep := 0
		for s.link == link && keep < len(open) && as&telegramTags[open[keep]].style != 0 {
			keep++
		}
		for len(open) > keep {
			out.WriteString("</" + telegramTags[open[len(open)-1]].tag + ">")
			open = open[:len(open)-1]
		}
		if s.link != link {
			if link != "" {
				out.WriteString("</a>")
			}
			if link = s.link; link != "" {
				out.WriteString(`<a href="` + htmlEscape.Replace(link) + `">`)
			}
		}
		for k, t := range telegramTags {
			if as&t.style != 0 && !slices.Contains(open, k) {
				out.WriteString("<" + t.tag + ">")
				open = append(open, k)
			}
		}
		out.WriteString(htmlEscape.Replace(s.text))
	}
}
