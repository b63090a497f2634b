// Package wire is what the runner's clients and PID 1 say to each other over a
// unix socket: one Request, with a Put the file after it, then frames back until
// PID 1 closes.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
)

// Abstract is the name of PID 1's socket inside the sandbox, in the abstract
// namespace: nothing to delete, and it goes with PID 1.
const Abstract = "@tuluat-runner"

// Op is what a client asks for.
type Op string

// The ops.
const (
	Run    Op = "run"    // start, or attach to a known id
	Status Op = "status" // how an id stands now
	Output Op = "output" // what is kept of one stream, from an offset
	Cancel Op = "cancel" // end it; an id never seen will never start
	Ping   Op = "ping"   // does PID 1 take commands?
	Put    Op = "put"    // write a file that follows the request
	Out    Op = "out"    // what commands have left to be sent out

	Shutdown Op = "shutdown" // end the sandbox now
)

// Request is what a client asks.
type Request struct {
	Op           Op                `json:"op"`
	ID           string            `json:"id,omitempty"`
	Nonce        string            `json:"nonce,omitempty"`
	Command      []string          `json:"command,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	TimeoutMS    int64             `json:"timeoutMs,omitempty"`
	MaxOutput    int64             `json:"maxOutput,omitempty"`
	Stream       string            `json:"stream,omitempty"`
	Limit        int64             `json:"limit,omitempty"`
	StdoutOffset int64             `json:"stdoutOffset,omitempty"`
	StderrOffset int64             `json:"stderrOffset,omitempty"`
	Path         string            `json:"path,omitempty"`          // of Put: below the working directory
	Size         int64             `json:"sizeBytes,omitempty"`     // of Put: what follows
	MaxFiles     int               `json:"maxFiles,omitempty"`      // of Out
	MaxBytes     int64             `json:"maxBytes,omitempty"`      // of Out: of one file
	MaxTotal     int64             `json:"maxTotalBytes,omitempty"` // of Out: of all files
	WaitMS       int64             `json:"waitMs,omitempty"`        // of Ping: for PID 1 to take commands
}

// Kind tells frames apart.
type Kind byte

// The kinds of a frame.
const (
	Stdout Kind = 'o' // bytes of the command's stdout
	Stderr Kind = 'e'
	Note   Kind = 'n' // a sealed status on the way; more follows
	Sealed Kind = 's' // a sealed status, the last word
	Refuse Kind = 'x' // a text; nothing was done
	Ready  Kind = 'k' // the answer to Ping and Shutdown; the end of that to Put and Out
	Data   Kind = 'd' // from the client: bytes of the file of a Put
	End    Kind = 'z' // from the client: that was the whole file
)

// MaxRequest and MaxFrame bound what either side reads into memory.
const (
	MaxRequest = 4 << 20
	MaxFrame   = 256 << 10
)

// ErrTooLarge says that the other side sent more than a frame may hold.
var ErrTooLarge = errors.New("frame too large")

// WriteFrame writes one frame.
func WriteFrame(w io.Writer, kind Kind, payload []byte) error {
	frame := make([]byte, 5+len(payload))
	frame[0] = byte(kind)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	copy(frame[5:], payload)
	_, err := w.Write(frame)
	return err
}

// ReadFrame reads one frame.
func ReadFrame(r io.Reader) (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	payload, err := readBody(r, binary.BigEndian.Uint32(head[1:]), MaxFrame)
	return Kind(head[0]), payload, err
}

// WriteRequest writes the request.
func WriteRequest(w io.Writer, req Request) error {
	text, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if len(text) > MaxRequest {
		return ErrTooLarge
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// ReadRequest reads the request.
func ReadRequest(r io.Reader) (Request, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Request{}, err
	}
	text, err := readBody(r, binary.BigEndian.Uint32(head[:]), MaxRequest)
	if err != nil {
		return Request{}, err
	}
	var req Request
	return req, json.Unmarshal(text, &req)
}

func readBody(r io.Reader, size uint32, limit int) ([]byte, error) {
	if int64(size) > int64(limit) {
		return nil, ErrTooLarge
	}
	body := make([]byte, size)
	_, err := io.ReadFull(r, body)
	return body, err
}
