package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Report is the outcome of a run.
type Report struct {
	Mutated bool     `json:"mutated"`
	Wanted  string   `json:"wanted"` // the result that every case is to have
	Cases   int      `json:"cases"`
	AsIt    int      `json:"asWanted"`
	Results []Result `json:"results"`
}

// NewReport counts results.
func NewReport(results []Result, mutated bool) Report {
	r := Report{Mutated: mutated, Wanted: Passed, Results: results, Cases: len(results)}
	if mutated {
		r.Wanted = Differs
	}
	for _, result := range results {
		if result.Result == r.Wanted {
			r.AsIt++
		}
	}
	return r
}

// OK reports whether every case has the result that is wanted.
func (r Report) OK() bool { return r.Cases > 0 && r.AsIt == r.Cases }

// Summary is the last line: how many of how many.
func (r Report) Summary() string {
	if r.Mutated {
		return fmt.Sprintf("%d of %d fail with their expectations changed", r.AsIt, r.Cases)
	}
	return fmt.Sprintf("%d of %d", r.AsIt, r.Cases)
}

// WriteJSON writes r for programs.
func (r Report) WriteJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// WriteTable writes r for people: one line a case and one for each difference.
func (r Report) WriteTable(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CASE\tRESULT\tWHAT DIFFERS")
	for _, result := range r.Results {
		details := result.Details
		if result.Mutants > 0 && len(details) == 0 {
			details = []string{fmt.Sprintf("%d changes, each told apart", result.Mutants)}
		}
		if len(details) == 0 {
			details = []string{""}
		}
		name, word := result.Case, result.Result
		for _, detail := range details {
			fmt.Fprintf(table, "%s\t%s\t%s\n", name, word, printable(detail))
			name, word = "", ""
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, r.Summary())
	return err
}

// printable keeps what functions said from moving a terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}
