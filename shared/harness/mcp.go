package harness

import (
	"slices"
	"strings"
	"time"
)

// BlockMCP is the block of an agent whose tools are those of MCP servers.
const BlockMCP = "mcpServers"

// MCPServer is a server of the Model Context Protocol whose tools an agent has.
type MCPServer struct {
	Name           string       `json:"name"`
	URL            string       `json:"url"`                       // of Streamable HTTP; empty: it is a program
	Command        []string     `json:"command,omitempty"`         // of a program: it and its arguments
	Env            []EnvVar     `json:"env,omitempty"`             // of a program, by name
	Headers        SecretRef    `json:"headersSecretRef,omitzero"` // one "Name: value" a line
	AllowedTools   []string     `json:"allowedTools,omitempty"`    // as the server names them; none: all of them
	Approvals      RemotePolicy `json:"approvals,omitempty"`       // empty: asAgent
	AlwaysAsk      []string     `json:"alwaysAsk,omitempty"`       // tools with a policy of their own
	NeverAsk       []string     `json:"neverAsk,omitempty"`
	TimeoutSeconds int          `json:"timeoutSeconds,omitempty"` // of one call; 0: a minute
}

// EnvVar is a variable of the environment of a program. It is no secret.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Stdio reports whether the server is a program that runs in the sandbox of a
// session, for one call at a time, and not one that is reached by its URL.
func (s MCPServer) Stdio() bool { return len(s.Command) > 0 }

// Program is the server's program as a person would write it in a shell.
func (s MCPServer) Program() string {
	var words []string
	for _, v := range s.Env {
		words = append(words, v.Name+"="+word(v.Value))
	}
	for _, argument := range s.Command {
		words = append(words, word(argument))
	}
	return strings.Join(words, " ")
}

// word is text as one word of a shell.
func word(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@%+=:,./_-", r))
	}) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
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
	return RemoteTool{Block: BlockMCP, Server: s.Name, Tool: tool, URL: s.URL, Program: s.Program(), Settings: digestOf(struct {
		Headers SecretRef
		Policy  RemotePolicy
	}{s.Headers, s.Policy(tool)})}
}

// Digest names the server's settings by their content.
func (s MCPServer) Digest() string { return digestOf(s) }
