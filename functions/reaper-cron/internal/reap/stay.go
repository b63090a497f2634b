package reap

import (
	"context"
	"errors"
	"time"

	"tuluat.ai/harness/shared/postgres"
)

const (
	lookAgain = 5 * time.Second // for rows that become due sooner than the next one known
	leastWait = time.Second     // between two looks, whatever is due
)

// stay keeps the request open while rows fall due before until, and announces
// them when they do: timers shorter than the minute between two pings. It ends
// when nothing falls due in time, and when the process drains.
func (r *Reaper) stay(ctx context.Context, until time.Time) error {
	for {
		left := until.Sub(r.Now())
		if left < leastWait || r.stopped() {
			return nil
		}
		next, due, err := r.Store.NextDue(ctx, left)
		if err != nil {
			return err
		}
		if !due {
			return nil
		}
		if err := r.wait(ctx, min(left, lookAgain, max(next, leastWait))); err != nil {
			return err
		}
		r.run(ctx, r.timers())
	}
}

// wait returns after d, or when the process drains. An error says that the claim
// is lost or the request over.
func (r *Reaper) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.Stop:
		return nil
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), postgres.ErrLeaseLost) {
			return postgres.ErrLeaseLost
		}
		return nil
	}
}
