package console

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// reports counts what browsers say they kept from happening, so that nobody fills
// the log by it.
type reports struct {
	now func() time.Time

	mu    sync.Mutex
	since time.Time
	count int
}

const (
	maxReport   = 8 << 10 // bytes
	maxReports  = 20      // that are logged in a minute
	maxReported = 200     // bytes of a part of one
)

func (b *reports) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); now.Sub(b.since) >= time.Minute {
		b.since, b.count = now, 0
	}
	b.count++
	return b.count <= maxReports
}

// report logs that a browser kept a page from something: a fault of ours, or
// somebody's try. Anybody may write here, so little of it is kept.
func (c *console) report(w http.ResponseWriter, r *http.Request) {
	var body map[string]map[string]any // of browsers' own words
	text, err := io.ReadAll(io.LimitReader(r.Body, maxReport))
	if err == nil && json.Unmarshal(text, &body) == nil && c.reports.take() {
		said := func(name string) string { return fmt.Sprint(body["csp-report"][name]) }
		c.Log.Warn("a browser kept a page from something", "page", pathOf(said("document-uri")), "directive", plainShort(said("violated-directive")),
			"blocked", pathOf(said("blocked-uri")), "line", plainShort(said("line-number")))
	}
	w.WriteHeader(http.StatusNoContent)
}

// pathOf is an address without what may be secret in it.
func pathOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that cannot be read"
	}
	return plainShort((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, Opaque: ""}).String())
}

func plainShort(text string) string {
	if len(text) > maxReported {
		text = text[:maxReported]
	}
	return plain(text)
}
