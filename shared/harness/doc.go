// Package harness holds the words of the product and their rules. It imports
// nothing but the standard library, and nothing defines these words again:
// every other form is an edge form whose name says so (a row, a wire message,
// a resource version) and whose conversion the edge owns.
//
// # How the words hang together
//
// A Message arrives on a Channel for an Agent and belongs to a Session, the
// conversation. One inbound Message is one turn; a turn is worked in Steps.
// A Step asks the model once or dispatches what the model asked for: each
// ToolCall has exactly one result. A ToolCall that runs a command causes an
// Execution in a Sandbox. The turn ends with an outbound Message, sent as one
// Reply per part.
//
// # States
//
//	Session    PENDING -> RUNNING -> AWAITING_EXECUTION | AWAITING_APPROVAL -> RUNNING -> IDLE
//	           IDLE -> PENDING (next message); any open state -> COMPLETED | BLOCKED | FAILED | CANCELLED
//	           BLOCKED, FAILED -> PENDING (a new message starts a new turn: a conversation is never dead)
//	ToolCall   PENDING -> RUNNING -> DONE | FAILED | DENIED | EXPIRED
//	Execution  PENDING -> RUNNING -> COMPLETED | FAILED | TIMED_OUT | OUT_OF_MEMORY | DISK_LIMIT |
//	           SANDBOX_GONE | CANCELLED | UNKNOWN;  PENDING -> FAILED | CANCELLED when nothing was started
//	Sandbox    CREATING -> READY -> TERMINATING -> GONE; every state may become GONE
//	Approval   PENDING -> APPROVED | REJECTED | EXPIRED | CANCELLED
//	Reply      PLANNED -> SENT -> DELIVERED -> READ; PLANNED, SENT -> FAILED | UNKNOWN; UNKNOWN is settled by evidence
//
// Each state type answers "may this become that?" with its May method; the
// database repeats the closed sets as CHECK constraints.
package harness
