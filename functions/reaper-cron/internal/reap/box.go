package reap

import (
	"context"
	"errors"
	"sync"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// box bounds the turns of an item: when the time of one is over, or the process
// drains, it begins nothing more. What has begun is finished.
type box struct {
	ctx    context.Context
	until  time.Time // of this turn
	reaper *Reaper

	mu          sync.Mutex
	more        bool // its time was over before it was done
	failed      error
	found, done int
	objects     int    // of those found, without a row
	lost        int    // of those found, without an object
	noted       string // why something is left that nobody but an operator can do
}

// begin starts a turn. What was left by the last one is found again.
func (b *box) begin(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until, b.more, b.found = until, false, b.done
}

func (b *box) over() bool {
	if b.ctx.Err() != nil || b.reaper.stopped() {
		return true
	}
	if b.reaper.Now().Before(b.until) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.more = true
	return true
}

func (b *box) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.more, b.failed = false, err
}

func (b *box) count(found, done int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.found, b.done = b.found+found, b.done+done
}

// leaks says what of the things found exists on one side only.
func (b *box) leaks(objects, rows int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects, b.lost = objects, rows
}

// note says in the report why something is left; the pass is no failure for it.
func (b *box) note(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noted = harness.MessageOf(why)
}

func (b *box) finding() postgres.Finding {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := postgres.Finding{Found: b.found, Done: b.done, Left: b.found - b.done, Objects: b.objects, Rows: b.lost, Note: b.noted}
	switch {
	case b.failed != nil:
		f.Error = harness.MessageOf(b.failed)
	case b.more && f.Note == "":
		f.Note = "more waits than a pass has time for"
	}
	return f
}

// batches calls take until it finds less than a batch or the box is over. take
// must not find again what it has found.
func (b *box) batches(take func() (found int, err error)) error {
	for !b.over() {
		found, err := take()
		if err != nil || found < b.reaper.Batch {
			return err
		}
	}
	return nil
}

// rows is batches for statements that do all they find.
func (b *box) rows(take func(limit int) (int, error)) error {
	return b.batches(func() (int, error) {
		n, err := take(b.reaper.Batch)
		b.count(n, n)
		return n, err
	})
}

// workers bound how many network calls one item has open.
const workers = 16

// each does one thing with every element, some at a time, counts what succeeded,
// and returns the failures joined. Elements whose turn comes after the end of
// the box are left.
func each[T any](b *box, elements []T, do func(T) error) error {
	b.count(len(elements), 0)
	next := make(chan T)
	failures := make([]error, min(workers, len(elements)))
	var running sync.WaitGroup
	for i := range failures {
		running.Go(func() {
			for element := range next {
				if b.over() {
					continue
				}
				if err := guard(func() error { return do(element) }); err != nil {
					failures[i] = errors.Join(failures[i], err)
					continue
				}
				b.count(0, 1)
			}
		})
	}
	for _, element := range elements {
		next <- element
	}
	close(next)
	running.Wait()
	return errors.Join(failures...)
}
