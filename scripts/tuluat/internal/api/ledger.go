package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Leaks says what the last comparison of rows with what exists outside of them came
// to, by kind.
func (c *Client) Leaks(ctx context.Context) (List[view.Leaks], error) {
	p, _, err := decode[page[view.Leaks]](c.do(ctx, call{method: http.MethodGet, path: path("leaks"), repeatable: true}))
	return List[view.Leaks]{Items: p.Items}, err
}

// Sweep says how the last pass of the sweep went.
func (c *Client) Sweep(ctx context.Context) (Item[view.Sweep], error) {
	return get[view.Sweep](ctx, c, path("sweep"))
}

// RecordWebhook records where a provider is told to send updates of an account to;
// url empty: nowhere any more.
func (c *Client) RecordWebhook(ctx context.Context, channel harness.Channel, account, url string) error {
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: path("channels", "webhooks"), body: map[string]string{"channel": string(channel), "account": account, "url": url}, repeatable: true,
	})
	return err
}

// FollowLogs hands log entries to each as they come, from the mark of f on, as the
// server wrote them and as this client knows them. One may come again, which its id
// tells. It ends as Follow does, but for no session's end.
func (c *Client) FollowLogs(ctx context.Context, f LogFilter, each func(Item[view.LogEntry]) error, lost func(error)) error {
	following := &follower{c: c, path: path("logs", "events"), ends: map[printed]int64{}, query: query(map[string][]string{
		"agent": {f.Agent}, "session": {f.Session}, "level": f.Levels, "text": {f.Text}, "since": {moment(f.Since)}, "mark": {f.Mark},
	})}
	following.each = func(e sse.Event) error {
		if e.Name != "log" {
			return nil
		}
		var item Item[view.LogEntry]
		if err := json.Unmarshal(e.Data, &item); err != nil {
			return fmt.Errorf("event %s of the stream: %w", e.ID, err)
		}
		return each(item)
	}
	return following.follow(ctx, lost)
}
