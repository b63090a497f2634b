package botapi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Entity is a stretch of a text that is shown in a special way. Offset and
// Length count UTF-16 code units.
type Entity struct {
	Type     string `json:"type"`
	Offset   int    `json:"offset"`
	Length   int    `json:"length"`
	URL      string `json:"url,omitempty"`
	Language string `json:"language,omitempty"`
	EmojiID  string `json:"custom_emoji_id,omitempty"`
}

func tagType(tag string) string {
	switch tag {
	case "b", "strong":
		return "bold"
	case "i", "em":
		return "italic"
	case "u", "ins":
		return "underline"
	case "s", "strike", "del":
		return "strikethrough"
	case "span", "tg-spoiler":
		return "spoiler"
	case "a":
		return "text_link"
	case "pre", "code", "blockquote":
		return tag
	case "tg-emoji":
		return "custom_emoji"
	}
	return ""
}

// refusal is why a text is refused, in the API's words.
type refusal string

func (r refusal) Error() string { return string(r) }

func refusef(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

type open struct {
	tag      string
	argument string
	begin    int // UTF-16
	bytes    int
	expands  bool
}

// ParseHTML reads text as the API does with parse_mode HTML: it returns what a
// phone shows and the entities in it, or why it is refused, in the API's words.
func ParseHTML(text string) (string, []Entity, error) {
	p := &parser{in: text}
	for p.at < len(p.in) {
		if err := p.step(); err != nil {
			return "", nil, err
		}
	}
	if n := len(p.nested); n > 0 {
		return "", nil, refusef("Can't find end tag corresponding to start tag %q", p.nested[n-1].tag)
	}
	shown, entities := trim(p.out.String(), p.entities)
	return shown, entities, nil
}

type parser struct {
	in       string
	at       int
	out      strings.Builder
	units    int // of out
	nested   []open
	entities []Entity
}

// peek is the byte at the place, 0 at the end.
func (p *parser) peek() byte {
	if p.at < len(p.in) {
		return p.in[p.at]
	}
	return 0
}

func space(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == 0 }

func (p *parser) put(r rune, text string) {
	p.out.WriteString(text)
	p.units += utf16.RuneLen(r)
}

func (p *parser) step() error {
	switch c := p.in[p.at]; {
	case c == '&':
		if r, size := entity(p.in[p.at:]); r != 0 {
			p.put(r, string(r))
			p.at += size
			return nil
		}
		p.put('&', "&")
		p.at++
		return nil
	case c != '<':
		r, size := utf8.DecodeRuneInString(p.in[p.at:])
		if r == utf8.RuneError && size <= 1 {
			return refusef("strings must be encoded in UTF-8")
		}
		p.put(r, p.in[p.at:p.at+size])
		p.at += size
		return nil
	}
	begin := p.at
	p.at++
	if p.peek() == '/' {
		return p.endTag(begin)
	}
	return p.startTag(begin)
}

func (p *parser) startTag(begin int) error {
	for !space(p.peek()) && p.peek() != '>' {
		p.at++
	}
	if p.at >= len(p.in) {
		return refusef("Unclosed start tag at byte offset %d", begin)
	}
	tag := strings.ToLower(p.in[begin+1 : p.at])
	if tagType(tag) == "" {
		return refusef("Unsupported start tag %q at byte offset %d", tag, begin)
	}
	o := open{tag: tag, begin: p.units, bytes: p.out.Len()}
	for p.peek() != '>' {
		for p.at < len(p.in) && space(p.in[p.at]) {
			p.at++
		}
		if p.peek() == '>' {
			break
		}
		name, value, err := p.attribute(tag, begin)
		if err != nil {
			return err
		}
		switch {
		case tag == "a" && name == "href", tag == "tg-emoji" && name == "emoji-id":
			o.argument = value
		case tag == "code" && name == "class" && strings.HasPrefix(value, "language-"):
			o.argument = strings.TrimPrefix(value, "language-")
		case tag == "span" && name == "class" && strings.HasPrefix(value, "tg-"):
			o.argument = strings.TrimPrefix(value, "tg-")
		case tag == "blockquote" && name == "expandable":
			o.expands = true
		}
	}
	if tag == "span" && o.argument != "spoiler" {
		return refusef("Tag \"span\" must have class \"tg-spoiler\" at byte offset %d", begin)
	}
	p.at++
	p.nested = append(p.nested, o)
	return nil
}

func (p *parser) attribute(tag string, begin int) (name, value string, err error) {
	from := p.at
	for !space(p.peek()) && p.peek() != '=' && p.peek() != '>' {
		p.at++
	}
	name = strings.ToLower(p.in[from:p.at])
	if name == "" {
		return "", "", refusef("Empty attribute name in the tag %q at byte offset %d", tag, begin)
	}
	unclosed := refusef("Unclosed start tag %q at byte offset %d", tag, begin)
	for p.at < len(p.in) && space(p.in[p.at]) {
		p.at++
	}
	if p.peek() != '=' {
		if p.at >= len(p.in) {
			return "", "", unclosed
		}
		if name == "expandable" {
			return name, "", nil
		}
		return "", "", refusef("Expected equal sign in declaration of an attribute of the tag %q at byte offset %d", tag, begin)
	}
	p.at++
	for p.at < len(p.in) && space(p.in[p.at]) {
		p.at++
	}
	if p.at >= len(p.in) {
		return "", "", unclosed
	}
	if quote := p.in[p.at]; quote == '"' || quote == '\'' {
		p.at++
		var b strings.Builder
		for p.at < len(p.in) && p.in[p.at] != quote {
			if r, size := entity(p.in[p.at:]); r != 0 {
				b.WriteRune(r)
				p.at += size
				continue
			}
			b.WriteByte(p.in[p.at])
			p.at++
		}
		if p.at >= len(p.in) {
			return "", "", unclosed
		}
		p.at++
		value = b.String()
	} else {
		from := p.at
		for c := p.peek(); c == '.' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'; c = p.peek() {
			p.at++
		}
		value = strings.ToLower(p.in[from:p.at])
		if !space(p.peek()) && p.peek() != '>' {
			return "", "", refusef("Unexpected end of name token at byte offset %d", from)
		}
	}
	if p.at >= len(p.in) {
		return "", "", unclosed
	}
	return name, value, nil
}

func (p *parser) endTag(begin int) error {
	if len(p.nested) == 0 {
		return refusef("Unexpected end tag at byte offset %d", begin)
	}
	for !space(p.peek()) && p.peek() != '>' {
		p.at++
	}
	tag := strings.ToLower(p.in[begin+2 : p.at])
	for p.at < len(p.in) && space(p.in[p.at]) {
		p.at++
	}
	if p.peek() != '>' {
		return refusef("Unclosed end tag at byte offset %d", begin)
	}
	o := p.nested[len(p.nested)-1]
	if tag != "" && tag != o.tag {
		return refusef("Unmatched end tag at byte offset %d, expected \"</%s>\", found \"</%s>\"", begin, o.tag, tag)
	}
	p.nested = p.nested[:len(p.nested)-1]
	p.at++
	p.close(o)
	return nil
}

// close makes the entity of a tag that has ended.
func (p *parser) close(o open) {
	length := p.units - o.begin
	if length == 0 {
		return
	}
	e := Entity{Type: tagType(o.tag), Offset: o.begin, Length: length}
	inside := func(outer string) bool {
		return slices.ContainsFunc(p.nested, func(n open) bool { return n.tag == outer })
	}
	switch o.tag {
	case "a":
		e.URL = o.argument
		if e.URL == "" {
			e.URL = p.out.String()[o.bytes:]
		}
		if !strings.Contains(e.URL, ".") && !strings.HasPrefix(e.URL, "tg://") {
			return // no link: shown as text
		}
	case "tg-emoji":
		e.EmojiID = o.argument
	case "code":
		if n := len(p.nested); n > 0 && p.nested[n-1].tag == "pre" && p.nested[n-1].begin == o.begin {
			p.nested[n-1].argument = o.argument // <pre><code class="language-x">: one block
			return
		}
	case "pre":
		e.Language = o.argument
	case "blockquote":
		if o.expands {
			e.Type = "expandable_blockquote"
		}
	}
	if inside("pre") || inside("code") {
		return // nothing is shown inside of code
	}
	if o.tag == "pre" || o.tag == "code" {
		p.entities = slices.DeleteFunc(p.entities, func(x Entity) bool { return x.Offset >= o.begin })
	}
	p.entities = append(p.entities, e)
}

// entity reads &lt; and the like; 0: it is none.
func entity(text string) (rune, int) {
	if text[0] != '&' {
		return 0, 0
	}
	end := 1
	var r rune
	if strings.HasPrefix(text, "&#") {
		base, from := 10, 2
		if len(text) > 2 && text[2] == 'x' {
			base, from = 16, 3
		}
		end = from
		for end < len(text) && (text[end] >= '0' && text[end] <= '9' || base == 16 && (text[end]|0x20 >= 'a' && text[end]|0x20 <= 'f')) {
			end++
		}
		n, err := strconv.ParseInt(text[from:end], base, 32)
		if err != nil || n == 0 || n >= 0x10ffff || !utf8.ValidRune(rune(n)) {
			return 0, 0
		}
		r = rune(n)
	} else {
		for end < len(text) && (text[end]|0x20 >= 'a' && text[end]|0x20 <= 'z') {
			end++
		}
		r = map[string]rune{"lt": '<', "gt": '>', "amp": '&', "quot": '"'}[text[1:end]]
		if r == 0 {
			return 0, 0
		}
	}
	if end < len(text) && text[end] == ';' {
		end++
	}
	return r, end
}

// trim cuts blanks from both ends and moves the entities along.
func trim(text string, entities []Entity) (string, []Entity) {
	left := strings.TrimLeft(text, " \t\r\n")
	cut := units(text[:len(text)-len(left)])
	shown := strings.TrimRight(left, " \t\r\n")
	length := units(shown)
	var kept []Entity
	for _, e := range entities {
		from, to := max(e.Offset-cut, 0), min(e.Offset+e.Length-cut, length)
		if to > from {
			e.Offset, e.Length = from, to-from
			kept = append(kept, e)
		}
	}
	slices.SortStableFunc(kept, func(a, b Entity) int {
		if a.Offset != b.Offset {
			return a.Offset - b.Offset
		}
		return b.Length - a.Length
	})
	return shown, kept
}

// units is the length of text in UTF-16 code units.
func units(text string) int {
	n := 0
	for _, r := range text {
		n += max(1, utf16.RuneLen(r))
	}
	return n
}
