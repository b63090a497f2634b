package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
)

// format is how a command prints what it was asked for.
type format string

const (
	asTable = "table"
	asJSON  = "json"
	asYAML  = "yaml"
)

// flag gives cmd its -o.
func (f *format) flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(f), "output", "o", asTable, "table, json or yaml")
	before(cmd, func() error {
		switch *f {
		case asTable, asJSON, asYAML:
			return nil
		}
		return errors.New("-o must be table, json or yaml")
	})
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// before adds a check of flags: what fails it is a usage error.
func before(cmd *cobra.Command, check func() error) {
	earlier := cmd.PreRunE
	cmd.PreRunE = func(c *cobra.Command, args []string) error {
		if earlier != nil {
			if err := earlier(c, args); err != nil {
				return err
			}
		}
		return check()
	}
}

// write prints value as JSON or YAML. What would move a terminal's cursor is
// escaped, which says the same to whoever parses it.
func (f format) write(w io.Writer, value any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return err
	}
	if f == asJSON {
		_, err := io.WriteString(w, escapeJSON(text.String()))
		return err
	}
	d := json.NewDecoder(&text)
	d.UseNumber()
	node, err := yamlNode(d)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	y := yaml.NewEncoder(&out)
	y.SetIndent(2)
	if err := errors.Join(y.Encode(node), y.Close()); err != nil {
		return err
	}
	_, err = io.WriteString(w, escapeYAML(out.String()))
	return err
}

// escapeJSON writes hidden characters as JSON's escapes: outside of strings
// there are none but line breaks.
func escapeJSON(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if !hidden(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// escapeYAML writes hidden characters as YAML's escapes: yamlNode has put all
// strings with them into double quotes.
func escapeYAML(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hidden(r) {
			fmt.Fprintf(&b, `\U%08X`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// yamlNode reads one JSON value and keeps the order of its members.
func yamlNode(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.MappingNode}
		if t == '[' {
			n.Kind = yaml.SequenceNode
		}
		for d.More() { // a mapping's content is key, value, key, value
			child, err := yamlNode(d)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		if _, err := d.Token(); err != nil {
			return nil, err
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle // [] and {}, not nothing
		}
		return n, nil
	case json.Number:
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: t.String()}
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
		return n, nil
	case string:
		n := &yaml.Node{}
		n.SetString(t)
		// Texts that begin with blanks are not always written right as blocks.
		if strings.ContainsFunc(t, hidden) || strings.Contains(t, "\n") && (strings.ContainsAny(t[:1], " \t\n") || strings.Contains(t, "\n\t")) {
			n.Style = yaml.DoubleQuotedStyle
		}
		return n, nil
	}
	n := &yaml.Node{}
	return n, n.Encode(token) // true, false, null
}

// column is one column of a table.
type column[T any] struct {
	head string
	cell func(T) string
}

// table prints rows in columns. Cells hold one line.
func table[T any](w io.Writer, columns []column[T], rows []T) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	line := func(cell func(column[T]) string) {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cells[i] = flatten(cell(c))
		}
		fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t "))
	}
	line(func(c column[T]) string { return c.head })
	for _, row := range rows {
		line(func(c column[T]) string { return c.cell(row) })
	}
	return t.Flush()
}

// printList prints a list: as a table, or as an array of what the server wrote.
func printList[T any](sys System, f format, what string, l api.List[T], columns []column[T]) error {
	if f != asTable {
		items := l.Items
		if items == nil {
			items = []api.Item[T]{}
		}
		return f.write(sys.Stdout, items)
	}
	if len(l.Items) == 0 {
		fmt.Fprintf(sys.Stderr, "There are no %s.\n", what)
		return nil
	}
	rows := make([]T, len(l.Items))
	for i, item := range l.Items {
		rows[i] = item.View
	}
	if err := table(sys.Stdout, columns, rows); err != nil {
		return err
	}
	more(sys, l.More)
	return nil
}

// more says that a list goes on.
func more(sys System, more bool) {
	if more {
		fmt.Fprintln(sys.Stderr, "There are more: --limit N shows N, --limit 0 all.")
	}
}

// facts prints names and what belongs to them, one per line; empty ones are left
// out.
func facts(w io.Writer, pairs ...string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(t, "%s:\t%s\n", flatten(pairs[i]), flatten(pairs[i+1]))
		}
	}
	return t.Flush()
}

// block prints a text of several lines under a heading.
func block(w io.Writer, heading, text string) {
	fmt.Fprintln(w, heading+":")
	for line := range strings.SplitSeq(strings.TrimRight(visible(text), "\n"), "\n") {
		fmt.Fprintln(w, "  "+line)
	}
}

// short cuts text after so many characters.
func short(text string, most int) string {
	text = flatten(text)
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// when is a time as people here read it.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func whenever(t *time.Time) string {
	if t == nil {
		return ""
	}
	return when(*t)
}
