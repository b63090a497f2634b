package markup

import (
	"strings"
	"unicode"

	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
)

// maxPad is the widest column that is filled up with spaces; longer cells stick
// out.
const maxPad = 40

// table draws a table with lines of one width for a font of one width.
func (w *walker) table(n *extast.Table) string {
	var rows [][]string
	for row := n.FirstChild(); row != nil; row = row.NextSibling() {
		var cells []string
		for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
			cells = append(cells, w.cell(cell))
		}
		rows = append(rows, cells)
	}
	widths := make([]int, len(n.Alignments))
	for _, row := range rows {
		for i, cell := range row {
			if i < len(widths) {
				widths[i] = min(max(widths[i], width(cell), 1), maxPad)
			}
		}
	}
	var out strings.Builder
	for r, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if i >= len(widths) {
				break
			}
			if i > 0 {
				line.WriteString(" | ")
			}
			fill := max(widths[i]-width(cell), 0)
			left := 0
			switch n.Alignments[i] {
			case extast.AlignRight:
				left = fill
			case extast.AlignCenter:
				left = fill / 2
			}
			line.WriteString(strings.Repeat(" ", left) + cell + strings.Repeat(" ", fill-left))
		}
		out.WriteString(strings.TrimRight(line.String(), " "))
		out.WriteByte('\n')
		if r == 0 {
			for i, columns := range widths {
				if i > 0 {
					out.WriteString("-+-")
				}
				out.WriteString(strings.Repeat("-", columns))
			}
			out.WriteByte('\n')
		}
	}
	return strings.TrimRight(out.String(), "\n")
}

// cell returns the text of a cell, on one line.
func (w *walker) cell(n ast.Node) string {
	inner := &walker{source: w.source, links: writeLinks, inTable: true, lines: [][]span{nil}}
	inner.inlines(n)
	var out strings.Builder
	for _, s := range inner.lines[0] {
		out.WriteString(s.text)
	}
	return strings.Join(strings.Fields(out.String()), " ")
}

// width is how many columns s takes where every letter is equally wide.
func width(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case r >= 0x1F300 && r <= 0x1FAFF, r >= 0xFF01 && r <= 0xFF60,
			unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana):
			n += 2
		default:
			n++
		}
	}
	return n
}
