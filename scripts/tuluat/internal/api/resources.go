package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Kind is a kind of resource: what its objects say, and where the API has them.
type Kind struct {
	Name   string // as objects say it
	Noun   string // as people say it
	plural string
}

// The kinds.
var (
	Agents    = Kind{"AiAgent", "agent", "agents"}
	Workflows = Kind{"AiWorkflow", "workflow", "workflows"}
)

// Object is an agent or a workflow. The status is an agent's; a workflow's has
// a part of its fields.
type Object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   Metadata        `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
	Status     Status          `json:"status"`
}

// Status is that of v1alpha1, which brings all that validates resources.
type Status struct {
	Phase               harness.AgentPhase     `json:"phase"`
	ObservedGeneration  int64                  `json:"observedGeneration"`
	Revision            int64                  `json:"revision"`
	ActiveSessions      int                    `json:"activeSessions"`
	ActiveSandboxes     int                    `json:"activeSandboxes"`
	LastExecutionAt     *time.Time             `json:"lastExecutionAt"`
	LastExecutionStatus harness.ExecutionState `json:"lastExecutionStatus"`
	Conditions          []Condition            `json:"conditions"`
}

// Condition is one thing that is, or is not, as an object needs it.
type Condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	ObservedGeneration int64     `json:"observedGeneration"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
}

// Metadata is what of an object's metadata is looked at here.
type Metadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	Generation        int64             `json:"generation"`
	ResourceVersion   string            `json:"resourceVersion"`
	CreationTimestamp time.Time         `json:"creationTimestamp"`
}

// Document is an object as somebody wrote it. As YAML it keeps its comments where
// resources are kept in files.
type Document struct {
	Type string // application/yaml or application/json
	Text []byte
}

// AnyVersion is the version of whoever does not care.
const AnyVersion = "*"

// Version is what If-Match takes.
func (o Object) Version() string { return `"` + o.Metadata.ResourceVersion + `"` }

// Objects lists by name those in one of the phases, or all.
func (c *Client) Objects(ctx context.Context, kind Kind, phases []string, most int) (List[Object], error) {
	return list[Object](ctx, c, path(kind.plural), url.Values{"status": phases}, most)
}

// Object returns one.
func (c *Client) Object(ctx context.Context, kind Kind, name string) (Item[Object], error) {
	return versioned(c.do(ctx, call{method: http.MethodGet, path: path(kind.plural, name), repeatable: true}))
}

// Create makes one, once, also where the answer is lost. A dry run only says what
// would come of it.
func (c *Client) Create(ctx context.Context, kind Kind, d Document, dryRun bool) (Item[Object], error) {
	return versioned(c.do(ctx, call{
		method: http.MethodPost, path: path(kind.plural), query: dry(dryRun), document: d, header: keyed(time.Now()), repeatable: true,
	}))
}

// Update puts d in the place of the one of that version.
func (c *Client) Update(ctx context.Context, kind Kind, name, version string, d Document, dryRun bool) (Item[Object], error) {
	return versioned(c.do(ctx, call{
		method: http.MethodPut, path: path(kind.plural, name), query: dry(dryRun), document: d, header: http.Header{"If-Match": {version}}, repeatable: dryRun,
	}))
}

// Delete takes the one of that version away.
func (c *Client) Delete(ctx context.Context, kind Kind, name, version string) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: path(kind.plural, name), header: http.Header{"If-Match": {version}}})
	return err
}

// SetFeatures switches blocks of an agent on or off.
func (c *Client) SetFeatures(ctx context.Context, agent string, features map[string]bool) (Item[Object], error) {
	return versioned(c.do(ctx, call{
		method: http.MethodPatch, path: path(Agents.plural, agent, "features"), body: features,
		header: http.Header{"If-Match": {AnyVersion}}, repeatable: true,
	}))
}

func dry(run bool) url.Values {
	if run {
		return url.Values{"dryRun": {"true"}}
	}
	return nil
}

// versioned reads an object. Without a version in it, it has that of its ETag.
func versioned(a answer, err error) (Item[Object], error) {
	item, a, err := decode[Item[Object]](a, err)
	if tag := a.header.Get("ETag"); err == nil && tag != "" && item.View.Metadata.ResourceVersion == "" {
		item.View.Metadata.ResourceVersion = untag(tag)
	}
	return item, err
}

func untag(tag string) string {
	if len(tag) > 1 && tag[0] == '"' && tag[len(tag)-1] == '"' {
		return tag[1 : len(tag)-1]
	}
	return tag
}

// Channels lists our sides of channels.
func (c *Client) Channels(ctx context.Context, most int) (List[view.ChannelAccount], error) {
	return list[view.ChannelAccount](ctx, c, path("channels"), nil, most)
}

// AgentSandboxes lists an agent's sandboxes, newest first.
func (c *Client) AgentSandboxes(ctx context.Context, agent harness.AgentName, most int) (List[view.Sandbox], error) {
	return list[view.Sandbox](ctx, c, path(Agents.plural, string(agent), "sandboxes"), nil, most)
}
