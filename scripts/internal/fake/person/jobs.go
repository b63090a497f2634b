package person

import (
	"context"
	"sync"
)

// Jobs are what goes on beside the requests: deliveries, retries, statuses.
type Jobs struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	busy  int
	ended chan struct{} // closed when nothing goes on
	over  bool

	beside sync.WaitGroup
}

// NewJobs returns none.
func NewJobs() *Jobs {
	j := &Jobs{ended: make(chan struct{})}
	j.ctx, j.cancel = context.WithCancel(context.Background()) // lives until Close
	close(j.ended)
	return j
}

// Go runs job beside. After Close it is not begun.
func (j *Jobs) Go(job func(ctx context.Context)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		return
	}
	if j.busy == 0 {
		j.ended = make(chan struct{})
	}
	j.busy++
	go func() {
		defer j.done()
		job(j.ctx)
	}()
}

// Beside runs job until Close. It is nothing that anybody waits for.
func (j *Jobs) Beside(job func(ctx context.Context)) { j.beside.Go(func() { job(j.ctx) }) }

func (j *Jobs) done() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.busy--; j.busy == 0 {
		close(j.ended)
	}
}

// Context ends at Close.
func (j *Jobs) Context() context.Context { return j.ctx }

// Settled waits until nothing goes on.
func (j *Jobs) Settled(ctx context.Context) error {
	j.mu.Lock()
	ended := j.ended
	j.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends all jobs and waits for them.
func (j *Jobs) Close() {
	j.mu.Lock()
	j.over = true
	ended := j.ended
	j.mu.Unlock()
	j.cancel()
	<-ended
	j.beside.Wait()
}
