package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// Item is one record: as this client knows it, and as the server wrote it, so
// that printing it loses no field that this client does not know.
type Item[T any] struct {
	View T
	Raw  json.RawMessage
}

// UnmarshalJSON reads both forms.
func (i *Item[T]) UnmarshalJSON(text []byte) error {
	i.Raw = bytes.Clone(text)
	return json.Unmarshal(text, &i.View)
}

// MarshalJSON writes what the server wrote.
func (i Item[T]) MarshalJSON() ([]byte, error) { return i.Raw, nil }

// List is the begin of a list.
type List[T any] struct {
	Items []Item[T]
	More  bool   // there is more than was asked for
	Mark  string // of the log, when it was read
}

type page[T any] struct {
	Items []Item[T] `json:"items"`
	Next  string    `json:"next"`
	Mark  string    `json:"mark"`
}

const (
	maxPage = 200
	cursor  = "after"
)

// list reads pages until there are most records, or no more; most 0: all.
func list[T any](ctx context.Context, c *Client, path string, query url.Values, most int) (List[T], error) {
	var l List[T]
	if query == nil {
		query = url.Values{}
	}
	for {
		size := maxPage
		if most > 0 {
			size = min(size, most-len(l.Items))
		}
		query.Set("limit", strconv.Itoa(size))
		p, _, err := decode[page[T]](c.do(ctx, call{method: http.MethodGet, path: path, query: query, repeatable: true}))
		if err != nil {
			return l, err
		}
		l.Items = append(l.Items, p.Items...)
		if l.Mark == "" { // the first page has it
			l.Mark = p.Mark
		}
		if p.Next == "" {
			return l, nil
		}
		if most > 0 && len(l.Items) >= most {
			l.Items, l.More = l.Items[:most], true
			return l, nil
		}
		if p.Next == query.Get(cursor) {
			return l, fmt.Errorf("%w (a page leads to itself)", errForeign)
		}
		query.Set(cursor, p.Next)
	}
}

// get reads one record.
func get[T any](ctx context.Context, c *Client, path string) (Item[T], error) {
	item, _, err := decode[Item[T]](c.do(ctx, call{method: http.MethodGet, path: path, repeatable: true}))
	return item, err
}

// post does something to one record and returns what it became. With a key it
// is repeated when the answer is lost.
func post[T any](ctx context.Context, c *Client, path string, body any, header http.Header) (Item[T], answer, error) {
	return decode[Item[T]](c.do(ctx, call{method: http.MethodPost, path: path, body: body, header: header, repeatable: header.Get("Idempotency-Key") != ""}))
}
