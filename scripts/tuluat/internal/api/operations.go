package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// SandboxFilter says which sandboxes; empty fields: any.
type SandboxFilter struct {
	Agent, Session string
	States         []string
}

// Sandboxes lists, newest first.
func (c *Client) Sandboxes(ctx context.Context, f SandboxFilter, most int) (List[view.Sandbox], error) {
	return list[view.Sandbox](ctx, c, path("sandboxes"), query(map[string][]string{"agent": {f.Agent}, "session": {f.Session}, "status": f.States}), most)
}

// Sandbox returns one.
func (c *Client) Sandbox(ctx context.Context, id harness.SandboxID) (Item[view.Sandbox], error) {
	return get[view.Sandbox](ctx, c, path("sandboxes", string(id)))
}

// Terminate has a sandbox ended; it ends soon after.
func (c *Client) Terminate(ctx context.Context, id harness.SandboxID) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: path("sandboxes", string(id)), header: http.Header{"If-Match": {AnyVersion}}})
	return err
}

// ExecutionFilter says which executions; empty fields: any.
type ExecutionFilter struct {
	Agent, Session, Sandbox string
	States                  []string
	Since, Until            time.Time
}

// Executions lists, newest first.
func (c *Client) Executions(ctx context.Context, f ExecutionFilter, most int) (List[view.Execution], error) {
	return list[view.Execution](ctx, c, path("executions"), query(map[string][]string{
		"agent": {f.Agent}, "session": {f.Session}, "sandbox": {f.Sandbox}, "status": f.States, "since": {moment(f.Since)}, "until": {moment(f.Until)},
	}), most)
}

// Run has a command run in a sandbox.
func (c *Client) Run(ctx context.Context, id harness.SandboxID, command string) (Item[view.Execution], error) {
	item, _, err := post[view.Execution](ctx, c, path("sandboxes", string(id), "executions"), map[string]string{"command": command}, keyed(time.Now()))
	return item, err
}

// Execution returns one.
func (c *Client) Execution(ctx context.Context, id harness.ExecutionID) (Item[view.Execution], error) {
	return get[view.Execution](ctx, c, path("executions", string(id)))
}

// Output returns what a command printed to a stream from offset on, as much as
// the server gives at once.
func (c *Client) Output(ctx context.Context, id harness.ExecutionID, stream string, offset int64) (view.Output, error) {
	o, _, err := decode[view.Output](c.do(ctx, call{
		method: http.MethodGet, path: path("executions", string(id), "output"), repeatable: true,
		query: url.Values{"stream": {stream}, "offset": {strconv.FormatInt(offset, 10)}},
	}))
	if err == nil && (o.Next < offset || o.Next-o.Offset < int64(len(o.Data))) {
		err = fmt.Errorf("%w (the output goes backwards)", errForeign)
	}
	return o, err
}

// DeadLetterFilter says which dead letters; empty fields: any.
type DeadLetterFilter struct {
	Type   string
	States []string
}

// DeadLetters lists, newest first.
func (c *Client) DeadLetters(ctx context.Context, f DeadLetterFilter, most int) (List[view.DeadLetter], error) {
	return list[view.DeadLetter](ctx, c, path("deadletters"), query(map[string][]string{"type": {f.Type}, "status": f.States}), most)
}

// DeadLetter returns one.
func (c *Client) DeadLetter(ctx context.Context, id string) (Item[view.DeadLetter], error) {
	return get[view.DeadLetter](ctx, c, path("deadletters", id))
}

// Replay announces it once more: what it was about is done if it is still due.
func (c *Client) Replay(ctx context.Context, id string) (Item[view.DeadLetter], error) {
	item, _, err := post[view.DeadLetter](ctx, c, path("deadletters", id, "replay"), nil, nil)
	return item, err
}

// Discard puts it aside.
func (c *Client) Discard(ctx context.Context, id string) (Item[view.DeadLetter], error) {
	item, _, err := post[view.DeadLetter](ctx, c, path("deadletters", id, "discard"), nil, nil)
	return item, err
}

// LogFilter says which log entries; empty fields: any.
type LogFilter struct {
	Agent, Session, Text string
	Levels               []string
	Since, Until         time.Time
	Follow               bool   // answer with a mark
	Mark                 string // of the answer before: all that may be new since then
}

// Logs lists, newest first. Who follows hands the mark of the list back the next
// time, and knows by the ids what they have had.
func (c *Client) Logs(ctx context.Context, f LogFilter, most int) (List[view.LogEntry], error) {
	at, agent := path("logs"), f.Agent
	if agent != "" { // one that does not exist is said so
		at, agent = path(Agents.plural, agent, "logs"), ""
	}
	return list[view.LogEntry](ctx, c, at, query(map[string][]string{
		"agent": {agent}, "session": {f.Session}, "level": f.Levels, "text": {f.Text}, "since": {moment(f.Since)}, "until": {moment(f.Until)},
		"follow": {map[bool]string{true: "true"}[f.Follow]}, "mark": {f.Mark},
	}), most)
}

// AuditFilter says which writes; empty fields: any.
type AuditFilter struct {
	Actor, Object string
	Since         time.Time
}

// Audit lists writes through the API, newest first.
func (c *Client) Audit(ctx context.Context, f AuditFilter, most int) (List[view.AuditEntry], error) {
	return list[view.AuditEntry](ctx, c, path("audit"), query(map[string][]string{"actor": {f.Actor}, "object": {f.Object}, "since": {moment(f.Since)}}), most)
}

// Caller is who the API takes us for.
type Caller struct {
	Name   string   `json:"name"`
	Groups []string `json:"groups"`
}

// WhoAmI says who the API takes us for.
func (c *Client) WhoAmI(ctx context.Context) (Item[Caller], error) {
	return get[Caller](ctx, c, path("whoami"))
}

// Version says which version the system is of, as the API words it.
func (c *Client) Version(ctx context.Context) (json.RawMessage, error) {
	item, err := get[map[string]any](ctx, c, path("version"))
	return item.Raw, err
}
