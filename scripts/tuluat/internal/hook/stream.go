package hook

import (
	"context"
	"net/http"
	"net/url"

	"tuluat.ai/harness/scripts/tuluat/internal/sse"
)

// Stream hands every event of chat behind the place after to each, until the
// server ends the stream (nil) or something fails. opened is called when the
// server has agreed. Without follow it ends with what exists.
func (c *Client) Stream(ctx context.Context, chat, after string, follow bool, opened func(), each func(sse.Event) error) error {
	query := url.Values{"chat": {chat}}
	if after != "" {
		query.Set("after", after)
	}
	if !follow {
		query.Set("follow", "false")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/stream?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := c.do(request, []byte(request.URL.RequestURI()))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if opened != nil {
		opened()
	}
	return sse.Read(response.Body, each)
}
