//go:build system

package system_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/pgproxy"
)

// approvalPoints are the places in the life of an approval at which a function
// can die.
var approvalPoints = []point{
	{moment: beforeServer, service: "agent-step", what: "asked", match: "INSERT INTO approvals"},
	{moment: afterServer, service: "agent-step", what: "asked", match: "INSERT INTO approvals"},
	{moment: afterServer, service: "agent-step", what: "claimed", match: "UPDATE sessions SET lease_owner = $2"},
	{moment: beforeServer, service: "agent-step", what: "used up", match: "SET consumed_at"},
	{moment: afterServer, service: "agent-step", what: "used up", match: "SET consumed_at"},
	{moment: beforeServer, service: "management-api", what: "decided", match: "approval_votes AS v"},
	{moment: afterServer, service: "management-api", what: "decided", match: "approval_votes AS v"},
	{moment: beforeServer, service: "whatsapp-ingest", what: "decided", match: "approval_votes AS v"},
	{moment: afterServer, service: "whatsapp-ingest", what: "decided", match: "approval_votes AS v"},
	{moment: beforeServer, service: "telegram-ingest", what: "decided", match: "approval_votes AS v"},
	{moment: afterServer, service: "telegram-ingest", what: "decided", match: "approval_votes AS v"},
	{moment: beforeServer, service: "reaper-cron", what: "time over", match: "SET state = 'EXPIRED'"},
	{moment: afterServer, service: "reaper-cron", what: "time over", match: "SET state = 'EXPIRED'"},
	{moment: afterServer, service: "sandbox-exec", what: "command begun", match: "UPDATE executions e SET state = 'RUNNING', started_at"},
	{moment: beforeServer, service: "whatsapp-ingest-events", what: "sent", match: "fence_reply"},
	{moment: afterServer, service: "whatsapp-ingest-events", what: "sent", match: "fence_reply"},
	{moment: beforeServer, service: "telegram-ingest-events", what: "sent", match: "fence_reply"},
	{moment: afterServer, service: "telegram-ingest-events", what: "sent", match: "fence_reply"},
}

var approvalVictims = []string{
	"agent-step", "management-api", "whatsapp-ingest", "telegram-ingest", "whatsapp-ingest-events", "telegram-ingest-events", "sandbox-exec", "reaper-cron",
}

// approvalKiller ends functions at the points it has drawn, and a third of the
// time at any moment.
type approvalKiller struct {
	world *world
	total int // approvals

	mu     sync.Mutex
	armed  bool
	due    []due
	ended  int // approvals raced for
	last   time.Time
	done   map[string]int
	deaths int
	died   int
}

func newApprovalKiller(n, total int, seed uint64) *approvalKiller {
	lot := rand.New(rand.NewPCG(seed, 1<<35))
	k := &approvalKiller{total: total, done: map[string]int{}}
	var order []int
	for len(k.due) < n {
		d := due{from: len(k.due) * total * 8 / (10 * n)}
		if len(k.due)%3 == 2 {
			d.point = point{moment: atRandom, service: approvalVictims[lot.IntN(len(approvalVictims))], what: "anything"}
		} else {
			if len(order) == 0 {
				order = lot.Perm(len(approvalPoints))
			}
			d.point, d.skip, order = approvalPoints[order[0]], lot.IntN(3), order[1:]
			if d.service == "reaper-cron" { // a race ends there seldom: it needs all the time there is
				d.from, d.skip = 0, 0
			}
		}
		k.due = append(k.due, d)
	}
	return k
}

func (k *approvalKiller) arm(w *world) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.world, k.armed = w, true
}

func (k *approvalKiller) disarm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = false
}

func (k *approvalKiller) progress(ended int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = ended
}

func (k *approvalKiller) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprintf("%d kills", k.deaths)
}

func (k *approvalKiller) left() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, d := range k.due {
		all = append(all, d.String())
	}
	return all
}

func (k *approvalKiller) atWire(service string) (before, after func(pgproxy.Exchange) bool) {
	hook := func(m moment) func(pgproxy.Exchange) bool {
		return func(e pgproxy.Exchange) bool {
			if e.Failed || len(e.Statements) == 0 {
				return true
			}
			text := strings.Join(e.Statements, "\n")
			return !k.pass(func(p point) bool { return p.moment == m && p.service == service && strings.Contains(text, p.match) })
		}
	}
	return hook(beforeServer), hook(afterServer)
}

// strike carries out the deaths at random moments, until ctx ends.
func (k *approvalKiller) strike(ctx context.Context) {
	ticker := time.NewTicker(170 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.pass(func(p point) bool { return p.moment == atRandom })
		}
	}
}

// pass is called when a point is reached; it reports whether somebody died.
func (k *approvalKiller) pass(reached func(point) bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.armed || time.Since(k.last) < 300*time.Millisecond {
		return false
	}
	for i, d := range k.due {
		if k.ended < d.from || !reached(d.point) {
			continue
		}
		if d.skip > 0 {
			k.due[i].skip--
			return false
		}
		killed := k.world.cluster.Kill(d.service)
		if killed == 0 {
			return false // it has ended by itself this moment; the next one will do
		}
		k.due = append(k.due[:i:i], k.due[i+1:]...)
		k.deaths++
		k.died += killed
		k.done[d.String()]++
		k.last = time.Now()
		return true
	}
	return false
}
