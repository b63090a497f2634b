package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/outbound"
)

// Workspace is where commands start; files go in and out below it.
const Workspace = "/workspace"

// Put writes a file of size bytes into the sandbox at path, below Workspace,
// whole or not at all, and returns the SHA-256 of what is there now, in hex.
// What was at the path before is replaced; nothing that a command has put in the
// way of the path is followed.
//
// harness.Invalid: the sandbox refuses it, and the message says why. ErrGone:
// there is no such sandbox. An error of body is returned as it is. Everything
// else is harness.Unavailable: it may be tried again.
func Put(ctx context.Context, d Driver, sb Sandbox, path string, body io.Reader, size int64) (digest string, err error) {
	sum := sha256.New()
	source := &putSource{r: io.TeeReader(io.LimitReader(body, size), sum)}
	answer := &capped{limit: 4 << 10}
	err = d.Stream(ctx, sb, []string{"put", "--path", path, "--size", strconv.FormatInt(size, 10)}, source, answer, &capped{limit: 4 << 10})
	if errors.Is(err, ErrGone) {
		return "", ErrGone
	}
	if source.err != nil {
		return "", source.err
	}
	digest = hex.EncodeToString(sum.Sum(nil))
	line := answer.String()
	if line == fmt.Sprintf("placed %d %s\n", size, digest) {
		return digest, nil
	}
	if reason, refused := strings.CutPrefix(line, "refused "); refused && err == nil {
		return "", harness.Errorf(harness.Invalid, "%s", strings.TrimSpace(harness.CleanText(reason)))
	}
	return "", harness.Wrap(harness.Unavailable, err, "the sandbox did not take the file")
}

// putSource keeps the error of a file's source apart from the sandbox's.
type putSource struct {
	r   io.Reader
	err error
}

func (s *putSource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// capped keeps the first limit bytes. Like every writer of a stream it never
// fails and never waits.
type capped struct {
	bytes.Buffer
	limit int64
	over  bool
}

func (c *capped) Write(p []byte) (int, error) {
	if room := c.limit - int64(c.Len()); int64(len(p)) > room {
		c.over = true
		c.Buffer.Write(p[:max(room, 0)])
	} else {
		c.Buffer.Write(p)
	}
	return len(p), nil
}

// OutLimits bound what one command may send out.
type OutLimits struct {
	Files      int
	Bytes      int64 // of one file
	TotalBytes int64
}

// OutFile is a file that a command left below the folder out.
type OutFile struct {
	Path string // below that folder
	Data []byte
}

// LeftOut is a file that stays in the sandbox.
type LeftOut struct {
	Path   string
	Bytes  int64
	Reason outbound.Reason
}

// Outcome is what is in the folder out after a command.
type Outcome struct {
	Files []OutFile // new or changed since an earlier execution, or left by its limits
	Left  []LeftOut // beyond the limits, empty, or no plain files; the first ones by name
	More  int       // of those, without a name
}

// Collect returns the files below Workspace's folder out that are new, or have
// changed, since Collect succeeded after an earlier execution of the sandbox, and
// then those that this earlier one left as TooMany or TooMuch, unless it allowed
// no files at all. Called again after the same execution it returns the same. It
// holds all files in memory, at most limits.TotalBytes.
//
// ErrGone: there is no such sandbox. Everything else is harness.Unavailable.
func Collect(ctx context.Context, d Driver, sb Sandbox, after harness.ExecutionID, limits OutLimits) (Outcome, error) {
	answer := &capped{limit: limits.TotalBytes + outbound.Overhead}
	err := d.Stream(ctx, sb, []string{
		"out", "--id", string(after), "--max-files", strconv.Itoa(limits.Files),
		"--max-bytes", strconv.FormatInt(limits.Bytes, 10), "--max-total", strconv.FormatInt(limits.TotalBytes, 10),
	}, strings.NewReader(""), answer, &capped{limit: 4 << 10})
	if errors.Is(err, ErrGone) {
		return Outcome{}, ErrGone
	}
	if err != nil {
		return Outcome{}, harness.Wrap(harness.Unavailable, err, "the files of the sandbox could not be read")
	}
	o, err := readOut(answer.Bytes(), limits)
	if err != nil {
		return Outcome{}, harness.Wrap(harness.Unavailable, err, "the files of the sandbox could not be read")
	}
	return o, nil
}

// readOut believes nothing but what it has counted itself.
func readOut(archive []byte, limits OutLimits) (Outcome, error) {
	var o Outcome
	var total int64
	more, err := outbound.Read(bytes.NewReader(archive), func(e outbound.Entry, body io.Reader) error {
		if e.Left == outbound.Changed { // it was sent just before
			o.Files = without(o.Files, e.Path)
		}
		if e.Left != 0 {
			o.Left = append(o.Left, LeftOut{Path: e.Path, Bytes: e.Size, Reason: e.Left})
			return nil
		}
		if total += e.Size; len(o.Files) >= limits.Files || e.Size > limits.Bytes || total > limits.TotalBytes {
			return errors.New("more than was asked for")
		}
		data := make([]byte, e.Size)
		if _, err := io.ReadFull(body, data); err != nil {
			return err
		}
		o.Files = append(o.Files, OutFile{Path: e.Path, Data: data})
		return nil
	})
	o.More = more
	return o, err
}

func without(files []OutFile, path string) []OutFile {
	kept := files[:0]
	for _, f := range files {
		if f.Path != path {
			kept = append(kept, f)
		}
	}
	return kept
}
