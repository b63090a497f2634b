package harness

// RemoteTool is a tool that a block of an agent gives beside the harness, and
// where its calls go. A call keeps the one that it was offered as: one that would
// go elsewhere by now, or by other settings, is not made.
type RemoteTool struct {
	Block    string `json:"block"`              // of the agent: mcpServers
	Server   string `json:"server,omitempty"`   // its name in the block
	Tool     string `json:"tool"`               // as the server names it
	URL      string `json:"url,omitempty"`      // where the call goes
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
