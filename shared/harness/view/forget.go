package view

import (
	"time"

	"tuluat.ai/harness/shared/harness"
)

// ForgetState says how far a request to forget a person is.
type ForgetState string

// The states of a request to forget.
const (
	ForgetPending ForgetState = "PENDING"
	ForgetRunning ForgetState = "RUNNING"
	ForgetDone    ForgetState = "DONE"
)

// Forget is a request that what is of one person is deleted, out of Postgres and
// the bucket. Whom it is about is not repeated.
type Forget struct {
	ID          string           `json:"id"`
	Channel     harness.Channel  `json:"channel"`
	State       ForgetState      `json:"state" enum:"PENDING,RUNNING,DONE"`
	Reason      string           `json:"reason,omitempty" doc:"why it does not go on"`
	RequestedBy string           `json:"requestedBy"`
	Counts      map[string]int64 `json:"counts" doc:"rows deleted by table, objects deleted and rewritten, and messages emptied where others write too"`
	Left        []string         `json:"left" nullable:"false" doc:"what is kept, and why"`
	CreatedAt   time.Time        `json:"createdAt"`
	EndedAt     *time.Time       `json:"endedAt,omitempty"`
}
