package harness

import "time"

// BlockA2A is the block of an agent whose tools are to ask other agents, by the
// Agent2Agent protocol.
const BlockA2A = "a2a"

// Peer is another agent that an agent may ask.
type Peer struct {
	Name           string       `json:"name"`
	URL            string       `json:"url"`                       // of its agent card, or what lies above the well-known path of one
	Description    string       `json:"description,omitempty"`     // what to ask it; empty: what its card says
	Headers        SecretRef    `json:"headersSecretRef,omitzero"` // one "Name: value" a line
	Approvals      RemotePolicy `json:"approvals,omitempty"`       // empty: asAgent
	TimeoutSeconds int          `json:"timeoutSeconds,omitempty"`  // of one call; 0: a minute
}

// Timeout is the longest that one call may take.
func (p Peer) Timeout() time.Duration { return remoteTimeout(p.TimeoutSeconds) }

// Policy says whether a human is asked before a call.
func (p Peer) Policy() RemotePolicy {
	if p.Approvals == "" {
		return RemoteAsAgent
	}
	return p.Approvals
}

// Remote is a tool that asks the peer, as a call of it is offered. Its settings
// name the secret that goes with the call and whether a human is asked.
func (p Peer) Remote(tool string) RemoteTool {
	return RemoteTool{Block: BlockA2A, Server: p.Name, Tool: tool, URL: p.URL, Settings: digestOf(struct {
		Headers SecretRef
		Policy  RemotePolicy
	}{p.Headers, p.Policy()})}
}

// Digest names the peer's settings by their content.
func (p Peer) Digest() string { return digestOf(p) }
