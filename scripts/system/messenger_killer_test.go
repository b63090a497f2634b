//go:build system

package system_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/pgproxy"
)

// sendPoint is a place in the sending of a reply at which its process can die.
type sendPoint struct {
	what    string
	moment  moment
	match   string // part of a statement
	never   string // part of a statement that must not be there
	refuses bool   // the provider does not take the request in which it dies
}

const inRequest moment = "in the request"

// sendPoints are recognised by what their statements say; one that is rewritten
// shows as a death that never came to be.
var sendPoints = []sendPoint{
	{what: "claimed", moment: afterServer, match: "UPDATE replies r SET lease_owner = $2", never: "fence_reply"},
	{what: "begin", moment: beforeServer, match: "SET state = 'UNKNOWN', reason = 'the answer of the provider"},
	{what: "begin", moment: afterServer, match: "SET state = 'UNKNOWN', reason = 'the answer of the provider"},
	{what: "the provider takes it", moment: inRequest},
	{what: "the provider does not take it", moment: inRequest, refuses: true},
	{what: "mark, with the provider's 200", moment: beforeServer, match: "fence_reply"},
	{what: "mark, with the provider's 200", moment: afterServer, match: "fence_reply"},
}

func (p sendPoint) String() string { return fmt.Sprintf("%s: %s", p.moment, p.what) }

// executioner ends the senders of one channel at drawn points, one after the other.
type executioner struct {
	service string
	world   *world

	mu     sync.Mutex
	armed  bool
	due    []sendPoint
	skip   int // times the first of due is passed before
	lot    *rand.Rand
	last   time.Time
	done   map[string]int
	deaths int
	died   int // processes
}

// betweenDeaths lets some replies through.
const betweenDeaths = 700 * time.Millisecond

func newExecutioner(service string, n int, seed uint64) *executioner {
	k := &executioner{service: service, lot: rand.New(rand.NewPCG(seed, uint64(len(service)))), done: map[string]int{}}
	for len(k.due) < n {
		for _, i := range k.lot.Perm(len(sendPoints)) {
			k.due = append(k.due, sendPoints[i])
		}
	}
	k.due = k.due[:n]
	return k
}

func (k *executioner) arm(w *world) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.world, k.armed = w, true
}

func (k *executioner) left() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.due)
}

// pass is called when a point is reached and returns who died there, nil if nobody.
func (k *executioner) pass(reached func(sendPoint) bool) *sendPoint {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.armed || len(k.due) == 0 || time.Since(k.last) < betweenDeaths || !reached(k.due[0]) {
		return nil
	}
	if k.skip > 0 {
		k.skip--
		return nil
	}
	killed := k.world.cluster.Kill(k.service)
	if killed == 0 {
		return nil // it has ended by itself this moment; the next one will do
	}
	p := k.due[0]
	k.due, k.skip, k.last = k.due[1:], k.lot.IntN(4), time.Now()
	k.deaths++
	k.died += killed
	k.done[p.String()]++
	return &p
}

func (k *executioner) atWire(m moment) func(pgproxy.Exchange) bool {
	return func(e pgproxy.Exchange) bool {
		if e.Failed || len(e.Statements) == 0 {
			return true
		}
		text := strings.Join(e.Statements, "\n")
		return k.pass(func(p sendPoint) bool {
			return p.moment == m && strings.Contains(text, p.match) && (p.never == "" || !strings.Contains(text, p.never))
		}) == nil
	}
}

// sending is called by the provider when it is about to take a message.
func (k *executioner) sending() {
	p := k.pass(func(p sendPoint) bool { return p.moment == inRequest })
	if p != nil && p.refuses {
		panic(http.ErrAbortHandler)
	}
}

// undertaker ends the leases that dead senders leave at once, which the system
// would wait for, and writes down what was left under them.
type undertaker struct {
	mu       sync.Mutex
	doubtful map[string]bool // reply ids that may have been sent
	planned  int             // that surely were not
}

// bury works until ctx ends.
func (u *undertaker) bury(ctx context.Context, w *world) {
	seen := map[string]bool{} // reply and owner, dead when last looked at
	ticker := time.NewTicker(150 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		rows, err := w.db.Query(ctx, "SELECT reply_id || ' ' || lease_owner FROM replies WHERE lease_owner IS NOT NULL AND lease_until > now()")
		if err != nil {
			continue // while it is asked again
		}
		held, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			continue
		}
		now := map[string]bool{}
		for _, h := range held {
			reply, owner, _ := strings.Cut(h, " ")
			if alive(owner) {
				continue
			}
			now[h] = true
			if seen[h] { // what it had on its way to the server has arrived
				u.close(ctx, w, reply, owner)
			}
		}
		seen = now
	}
}

func (u *undertaker) close(ctx context.Context, w *world, reply, owner string) {
	var state string
	err := w.db.QueryRow(ctx, `UPDATE replies SET lease_until = now() - interval '1 second' WHERE reply_id = $1 AND lease_owner = $2 AND lease_until > now() RETURNING state`, reply, owner).Scan(&state)
	if err != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch state {
	case "UNKNOWN":
		u.doubtful[reply] = true
	case "PLANNED":
		u.planned++
	}
}

// alive reports whether the process that an owner of a lease names still runs.
func alive(owner string) bool {
	pid, err := strconv.Atoi(owner[strings.LastIndex(owner, "/")+1:])
	if err != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}
