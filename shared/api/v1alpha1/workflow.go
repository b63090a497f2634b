package v1alpha1

import "tuluat.ai/harness/shared/harness"

// AiWorkflow is one workflow.
type AiWorkflow struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   Metadata     `json:"metadata"`
	Spec       WorkflowSpec `json:"spec"`
}

// WorkflowSpec is what a workflow is: nodes, and the edges that a run follows
// from its first node to an END.
//
// +kubebuilder:validation:XValidation:rule="!has(self.start) || self.nodes.exists(n, n.id == self.start)",message="start names no node: use the id of one",fieldPath=".start"
// +kubebuilder:validation:XValidation:rule="self.nodes.exists(n, n.type == 'END')",message="has no node of type END, so a run could never end: add one",fieldPath=".nodes"
// +kubebuilder:validation:XValidation:rule="!has(self.edges) || self.edges.all(e, self.nodes.exists(n, n.id == e.from) && self.nodes.exists(n, n.id == e.to))",message="an edge names no node: use the ids of nodes in from and to",fieldPath=".edges"
// +kubebuilder:validation:XValidation:rule="!has(self.edges) || self.edges.all(e, self.nodes.all(n, n.id != e.from || n.type != 'END'))",message="an edge leaves a node of type END, which ends the run: remove it",fieldPath=".edges"
type WorkflowSpec struct {
	// What the workflow is for, in a sentence.
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
	// The members that a run's input has. Without it, any object is taken.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Inputs []Input `json:"inputs,omitempty"`
	// What starts runs by itself. Runs are started by the API in any case.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Triggers []Trigger `json:"triggers,omitempty"`
	// The most visits of nodes that one run may make: one that loops longer FAILED.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=100
	MaxVisits *int `json:"maxVisits,omitempty"`
	// The id of the node at which a run begins. Without it, the first of nodes.
	Start Name `json:"start,omitempty"`
	// What is done, each node with an id of its own.
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Nodes []Node `json:"nodes"`
	// What follows what. When a node has ended, each of its edges whose condition holds is followed; several make parallel branches.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Edges []Edge `json:"edges,omitempty"`
}

// Node is one thing that is done. Each type has fields of its own. Texts may
// hold CEL expressions, as in ${nodes.build.stdout}; $${ is a plain ${.
//
// +kubebuilder:validation:XValidation:rule="(self.type in ['AGENT', 'SHELL']) == has(self.agent)",message="agent goes with types AGENT, whom it asks, and SHELL, in whose sandbox it runs: set it there, and nowhere else"
// +kubebuilder:validation:XValidation:rule="(self.type == 'AGENT') == has(self.prompt)",message="prompt goes with type AGENT: set both, or neither"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SHELL') == has(self.command)",message="command goes with type SHELL: set both, or neither"
// +kubebuilder:validation:XValidation:rule="self.type != 'END' || !has(self.timeoutSeconds)",message="timeoutSeconds is of every type but END: remove it, or change type"
// +kubebuilder:validation:XValidation:rule="self.type in ['AGENT', 'SHELL'] || !has(self.retries)",message="retries are of types AGENT and SHELL: remove them, or change type"
// +kubebuilder:validation:XValidation:rule="(self.type in ['APPROVAL', 'REPLY']) == has(self.text)",message="text goes with types APPROVAL, which asks it, and REPLY, which sends it: set it there, and nowhere else"
// +kubebuilder:validation:XValidation:rule="self.type == 'APPROVAL' || !has(self.approval)",message="approval is of type APPROVAL: remove it, or change type"
// +kubebuilder:validation:XValidation:rule="self.type == 'END' || !has(self.state)",message="state is of type END: remove it, or change type"
type Node struct {
	// What edges and expressions know it by.
	ID Name `json:"id"`
	// AGENT: asks an agent. SHELL: runs a command. APPROVAL: asks a human. REPLY: sends a text. END: ends the run.
	// +kubebuilder:validation:Enum=AGENT;SHELL;APPROVAL;REPLY;END
	Type harness.NodeType `json:"type"`
	// AGENT: the AiAgent that is asked. SHELL: the AiAgent whose sandbox the command runs in.
	Agent Name `json:"agent,omitempty"`
	// AGENT: what it is asked.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Prompt string `json:"prompt,omitempty"`
	// SHELL: the command, of a POSIX shell. Expressions that are texts stand in double quotes: their values become variables, never part of the command.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Command string `json:"command,omitempty"`
	// The longest one attempt may take; of SHELL, the longest the command may run. After it the node has FAILED, or is tried again. Without it, what the agent's budget or sandbox or the approval says.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TimeoutSeconds *int `json:"timeoutSeconds,omitempty"`
	// AGENT, SHELL: how often it is tried again when it failed or took too long, whatever it may have done by then.
	Retries *Retries `json:"retries,omitempty"`
	// When it starts if several edges lead to it. any: at each arrival, each time anew; the default. all: once, when nothing that is open can lead to it any more.
	// +kubebuilder:validation:Enum=any;all
	// +kubebuilder:default=any
	Join harness.Join `json:"join,omitempty"`
	// APPROVAL: the question. REPLY: what is sent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Text string `json:"text,omitempty"`
	// APPROVAL: who decides, and until when.
	Approval *ApprovalTerms `json:"approval,omitempty"`
	// END: how the run ended. Without it, COMPLETED.
	// +kubebuilder:validation:Enum=COMPLETED;FAILED
	State harness.SessionState `json:"state,omitempty"`
}

// Retries say how often a node is tried again.
type Retries struct {
	// The most attempts after the first.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Max int `json:"max"`
	// How long it waits before the second attempt; before each further, twice as long as before.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=10
	BackoffSeconds *int `json:"backoffSeconds,omitempty"`
}

// Input is one member of a run's input.
type Input struct {
	// What expressions know it by, as in input.service.
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_]{0,62}$`
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// What it is.
	// +kubebuilder:validation:Enum=string;integer;number;boolean;object;list
	Type harness.InputType `json:"type"`
	// A run without it is refused.
	Required bool `json:"required,omitempty"`
	// What it is for, in a sentence.
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
}

// Trigger starts runs by itself. Each type has fields of its own.
//
// +kubebuilder:validation:XValidation:rule="(self.type == 'CHANNEL') == has(self.agent)",message="agent goes with type CHANNEL, to whom the message is: set both, or neither"
// +kubebuilder:validation:XValidation:rule="(self.type == 'CHANNEL') == has(self.pattern)",message="pattern goes with type CHANNEL: set both, or neither"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SCHEDULE') == has(self.schedule)",message="schedule goes with type SCHEDULE: set both, or neither"
// +kubebuilder:validation:XValidation:rule="self.type == 'SCHEDULE' || !has(self.timeZone)",message="timeZone is of type SCHEDULE: remove it, or change type"
type Trigger struct {
	// CHANNEL: a message to an agent. SCHEDULE: the clock.
	// +kubebuilder:validation:Enum=CHANNEL;SCHEDULE
	Type harness.TriggerType `json:"type"`
	// CHANNEL: the AiAgent to whom the message is. The agent does not see a message that starts a run.
	Agent Name `json:"agent,omitempty"`
	// CHANNEL: a regular expression in RE2 syntax that must find something in the message. Its named groups are the run's input; all groups are in message.match.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1000
	Pattern string `json:"pattern,omitempty"`
	// SCHEDULE: when, as cron has it: minute, hour, day, month and day of the week. A time that passed while nothing ran is made up for once.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=100
	Schedule string `json:"schedule,omitempty"`
	// SCHEDULE: the time zone, as in Europe/Berlin. Without it, UTC.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// Edge leads from a node that has ended to one that follows.
type Edge struct {
	// The id of the node that has ended.
	From Name `json:"from"`
	// The id of the node that follows.
	To Name `json:"to"`
	// The condition, in CEL, as in nodes.build.exitCode == 0. Without it, the edge is followed when the node did what it is for: not when it FAILED, and of APPROVAL only when it was APPROVED.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	When string `json:"when,omitempty"`
}
