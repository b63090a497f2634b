package access

import (
	"crypto/sha256"
	"sync"
	"time"
)

// digest stands for what was asked, so that the question itself, which may be a
// token, is not kept.
type digest [sha256.Size]byte

// cache keeps the newest answers for a fixed time, and never more than max.
type cache[V any] struct {
	max  int
	keep time.Duration

	mu      sync.Mutex
	answers map[digest]answer[V]
	order   []digest // as they came, which is the order in which they end
}

type answer[V any] struct {
	value V
	ends  time.Time
}

func newCache[V any](max int, keep time.Duration) *cache[V] {
	return &cache[V]{max: max, keep: keep, answers: map[digest]answer[V]{}}
}

func (c *cache[V]) get(key digest, now time.Time) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.answers[key]
	if !ok || !now.Before(a.ends) {
		var none V
		return none, false
	}
	return a.value, true
}

// put keeps value, which was asked for at the time asked: an answer that came
// late does not live longer for it.
func (c *cache[V]) put(key digest, value V, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.order) > 0 && (len(c.order) >= c.max || !asked.Before(c.answers[c.order[0]].ends)) {
		c.drop()
	}
	if old, ok := c.answers[key]; ok {
		// Somebody asked at the same time: what was asked last holds, and the place
		// in order is that of the first, so it may be dropped a little too early.
		if asked.Add(c.keep).After(old.ends) {
			c.answers[key] = answer[V]{value, asked.Add(c.keep)}
		}
		return
	}
	c.answers[key] = answer[V]{value, asked.Add(c.keep)}
	c.order = append(c.order, key)
}

func (c *cache[V]) drop() {
	delete(c.answers, c.order[0])
	c.order = c.order[1:]
}
