package markup

import (
	"bytes"
	"strings"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// parse reads source as GitHub-flavoured Markdown, without two things of it. A
// bare address is left as it is, because messengers link it themselves. A link
// reference definition stays text: what uses it may be in another part of the
// answer, and a definition must not vanish.
func parse(source []byte) ast.Node {
	p := parser.NewParser(
		parser.WithBlockParsers(parser.DefaultBlockParsers()...),
		parser.WithInlineParsers(append(parser.DefaultInlineParsers(),
			util.Prioritized(extension.NewTaskCheckBoxParser(), 0),
			util.Prioritized(twoTildes{extension.NewStrikethroughParser()}, 500))...),
		parser.WithParagraphTransformers(util.Prioritized(boundedTables{extension.NewTableParagraphTransformer()}, 200)),
		parser.WithASTTransformers(util.Prioritized(extension.NewTableASTTransformer(), 0)),
	)
	return p.Parse(text.NewReader(source))
}

// twoTildes strikes ~~text~~ only: one tilde, with which GitHub strikes too, says
// "about".
type twoTildes struct{ parser.InlineParser }

// Parse reads what begins with two tildes.
func (t twoTildes) Parse(parent ast.Node, block text.Reader, pc parser.Context) ast.Node {
	if line, _ := block.PeekLine(); !bytes.HasPrefix(line, []byte("~~")) {
		return nil
	}
	return t.InlineParser.Parse(parent, block, pc)
}

// Tables larger than this stay text.
const (
	maxColumns = 32
	maxCells   = 8192
)

// boundedTables keeps a short text from becoming a huge table: every row is
// filled up to the columns of the first.
type boundedTables struct{ tables parser.ParagraphTransformer }

// Transform makes a table of the paragraph if it is one.
func (t boundedTables) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	lines := node.Lines()
	columns := 0
	for i := range lines.Len() {
		segment := lines.At(i)
		columns = max(columns, bytes.Count(segment.Value(reader.Source()), []byte("|"))+1)
	}
	if columns > maxColumns || columns*lines.Len() > maxCells {
		return
	}
	t.tables.Transform(node, reader, pc)
}

// A text with more marks, or a line that opens more quotes and lists, is no text
// that somebody formatted.
const (
	maxMarks   = 2000
	maxNesting = 64
)

// tangled reports whether s would take a parser, for which nested marks cost
// more than linear time, too long. Such a text is shown as it was written.
func tangled(s string) bool {
	marks := 0
	for i := range len(s) {
		switch s[i] {
		case '*', '_', '[', ']', '<', '`', '~', '!':
			marks++
		}
	}
	if marks > maxMarks {
		return true
	}
	for line := range strings.SplitSeq(s, "\n") {
		nesting := 0
		for i := range len(line) {
			c := line[i]
			if c == '>' || (i+1 < len(line) && line[i+1] == ' ' && strings.IndexByte("-+*.)", c) >= 0) {
				if nesting++; nesting > maxNesting {
					return true
				}
			} else if c != ' ' && c != '\t' && (c < '0' || c > '9') && c != '.' && c != ')' {
				break
			}
		}
	}
	return false
}
