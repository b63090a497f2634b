package execute

import (
	"context"
	"errors"
	"sync"
	"time"

	"tuluat.ai/harness/shared/postgres"
)

const (
	firstFlush = 200 * time.Millisecond // a person watches; a short command is stored with its outcome
	flushEvery = time.Second
	flushBytes = 256 << 10 // and at once when so much waits
	keepBytes  = 1 << 20   // what may wait while the database does not take it
)

// output collects what a command prints and stores it about every second. It
// holds a bounded part of it: when the database does not take any, the request
// ends, and what is missing is read from the sandbox again.
type output struct {
	store func(ctx context.Context, pieces []postgres.OutputPiece) error
	stop  context.CancelCauseFunc // ends the wait for the command
	more  chan struct{}           // something waits to be stored

	flushing sync.Mutex // one at a time, so that rows are written in order

	mu     sync.Mutex
	pieces []postgres.OutputPiece // contiguous per stream
	size   int
	err    error // nothing is taken any more
}

func newOutput(store func(context.Context, []postgres.OutputPiece) error, stop context.CancelCauseFunc) *output {
	return &output{store: store, stop: stop, more: make(chan struct{}, 1)}
}

// take is the sink: it keeps data, and stores what waits when that is much.
func (o *output) take(ctx context.Context, stream string, offset int64, data []byte) {
	if o.add(stream, offset, data) >= flushBytes {
		o.flush(ctx)
	}
	select {
	case o.more <- struct{}{}:
	default:
	}
}

func (o *output) add(stream string, offset int64, data []byte) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0
	}
	o.size += len(data)
	for i := range o.pieces {
		if p := &o.pieces[i]; p.Stream == stream && p.Start+int64(len(p.Data)) == offset {
			p.Data = append(p.Data, data...)
			return o.size
		}
	}
	o.pieces = append(o.pieces, postgres.OutputPiece{Stream: stream, Start: offset, Data: append([]byte(nil), data...)})
	return o.size
}

// follow stores what waits, promptly the first time and then every second, and
// ends the wait when the process is to end. It returns when ctx ends.
func (o *output) follow(ctx context.Context, stop <-chan struct{}) {
	pause := firstFlush
	for {
		select {
		case <-ctx.Done():
			return
		case <-stop:
			o.stop(errStopping)
			return
		case <-o.more:
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-stop:
			timer.Stop()
			o.stop(errStopping)
			return
		case <-timer.C:
		}
		pause = flushEvery
		o.flush(ctx)
	}
}

// flush stores what waits. On failure it is kept for the next time, unless that
// is hopeless.
func (o *output) flush(ctx context.Context) {
	o.flushing.Lock()
	defer o.flushing.Unlock()
	o.mu.Lock()
	pieces, size := o.pieces, o.size
	o.pieces, o.size = nil, 0
	o.mu.Unlock()
	if len(pieces) == 0 {
		return
	}
	err := o.store(ctx, pieces)
	if err == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pieces, o.size = append(pieces, o.pieces...), size+o.size
	if o.size > keepBytes || errors.Is(err, postgres.ErrLeaseLost) {
		o.pieces, o.size, o.err = nil, 0, err
		o.stop(err)
		return
	}
	select { // try again in a second
	case o.more <- struct{}{}:
	default:
	}
}

// rest returns what is not stored yet, or why not everything was.
func (o *output) rest() ([]postgres.OutputPiece, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pieces, o.err
}
