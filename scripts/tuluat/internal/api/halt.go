package api

import (
	"context"
	"net/http"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// haltPath is where the switch of an agent is, or that of the install.
func haltPath(agent string) string {
	if agent == "" {
		return path("halt")
	}
	return path(Agents.plural, agent, "halt")
}

// Halted says whether an agent is stopped, or, without a name, the install.
func (c *Client) Halted(ctx context.Context, agent string) (Item[view.Halt], error) {
	return get[view.Halt](ctx, c, haltPath(agent))
}

// Halt stops an agent, or the install.
func (c *Client) Halt(ctx context.Context, agent, reason string) (Item[view.Halt], error) {
	item, _, err := decode[Item[view.Halt]](c.do(ctx, call{method: http.MethodPut, path: haltPath(agent), body: map[string]string{"reason": reason}, repeatable: true}))
	return item, err
}

// Resume lets it go on.
func (c *Client) Resume(ctx context.Context, agent string) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: haltPath(agent), repeatable: true})
	return err
}

// Pause takes a session over.
func (c *Client) Pause(ctx context.Context, id harness.SessionID) (Item[view.Session], error) {
	item, _, err := post[view.Session](ctx, c, path("sessions", string(id), "pause"), nil, nil)
	return item, err
}

// Unpause hands a session back.
func (c *Client) Unpause(ctx context.Context, id harness.SessionID) (Item[view.Session], error) {
	item, _, err := post[view.Session](ctx, c, path("sessions", string(id), "resume"), nil, nil)
	return item, err
}

// Reply says text in a session in its agent's place.
func (c *Client) Reply(ctx context.Context, id harness.SessionID, text string) (Item[view.Message], error) {
	item, _, err := post[view.Message](ctx, c, path("sessions", string(id), "reply"), map[string]string{"text": text}, keyed(time.Now()))
	return item, err
}

// ModelUsage lists what agents have asked models since then, the newest day first:
// all of them, or one.
func (c *Client) ModelUsage(ctx context.Context, agent string, since time.Time) (List[view.ModelUsage], error) {
	return list[view.ModelUsage](ctx, c, path("usage"), query(map[string][]string{"agent": {agent}, "since": {moment(since)}}), 0)
}

// Usage lists what an agent has spent on each day since then, the newest first.
func (c *Client) Usage(ctx context.Context, agent string, since time.Time) (List[view.Usage], error) {
	return list[view.Usage](ctx, c, path(Agents.plural, agent, "usage"), query(map[string][]string{"since": {moment(since)}}), 0)
}
