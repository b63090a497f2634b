package devcluster

import (
	"maps"
	"sync"
)

// Counts is what a Cluster has done.
type Counts struct {
	Published    int // events a Broker took
	Refused      int // requests to a Broker that were no valid event for it
	Matched      int // (event, Trigger) pairs whose filter passed
	Dropped      int // of these, lost by a fault
	Doubled      int // of these, delivered once more by a fault
	Attempts     int // requests to subscribers and sinks
	Delivered    int // of these, accepted
	DeadLettered int // events a dead letter sink took
	Lost         int // events nobody took in the end
	Ticks        int // PingSource events sent

	Starts  map[string]int // processes that became ready, by Service
	Kills   map[string]int // processes ended by Kill
	Crashes map[string]int // processes that ended by themselves
}

type counter struct {
	mu sync.Mutex
	c  Counts
}

func newCounter() *counter {
	return &counter{c: Counts{Starts: map[string]int{}, Kills: map[string]int{}, Crashes: map[string]int{}}}
}

func (c *counter) add(change func(*Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.c)
}

func (c *counter) read() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	copied := c.c
	copied.Starts, copied.Kills, copied.Crashes = maps.Clone(c.c.Starts), maps.Clone(c.c.Kills), maps.Clone(c.c.Crashes)
	return copied
}
