package v1alpha1

import (
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Status is how an agent stands, as agent-status last found it. Counts are of
// that moment; they are written at most every ten seconds.
type Status struct {
	// READY: the newest revision is in use. DEGRADED: it is in use, and a condition is False. INVALID: the newest text was refused, and an older revision may be in use.
	Phase harness.AgentPhase `json:"phase,omitempty"`
	// The generation of the spec that phase and conditions speak of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// The revision in use; 0: none.
	Revision int64 `json:"revision,omitempty"`
	// The sessions with a turn begun and not ended.
	// +optional
	ActiveSessions int `json:"activeSessions"`
	// The sandboxes that count against the cap.
	// +optional
	ActiveSandboxes int `json:"activeSandboxes"`
	// When the last command began.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Schemaless
	LastExecutionAt *time.Time `json:"lastExecutionAt,omitempty"`
	// How far the last command has come, or how it ended.
	LastExecutionStatus harness.ExecutionState `json:"lastExecutionStatus,omitempty"`
	// What is, or is not, as the agent needs it, each type once.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// WorkflowStatus is how a workflow stands.
type WorkflowStatus struct {
	// READY: the newest revision is in use. DEGRADED: it is in use, and a condition is False. INVALID: the newest text was refused, and an older revision may be in use.
	Phase harness.AgentPhase `json:"phase,omitempty"`
	// The generation of the spec that phase and conditions speak of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// The runs begun and not ended.
	// +optional
	ActiveSessions int `json:"activeSessions"`
	// What is, or is not, as the workflow needs it, each type once.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition is one thing that is, or is not, as the agent needs it. Its shape is
// that of metav1.Condition.
type Condition struct {
	// What it is about.
	// +kubebuilder:validation:MaxLength=316
	Type ConditionType `json:"type"`
	// Whether it holds.
	// +kubebuilder:validation:Enum=True;False;Unknown
	Status ConditionStatus `json:"status"`
	// Why, as a word in CamelCase, for machines.
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// What is wrong and how to mend it; empty when all is well.
	// +kubebuilder:validation:MaxLength=32768
	Message string `json:"message"`
	// The generation of the spec that it speaks of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// When status last changed.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Schemaless
	LastTransitionTime time.Time `json:"lastTransitionTime"`
}

// ConditionType names what a condition is about.
type ConditionType string

// The conditions of an agent. One that does not apply is left out.
const (
	ConditionReady     ConditionType = "Ready"            // all others are True
	ConditionAccepted  ConditionType = "Accepted"         // the spec is valid and its revision in use
	ConditionRouted    ConditionType = "Routed"           // every channel account is this agent's; else RouteConflict
	ConditionSecrets   ConditionType = "SecretsAvailable" // every Secret it names exists, has the key and is labelled for it
	ConditionSandboxes ConditionType = "SandboxAvailable" // its last sandbox came up
	ConditionSkills    ConditionType = "SkillsAvailable"  // the images that its skills are from gave them at the last look; else what they gave before is used
	ConditionRunning   ConditionType = "Running"          // False: it, or the whole install, is halted; left out else
	ConditionAgents    ConditionType = "AgentsAvailable"  // of a workflow: the agents that it names are there
)

// ConditionStatus says whether a condition holds.
type ConditionStatus string

// What a condition's status may be.
const (
	ConditionTrue    ConditionStatus = "True"
	ConditionFalse   ConditionStatus = "False"
	ConditionUnknown ConditionStatus = "Unknown" // nobody has found out yet
)
