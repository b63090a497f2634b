package kubernetes

import (
	"errors"
	"io"
	"sync"
)

// ends are the caller's ends of one exec's streams. client-go returns from an
// exec whose context has ended while its own goroutines still copy; once closed,
// none of them touches what is the caller's.
type ends struct {
	mu     sync.Mutex // held while a caller's writer works: they never block
	in     sync.Mutex // held while a caller's reader works
	closed bool
	shut   bool
	got    bool
}

var errClosed = errors.New("the call is over")

// close returns when nothing works on the caller's ends any more, and reports
// whether anything came back.
func (e *ends) close() (used bool) {
	e.in.Lock()
	e.shut = true
	e.in.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return e.got
}

func (e *ends) writer(w io.Writer) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.closed {
			return len(p), nil
		}
		e.got = e.got || len(p) > 0
		return w.Write(p)
	})
}

func (e *ends) reader(r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		e.in.Lock()
		defer e.in.Unlock()
		if e.shut {
			return 0, errClosed
		}
		return r.Read(p)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// replayBytes is how much of stdin can be sent again: a command's description,
// not a file.
const replayBytes = 64 << 10

// replay is a reader that can begin again as long as little was read. A nil
// replay is nothing to read. One goroutine uses it at a time.
type replay struct {
	r    io.Reader
	read []byte
	pos  int
	lost bool // more than replayBytes was read
	err  error
}

func (r *replay) Read(p []byte) (int, error) {
	if r.pos < len(r.read) {
		n := copy(p, r.read[r.pos:])
		r.pos += n
		return n, nil
	}
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.r.Read(p)
	r.err = err
	if len(r.read)+n > replayBytes {
		r.lost = true
	}
	if !r.lost {
		r.read = append(r.read, p[:n]...)
		r.pos = len(r.read)
	}
	return n, err
}

// rewind reports whether the next read begins at the beginning.
func (r *replay) rewind() bool {
	if r == nil {
		return true
	}
	r.pos = 0
	return !r.lost
}
