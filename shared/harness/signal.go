package harness

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// SignalID names one signal: Temporal drops a second one of the same id.
type SignalID string

// SignalState is how far the telling of one decision to a Temporal workflow has
// come.
type SignalState string

// The states of a Signal.
const (
	SignalPending SignalState = "PENDING" // not accepted yet
	SignalSent    SignalState = "SENT"    // the workflow has it
	SignalFailed  SignalState = "FAILED"  // there is no such workflow, or it may not be signalled
)

var signalTransitions = transitions[SignalState]{
	SignalPending: {SignalSent, SignalFailed},
	SignalSent:    {},
	SignalFailed:  {},
}

// May reports whether a signal in state s may go to state to.
func (s SignalState) May(to SignalState) bool { return signalTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s SignalState) Known() bool { return signalTransitions.known(s) }

// TemporalLink names the Temporal workflow that is told of a session's approvals.
type TemporalLink struct {
	Namespace  string `json:"namespace,omitempty" maxLength:"1000" doc:"empty: that of the installation"`
	WorkflowID string `json:"workflowId" minLength:"1" maxLength:"1000"`
	RunID      string `json:"runId,omitempty" maxLength:"36" doc:"a UUID; empty: whichever run is the current one when a decision comes"`
}

// maxTemporalID is what a Temporal server takes of an id, in bytes
// (limit.maxIDLength of its dynamic configuration).
const maxTemporalID = 1000

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Problem returns which field cannot name anything in Temporal, as JSON spells it,
// and what is wrong with it; two empty texts where all can.
func (l TemporalLink) Problem() (field, problem string) {
	switch {
	case l.WorkflowID == "":
		return "workflowId", "is empty"
	case unfit(l.WorkflowID) != "":
		return "workflowId", unfit(l.WorkflowID)
	case unfit(l.Namespace) != "":
		return "namespace", unfit(l.Namespace)
	case l.RunID != "" && !uuid.MatchString(l.RunID):
		return "runId", "is not a UUID"
	}
	return "", ""
}

func unfit(id string) string {
	switch {
	case len(id) > maxTemporalID:
		return "is longer than 1000 bytes"
	case !utf8.ValidString(id):
		return "is not UTF-8"
	case strings.ContainsFunc(id, unicode.IsControl):
		return "has a control character"
	case id != strings.TrimSpace(id):
		return "begins or ends with a space"
	}
	return ""
}
