package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Export copies log entries to w, newest first, one in JSON on each line, as they
// come. An error says that what was written is not all.
func (c *Client) Export(ctx context.Context, f LogFilter, w io.Writer) error {
	at := path("logs", "export")
	response, err := c.send(ctx, call{method: http.MethodGet, path: at, query: query(map[string][]string{
		"agent": {f.Agent}, "session": {f.Session}, "level": f.Levels, "text": {f.Text}, "since": {moment(f.Since)}, "until": {moment(f.Until)},
	}), header: http.Header{"Accept": {"application/x-ndjson, application/problem+json"}}})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(w, response.Body); err != nil {
		return &url.Error{Op: http.MethodGet, URL: c.base + at, Err: err}
	}
	return nil
}

// CheckArchive compares the archive with the rows, a stretch of at most limit keys
// at a time, and calls each with what it came to.
func (c *Client) CheckArchive(ctx context.Context, limit int, each func(view.ArchiveCheck) error) error {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	for {
		check, _, err := decode[view.ArchiveCheck](c.do(ctx, call{method: http.MethodGet, path: path("logs", "archive"), query: q, repeatable: true}))
		if err != nil {
			return err
		}
		if err := each(check); err != nil || check.Next == "" {
			return err
		}
		q.Set("after", check.Next)
	}
}

// Forget asks that what is of a person is deleted; a repeat gets the same request.
func (c *Client) Forget(ctx context.Context, channel harness.Channel, user string) (Item[view.Forget], error) {
	item, _, err := decode[Item[view.Forget]](c.do(ctx, call{
		method: http.MethodPost, path: path("forgets"), body: map[string]string{"channel": string(channel), "channelUserId": user}, repeatable: true,
	}))
	return item, err
}

// Forgotten says how far a request to forget is.
func (c *Client) Forgotten(ctx context.Context, id string) (Item[view.Forget], error) {
	return get[view.Forget](ctx, c, path("forgets", id))
}
