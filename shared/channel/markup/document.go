package markup

import (
	"bytes"
	"html"
	"strconv"
	"strings"

	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/util"
)

// style is how a span is shown.
type style uint8

const (
	bold style = 1 << iota
	italic
	strike
	code
	address // to be left exactly as it is
)

// span is a piece of one line.
type span struct {
	text  string
	style style
	link  string // where it leads; empty: nowhere
}

// block is a paragraph, an item's text, a heading, or a block of code: what is
// left of Markdown in a messenger.
type block struct {
	gap   int      // line breaks before it
	quote int      // the outermost quote it stands in, by number; 0: none
	first string   // before its first line: indentation and a list's mark
	rest  string   // before its other lines
	lines [][]span // of text
	pre   bool     // code: body is shown as it is, without first and rest
	body  string
	lang  string
}

// linking says what becomes of a link.
type linking bool

const (
	keepLinks  linking = true  // a span that leads somewhere
	writeLinks linking = false // its address in parentheses
)

// maxIndent is how deep lists are shown to be.
const maxIndent = 8

// read returns the blocks of markdown. It has at least one with something to see
// unless markdown is blank: where nothing of the text would be left, the text is
// shown as it was written.
func read(markdown string, links linking) []block {
	source := readable(markdown)
	if blank(source) {
		return nil
	}
	if len(source) <= richLimit && !tangled(source) {
		w := &walker{source: []byte(source), links: links}
		w.blocksOf(parse(w.source), 2)
		if w.shown {
			return w.blocks
		}
	}
	return []block{{lines: literal(strings.TrimSpace(source))}}
}

// literal returns s as lines without any style.
func literal(s string) [][]span {
	var lines [][]span
	for line := range strings.SplitSeq(s, "\n") {
		lines = append(lines, []span{{text: line}})
	}
	return lines
}

// walker turns the tree of a parser into blocks.
type walker struct {
	source []byte
	links  linking
	blocks []block
	shown  bool // a block has something to see

	gap           int    // line breaks before the next block
	quote, quotes int    // the outermost quote we are in; how many there were
	depth         int    // quotes we are in
	lead          string // before the next block: marks of the items it begins
	indent        int    // lists we are in

	lines                    [][]span // of the block at hand
	bolds, italics, strikes  int
	link                     string
	inLink                   bool
	linkText                 strings.Builder // of the link we are in
	heading, inTable, inCode bool
}

// blocksOf emits the children of parent, gap line breaks apart.
func (w *walker) blocksOf(parent ast.Node, gap int) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		if n.PreviousSibling() != nil {
			w.gap = gap
		}
		w.block(n)
	}
}

func (w *walker) block(n ast.Node) {
	switch n := n.(type) {
	case *ast.Heading:
		w.heading = true
		w.inlineBlock(n)
		w.heading = false
	case *ast.ThematicBreak:
		w.emit(block{lines: literal("──────────")})
	case *ast.Blockquote:
		if w.depth == 0 {
			w.quotes++
			w.quote = w.quotes
		}
		w.depth++
		w.blocksOf(n, 2)
		if w.depth--; w.depth == 0 {
			w.quote = 0
		}
	case *ast.List:
		w.list(n)
	case *ast.FencedCodeBlock:
		info := ""
		if n.Info != nil {
			info = string(n.Info.Value(w.source))
		}
		w.emitCode(n, info)
	case *ast.CodeBlock:
		w.emitCode(n, "")
	case *ast.HTMLBlock:
		text := string(n.Lines().Value(w.source))
		if n.HasClosure() {
			text += string(n.ClosureLine.Value(w.source))
		}
		w.emit(block{lines: literal(strings.TrimRight(text, "\n"))})
	case *extast.Table:
		w.emit(block{pre: true, body: w.table(n)})
	default:
		w.inlineBlock(n)
	}
}

func (w *walker) list(n *ast.List) {
	gap := 2
	if n.IsTight {
		gap = 1
	}
	number := n.Start
	for item := n.FirstChild(); item != nil; item = item.NextSibling() {
		if item.PreviousSibling() != nil {
			w.gap = gap
		}
		mark := "• "
		if w.links == writeLinks {
			mark = "- "
		}
		if n.IsOrdered() {
			mark = strconv.Itoa(number) + ". "
			number++
		}
		if w.lead == "" {
			w.lead = indentation(w.indent)
		}
		if len(w.lead) < 4*maxIndent {
			w.lead += mark
		}
		w.indent++
		w.blocksOf(item, gap)
		w.indent--
		if w.lead != "" {
			w.emit(block{lines: literal("")})
		}
	}
}

func indentation(depth int) string {
	return strings.Repeat("  ", min(depth, maxIndent))
}

// emit adds a block at the place where the walker is.
func (w *walker) emit(b block) {
	if len(w.blocks) > 0 {
		b.gap = max(w.gap, 1)
	}
	b.quote, b.first, b.rest = w.quote, w.lead, indentation(w.indent)
	if b.first == "" {
		b.first = b.rest
	}
	if !w.shown {
		w.shown = !blank(b.body)
		for _, line := range b.lines {
			for _, s := range line {
				w.shown = w.shown || !blank(s.text)
			}
		}
	}
	w.gap, w.lead = 0, ""
	w.blocks = append(w.blocks, b)
}

// emitCode emits the lines of n. info is what stands behind its fence: the
// language, and sometimes all there is.
func (w *walker) emitCode(n ast.Node, info string) {
	body := strings.TrimRight(string(n.Lines().Value(w.source)), "\n")
	lang, _, _ := strings.Cut(info, " ")
	switch {
	case !blank(body):
		w.emit(block{pre: true, body: body, lang: lang})
	case !blank(info) && info != lang:
		w.emit(block{lines: literal(info)})
	}
}

// inlineBlock emits a block made of the inline children of n.
func (w *walker) inlineBlock(n ast.Node) {
	w.lines = [][]span{nil}
	w.inlines(n)
	lines := w.lines
	w.lines = nil
	w.emit(block{lines: lines})
}

func (w *walker) inlines(parent ast.Node) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		w.inline(n)
	}
}

func (w *walker) inline(n ast.Node) {
	switch n := n.(type) {
	case *ast.Text:
		value := n.Segment.Value(w.source)
		if w.inCode {
			w.write(strings.ReplaceAll(string(value), "\n", " "), 0)
			return
		}
		if n.IsRaw() {
			w.write(string(value), 0)
		} else {
			w.write(unescape(value), 0)
		}
		if n.SoftLineBreak() || n.HardLineBreak() {
			w.newline()
		}
	case *ast.String:
		w.write(string(n.Value), 0)
	case *ast.CodeSpan:
		w.inCode = true
		w.inlines(n)
		w.inCode = false
	case *ast.Emphasis:
		counter := &w.italics
		if n.Level == 2 {
			counter = &w.bolds
		}
		*counter++
		w.inlines(n)
		*counter--
	case *extast.Strikethrough:
		w.strikes++
		w.inlines(n)
		w.strikes--
	case *ast.Link:
		w.linked(n, string(n.Destination))
	case *ast.Image:
		w.linked(n, string(n.Destination))
	case *ast.AutoLink:
		w.write(string(n.Label(w.source)), address)
	case *ast.RawHTML:
		w.literalLines(string(n.Segments.Value(w.source)))
	case *extast.TaskCheckBox:
		if n.IsChecked {
			w.write("☑ ", 0)
		} else {
			w.write("☐ ", 0)
		}
	default:
		w.inlines(n)
	}
}

// linked writes a link or an image: its text, or its address if it has none.
func (w *walker) linked(n ast.Node, destination string) {
	if w.inLink { // an image in a link
		w.inlines(n)
		return
	}
	destination = strings.TrimSpace(unescape([]byte(destination)))
	w.inLink = true
	w.linkText.Reset()
	if w.links == keepLinks && linkable(destination) {
		w.link = destination
	}
	w.inlines(n)
	text := w.linkText.String()
	w.inLink = false
	switch {
	case destination == "" || text == destination || "mailto:"+text == destination:
	case blank(text):
		w.write(destination, address)
	case w.link == "":
		w.write(" (", 0)
		w.write(destination, address)
		w.write(")", 0)
	}
	w.link = ""
}

// write adds text to the line at hand, in the style that holds here.
func (w *walker) write(text string, as style) {
	if text == "" {
		return
	}
	if w.inLink {
		w.linkText.WriteString(text)
	}
	if w.bolds > 0 || w.heading {
		as |= bold
	}
	if w.italics > 0 {
		as |= italic
	}
	if w.strikes > 0 {
		as |= strike
	}
	if w.inCode {
		as |= code
	}
	last := len(w.lines) - 1
	line := w.lines[last]
	if n := len(line) - 1; n >= 0 && line[n].style == as && line[n].link == w.link {
		line[n].text += text
		return
	}
	w.lines[last] = append(line, span{text: text, style: as, link: w.link})
}

func (w *walker) newline() {
	if w.inTable {
		w.write(" ", 0)
		return
	}
	w.lines = append(w.lines, nil)
}

func (w *walker) literalLines(s string) {
	for i, line := range strings.Split(s, "\n") {
		if i > 0 {
			w.newline()
		}
		w.write(line, 0)
	}
}

// linkable reports whether Telegram makes a link of address.
func linkable(address string) bool {
	scheme, _, found := strings.Cut(address, ":")
	if !found || len(address) > 2048 || strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r == 0x7F }) {
		return false
	}
	switch strings.ToLower(scheme) {
	case "http", "https", "mailto", "tg":
		return true
	}
	return false
}

// unescape resolves the backslashes and the character references of a piece of
// Markdown.
func unescape(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 && bytes.IndexByte(raw, '&') < 0 {
		return string(raw)
	}
	var out strings.Builder
	for i := 0; i < len(raw); {
		switch {
		case raw[i] == '\\' && i+1 < len(raw) && util.IsPunct(raw[i+1]):
			out.WriteByte(raw[i+1])
			i += 2
		case raw[i] == '&':
			end := i + 1
			for end < len(raw) && end < i+40 && (raw[end] == '#' || util.IsAlphaNumeric(raw[end])) {
				end++
			}
			if end < len(raw) && raw[end] == ';' {
				end++
			}
			out.WriteString(readable(html.UnescapeString(string(raw[i:end]))))
			i = end
		default:
			out.WriteByte(raw[i])
			i++
		}
	}
	return out.String()
}
