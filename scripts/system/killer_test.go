//go:build system

package system_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/pgproxy"
)

// moment is when, seen from outside, a point lies.
type moment string

const (
	beforeServer moment = "before commit" // the server has not seen the statement
	afterServer  moment = "after commit"  // committed, and the function does not know
	onPublish    moment = "publish"       // the broker has the event, and the function has no answer
	onEvidence   moment = "evidence"      // the command has just left a line
	atRandom     moment = "random"        // whatever the function is doing
)

// point is a place in the life of a message at which a function can die.
type point struct {
	moment  moment
	service string
	what    string // for people
	match   string // part of a statement, an event's type, a file of evidence
	never   string // part of a statement that must not be there
	sandbox bool   // the sandbox dies as well
}

func (p point) String() string {
	text := fmt.Sprintf("%s, %s: %s", p.service, p.moment, p.what)
	if p.sandbox {
		text += ", with the sandbox"
	}
	return text
}

// points are every step of a turn: what is committed, what is published after
// it, and what a command does between. The statements are recognised by their
// text; one that is rewritten shows as a point that was never reached.
var points = []point{
	{moment: beforeServer, service: "webhook-ingest", what: "message accepted", match: "INSERT INTO inbox"},
	{moment: afterServer, service: "webhook-ingest", what: "message accepted", match: "INSERT INTO inbox"},
	{moment: onPublish, service: "webhook-ingest", what: "message.received", match: "ai.tuluat.message.received.v1"},

	{moment: afterServer, service: "agent-step", what: "session claimed", match: "UPDATE sessions SET lease_owner = $2"},
	{moment: beforeServer, service: "agent-step", what: "step committed", match: "fence_session"},
	{moment: afterServer, service: "agent-step", what: "step committed", match: "fence_session"},
	{moment: afterServer, service: "agent-step", what: "command asked for", match: "INSERT INTO executions"},
	{moment: onPublish, service: "agent-step", what: "execution.requested", match: "ai.tuluat.execution.requested.v1"},
	{moment: afterServer, service: "agent-step", what: "answer planned", match: "INSERT INTO replies"},
	{moment: onPublish, service: "agent-step", what: "message.reply", match: "ai.tuluat.message.reply.v1"},
	{moment: onPublish, service: "agent-step", what: "session.due", match: "ai.tuluat.session.due.v1"},

	{moment: afterServer, service: "sandbox-exec", what: "execution claimed", match: "UPDATE executions SET lease_owner = $2"},
	{moment: afterServer, service: "sandbox-exec", what: "place found", match: "INSERT INTO sandboxes"},
	{moment: beforeServer, service: "sandbox-exec", what: "command begun", match: "UPDATE executions e SET state = 'RUNNING', started_at"},
	{moment: afterServer, service: "sandbox-exec", what: "command begun", match: "UPDATE executions e SET state = 'RUNNING', started_at"},
	{moment: afterServer, service: "sandbox-exec", what: "command begun", match: "UPDATE executions e SET state = 'RUNNING', started_at", sandbox: true},
	{moment: onEvidence, service: "sandbox-exec", what: "command started", match: startsFile},
	{moment: onEvidence, service: "sandbox-exec", what: "command started", match: startsFile, sandbox: true},
	{moment: onEvidence, service: "sandbox-exec", what: "command ended", match: endsFile},
	{moment: beforeServer, service: "sandbox-exec", what: "outcome stored", match: "'command', e.execution_id, 'ended as'"},
	{moment: afterServer, service: "sandbox-exec", what: "outcome stored", match: "'command', e.execution_id, 'ended as'"},
	{moment: onPublish, service: "sandbox-exec", what: "execution.finished", match: "ai.tuluat.execution.finished.v1"},
	{moment: afterServer, service: "sandbox-exec", what: "sandbox to end", match: "SET state = 'TERMINATING', reason = $3"},
	{moment: beforeServer, service: "sandbox-exec", what: "sandbox gone", match: "UPDATE sandboxes SET state = 'GONE'"},

	{moment: afterServer, service: "webhook-ingest-events", what: "answer claimed", match: "UPDATE replies r SET lease_owner = $2", never: "fence_reply"},
	{moment: beforeServer, service: "webhook-ingest-events", what: "answer sent", match: "fence_reply"},
	{moment: afterServer, service: "webhook-ingest-events", what: "answer sent", match: "fence_reply"},

	{moment: afterServer, service: "reaper-cron", what: "announcements taken", match: "UPDATE outbox o SET attempts"},
}

// rare points need a cause of their own and may not come up in a short run.
var rare = map[string]bool{"sandbox to end": true, "sandbox gone": true, "announcements taken": true}

// victims are the functions that die at random moments.
var victims = []string{"webhook-ingest", "agent-step", "sandbox-exec", "webhook-ingest-events", "reaper-cron", "agent-status"}

// due is a death that has been drawn: from when on, and how many times its
// point is passed before.
type due struct {
	point
	from int // messages answered
	skip int
}

// killer ends functions, by SIGKILL, at the points it has drawn.
type killer struct {
	world *world

	mu     sync.Mutex
	armed  bool // set when there is a platform to kill in
	due    []due
	done   map[string]int // deaths per point
	deaths int
	boxes  int // sandboxes ended
}

// newKiller draws n deaths: every point once before any twice, and a fifth at
// random moments, spread over the first nine tenths of total answers.
func newKiller(n, total int, seed uint64) *killer {
	lot := rand.New(rand.NewPCG(seed, 1<<33))
	k := &killer{done: map[string]int{}}
	var order []int
	for len(k.due) < n {
		if len(k.due)%5 == 4 {
			k.due = append(k.due, due{point: point{moment: atRandom, service: victims[lot.IntN(len(victims))], what: "anything"}})
			continue
		}
		if len(order) == 0 {
			order = lot.Perm(len(points))
		}
		k.due = append(k.due, due{point: points[order[0]], skip: lot.IntN(3)})
		order = order[1:]
	}
	for i := range k.due {
		k.due[i].from = i * total * 9 / (10 * n)
		if rare[k.due[i].what] { // they need all the time there is
			k.due[i].from, k.due[i].skip = 0, 0
		}
	}
	return k
}

// atWire is the two hooks of a Service's way to the database.
func (k *killer) atWire(service string) (before, after func(pgproxy.Exchange) bool) {
	hook := func(m moment) func(pgproxy.Exchange) bool {
		return func(e pgproxy.Exchange) bool {
			if e.Failed || len(e.Statements) == 0 {
				return true
			}
			text := strings.Join(e.Statements, "\n")
			return !k.pass(func(p point) bool {
				return p.moment == m && p.service == service && strings.Contains(text, p.match) && (p.never == "" || !strings.Contains(text, p.never))
			})
		}
	}
	return hook(beforeServer), hook(afterServer)
}

func (k *killer) published(eventType string) {
	k.pass(func(p point) bool { return p.moment == onPublish && p.match == eventType })
}

func (k *killer) evidence(file, _ string) {
	k.pass(func(p point) bool { return p.moment == onEvidence && p.match == file })
}

// pass is called when a point is reached; it reports whether somebody died.
func (k *killer) pass(reached func(point) bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.armed {
		return false
	}
	answered, _ := k.world.receiver.answered("")
	for i, d := range k.due {
		if answered < d.from || !reached(d.point) {
			continue
		}
		if d.skip > 0 {
			k.due[i].skip--
			return false
		}
		return k.kill(i)
	}
	return false
}

// kill carries out a death. mu is held: one at a time.
func (k *killer) kill(i int) bool {
	d := k.due[i]
	killed := k.world.cluster.Kill(d.service)
	if killed == 0 {
		return false // it has ended by itself this moment; the next one will do
	}
	k.due = append(k.due[:i:i], k.due[i+1:]...)
	if d.sandbox && k.world.killSandbox() {
		k.boxes++
	}
	k.deaths++
	k.done[d.String()]++
	return true
}

// strike carries out the deaths at random moments that are due, until stopped.
func (k *killer) strike(stop <-chan struct{}) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			k.pass(func(p point) bool { return p.moment == atRandom })
		}
	}
}

func (k *killer) arm(w *world) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.world, k.armed = w, true
}

// left are the deaths that never came to be.
func (k *killer) left() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, d := range k.due {
		all = append(all, d.String())
	}
	return all
}
