package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"tuluat.ai/harness/shared/harness/view"
)

// Page is the part of a list that is asked for.
type Page struct {
	Limit int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"the most items of one page"`
	After string `query:"after" maxLength:"4096" doc:"next of the page before; nothing: the first page"`

	list  string     // names the list and its filter
	place view.Place // that After says
}

// cursor is a place in one list under one filter.
type cursor struct {
	List string    `json:"list"`
	At   time.Time `json:"at,omitzero"`
	ID   string    `json:"id"`
}

// list is one page.
type list[T any] struct {
	Items []T    `json:"items" nullable:"false"`
	Next  string `json:"next,omitempty" doc:"the after of the next page; without it this is the last"`
}

type listOutput[T any] struct{ Body list[T] }

// Resolve implements huma.Resolver: it reads After. A cursor is of the list and
// the filter that it was given for, and of no other.
func (p *Page) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	query := u.Query()
	query.Del("limit")
	query.Del("after")
	sum := sha256.Sum256([]byte(u.Path + "?" + query.Encode()))
	p.list = hex.EncodeToString(sum[:8])
	if p.After == "" {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(p.After)
	var c cursor
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil || c.List != p.list || c.ID == "" || !utf8.ValidString(c.ID) || strings.ContainsRune(c.ID, 0) ||
		!c.At.IsZero() && (c.At.Year() < 1970 || c.At.Year() > 9999) {
		return []error{badCursor{}}
	}
	p.place = view.Place{At: c.At, ID: c.ID}
	return nil
}

// badCursor is an After that no page of this list gave out.
type badCursor struct{}

func (badCursor) Error() string { return "is not the next of a page of this list with this filter" }

// GetStatus implements huma.StatusError.
func (badCursor) GetStatus() int { return http.StatusBadRequest }

// ErrorDetail implements huma.ErrorDetailer.
func (b badCursor) ErrorDetail() *huma.ErrorDetail {
	return &huma.ErrorDetail{Location: "query.after", Message: b.Error()}
}

// refuseCursor is badCursor of whoever finds it later.
func refuseCursor() *problem {
	return refuse(http.StatusBadRequest, "the request is not valid", view.ProblemField{Pointer: "query/after", Detail: badCursor{}.Error()})
}

// more is how many rows to ask for: one more than fit tells that there is a next
// page.
func (p *Page) more() int { return p.Limit + 1 }

// next returns the cursor of what follows on place.
func (p *Page) next(place view.Place) string {
	text, err := json.Marshal(cursor{List: p.list, At: place.At.UTC(), ID: place.ID})
	if err != nil { // a place that was read from the database
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// paged makes a page of up to more rows.
func paged[T any](p *Page, rows []T, place func(T) view.Place) *listOutput[T] {
	out := &listOutput[T]{Body: list[T]{Items: rows}}
	if len(rows) > p.Limit {
		out.Body.Items = rows[:p.Limit]
		out.Body.Next = p.next(place(rows[p.Limit-1]))
	}
	if out.Body.Items == nil {
		out.Body.Items = []T{}
	}
	return out
}

// part makes a page of rows behind which the list goes on at next, if that is one.
func part[T any](p *Page, rows []T, next view.Place) *listOutput[T] {
	out := &listOutput[T]{Body: list[T]{Items: rows}}
	if rows == nil {
		out.Body.Items = []T{}
	}
	if next.ID != "" {
		out.Body.Next = p.next(next)
	}
	return out
}

// Period is a stretch of time.
type Period struct {
	Since time.Time `query:"since" doc:"not before, as in 2026-01-02T15:04:05Z"`
	Until time.Time `query:"until" doc:"before"`
}

// clockSkew is how far a caller's clock may be ahead of ours.
const clockSkew = time.Minute

// check refuses a Period that nothing can be in.
func (p Period) check(now time.Time) error {
	if p.Since.After(now.Add(clockSkew)) {
		return refuseField("query/since", "is in the future")
	}
	if !p.Until.IsZero() && !p.Since.IsZero() && !p.Since.Before(p.Until) {
		return refuseField("query/until", "is not after since")
	}
	return nil
}
