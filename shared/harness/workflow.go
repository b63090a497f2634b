package harness

import (
	"encoding/json"
	"time"
)

// WorkflowName is the name of an AiWorkflow resource.
type WorkflowName string

// VisitID names one visit of a node by a run.
type VisitID string

// NewVisitID returns a fresh VisitID.
func NewVisitID(now time.Time) VisitID { return VisitID(NewID("vis", now)) }

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

// Join is when a node starts to which several edges lead.
type Join string

// The joins.
const (
	JoinAny Join = "any" // at each arrival, with a visit for each
	JoinAll Join = "all" // once, when nothing that is open can lead to it any more
)

// TriggerType is what starts a run by itself.
type TriggerType string

// The types of triggers.
const (
	TriggerChannel  TriggerType = "CHANNEL"  // a message to an agent
	TriggerSchedule TriggerType = "SCHEDULE" // the clock
)

// InputType is the type of an input of a workflow.
type InputType string

// The types of inputs.
const (
	InputString  InputType = "string"
	InputInteger InputType = "integer"
	InputNumber  InputType = "number"
	InputBoolean InputType = "boolean"
	InputObject  InputType = "object"
	InputList    InputType = "list"
)

// Workflow is what an AiWorkflow resource says, validated and with its defaults
// filled in. A run keeps the revision that it started with; revisions never
// change.
type Workflow struct {
	Name        WorkflowName    `json:"name"`
	Description string          `json:"description,omitempty"`
	Start       string          `json:"start"`     // the node at which a run begins
	MaxVisits   int             `json:"maxVisits"` // of one run
	Inputs      []WorkflowInput `json:"inputs,omitempty"`
	Nodes       []Node          `json:"nodes"`
	Edges       []Edge          `json:"edges,omitempty"`
	Triggers    []Trigger       `json:"triggers,omitempty"`
}

// WorkflowInput is one member of a run's input. A workflow without any takes
// every object.
type WorkflowInput struct {
	Name     string    `json:"name"`
	Type     InputType `json:"type"`
	Required bool      `json:"required,omitempty"`
}

// Node is one thing that a workflow does.
type Node struct {
	ID             string         `json:"id"`
	Type           NodeType       `json:"type"`
	Agent          AgentName      `json:"agent,omitempty"`          // AGENT, SHELL
	Prompt         string         `json:"prompt,omitempty"`         // AGENT
	Command        string         `json:"command,omitempty"`        // SHELL
	Text           string         `json:"text,omitempty"`           // APPROVAL, REPLY
	Approval       *ApprovalTerms `json:"approval,omitempty"`       // APPROVAL
	State          SessionState   `json:"state,omitempty"`          // END: COMPLETED or FAILED
	Join           Join           `json:"join,omitempty"`           // empty: any
	TimeoutSeconds int            `json:"timeoutSeconds,omitempty"` // of one attempt; 0: none of the node's own
	Retries        Retries        `json:"retries,omitzero"`         // AGENT, SHELL
}

// Retries say how often a node is tried again that failed.
type Retries struct {
	Max            int `json:"max"`
	BackoffSeconds int `json:"backoffSeconds"` // before the first; doubled before each further
}

// Edge leads from a node that has ended to one that follows.
type Edge struct {
	From string `json:"from"`
	To   string `json:"to"`
	When string `json:"when,omitempty"` // in CEL; empty: always, when the node did what it is for
}

// Trigger starts runs by itself.
type Trigger struct {
	Type     TriggerType `json:"type"`
	Agent    AgentName   `json:"agent,omitempty"`    // CHANNEL: to which the message is
	Pattern  string      `json:"pattern,omitempty"`  // CHANNEL: RE2 that must find something in its text
	Schedule string      `json:"schedule,omitempty"` // SCHEDULE: cron, five fields
	TimeZone string      `json:"timeZone,omitempty"` // SCHEDULE: of the IANA database; empty: UTC
}

// Started is what started a run, as its expressions see it. A run that nobody
// wrote a message for has an empty one.
type Started struct {
	Type          TriggerType       `json:"type,omitempty"` // empty: somebody asked for the run itself
	Text          string            `json:"text,omitempty"`
	ChannelUserID string            `json:"channelUserId,omitempty"`
	Metadata      json.RawMessage   `json:"metadata,omitempty"`
	Match         map[string]string `json:"match,omitempty"` // groups of the pattern, by number and by name
}

// VisitState is how far one visit of a node has come.
type VisitState string

// The states of a visit.
const (
	VisitPending   VisitState = "PENDING"   // is to start: when all that it joins is there, or when its retry is due
	VisitRunning   VisitState = "RUNNING"   // an agent or a command is at work
	VisitWaiting   VisitState = "WAITING"   // a human must decide
	VisitDone      VisitState = "DONE"      // did what it is for; its output says how that went
	VisitFailed    VisitState = "FAILED"    // could not do it, retries included
	VisitCancelled VisitState = "CANCELLED" // the run ended before it
)

var visitTransitions = transitions[VisitState]{
	VisitPending:   {VisitRunning, VisitWaiting, VisitDone, VisitFailed, VisitCancelled},
	VisitRunning:   {VisitPending, VisitDone, VisitFailed, VisitCancelled},
	VisitWaiting:   {VisitDone, VisitFailed, VisitCancelled},
	VisitDone:      {},
	VisitFailed:    {},
	VisitCancelled: {},
}

// May reports whether a visit in state s may go to state to.
func (s VisitState) May(to VisitState) bool { return visitTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s VisitState) Known() bool { return visitTransitions.known(s) }

// Ended reports whether the visit's outcome is final.
func (s VisitState) Ended() bool { return visitTransitions.terminal(s) }
