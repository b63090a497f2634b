package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/sandbox/trailer"
)

// tailBytes is how much of a stream's end is kept when not all of it is.
const tailBytes = 8 << 10

// A line with both tails must fit into what a reader holds back.
const _ = uint(trailer.MaxLine - 2*(tailBytes+2)/3*4 - 8<<10)

// capture drains one stream of a command as fast as it comes, keeps its first
// bytes in a file without a name and its last in memory, and counts the rest.
// Readers follow the file at their own pace; they never slow the command.
type capture struct {
	pipe *os.File // read end
	file *os.File
	done chan struct{} // closed when nothing more will be kept

	mu      sync.Mutex
	limit   int64
	stored  int64
	total   int64
	tail    []byte // ring of the last tailBytes bytes
	tailPos int
	closed  bool          // what still comes is not the command's any more
	more    chan struct{} // closed and replaced when stored grows
}

// newCapture returns a capture and the end a command writes to.
func newCapture(limit int64) (*capture, *os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("pipe: %w", err)
	}
	writer := os.NewFile(uintptr(ends[1]), "output")
	// Only our end is non-blocking: the command expects a plain pipe.
	if err := unix.SetNonblock(ends[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(ends[0]), writer.Close())
	}
	reader := os.NewFile(uintptr(ends[0]), "output")
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("output file: %w", err), reader.Close(), writer.Close())
	}
	return &capture{
		pipe: reader, file: os.NewFile(uintptr(fd), "output"), limit: limit,
		done: make(chan struct{}), more: make(chan struct{}),
	}, writer, nil
}

// drain reads until every writer is gone.
func (c *capture) drain() {
	defer c.pipe.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.pipe.Read(buf)
		c.keep(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.empty(buf)
			c.close()
			err = c.pipe.SetReadDeadline(time.Time{})
		}
		if err != nil {
			c.close()
			return
		}
	}
}

// settle ends the keeping although a writer is left, after what is in the pipe
// now. The command itself has ended, so all it wrote is in there. The draining
// goes on, so that what was left running is not killed by a closed pipe.
func (c *capture) settle() {
	if err := c.pipe.SetReadDeadline(time.Now()); err != nil {
		c.close() // closed already: the last writer has gone this moment
	}
	<-c.done
}

// empty keeps what is in the pipe now.
func (c *capture) empty(buf []byte) {
	raw, err := c.pipe.SyscallConn()
	if err != nil {
		return
	}
	left := 1 << 20 // a pipe holds no more; a writer that goes on must not hold us
	_ = raw.Control(func(fd uintptr) {
		for left > 0 {
			n, err := unix.Read(int(fd), buf)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				return
			}
			left -= n
			c.keep(buf[:n])
		}
	})
}

func (c *capture) keep(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(b) == 0 {
		return
	}
	c.total += int64(len(b))
	c.remember(b)
	if room := c.limit - c.stored; room > 0 {
		n, err := c.file.WriteAt(b[:min(room, int64(len(b)))], c.stored)
		c.stored += int64(n)
		if err != nil {
			c.limit = c.stored // no memory for more: the rest is counted only
		}
		close(c.more)
		c.more = make(chan struct{})
	}
}

func (c *capture) remember(b []byte) {
	if len(b) > tailBytes {
		b = b[len(b)-tailBytes:]
	}
	for len(b) > 0 {
		if len(c.tail) < tailBytes {
			n := min(tailBytes-len(c.tail), len(b))
			c.tail = append(c.tail, b[:n]...)
			c.tailPos = len(c.tail) % tailBytes
			b = b[n:]
			continue
		}
		n := copy(c.tail[c.tailPos:], b)
		c.tailPos = (c.tailPos + n) % tailBytes
		b = b[n:]
	}
}

func (c *capture) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.done)
	}
}

// counts returns what was printed, what is kept, and the end of the stream
// when not all of it is kept.
func (c *capture) counts() (total, stored int64, tail []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total > c.stored {
		if len(c.tail) < tailBytes {
			tail = append(tail, c.tail...)
		} else {
			tail = append(append(tail, c.tail[c.tailPos:]...), c.tail[:c.tailPos]...)
		}
	}
	return c.total, c.stored, tail
}

// at reads what is kept from off on. Without anything there it returns a
// channel that is closed when more may be.
func (c *capture) at(off int64, buf []byte) (int, <-chan struct{}) {
	c.mu.Lock()
	stored, more, file := c.stored, c.more, c.file
	c.mu.Unlock()
	if off < 0 || off >= stored || file == nil {
		return 0, more
	}
	n, err := file.ReadAt(buf[:min(int64(len(buf)), stored-off)], off)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, more
	}
	return n, more
}

// forget gives the kept bytes back to the machine.
func (c *capture) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}
