package api

import (
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"tuluat.ai/harness/shared/harness/view"
)

// readQuery returns the query of a request to o in the one spelling that all
// readers understand alike, or a problem. What would be read as nothing, or as
// one of several values, is refused: a filter or a dryRun that is dropped does
// more than was asked for.
func readQuery(raw string, o *huma.Operation) (string, error) {
	all := url.Values{}
	refused := func(name, detail string) error {
		return refuse(http.StatusBadRequest, "the request is not valid", view.ProblemField{Pointer: "query/" + name, Detail: detail})
	}
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		name, _, valued := strings.Cut(part, "=")
		one, err := url.ParseQuery(part)
		if err != nil {
			return "", refused(name, "is not escaped as a query must be")
		}
		for name, values := range one {
			p := parameter(o, name)
			switch {
			case !valued:
				return "", refused(name, "has no value: write "+clip(name)+"=VALUE")
			case !utf8.ValidString(name + values[0]), strings.ContainsRune(name+values[0], 0):
				return "", refused(name, "has a byte that no text has")
			case p == nil: // said by huma
			case values[0] == "" && p.Schema.Type != huma.TypeString:
				return "", refused(name, "is empty")
			case all.Has(name) && p.Schema.Type != huma.TypeArray:
				return "", refused(name, "is there twice")
			case p.Schema.Format == "date-time" && zeroTime(values[0]):
				return "", refuseField("query/"+name, "is the zero time: leave it out for any time")
			}
			all.Add(name, values[0])
		}
	}
	return all.Encode(), nil
}

// zeroTime reports whether a value would be taken for no time at all.
func zeroTime(value string) bool {
	at, err := time.Parse(time.RFC3339Nano, value)
	return err == nil && at.IsZero()
}

// parameter is the one of o's query that is called name, nil if there is none.
func parameter(o *huma.Operation, name string) *huma.Param {
	for _, p := range o.Parameters {
		if p.In == "query" && p.Name == name {
			return p
		}
	}
	return nil
}
