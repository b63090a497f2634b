package harness

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
