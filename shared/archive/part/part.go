// Package part makes and reads the objects of the archive: log entries, and what
// commands printed, as deterministic bytes under keys that name them. It is apart
// from package archive, which functions link that compress nothing.
package part

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// Prefix is what the key of every object begins with that has what Postgres keeps
// no more: log entries and the output of commands.
const Prefix = "logs/v1/"

const (
	// MaxPart is the size of an object of log entries or of output, in bytes. Only
	// a single entry that is longer by itself makes a longer one.
	MaxPart = 8 << 20
	// MaxEntries keeps what a page of a list reads small: an object is read whole,
	// so that its digest is known before anything of it is shown.
	MaxEntries = 50_000
	// MaxOutput is how much of a stream one object holds, in bytes as printed.
	MaxOutput = 4 << 20

	unwritten = 1 << 20 // the most that the compressor holds back, in bytes
)

// What an object can be that Postgres relies on. Both are of kind Internal: no
// other try makes it better.
var (
	ErrMissing = errors.New("the object is missing")
	ErrChanged = errors.New("the object is not what was stored")
)

// Sum is what is known of an object's bytes.
type Sum struct {
	SHA256 string // in hexadecimal
	Size   int64  // bytes
}

func sumOf(data []byte) Sum {
	sum := sha256.Sum256(data)
	return Sum{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}
}

// EntriesKey names the object with a part of an agent's log entries of a day. No
// text of a person is in it, and other bytes have another key.
func EntriesKey(agent harness.AgentName, day time.Time, part int, sum Sum) string {
	name := sha256.Sum256([]byte(agent))
	return fmt.Sprintf("%sentries/%s/%s/%04d-%s.ndjson.zst", Prefix, hex.EncodeToString(name[:8]), day.UTC().Format("2006/01/02"), part, sum.SHA256[:16])
}

// OutputKey names the object with what a command printed from byte start on.
func OutputKey(id harness.ExecutionID, stream string, start int64, sum Sum) string {
	return fmt.Sprintf("%soutput/%s/%s/%012d-%s.zst", Prefix, id, stream, start, sum.SHA256[:16])
}

// Compressed is data as it is stored, and the same for the same data.
func Compressed(data []byte) ([]byte, Sum, error) {
	var text bytes.Buffer
	w, err := compressor(&text)
	if err == nil {
		_, err = w.Write(data)
		err = errors.Join(err, w.Close())
	}
	return text.Bytes(), sumOf(text.Bytes()), err
}

// compressor is one whose bytes depend on what is written only.
func compressor(w io.Writer) (*zstd.Encoder, error) {
	return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
}

// Decompressed reads what Compressed wrote. Whoever reads must close it.
func Decompressed(data []byte) (io.ReadCloser, error) {
	d, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// line is a log entry as it is archived: what it is ordered by comes first.
type line struct {
	CreatedAt       time.Time         `json:"createdAt"`
	ID              int64             `json:"id"`
	Agent           harness.AgentName `json:"agent"`
	Session         harness.SessionID `json:"session,omitempty"`
	Node            string            `json:"node,omitempty"`
	Level           string            `json:"level"`
	Message         string            `json:"message"`
	GuardrailResult string            `json:"guardrailResult,omitempty"`
	TraceID         string            `json:"traceId,omitempty"`
}

// Entries makes one object of log entries, which are added newest first.
type Entries struct {
	Newest, Oldest view.LogEntry // of those added
	Count          int
	Sessions       map[harness.SessionID]bool

	text    bytes.Buffer
	zip     *zstd.Encoder
	pending int // bytes that may not be in text yet
}

// NewEntries returns an empty object.
func NewEntries() (*Entries, error) {
	e := &Entries{Sessions: map[harness.SessionID]bool{}}
	var err error
	e.zip, err = compressor(&e.text)
	return e, err
}

// Add adds the next entry. full says that it did not: there is no room.
func (e *Entries) Add(v view.LogEntry) (full bool, err error) {
	v.CreatedAt = v.CreatedAt.UTC()
	text, err := json.Marshal(line{v.CreatedAt, v.ID, v.Agent, v.Session, v.Node, v.Level, v.Message, v.GuardrailResult, v.TraceID})
	if err != nil {
		return false, err
	}
	text = append(text, '\n')
	if e.Count > 0 && (e.Count >= MaxEntries || e.text.Len()+e.pending+len(text) > MaxPart-(64<<10)) {
		return true, nil
	}
	before := e.text.Len()
	if _, err := e.zip.Write(text); err != nil {
		return false, err
	}
	if e.pending += len(text); e.text.Len() > before {
		e.pending = min(e.pending, unwritten)
	}
	if e.Count == 0 {
		e.Newest = v
	}
	e.Oldest = v
	e.Count++
	if v.Session != "" {
		e.Sessions[v.Session] = true
	}
	return false, nil
}

// Close returns the object.
func (e *Entries) Close() ([]byte, Sum, error) {
	err := e.zip.Close()
	return e.text.Bytes(), sumOf(e.text.Bytes()), err
}

// ReadEntries calls take with the entries of an object that are behind a place
// (the zero place: all), newest first, until it returns false.
func ReadEntries(data []byte, behind view.Place, take func(view.LogEntry) (bool, error)) error {
	r, err := Decompressed(data)
	if err != nil {
		return err
	}
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 64<<20)
	for lines.Scan() {
		text := lines.Bytes()
		if at, ok := timeOf(text); ok && behind.ID != "" && at.After(behind.At) {
			continue
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return fmt.Errorf("an archived entry: %w", err)
		}
		v := view.LogEntry{ID: l.ID, Agent: l.Agent, Session: l.Session, Node: l.Node, Level: l.Level, Message: l.Message, GuardrailResult: l.GuardrailResult, TraceID: l.TraceID, CreatedAt: l.CreatedAt}
		if more, err := take(v); err != nil || !more {
			return err
		}
	}
	return lines.Err()
}

// timeOf reads the time that a line begins with, without reading the rest.
func timeOf(text []byte) (time.Time, bool) {
	rest, ok := bytes.CutPrefix(text, []byte(`{"createdAt":"`))
	if !ok {
		return time.Time{}, false
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(rest[:end]))
	return at, err == nil
}

// Getter opens objects.
type Getter interface {
	Get(ctx context.Context, key string) (io.ReadCloser, int64, error)
}

// Fetch reads a whole object into memory and returns it if it is what was stored.
// ErrMissing and ErrChanged, both with the key: it is not.
func Fetch(ctx context.Context, from Getter, key string, want Sum) ([]byte, error) {
	var data bytes.Buffer
	data.Grow(int(min(want.Size, MaxPart)) + bytes.MinRead)
	err := check(ctx, from, key, want, &data)
	return data.Bytes(), err
}

// Verify reads an object and keeps nothing of it. Errors are those of Fetch.
func Verify(ctx context.Context, from Getter, key string, want Sum) error {
	return check(ctx, from, key, want, io.Discard)
}

func check(ctx context.Context, from Getter, key string, want Sum, to io.Writer) error {
	body, _, err := from.Get(ctx, key)
	if harness.KindOf(err) == harness.NotFound {
		return harness.Wrap(harness.Internal, errors.Join(ErrMissing, err), fmt.Sprintf("the archived object %s is missing", key))
	}
	if err != nil {
		return err
	}
	defer body.Close()
	digest := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, digest), io.LimitReader(body, want.Size+1))
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); n != want.Size || got != want.SHA256 {
		return harness.Wrap(harness.Internal, ErrChanged, fmt.Sprintf("the archived object %s is not what was stored: its digest or length is another", key))
	}
	return nil
}
