// Package outbound is the form in which files leave a sandbox: a tar with plain
// files only, written by the runner inside and read outside. A file that stays
// behind is an empty entry that says why; the last entry proves that nothing is
// missing.
package outbound

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
)

// Folder is where commands put files that are to be sent out, below the working
// directory.
const Folder = "out"

// Reason says why a file stays behind.
type Reason int

// The reasons. Zero: it does not.
const (
	TooMany    Reason = iota + 1 // the limit of files is reached
	TooLarge                     // it is larger than one file may be
	TooMuch                      // with it, all files together would be larger than they may be
	NoFile                       // it is a link, a pipe, a socket or a device
	Unreadable                   // it cannot be opened
	Changed                      // it changed while it was read; what was sent of it is no whole file
	Empty                        // it has no bytes: no channel takes such a file
)

// String says it to people.
func (r Reason) String() string {
	switch r {
	case 0:
		return "sent"
	case TooMany:
		return "too many files"
	case TooLarge:
		return "too large"
	case TooMuch:
		return "all files together are too large"
	case NoFile:
		return "a link or a special file"
	case Unreadable:
		return "it cannot be opened"
	case Changed:
		return "it changed while it was read"
	case Empty:
		return "empty"
	}
	return "not sent"
}

const (
	leftKey   = "TULUAT.left"
	sizeKey   = "TULUAT.size"
	moreKey   = "TULUAT.more" // of the last entry only
	maxHeader = 1 << 20       // of all headers and padding, beyond the files
)

// Overhead is how much longer than its files an archive may be, in bytes.
const Overhead = maxHeader

// Writer writes an archive.
type Writer struct{ tar *tar.Writer }

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{tar.NewWriter(w)} }

// File begins a file; its bytes are written to the Writer that is returned.
func (w *Writer) File(path string, size int64) (io.Writer, error) {
	return w.tar, w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Size: size, Mode: 0o644, Format: tar.FormatPAX})
}

// Fill ends a file that turned out n bytes shorter than it was said to be.
func (w *Writer) Fill(n int64) error {
	zeros := make([]byte, 32<<10)
	for ; n > 0; n -= int64(len(zeros)) {
		if _, err := w.tar.Write(zeros[:min(n, int64(len(zeros)))]); err != nil {
			return err
		}
	}
	return nil
}

// Left says that a file stays behind.
func (w *Writer) Left(path string, size int64, reason Reason) error {
	return w.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path, Format: tar.FormatPAX,
		PAXRecords: map[string]string{leftKey: strconv.Itoa(int(reason)), sizeKey: strconv.FormatInt(size, 10)},
	})
}

// Close ends the archive. more counts files that stay behind without a name.
func (w *Writer) Close(more int) error {
	err := w.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: "end", Format: tar.FormatPAX, PAXRecords: map[string]string{moreKey: strconv.Itoa(more)},
	})
	return errors.Join(err, w.tar.Close())
}

// Entry is one file of an archive, sent or left behind.
type Entry struct {
	Path string // below Folder; local, whoever wrote it
	Size int64
	Left Reason
}

// ErrIncomplete says that an archive broke off.
var ErrIncomplete = errors.New("the files broke off")

// Read calls take for each entry, with the bytes of one that was sent, and
// returns how many files stay behind without a name. Only an archive that is
// complete gives no error.
func Read(r io.Reader, take func(e Entry, body io.Reader) error) (more int, err error) {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if err != nil {
			return 0, errors.Join(ErrIncomplete, err)
		}
		if more, last := h.PAXRecords[moreKey]; last {
			return strconv.Atoi(more)
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) {
			return 0, fmt.Errorf("%w: it holds what is no file", ErrIncomplete)
		}
		e := Entry{Path: h.Name, Size: h.Size}
		if reason, left := h.PAXRecords[leftKey]; left {
			number, err := strconv.Atoi(reason)
			if err != nil {
				return 0, errors.Join(ErrIncomplete, err)
			}
			e.Left = Reason(number)
			if e.Size, err = strconv.ParseInt(h.PAXRecords[sizeKey], 10, 64); err != nil {
				return 0, errors.Join(ErrIncomplete, err)
			}
		}
		if err := take(e, archive); err != nil {
			return 0, err
		}
	}
}
