package harness

import (
	"slices"
	"time"
)

// BlockMCP is the block of an agent whose tools are those of MCP servers.
const BlockMCP = "mcpServers"

// MCPServer is a server of the Model Context Protocol whose tools an agent has.
type MCPServer struct {
	Name           string       `json:"name"`
	URL            string       `json:"url"`
	Headers        SecretRef    `json:"headersSecretRef,omitzero"` // one "Name: value" a line
	AllowedTools   []string     `json:"allowedTools,omitempty"`    // as the server names them; none: all of them
	Approvals      RemotePolicy `json:"approvals,omitempty"`       // empty: asAgent
	AlwaysAsk      []string     `json:"alwaysAsk,omitempty"`       // tools with a policy of their own
	NeverAsk       []string     `json:"neverAsk,omitempty"`
	TimeoutSeconds int          `json:"timeoutSeconds,omitempty"` // of one call; 0: a minute
}

// Timeout is the longest that one call may take.
func (s MCPServer) Timeout() time.Duration { return remoteTimeout(s.TimeoutSeconds) }

// Allows reports whether the agent may call a tool of the server.
func (s MCPServer) Allows(tool string) bool {
	return len(s.AllowedTools) == 0 || slices.Contains(s.AllowedTools, tool)
}

// Policy says whether a human is asked before a tool of the server is called.
func (s MCPServer) Policy(tool string) RemotePolicy {
	switch {
	case slices.Contains(s.AlwaysAsk, tool):
		return RemoteAlways
	case slices.Contains(s.NeverAsk, tool):
		return RemoteNever
	case s.Approvals == "":
		return RemoteAsAgent
	}
	return s.Approvals
}

// Remote is a tool of the server, as a call of it is offered. Its settings name
// the secret that goes with the call and whether a human is asked.
func (s MCPServer) Remote(tool string) RemoteTool {
	return RemoteTool{Block: BlockMCP, Server: s.Name, Tool: tool, URL: s.URL, Settings: digestOf(struct {
		Headers SecretRef
		Policy  RemotePolicy
	}{s.Headers, s.Policy(tool)})}
}

// Digest names the server's settings by their content.
func (s MCPServer) Digest() string { return digestOf(s) }
