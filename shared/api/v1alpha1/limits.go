package v1alpha1

import (
	"net/netip"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Limits are the most an agent may ask for. They come from the platform, never
// from an agent.
type Limits struct {
	MaxTokens         int // of one answer
	SystemPromptBytes int
	CPUMillis         int64
	MemoryBytes       int64
	VolumeBytes       int64
	TimeoutSeconds    int // of one command
	TTLSeconds        int // of one sandbox
	Sandboxes         int // of one agent, at once
	Channels          int
	Senders           int // listed on one channel
	IdleTTL           time.Duration
	Budget            harness.Budget
	PhoneNumberID     string   // of the platform, for a WHATSAPP channel that names none
	Images            []string // where spec.harness.sandbox.image, and images of skills, may come from, like registry/team; none: from anywhere
	ImageRefs         []string // names of the platform's images, as of the ConfigMap sandbox-images; nil: the four of DefaultImageRefs

	// RuntimeClasses are those that spec.harness.sandbox.runtimeClassName may name;
	// none: none, for a class decides what keeps a sandbox from its node.
	RuntimeClasses []string

	// AllowPrivateEgress lets egressAllow list private and cluster ranges.
	// Loopback, link-local (a cloud's metadata service) and multicast stay refused.
	AllowPrivateEgress bool
	ClusterRanges      []netip.Prefix // of nodes, pods and services, where they are public addresses
}

// DefaultImageRefs are the images that every platform has.
func DefaultImageRefs() []string { return []string{"java", "python", "node", "golang"} }

// DefaultLimits are the limits of an install that sets none.
func DefaultLimits() Limits {
	return Limits{
		MaxTokens: 128_000, SystemPromptBytes: 64 << 10, CPUMillis: 4000, MemoryBytes: 8 << 30, VolumeBytes: 20 << 30,
		TimeoutSeconds: 3600, TTLSeconds: 24 * 3600, Sandboxes: 10, Channels: 20, Senders: 1000, IdleTTL: 30 * 24 * time.Hour,
		Budget: harness.Budget{MaxSteps: 1000, MaxToolCalls: 1000, MaxTokens: 50_000_000, MaxSeconds: 24 * 3600, MaxExecutions: 1000},
	}
}

// What an agent gets that asks for nothing, beside harness.DefaultSandbox and
// harness.DefaultBudget.
const (
	defaultMaxTokens       = 4096
	defaultMaxSandboxes    = 1
	defaultIdleTTL         = 24 * time.Hour
	defaultApprovalTimeout = time.Hour
)

// The least that makes sense.
const (
	minCPUMillis   = 10
	minMemoryBytes = 16 << 20
	minVolumeBytes = 1 << 20
	minIdleTTL     = time.Minute
)
