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
	// The id of the node at which a run begins. Without it, the first of nodes.
	Start Name `json:"start,omitempty"`
	// What is done, each node with an id of its own.
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Nodes []Node `json:"nodes"`
	// What follows what. When a node is done, each of its edges whose condition holds is followed; several make parallel branches.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Edges []Edge `json:"edges,omitempty"`
}

// NodeType is what a node does.
type NodeType string

// The types of nodes.
const (
	NodeAgent    NodeType = "AGENT"    // an agent is asked
	NodeShell    NodeType = "SHELL"    // a command runs in an agent's sandbox
	NodeApproval NodeType = "APPROVAL" // a human is asked
	NodeReply    NodeType = "REPLY"    // a text is sent to where the run was started from
	NodeEnd      NodeType = "END"      // the run ends
)

// Node is one thing that is done. Each type has fields of its own. Texts may
// hold CEL expressions, as in ${nodes.build.output}.
//
// +kubebuilder:validation:XValidation:rule="(self.type in ['AGENT', 'SHELL']) == has(self.agent)",message="agent goes with types AGENT, whom it asks, and SHELL, in whose sandbox it runs: set it there, and nowhere else"
// +kubebuilder:validation:XValidation:rule="(self.type == 'AGENT') == has(self.prompt)",message="prompt goes with type AGENT: set both, or neither"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SHELL') == has(self.command)",message="command goes with type SHELL: set both, or neither"
// +kubebuilder:validation:XValidation:rule="self.type == 'SHELL' || !has(self.timeoutSeconds)",message="timeoutSeconds is of type SHELL: remove it, or change type"
// +kubebuilder:validation:XValidation:rule="(self.type in ['APPROVAL', 'REPLY']) == has(self.text)",message="text goes with types APPROVAL, which asks it, and REPLY, which sends it: set it there, and nowhere else"
// +kubebuilder:validation:XValidation:rule="self.type == 'APPROVAL' || !has(self.approval)",message="approval is of type APPROVAL: remove it, or change type"
// +kubebuilder:validation:XValidation:rule="self.type == 'END' || !has(self.state)",message="state is of type END: remove it, or change type"
type Node struct {
	// What edges and expressions know it by.
	ID Name `json:"id"`
	// AGENT: asks an agent. SHELL: runs a command. APPROVAL: asks a human. REPLY: sends a text. END: ends the run.
	// +kubebuilder:validation:Enum=AGENT;SHELL;APPROVAL;REPLY;END
	Type NodeType `json:"type"`
	// AGENT: the AiAgent that is asked. SHELL: the AiAgent whose sandbox the command runs in.
	Agent Name `json:"agent,omitempty"`
	// AGENT: what it is asked.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Prompt string `json:"prompt,omitempty"`
	// SHELL: the command.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Command string `json:"command,omitempty"`
	// SHELL: the longest it may run. Without it, what the agent's sandbox says.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TimeoutSeconds *int `json:"timeoutSeconds,omitempty"`
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

// Edge leads from a node that is done to one that follows.
type Edge struct {
	// The id of the node that is done.
	From Name `json:"from"`
	// The id of the node that follows.
	To Name `json:"to"`
	// The condition, in CEL, as in nodes.build.exitCode == 0. Without it, the edge is always followed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	When string `json:"when,omitempty"`
}
