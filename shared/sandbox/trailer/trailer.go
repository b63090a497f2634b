// Package trailer is the line by which the runner proves what became of a
// command. It is the contract between the runner, inside a sandbox, and the
// functions outside, and needs nothing but the standard library.
//
// A line is a marker, a sealed status as JSON and a newline. The marker begins
// with a newline of its own, because what the command printed before it may not
// end with one; the whole line, that newline included, is not the command's.
package trailer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
)

// Marker begins a line. A command may print it too: only the seal counts.
const Marker = "\n@tuluat-runner "

// MaxLine bounds the length of a line, marker and newline included. Two tails
// in base64 and the rest of a status stay well below it.
const MaxLine = 64 << 10

// State is where a command stands as the runner sees it.
type State string

// The states of a command. The first three are not outcomes.
const (
	Unknown   State = "NOT_FOUND" // this sandbox never saw the id: nothing was started
	Busy      State = "BUSY"      // another command runs; nothing was started
	Running   State = "RUNNING"
	Exited    State = "EXITED" // by itself; see the exit code or signal
	TimedOut  State = "TIMED_OUT"
	Cancelled State = "CANCELLED"
	Ended     State = "SANDBOX_ENDED" // the sandbox reached its end of life under it
	Failed    State = "NOT_STARTED"   // it could not be started: see the message
)

// Final reports whether s is an outcome.
func (s State) Final() bool {
	switch s {
	case Exited, TimedOut, Cancelled, Ended, Failed:
		return true
	}
	return false
}

// Status is what the runner knows of one command.
type Status struct {
	ID           string `json:"id"`
	State        State  `json:"state"`
	Started      bool   `json:"started"`
	ExitCode     *int   `json:"exitCode,omitempty"`
	Signal       string `json:"signal,omitempty"`
	Message      string `json:"reason,omitempty"`
	NoProgram    bool   `json:"noProgram,omitempty"` // NOT_STARTED because its program is not there or cannot be executed
	StdoutBytes  int64  `json:"stdoutBytes"`         // printed
	StderrBytes  int64  `json:"stderrBytes"`
	StdoutStored int64  `json:"stdoutStored"` // kept, and readable by offset
	StderrStored int64  `json:"stderrStored"`
	StdoutTail   []byte `json:"stdoutTail,omitempty"`
	StderrTail   []byte `json:"stderrTail,omitempty"`
	OOMKills     *int   `json:"oomKills,omitempty"` // during this command; nil when the runner cannot see
	DiskFull     bool   `json:"diskFull,omitempty"` // a writable volume was full at its end
	DiskWasFull  bool   `json:"diskWasFull,omitempty"`
	Outbound     bool   `json:"outbound,omitempty"` // there is a folder of files to be sent out
	DurationMS   int64  `json:"durationMs"`
}

type line struct {
	Status json.RawMessage `json:"status"`
	MAC    string          `json:"mac"`
}

// ErrSeal says that a line is not the runner's for this nonce.
var ErrSeal = errors.New("the trailer's seal does not fit")

// Seal returns s and its seal by nonce as JSON without marker or newline.
func Seal(s Status, nonce string) ([]byte, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return json.Marshal(line{Status: raw, MAC: hex.EncodeToString(mac(raw, nonce))})
}

// Open returns the status in sealed, or ErrSeal when it was not sealed with
// nonce. An empty nonce opens nothing.
func Open(sealed []byte, nonce string) (Status, error) {
	var l line
	if err := json.Unmarshal(sealed, &l); err != nil {
		return Status{}, ErrSeal
	}
	sum, err := hex.DecodeString(l.MAC)
	if err != nil || nonce == "" || !hmac.Equal(sum, mac(l.Status, nonce)) {
		return Status{}, ErrSeal
	}
	var s Status
	if err := json.Unmarshal(l.Status, &s); err != nil {
		return Status{}, ErrSeal
	}
	return s, nil
}

func mac(raw []byte, nonce string) []byte {
	h := hmac.New(sha256.New, []byte(nonce))
	h.Write(raw)
	return h.Sum(nil)
}
