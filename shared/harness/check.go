package harness

// SecretState is whether a Secret that an agent names can be used, as the
// function that needs it has found.
type SecretState string

// The states of a Secret.
const (
	SecretAvailable SecretState = "AVAILABLE" // it is there, has the key, and the agent may have it
	SecretNotFound  SecretState = "NOT_FOUND" // there is none, or none that says who may have it
	SecretDenied    SecretState = "DENIED"    // it is there for other agents
	SecretEmpty     SecretState = "EMPTY"     // it has no such key, or nothing in it
)

// SecretCheck is what a function found of one Secret that an agent names. It
// holds nothing of the value.
type SecretCheck struct {
	Agent  AgentName
	Ref    SecretRef
	State  SecretState
	Reason string // for people: what to mend; empty when it is available
}
