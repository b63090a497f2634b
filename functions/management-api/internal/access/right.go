package access

import (
	"context"

	"tuluat.ai/harness/shared/harness"
)

// Group is the API group of every resource a Right names.
const Group = "tuluat.ai"

// Verbs of a Right: those of Kubernetes, and ours.
const (
	Get    = "get"
	List   = "list"
	Watch  = "watch" // of sessions and approvals: the stream of events
	Create = "create"
	Update = "update" // of sessions: a message to it; of channels: where updates are sent
	Patch  = "patch"
	Delete = "delete" // of sandboxes: terminate; of deadletters: discard
	Decide = "decide" // of approvals
	Exec   = "exec"   // of sandboxes: run a command
	Replay = "replay" // of deadletters
	Cancel = "cancel" // of sessions
	Halt   = "halt"   // of aiagents: the kill switch, and, of all of them, that of the install

	Forget = "forget" // of people: delete what is of one

	Takeover = "takeover" // of sessions: answer in the agent's place
)

// Resources of a Right.
const (
	Agents        = "aiagents"
	AgentFeatures = "aiagents/features"
	Workflows     = "aiworkflows"
	Sessions      = "sessions"
	Approvals     = "approvals"
	Sandboxes     = "sandboxes"
	Executions    = "executions"
	Logs          = "logs"
	Archives      = "logs/archive"
	DeadLetters   = "deadletters"
	Channels      = "channels"
	Audits        = "audits"
	People        = "people"
	Leaks         = "leaks" // and how the sweep goes that looks for them
)

// Right is a verb on a resource of group tuluat.ai in the agents namespace.
type Right struct {
	Verb     string
	Resource string
	Name     string // of the one resource; "" where it is about all of them
}

// String spells the right as a Role does, as in "list sessions.tuluat.ai".
func (r Right) String() string { return r.Verb + " " + r.Resource + "." + Group }

// Caller is who is calling.
type Caller struct {
	Name   string
	Groups []string
	Static bool // known by a token of a file, not by the API server

	uid   string
	extra map[string][]string
	role  string // of a static caller
}

// Access knows callers and their rights. Both methods fail with Unavailable when
// nobody can be asked; then nothing is allowed.
type Access interface {
	// Identify returns whose token it is; Denied if it is nobody's.
	Identify(ctx context.Context, token string) (Caller, error)
	Allow(ctx context.Context, c Caller, r Right) (bool, error)
}

// Check returns nil when the caller of ctx has the right, else Denied with the
// right that is missing, or Unavailable.
func Check(ctx context.Context, a Access, r Right) error {
	caller, ok := From(ctx)
	if !ok {
		return harness.Errorf(harness.Denied, "nobody is known to be calling: %s is needed", r)
	}
	allowed, err := a.Allow(ctx, caller, r)
	if err != nil {
		return err
	}
	if !allowed {
		return harness.Errorf(harness.Denied, "%s may not %s", caller.Name, r)
	}
	return nil
}
