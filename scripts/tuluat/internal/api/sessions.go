package api

import (
	"context"
	"encoding/json"
	"net/url"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// SessionFilter says which sessions; empty fields: any.
type SessionFilter struct {
	Agent, Channel, User string
	States               []string
	Since, Until         time.Time
}

// Sessions lists, newest first.
func (c *Client) Sessions(ctx context.Context, f SessionFilter, most int) (List[view.Session], error) {
	return list[view.Session](ctx, c, path("sessions"), query(map[string][]string{
		"agent": {f.Agent}, "status": f.States, "channel": {f.Channel}, "channelUserId": {f.User}, "since": {moment(f.Since)}, "until": {moment(f.Until)},
	}), most)
}

// Session returns one.
func (c *Client) Session(ctx context.Context, id harness.SessionID) (Item[view.Session], error) {
	return get[view.Session](ctx, c, path("sessions", string(id)))
}

// Accepted says that a message is taken.
type Accepted struct {
	Session harness.SessionID `json:"session"`
	Message harness.MessageID `json:"message"`
}

// Start says text to an agent in a chat of its own, or in the one named chat.
// temporal, unless it is nil, is the Temporal workflow that is told of approvals.
func (c *Client) Start(ctx context.Context, agent, text, chat string, temporal *harness.TemporalLink) (Item[Accepted], error) {
	body := map[string]any{"agent": agent, "text": text}
	if chat != "" {
		body["chat"] = chat
	}
	if temporal != nil {
		body["temporal"] = temporal
	}
	item, _, err := post[Accepted](ctx, c, path("sessions"), body, keyed(time.Now()))
	return item, err
}

// StartRun starts a run of a workflow with an input, a JSON object; none: {}.
// temporal is as that of Start.
func (c *Client) StartRun(ctx context.Context, workflow string, input json.RawMessage, temporal *harness.TemporalLink) (Item[Accepted], error) {
	body := map[string]any{"workflow": workflow}
	if temporal != nil {
		body["temporal"] = temporal
	}
	if len(input) > 0 {
		body["input"] = input
	}
	item, _, err := post[Accepted](ctx, c, path("sessions"), body, keyed(time.Now()))
	return item, err
}

// Say says text in a session.
func (c *Client) Say(ctx context.Context, id harness.SessionID, text string) (Item[Accepted], error) {
	item, _, err := post[Accepted](ctx, c, path("sessions", string(id), "messages"), map[string]string{"text": text}, keyed(time.Now()))
	return item, err
}

// Messages lists, oldest first.
func (c *Client) Messages(ctx context.Context, id harness.SessionID, most int) (List[view.Message], error) {
	return list[view.Message](ctx, c, path("sessions", string(id), "messages"), nil, most)
}

// Timeline lists what happened, oldest first.
func (c *Client) Timeline(ctx context.Context, id harness.SessionID, most int) (List[view.Entry], error) {
	return list[view.Entry](ctx, c, path("sessions", string(id), "timeline"), nil, most)
}

// Cancel ends a session.
func (c *Client) Cancel(ctx context.Context, id harness.SessionID) (Item[view.Session], error) {
	item, _, err := post[view.Session](ctx, c, path("sessions", string(id), "cancel"), nil, nil)
	return item, err
}

// ApprovalFilter says which approvals; empty fields: any.
type ApprovalFilter struct {
	Agent, Session string
	States         []string
}

// Approvals lists, newest first.
func (c *Client) Approvals(ctx context.Context, f ApprovalFilter, most int) (List[view.Approval], error) {
	return list[view.Approval](ctx, c, path("approvals"), query(map[string][]string{"agent": {f.Agent}, "session": {f.Session}, "status": f.States}), most)
}

// Approval returns one.
func (c *Client) Approval(ctx context.Context, id harness.ApprovalID) (Item[view.Approval], error) {
	return get[view.Approval](ctx, c, path("approvals", string(id)))
}

// Decision is an answer. It counts for exactly what Digest says, and for nothing
// if that has changed.
type Decision struct {
	Decision  string                `json:"decision"` // APPROVE or REJECT
	Digest    string                `json:"digest"`
	Reason    string                `json:"reason,omitempty"`
	Scope     harness.ApprovalScope `json:"scope,omitempty"`
	Arguments any                   `json:"arguments,omitempty"` // approved instead of what was asked
}

// Decide answers one.
func (c *Client) Decide(ctx context.Context, id harness.ApprovalID, d Decision) (Item[view.Approval], error) {
	item, _, err := post[view.Approval](ctx, c, path("approvals", string(id), "decision"), d, nil)
	return item, err
}

// query leaves out what says nothing.
func query(parameters map[string][]string) url.Values {
	q := url.Values{}
	for name, values := range parameters {
		for _, v := range values {
			if v != "" {
				q.Add(name, v)
			}
		}
	}
	return q
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
