package postgres

import (
	"context"
	"errors"
	"time"
)

// Lease is a claim on a row: who writes under it says its token.
type Lease struct {
	Owner string
	For   time.Duration // the claim ends this long after it was taken or extended
}

// Keep runs work and extends its lease every third of the lease's time. When
// extend says the lease is lost, work's context ends with ErrLeaseLost as its
// cause; other failures of extend are tried again at the next tick. Keep
// returns when work has: nothing of it runs on.
func Keep(ctx context.Context, lease time.Duration, extend func(context.Context) error, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(lease / 3)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				if err := extend(ctx); errors.Is(err, ErrLeaseLost) {
					cancel(ErrLeaseLost)
					return
				}
			}
		}
	}()
	err := work(ctx)
	close(done)
	cancel(nil)
	<-ended
	return err
}
