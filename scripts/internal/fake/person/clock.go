package person

import (
	"context"
	"sync"
	"time"
)

// Clock is a time that can be moved forward. Those who wait by it notice.
type Clock struct {
	base  func() time.Time
	speed float64

	mu     sync.Mutex
	ahead  time.Duration
	jumped chan struct{} // closed at the next jump
}

// NewClock returns a clock that shows base, and whose waits are speed times as
// short; 0 means 1.
func NewClock(base func() time.Time, speed float64) *Clock {
	if base == nil {
		base = time.Now
	}
	if speed <= 0 {
		speed = 1
	}
	return &Clock{base: base, speed: speed, jumped: make(chan struct{})}
}

// Now is base plus all jumps.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base().Add(c.ahead)
}

// Jump moves the clock by d.
func (c *Clock) Jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
	close(c.jumped)
	c.jumped = make(chan struct{})
}

// Jumped is closed at the next jump.
func (c *Clock) Jumped() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jumped
}

// Sleep waits until the clock shows d more. It reports false when ctx ended first.
func (c *Clock) Sleep(ctx context.Context, d time.Duration) bool {
	for d > 0 {
		c.mu.Lock()
		ahead, jumped := c.ahead, c.jumped
		c.mu.Unlock()
		began := time.Now()
		timer := time.NewTimer(time.Duration(float64(d) / c.speed))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
			d = 0
		case <-jumped:
			timer.Stop()
			c.mu.Lock()
			d -= c.ahead - ahead + time.Duration(float64(time.Since(began))*c.speed)
			c.mu.Unlock()
		}
	}
	return ctx.Err() == nil
}
