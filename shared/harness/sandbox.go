package harness

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"
)

// SandboxState is how far one Sandbox has come.
type SandboxState string

// The states of a Sandbox.
const (
	SandboxCreating    SandboxState = "CREATING"    // its row exists; the object may or may not
	SandboxReady       SandboxState = "READY"       // takes commands
	SandboxTerminating SandboxState = "TERMINATING" // being deleted; still counts against the cap
	SandboxGone        SandboxState = "GONE"        // the object is proved absent; the reason says why
)

var sandboxTransitions = transitions[SandboxState]{
	SandboxCreating:    {SandboxReady, SandboxTerminating, SandboxGone},
	SandboxReady:       {SandboxTerminating, SandboxGone},
	SandboxTerminating: {SandboxGone},
	SandboxGone:        {},
}

// May reports whether a sandbox in state s may go to state to.
func (s SandboxState) May(to SandboxState) bool { return sandboxTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s SandboxState) Known() bool { return sandboxTransitions.known(s) }

// Egress says what a sandbox may reach.
type Egress string

// The egress policies.
const (
	EgressDefault   Egress = "default"   // public addresses only
	EgressNone      Egress = "none"      // nothing, not even DNS
	EgressAllowlist Egress = "allowlist" // only the CIDRs and ports listed
)

// EgressRule is one destination that a sandbox with EgressAllowlist may reach.
type EgressRule struct {
	CIDR  string `json:"cidr"`            // as in 203.0.113.0/24 or 2001:db8::/32
	Ports []int  `json:"ports,omitempty"` // of TCP; none: every port
}

// SandboxSpec says what sandbox an agent's commands run in. Its zero fields
// take the values of DefaultSandbox.
type SandboxSpec struct {
	Image          string   `json:"image,omitempty"`    // a full image reference; wins over ImageRef
	ImageRef       string   `json:"imageRef,omitempty"` // java, python, node or golang: an image of the platform
	Command        []string `json:"command,omitempty"`  // how a command text is run; default: sh -c
	CPUMillis      int64    `json:"cpuMillis"`          // thousandths of a core
	MemoryBytes    int64    `json:"memoryBytes"`
	TimeoutSeconds int      `json:"timeoutSeconds"` // of one command
	TTLSeconds     int      `json:"ttlSeconds"`     // of the sandbox, from its start
	IdleSeconds    int      `json:"idleSeconds"`    // without a command
	VolumeBytes    int64    `json:"volumeBytes"`    // of /workspace
	Workdir        string   `json:"workdir"`        // emptyDir or persistent
	Egress         Egress   `json:"egress"`

	EgressAllow []EgressRule `json:"egressAllow,omitempty"` // of EgressAllowlist

	KeepBackground bool   `json:"keepBackground"` // what a command leaves running survives it
	RuntimeClass   string `json:"runtimeClassName,omitempty"`
}

// DefaultSandbox is what an agent gets that asks for nothing.
func DefaultSandbox() SandboxSpec {
	return SandboxSpec{
		Command: []string{"sh", "-c"}, CPUMillis: 1000, MemoryBytes: 512 << 20, TimeoutSeconds: 300, TTLSeconds: 600,
		IdleSeconds: 300, VolumeBytes: 256 << 20, Workdir: "emptyDir", Egress: EgressDefault,
	}
}

// Timeout is the longest one command may run.
func (s SandboxSpec) Timeout() time.Duration { return time.Duration(s.TimeoutSeconds) * time.Second }

// Digest names the spec: two executions may share a sandbox only when their
// specs have one digest.
func (s SandboxSpec) Digest() string {
	text, err := json.Marshal(s)
	if err != nil { // a struct of plain values always marshals
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
