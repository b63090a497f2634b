package harness

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"time"
)

// AgentName is the name of an AiAgent resource.
type AgentName string

// SessionID, MessageID and the others are prefixed, lowercase, time-ordered
// ids: "ses_" and 26 letters and digits. They are safe in URLs, labels and
// file names.
type (
	SessionID    string
	MessageID    string
	StepID       string
	ToolCallID   string
	ExecutionID  string
	SandboxID    string
	ReplyID      string
	AttachmentID string
	ApprovalID   string
)

var idAlphabet = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID returns a fresh id with the given prefix: 48 bits of the time now in
// milliseconds and 80 random bits, so that ids sort by time and cannot be
// guessed (the layout of a ULID).
func NewID(prefix string, now time.Time) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(now.UnixMilli())<<16)
	if _, err := rand.Read(raw[6:]); err != nil { // never fails since Go 1.24
		panic(err)
	}
	return prefix + "_" + strings.ToLower(idAlphabet.EncodeToString(raw[:]))
}

// IDFloor returns what every id with the prefix that was made at or after the
// given time sorts behind, and every earlier one before.
func IDFloor(prefix string, at time.Time) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(max(at.UnixMilli(), 0))<<16)
	return prefix + "_" + strings.ToLower(idAlphabet.EncodeToString(raw[:]))
}

// NewSessionID returns a fresh SessionID.
func NewSessionID(now time.Time) SessionID { return SessionID(NewID("ses", now)) }

// NewMessageID returns a fresh MessageID.
func NewMessageID(now time.Time) MessageID { return MessageID(NewID("msg", now)) }

// NewStepID returns a fresh StepID.
func NewStepID(now time.Time) StepID { return StepID(NewID("stp", now)) }

// NewToolCallID returns a fresh ToolCallID.
func NewToolCallID(now time.Time) ToolCallID { return ToolCallID(NewID("call", now)) }

// NewExecutionID returns a fresh ExecutionID.
func NewExecutionID(now time.Time) ExecutionID { return ExecutionID(NewID("exe", now)) }

// NewSandboxID returns a fresh SandboxID.
func NewSandboxID(now time.Time) SandboxID { return SandboxID(NewID("sbx", now)) }

// NewReplyID returns a fresh ReplyID.
func NewReplyID(now time.Time) ReplyID { return ReplyID(NewID("rpl", now)) }

// NewAttachmentID returns a fresh AttachmentID.
func NewAttachmentID(now time.Time) AttachmentID { return AttachmentID(NewID("att", now)) }

// NewApprovalID returns a fresh ApprovalID.
func NewApprovalID(now time.Time) ApprovalID { return ApprovalID(NewID("apr", now)) }
