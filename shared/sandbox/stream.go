package sandbox

import (
	"bytes"
	"io"
	"sync"

	"tuluat.ai/harness/shared/sandbox/trailer"
)

const (
	stdout = "stdout"
	stderr = "stderr"

	// queueBytes bounds what waits for a slow sink. Beyond it output is dropped
	// here and read again from the sandbox at the end.
	queueBytes = 4 << 20
)

type chunk struct {
	stream string
	data   []byte
}

// queue takes output from the transport without ever making it wait, and gives
// it to the sink's goroutine in order.
type queue struct {
	mu      sync.Mutex
	filled  *sync.Cond
	chunks  []chunk
	bytes   int
	dropped map[string]bool // nothing more of this stream: what follows a gap is of no use
	closed  bool
}

func newQueue(streams map[string]int64) *queue {
	q := &queue{dropped: make(map[string]bool, len(streams))}
	q.filled = sync.NewCond(&q.mu)
	return q
}

func (q *queue) push(stream string, data []byte) {
	if len(data) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped[stream] || q.bytes+len(data) > queueBytes {
		q.dropped[stream] = true
		return
	}
	q.chunks = append(q.chunks, chunk{stream, bytes.Clone(data)})
	q.bytes += len(data)
	q.filled.Signal()
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Signal()
}

// next waits for output and reports false when there will be no more.
func (q *queue) next() (chunk, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.chunks) == 0 && !q.closed {
		q.filled.Wait()
	}
	if len(q.chunks) == 0 {
		return chunk{}, false
	}
	c := q.chunks[0]
	q.chunks[0] = chunk{}
	q.chunks = q.chunks[1:]
	q.bytes -= len(c.data)
	return c, true
}

func (q *queue) writer(stream string) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		q.push(stream, p)
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// lineFilter takes the runner's lines out of stderr and passes everything else
// on, also what only looks like one of them.
type lineFilter struct {
	emit func([]byte)
	open func(sealed []byte) bool
	hold []byte // may be the beginning of a line
}

func (f *lineFilter) Write(p []byte) (int, error) {
	f.hold = append(f.hold, p...)
	for f.step() {
	}
	return len(p), nil
}

// step handles what can be decided now and reports whether to look again.
func (f *lineFilter) step() bool {
	start := bytes.Index(f.hold, []byte(trailer.Marker))
	if start < 0 {
		f.pass(len(f.hold) - beginning(f.hold))
		return false
	}
	f.pass(start)
	end := bytes.IndexByte(f.hold[len(trailer.Marker):], '\n')
	if end < 0 && len(f.hold) <= trailer.MaxLine {
		return false
	}
	if end >= 0 && f.open(f.hold[len(trailer.Marker):len(trailer.Marker)+end]) {
		f.hold = append([]byte(nil), f.hold[len(trailer.Marker)+end+1:]...)
		return true
	}
	f.pass(1) // not the runner's: the next marker may begin inside
	return true
}

func (f *lineFilter) pass(n int) {
	if n > 0 {
		f.emit(f.hold[:n])
		f.hold = f.hold[n:]
	}
}

func (f *lineFilter) flush() {
	f.pass(len(f.hold))
}

// beginning returns the length of the longest end of b that may grow into a
// marker.
func beginning(b []byte) int {
	for n := min(len(b), len(trailer.Marker)-1); n > 0; n-- {
		if bytes.HasSuffix(b, []byte(trailer.Marker[:n])) {
			return n
		}
	}
	return 0
}
