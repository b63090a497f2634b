package access

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits are how many requests one caller may make.
type Limits struct {
	PerSecond float64
	Burst     int // at once, after a pause
}

// maxLimited is how many callers are told apart; beyond it the one that has been
// silent the longest begins anew.
const maxLimited = 1024

// limiter counts the requests of each caller in this process.
type limiter struct {
	Limits
	mu      sync.Mutex
	callers map[string]*list.Element
	recent  *list.List // of *limited, the newest first
}

type limited struct {
	name string
	rate *rate.Limiter
}

func newLimiter(l Limits) *limiter {
	return &limiter{Limits: l, callers: map[string]*list.Element{}, recent: list.New()}
}

// take takes one request of the caller's, or says how long they must wait.
func (l *limiter) take(caller string, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.callers[caller]
	if e == nil {
		if l.recent.Len() >= maxLimited {
			oldest := l.recent.Remove(l.recent.Back()).(*limited)
			delete(l.callers, oldest.name)
		}
		e = l.recent.PushFront(&limited{name: caller, rate: rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst)})
		l.callers[caller] = e
	}
	l.recent.MoveToFront(e)
	r := e.Value.(*limited).rate.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}
