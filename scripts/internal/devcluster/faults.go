package devcluster

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
)

// Faults makes every Broker as bad as one may be. Sources are not affected.
// What happens to the nth publication of an event for a trigger depends only on
// the seed and these three, so a run can be repeated.
type Faults struct {
	Seed           uint64
	DropRate       float64       // share of matches that are never delivered
	DoubleRate     float64       // share of matches that are delivered twice
	MaxDelay       time.Duration // each delivery waits up to this, which reorders them
	DeliverNothing bool          // a Broker that takes everything and delivers nothing
}

type faultPlan struct {
	faults Faults
	mu     sync.Mutex
	seen   map[string]int // publications per event and trigger
}

func newFaultPlan(f Faults) *faultPlan { return &faultPlan{faults: f, seen: map[string]int{}} }

// deliveries returns a delay for each time the event is to be delivered.
func (p *faultPlan) deliveries(event cloudevents.Event, trigger string, counts *counter) []time.Duration {
	if p.faults == (Faults{}) {
		return []time.Duration{0}
	}
	key := event.Source() + "\x00" + event.ID() + "\x00" + trigger
	p.mu.Lock()
	p.seen[key]++
	nth := p.seen[key]
	p.mu.Unlock()
	if p.faults.DeliverNothing || p.chance(key, nth, "drop") < p.faults.DropRate {
		counts.add(func(n *Counts) { n.Dropped++ })
		return nil
	}
	delays := []time.Duration{p.delay(key, nth, "first")}
	if p.chance(key, nth, "double") < p.faults.DoubleRate {
		counts.add(func(n *Counts) { n.Doubled++ })
		delays = append(delays, p.delay(key, nth, "second"))
	}
	return delays
}

func (p *faultPlan) delay(key string, nth int, what string) time.Duration {
	return time.Duration(p.chance(key, nth, "delay "+what) * float64(p.faults.MaxDelay))
}

// chance is a number in [0,1) that depends on its arguments and the seed alone.
func (p *faultPlan) chance(key string, nth int, what string) float64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, []uint64{p.faults.Seed, uint64(nth)}) // a hash never fails
	_, _ = h.Write([]byte(key + "\x00" + what))
	mixed := h.Sum64() * 0x9E3779B97F4A7C15 // FNV alone leaves the high bits poor
	mixed ^= mixed >> 32
	mixed *= 0x9E3779B97F4A7C15
	return float64(mixed>>11) / math.Exp2(53)
}
