//go:build system

package system_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/internal/pgproxy"
)

var (
	flagApprovals   = flag.Int("approvals", 500, "approvals that are raced for")
	flagExecutioner = flag.Int("approvalkills", 80, "times a function is killed while approvals are raced for")
)

// perAsker is how many approvals one agent asks for: what its approvers' chats
// take at the providers' pace.
const perAsker = 25

// actor is one way to decide, and what became of it.
type actor struct {
	surface string // user ann, user bob, WHATSAPP, TELEGRAM or the clock
	typed   bool   // the code, rather than a button
	approve bool
	after   time.Duration

	acted  bool
	status int // of REST
	answer string
	lost   int // requests of REST without an answer
	ended  time.Time
}

// asked is one command that humans are asked about.
type asked struct {
	command
	asker  asker
	actors []*actor

	approval, code string
}

// newAsked draws who decides what about n commands: most are raced for.
func newAsked(askers []asker, n int, seed uint64) []*asked {
	lot := rand.New(rand.NewPCG(seed, 1<<34))
	var all []*asked
	for i := range n {
		a := askers[i%len(askers)]
		q := &asked{command: command{id: fmt.Sprintf("%s-c%03d", a.name, i/len(askers))}, asker: a}
		surfaces := []string{"user ann", "user bob", "WHATSAPP", "TELEGRAM", "the clock"}
		switch k := lot.IntN(10); {
		case k < 3: // everybody
		case k < 6:
			surfaces = []string{"user ann", "WHATSAPP", "TELEGRAM"}
		case k == 6:
			surfaces = []string{"WHATSAPP", "the clock"}
		case k == 7:
			surfaces = []string{"TELEGRAM", "the clock"}
		case k == 8:
			surfaces = []string{"WHATSAPP", "TELEGRAM"}
		default:
			surfaces = surfaces[lot.IntN(5):][:1]
		}
		for _, s := range surfaces {
			q.actors = append(q.actors, &actor{
				surface: s, typed: lot.IntN(5) == 0, approve: lot.IntN(5) < 3, after: time.Duration(lot.IntN(60)) * time.Millisecond,
			})
		}
		all = append(all, q)
	}
	return all
}

// TestApprovals has people on both messengers, users of the API and the clock
// race for every approval while functions are killed, and compares rows, phones
// and what commands left in a folder.
func TestApprovals(t *testing.T) {
	seed := *flagSeed
	if seed == 0 {
		seed = rand.Uint64()>>1 + 1
	}
	t.Logf("seed %d: repeat with -seed=%[1]d", seed)
	askers := newAskers(max(1, (*flagApprovals+perAsker-1)/perAsker))
	all := newAsked(askers, *flagApprovals, seed)
	k := newApprovalKiller(*flagExecutioner, len(all), seed)
	began := time.Now()
	w := newWorld(t, plan{
		people: &crowd{askers: askers}, seed: seed, processes: 2, ageing: 3 * time.Second,
		atWire: func(service string) (before, after func(pgproxy.Exchange) bool) { return k.atWire(service) },
	})
	w.greet()
	ready := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), *flagPatience)
	defer cancel()
	api := newREST(w)
	u := &undertaker{doubtful: map[string]bool{}}
	disturbing, calm := context.WithCancel(ctx)
	defer calm()
	var around sync.WaitGroup
	around.Go(func() { u.bury(disturbing, w) })
	k.arm(w)
	around.Go(func() { k.strike(disturbing) })
	w.ask(ctx, api, all)
	w.decideAll(ctx, api, all, k)
	decided := time.Now()
	k.disarm()
	left := w.awaitDecided(10 * time.Minute)
	calm()
	around.Wait()
	ctx, settle := context.WithTimeout(t.Context(), time.Minute)
	defer settle()
	w.must(w.people.whatsapp.Settled(ctx))
	t.Logf("%s to start, %s until all was said, %s until nothing was left",
		ready.Sub(began).Round(time.Second), decided.Sub(ready).Round(time.Second), time.Since(decided).Round(time.Second))
	w.judgeApprovals(all, k)
	if left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	if rest := k.left(); len(rest) > 0 {
		t.Errorf("%d kills of %d; not reached: %q", k.deaths, *flagExecutioner, rest)
	}
	w.stop()
	w.assertNothingRemains()
}

// ask has every command asked for, in five conversations per agent: three by the
// API, and those of the approvers. Now and then one turn asks for two.
func (w *world) ask(ctx context.Context, api *rest, all []*asked) {
	w.t.Helper()
	of := map[string][]*asked{}
	for _, q := range all {
		of[q.asker.name] = append(of[q.asker.name], q)
	}
	var asking sync.WaitGroup
	for _, a := range w.plan.people.askers {
		asking.Go(func() {
			for number, open := 0, of[a.name]; len(open) > 0; number++ {
				text, n := "run: "+open[0].shell(), 1
				if number%5 == 1 && len(open) > 1 {
					text, n = "run twice: "+open[0].shell()+" ;; "+open[1].shell(), 2
				}
				switch at := number % 5; at {
				case 3:
					w.sayTo(a, "WHATSAPP", text)
				case 4:
					w.sayTo(a, "TELEGRAM", text)
				default:
					body := map[string]string{"agent": a.name, "chat": fmt.Sprint("chat-", at), "text": text}
					if status, answer, _, err := api.call(ctx, "ann", http.MethodPost, "/sessions", fmt.Sprint(a.name, "-", number), body); err != nil || status/100 != 2 {
						w.t.Errorf("a message of the API: %d %s %v", status, answer, err)
					}
				}
				open = open[n:]
			}
		})
	}
	asking.Wait()
}

var commandID = regexp.MustCompile(`^echo "(\S+) `)

// decideAll finds each approval as it is asked for, and has it raced for.
func (w *world) decideAll(ctx context.Context, api *rest, all []*asked, k *approvalKiller) {
	w.t.Helper()
	byCommand := map[string]*asked{}
	for _, q := range all {
		byCommand[q.id] = q
	}
	var races sync.WaitGroup
	known, printed := []string{}, time.Now()
	found, ended := 0, make(chan struct{}, len(all))
	for found < len(all) {
		rows, err := w.db.Query(ctx, `SELECT approval_id, input #>> '{arguments,command}', short_code FROM approvals WHERE NOT approval_id = ANY ($1)`, known)
		if err == nil {
			var id, text, code string
			_, err = pgx.ForEachRow(rows, []any{&id, &text, &code}, func() error {
				known = append(known, id)
				name := commandID.FindStringSubmatch(text)
				if name == nil || byCommand[name[1]] == nil {
					w.t.Errorf("an approval that nobody asked for: %s %q", id, text)
					return nil
				}
				q := byCommand[name[1]]
				if q.approval != "" {
					w.t.Errorf("%s is asked twice: %s and %s", q.id, q.approval, id)
					return nil
				}
				q.approval, q.code = id, code
				found++
				races.Go(func() { w.race(ctx, api, q); ended <- struct{}{} })
				return nil
			})
		}
		if err != nil && ctx.Err() != nil {
			break
		}
		if time.Since(printed) > 15*time.Second {
			printed = time.Now()
			w.t.Logf("%d asked, %d raced for, %s", found, len(ended), k)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
		k.progress(len(ended))
		if ctx.Err() != nil {
			break
		}
	}
	races.Wait()
	k.progress(len(all))
	if found < len(all) {
		w.t.Errorf("%d of %d were asked", found, len(all))
	}
}

// race has everybody decide at once, as soon as those who tap have the card.
func (w *world) race(ctx context.Context, api *rest, q *asked) {
	cards := map[string]person.Line{}
	_, _ = w.waitIn(ctx, time.Minute, func() bool {
		missing := false
		for _, who := range q.actors {
			if who.surface != "WHATSAPP" && who.surface != "TELEGRAM" || cards[who.surface].ID != "" {
				continue
			}
			card, ok := w.card(q, who.surface)
			if cards[who.surface] = card; !ok {
				missing = true
			}
		}
		return !missing
	})
	var all sync.WaitGroup
	for _, who := range q.actors {
		all.Go(func() {
			select {
			case <-time.After(who.after):
			case <-ctx.Done():
				return
			}
			w.act(ctx, api, q, who, cards[who.surface])
		})
	}
	all.Wait()
	if !slices.ContainsFunc(q.actors, func(who *actor) bool { return who.acted }) { // their cards were lost with their senders
		who := &actor{surface: "user ann"}
		q.actors = append(q.actors, who)
		w.act(ctx, api, q, who, person.Line{})
	}
}

// card is the newest card of q in its approver's chat.
func (w *world) card(q *asked, channel string) (person.Line, bool) {
	lines := w.linesOf(q.asker, channel)
	for i := len(lines) - 1; i >= 0; i-- {
		if l := lines[i]; l.From == "" && len(l.Choices) > 0 && strings.Contains(l.Text, q.id+" ") {
			return l, true
		}
	}
	return person.Line{}, false
}

func (w *world) act(ctx context.Context, api *rest, q *asked, who *actor, card person.Line) {
	verdict, title := "REJECT", "Reject"
	if who.approve {
		verdict, title = "APPROVE", "Approve"
	}
	switch who.surface {
	case "the clock":
		who.acted = true
		// Under the lock of those who decide: the system itself never moves an end.
		if err := pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT lock_approval($1)`, q.approval); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE approvals SET expires_at = t.soon, due_at = t.soon FROM (SELECT clock_timestamp() + interval '10 milliseconds' AS soon) t
				WHERE approval_id = $1 AND state = 'PENDING'`, q.approval)
			return err
		}); err != nil {
			w.t.Error(err)
		}
		time.Sleep(12 * time.Millisecond) // past it, and hardly more
		_ = w.cluster.Tick(ctx, reaper)   // a killed sweep is one of the things that happen
	case "WHATSAPP", "TELEGRAM":
		switch {
		case card.ID == "": // it did not arrive
		case who.typed:
			w.sayTo(q.asker, who.surface, strings.ToLower(verdict)+" "+q.code)
			who.acted = true
		default:
			who.acted = w.press(q.asker, who.surface, title, card)
		}
	default:
		_, user, _ := strings.Cut(who.surface, " ")
		status, answer, lost, err := api.call(ctx, user, http.MethodPost, "/approvals/"+q.approval+"/decision", "", map[string]string{"decision": verdict, "reason": "said by " + user})
		if err != nil {
			w.t.Errorf("%s decides %s: %v", user, q.id, err)
		}
		who.acted, who.status, who.answer, who.lost, who.ended = true, status, string(answer), lost, time.Now()
	}
}

// waitIn is wait, which ends with ctx too.
func (w *world) waitIn(ctx context.Context, patience time.Duration, done func() bool) (string, bool) {
	return w.wait(patience, func() (bool, string) { return ctx.Err() != nil || done(), "" })
}

// awaitDecided returns when nothing is left to do, or says what is.
func (w *world) awaitDecided(patience time.Duration) string {
	left, ok := w.wait(patience, func() (bool, string) {
		left := w.strings(`SELECT what || ': ' || n FROM (
			SELECT 'approvals' AS what, count(*) AS n FROM approvals WHERE state = 'PENDING' OR due_at IS NOT NULL
			UNION ALL SELECT 'sessions', count(*) FROM sessions WHERE due_at IS NOT NULL OR lease_owner IS NOT NULL OR state NOT IN ('IDLE', 'BLOCKED', 'FAILED', 'COMPLETED', 'CANCELLED')
			UNION ALL SELECT 'messages', count(*) FROM messages WHERE state <> 'DONE'
			UNION ALL SELECT 'tool calls', count(*) FROM tool_calls WHERE state IN ('PENDING', 'RUNNING')
			UNION ALL SELECT 'executions', count(*) FROM executions WHERE ended_at IS NULL
			UNION ALL SELECT 'sandboxes', count(*) FROM sandboxes WHERE state <> 'GONE'
			UNION ALL SELECT 'replies', count(*) FROM replies WHERE state = 'PLANNED' OR state = 'UNKNOWN' AND due_at IS NOT NULL
			UNION ALL SELECT 'announcements', count(*) FROM outbox) x WHERE n > 0`)
		return len(left) == 0, strings.Join(left, ", ")
	})
	if ok {
		return ""
	}
	return left
}
