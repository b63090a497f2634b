package harness

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"
)

// RemoteTool is a tool that a block of an agent gives beside the harness, and
// where its calls go. A call keeps the one that it was offered as: one that would
// go elsewhere by now, or by other settings, is not made.
type RemoteTool struct {
	Block    string `json:"block"`              // of the agent: mcpServers or a2a
	Server   string `json:"server,omitempty"`   // its name in the block
	Tool     string `json:"tool"`               // as the server, or the block, names it
	URL      string `json:"url,omitempty"`      // where the call goes
	Program  string `json:"program,omitempty"`  // that a call runs in the sandbox, as a shell would have it; empty: none
	Settings string `json:"settings,omitempty"` // names, by their content, the settings that matter to the call
}

// RemotePolicy says whether a human is asked before a remote tool is called.
type RemotePolicy string

// The policies of remote tools.
const (
	RemoteAsAgent RemotePolicy = "asAgent" // as the agent's block approvals says; nobody without one
	RemoteAlways  RemotePolicy = "always"  // before each call, also by an agent without that block
	RemoteNever   RemotePolicy = "never"
)

// MaxRemoteTimeout is the longest that one call may take: it has to end within the
// request that makes it.
const MaxRemoteTimeout = 180 * time.Second

// remoteTimeout is the longest that one call may take, where a server says so.
func remoteTimeout(seconds int) time.Duration {
	if seconds == 0 {
		return time.Minute
	}
	return min(time.Duration(seconds)*time.Second, MaxRemoteTimeout)
}

// digestOf names plain by its content.
func digestOf(plain any) string {
	text, err := json.Marshal(plain)
	if err != nil { // plain values
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// ServerSecrets are the secrets that go with calls to the agent's MCP servers and
// peers, each once.
func (a Agent) ServerSecrets() []SecretRef {
	var refs []SecretRef
	add := func(ref SecretRef) {
		if ref != (SecretRef{}) && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	for _, server := range a.MCPServers {
		add(server.Headers)
	}
	for _, peer := range a.Peers {
		add(peer.Headers)
	}
	return refs
}
