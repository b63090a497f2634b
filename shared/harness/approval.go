package harness

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"
)

// ApprovalState is what became of one question to a human.
type ApprovalState string

// The states of an Approval.
const (
	ApprovalPending   ApprovalState = "PENDING"
	ApprovalApproved  ApprovalState = "APPROVED"
	ApprovalRejected  ApprovalState = "REJECTED"
	ApprovalExpired   ApprovalState = "EXPIRED"
	ApprovalCancelled ApprovalState = "CANCELLED"
)

var approvalTransitions = transitions[ApprovalState]{
	ApprovalPending:   {ApprovalApproved, ApprovalRejected, ApprovalExpired, ApprovalCancelled},
	ApprovalApproved:  {},
	ApprovalRejected:  {},
	ApprovalExpired:   {},
	ApprovalCancelled: {},
}

// May reports whether an approval in state s may go to state to.
func (s ApprovalState) May(to ApprovalState) bool { return approvalTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s ApprovalState) Known() bool { return approvalTransitions.known(s) }

// ApprovalScope is how far a decision to approve reaches.
type ApprovalScope string

// The scopes of a decision. SESSION and ALWAYS cover exactly the same again: one
// digest.
const (
	GrantOnce    ApprovalScope = "ONCE"    // what was asked, this time
	GrantSession ApprovalScope = "SESSION" // and again in the same session
	GrantAlways  ApprovalScope = "ALWAYS"  // and again in every session of the agent
)

// ApprovalPolicy says which calls a human is asked about.
type ApprovalPolicy string

// The approval policies.
const (
	ApproveAlways  ApprovalPolicy = "always"  // every call
	ApproveNever   ApprovalPolicy = "never"   // none but those that a guardrail or a limit asks about
	ApproveByTool  ApprovalPolicy = "byTool"  // calls of the tools listed
	ApprovePattern ApprovalPolicy = "pattern" // calls whose arguments a pattern finds something in
)

// TimeoutAction is what holds when nobody has decided in time.
type TimeoutAction string

// The actions at a timeout.
const (
	TimeoutReject  TimeoutAction = "reject"
	TimeoutProceed TimeoutAction = "proceed"
	TimeoutWait    TimeoutAction = "wait"
)

// ApprovalSpec is the approvals block of an agent.
type ApprovalSpec struct {
	Policy   ApprovalPolicy `json:"policy"`
	Tools    []string       `json:"tools,omitempty"`
	Patterns []string       `json:"patterns,omitempty"` // RE2, over the text of the call's arguments
	Terms    ApprovalTerms  `json:"terms"`
}

// DefaultApprovalTerms are those of a question of an agent that says nothing of
// them: whoever wrote the message decides within the hour.
func DefaultApprovalTerms() ApprovalTerms {
	return ApprovalTerms{Quorum: 1, Timeout: time.Hour, OnTimeout: TimeoutReject}
}

// ApprovalTerms say who decides an approval, and until when.
type ApprovalTerms struct {
	Approvers []Approver      `json:"approvers,omitempty"` // none: whoever wrote the message
	Quorum    int             `json:"quorum,omitempty"`    // how many must approve; 0: one
	Timeout   time.Duration   `json:"timeout,omitempty"`   // nanoseconds; 0: it waits
	Reminders []time.Duration `json:"reminders,omitempty"` // after the question
	OnTimeout TimeoutAction   `json:"onTimeout,omitempty"` // empty: reject

	EscalateAfter time.Duration `json:"escalateAfter,omitempty"` // 0: never
	EscalateTo    []Approver    `json:"escalateTo,omitempty"`    // who may decide from then on, too
}

// Approver is somebody who may decide: a user or a group of the API, or a person
// on a channel.
type Approver struct {
	User          string  `json:"user,omitempty"`
	Group         string  `json:"group,omitempty"`
	Channel       Channel `json:"channel,omitempty"`
	ChannelUserID string  `json:"channelUserId,omitempty"`
}

func (a Approver) String() string {
	switch {
	case a.User != "":
		return "user " + a.User
	case a.Group != "":
		return "group " + a.Group
	}
	return strings.ToLower(string(a.Channel)) + " " + a.ChannelUserID
}

// ApprovalSubject is exactly what is done once a human approves it.
type ApprovalSubject struct {
	Agent     AgentName       `json:"agent"`
	Tool      string          `json:"tool,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"` // of the tool, canonical
	Sandbox   *SandboxSpec    `json:"sandbox,omitempty"`   // in which a command runs
	Question  string          `json:"question,omitempty"`  // of a workflow's node, or of a limit
	Remote    *RemoteTool     `json:"remote,omitempty"`    // of a call that goes elsewhere: where

	Budget    *BudgetQuestion    `json:"budget,omitempty"`    // that is asked for more; Question says it in words
	Guardrail *GuardrailQuestion `json:"guardrail,omitempty"` // what guardrails ask about; the same
}

// Digest names the subject: SHA-256, in hex, of its JSON with canonical
// arguments. Another spelling of the same arguments has the same digest; a single
// other character of a value has another.
func (s ApprovalSubject) Digest() string {
	s.Arguments = CanonicalJSON(s.Arguments)
	text, err := json.Marshal(s)
	if err != nil { // plain values, and arguments that are JSON
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// CanonicalJSON returns value with sorted keys and without insignificant white
// space. Numbers keep their text. What is no JSON becomes a JSON string.
func CanonicalJSON(value []byte) json.RawMessage {
	if len(value) == 0 {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	var v any
	err := decoder.Decode(&v)
	if _, behind := decoder.Token(); err != nil || !errors.Is(behind, io.EOF) {
		v = string(value)
	}
	text, err := json.Marshal(v)
	if err != nil { // what was decoded encodes
		panic(err)
	}
	return text
}
