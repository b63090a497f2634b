package postgres

import (
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Inbound is everything that one request of a provider said. It is stored as a
// whole or not at all.
type Inbound struct {
	Arrivals []Arrival
	Notices  []Notice
	Statuses []Status
	Renames  []Rename
	Blocks   []Block
	Offset   *PollOffset // of a poller: how far these updates reach
	Audit    Audit       // of the management API: who writes the Arrivals
}

// Arrival is one message as an ingest function hands it in.
type Arrival struct {
	Account    string // our side: decides the agent
	ProviderID string // the provider's or caller's id: a repeat has the same
	Chat       string // their side: a conversation belongs to it
	Message    harness.Message
	Only       harness.SessionID     // the one session it is for, if that is open; empty: any, a new one too
	Temporal   *harness.TemporalLink // of the session that it opens, of channel API; an open one must have the same. nil: none, or whatever it has

	// What only channels with people on them know.

	Aliases     []string             // every id that Chat is known by: the conversation is that of the first one ever seen
	Lasting     string               // the one of Aliases that never becomes another person's; empty: none
	Address     string               // where replies go now; empty: to Chat, and nothing is kept of the chat
	OtherID     string               // another id of the same sender: the sender policy takes either
	SentAt      time.Time            // when the person sent it; zero: now
	Album       string               // the arrivals of one album are one message while it waits
	Attachments []harness.Attachment // files the provider will hand out
	Paired      bool                 // the text was the pairing code of its account
	Pace        Pace                 // how fast replies may follow
}

// StandIn is the metadata key that says that a message's text is ours: what the
// person sent has no words.
const StandIn = "standIn"

// Pace is how fast replies may go to one chat. Zero: as fast as they come.
type Pace struct {
	Every time.Duration // between two, on average
	Burst int           // that may go at once
}

// Notice is something that starts no turn and is kept nevertheless.
type Notice struct {
	Account       string
	ProviderID    string // of the update: a repeat has the same
	Kind          harness.NoticeKind
	Chat          string
	ChannelUserID string
	Ref           string         // the provider's id of the message it is about
	Data          map[string]any // for people; never a secret, never a URL that holds one
}

// Status is the provider's word on one reply. It never moves a reply back.
type Status struct {
	Account    string
	ProviderID string             // of the reply
	Reply      harness.ReplyID    // our id, where the provider gave it back
	State      harness.ReplyState // SENT, DELIVERED, READ or FAILED
	Code       int                // the provider's error code, when FAILED
	Reason     string
	Template   bool // FAILED, but a template may still reach the person: sent again as one where the account has one
}

// Rename says that a chat known by one of From has the ids To now, the first of
// which is its new address. The conversation goes on.
type Rename struct {
	Account    string
	ProviderID string // of the update: a repeat has the same, and has no effect
	From, To   []string
	Lasting    string // the one of To that never becomes another person's; empty: none
}

// Block says that a chat takes nothing from us any more, until it writes again.
type Block struct{ Account, Chat, Reason string }

// PollOffset is how far a bot's updates have been read by the holder of a claim.
type PollOffset struct {
	Account string
	Token   int64
	Next    int64 // the first update that was not seen
}

// ArrivalOutcome is what became of an Arrival.
type ArrivalOutcome string

// The outcomes of an Arrival.
const (
	ArrivalAccepted  ArrivalOutcome = "ACCEPTED"
	ArrivalDuplicate ArrivalOutcome = "DUPLICATE" // known already: no effect
	ArrivalUnrouted  ArrivalOutcome = "UNROUTED"  // no agent has this account
	ArrivalDenied    ArrivalOutcome = "DENIED"    // the sender policy refuses the sender
	ArrivalDecision  ArrivalOutcome = "DECISION"  // it answered a question to a human; see DecideByTap
	ArrivalEnded     ArrivalOutcome = "ENDED"     // the session it was for is not open: nothing is stored
)

// Accepted is the fate of one Arrival.
type Accepted struct {
	Outcome ArrivalOutcome
	Session harness.SessionID // of the first arrival, for a duplicate too
	Message harness.MessageID
}
