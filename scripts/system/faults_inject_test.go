//go:build system

package system_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/internal/pgproxy"
)

// faults are what goes wrong, in the order of the table.
func faults() []fault {
	all := []fault{{"nothing", func(c *trial) {
		c.traffic()
		c.phones(2)
		c.awaitAll()
		c.what = "as a measure"
	}}}
	for _, service := range []string{
		"webhook-ingest", "agent-step", "sandbox-exec", "webhook-ingest-events", "whatsapp-ingest", "whatsapp-ingest-events",
		"telegram-ingest", "telegram-ingest-events", "reaper-cron", "management-api", "agent-status", "dead-letter",
	} {
		all = append(all, fault{service + " dies between any two writes", func(c *trial) { c.dies(service, c.talkOf(service)) }})
	}
	return append(all,
		fault{"SIGTERM to every function in a turn", terminated},
		fault{"no tick for 3 hours", unticked},
		fault{"ticks at once", tickedAtOnce},
		fault{"PostgreSQL crashes in a sweep", func(c *trial) { c.crashes("reaper-cron", "UPDATE outbox o SET attempts") }},
		fault{"PostgreSQL crashes in a turn", func(c *trial) { c.crashes("agent-step", "fence_session") }},
		fault{"PostgreSQL crashes under a command", func(c *trial) { c.crashes("sandbox-exec", "SET state = 'RUNNING', started_at") }},
		fault{"every connection to PostgreSQL is cut, again and again", cutConnections},
		fault{"the broker loses every event", func(c *trial) { c.brokers(gateLosing) }},
		fault{"the broker tells every event twice", func(c *trial) { c.brokers(gateDoubling) }},
		fault{"the broker tells events in another order", func(c *trial) { c.brokers(gateMixing) }},
		fault{"the broker refuses everything", func(c *trial) { c.brokers(gateRefusing) }},
		fault{"a dead letter is replayed, and replayed when it is done", replayed},
		fault{"a sandbox dies under its command", sandboxDies},
		fault{"a sandbox dies while it is idle", idleSandboxDies},
		fault{"a sandbox cannot be removed for a while", stuckRemoval},
		fault{"a command fills its disk", fillsDisk},
		fault{"a command uses up its memory", usesMemory},
		fault{"the model answers 500", func(c *trial) { c.models(moodFails, 3) }},
		fault{"the model answers 429", func(c *trial) { c.models(moodBusy, 2) }},
		fault{"the model hangs and breaks off", func(c *trial) { c.models(moodHangs, 1) }},
		fault{"the model's answer is torn", func(c *trial) { c.models(moodTorn, 2) }},
		fault{"receivers and providers answer 500", func(c *trial) { c.providers(receiverFails, person.Fault{Do: "error", Status: 500}) }},
		fault{"receivers and providers answer 429", func(c *trial) {
			c.providers(receiverBusy, person.Fault{Do: "error", Status: 429, Code: 130429, RetryAfter: 1})
		}},
		fault{"receivers and providers take it and break off", func(c *trial) { c.providers(receiverBreaks, person.Fault{Do: "cutAfter"}) }},
		fault{"providers tell every webhook twice", func(c *trial) { c.webhooks("double", 3) }},
		fault{"providers tell webhooks out of order", func(c *trial) { c.webhooks("reorder", 1) }},
		fault{"S3 is down for an hour", func(c *trial) { c.archives(moodDown, -1, 60) }},
		fault{"S3 is slow", func(c *trial) { c.archives(moodSlow, 6, 1) }},
		fault{"S3 answers 500 after it has stored", func(c *trial) { c.archives(moodAfter, 3, 3) }},
		fault{"S3 answers 200 and stores nothing", func(c *trial) { c.archives(moodForgets, 2, 3) }},
		fault{"S3 stores other bytes", func(c *trial) { c.archives(moodFlips, 2, 3) }},
		fault{"S3 refuses checksums it does not know", func(c *trial) { c.archives(moodWell, 0, 1) }},
		fault{"the partition of the day is missing", unpartitioned},
		fault{"entries wait for a partition that is there", overflown},
		fault{"the clock of a function is 3 hours ahead", func(c *trial) { c.jumps(3 * time.Hour) }},
		fault{"the clock of a function is 3 hours behind", func(c *trial) { c.jumps(-3 * time.Hour) }},
		fault{"the revision in use is replaced, and its agent removed for a while", revised},
	)
}

// talkOf is what has a Service write.
func (c *trial) talkOf(service string) func() {
	switch {
	case strings.HasPrefix(service, "whatsapp"), strings.HasPrefix(service, "telegram"):
		return func() { c.phones(2) }
	case service == "management-api":
		round := 0
		return func() {
			round++
			c.overAPI(fmt.Sprintf("%s-a%d", c.name, round))
		}
	case service == "agent-status":
		round := 0
		return func() {
			round++
			before := c.revision()
			c.revise(fmt.Sprintf("round %d", round))
			c.speak(c.agents[0], "note")
			c.await(time.Minute, "there is a new revision", func() (bool, string) { return c.revision() > before, "" })
		}
	case service == "dead-letter":
		round := 0
		return func() {
			round++
			c.letter(map[string]string{"Ce-Id": fmt.Sprintf("%s-%d", c.name, round), "Ce-Type": "ai.tuluat.session.due.v1"}, `{"session": "ses_of_nobody"}`)
		}
	case service == "reaper-cron":
		return func() {
			c.log(20)
			c.traffic()
			c.await(time.Minute, "a pass is through", func() (bool, string) { return c.passes(2), "" })
		}
	}
	return c.traffic
}

// passes reports whether so many passes ended since it was called first.
func (c *trial) passes(n int) bool {
	began := time.Now()
	for time.Since(began) < 40*time.Second && c.ctx.Err() == nil {
		var done int
		if err := c.db.QueryRow(c.ctx, `SELECT count(*) FROM sweep_reports WHERE started_at > $1`, began).Scan(&done); err == nil && done >= n {
			return true
		}
		time.Sleep(200 * time.Millisecond)
	}
	return true
}

// overAPI says one thing by the management API, twice under one key, as a caller
// does who had no answer.
func (c *trial) overAPI(chat string) {
	body := map[string]string{"agent": c.agents[0].name, "chat": chat, "text": "note " + chat}
	var first string
	for range 2 {
		status, answer, _, err := c.calls.api(c.ctx, c.rest, chat, body)
		var accepted struct{ Message string }
		if err != nil || status != http.StatusAccepted || json.Unmarshal(answer, &accepted) != nil {
			c.detail("a message by the API: %d %s %v", status, answer, err)
			return
		}
		if first == "" {
			first = accepted.Message
		}
		if accepted.Message != first {
			c.doubled++
			c.detail("one message by the API is %s and %s", first, accepted.Message)
		}
	}
	state, ok := c.wait(time.Minute, func() (bool, string) {
		var n int
		err := c.db.QueryRow(c.ctx, `SELECT count(*) FROM messages WHERE in_reply_to = $1`, first).Scan(&n)
		return n == 1, fmt.Sprint(n, err)
	})
	if !ok {
		c.lost++
		c.detail("the message %s of the API has not one answer: %s", first, state)
	}
}

func (c *caller) api(ctx context.Context, r *rest, key string, body any) (int, []byte, int, error) {
	return r.call(ctx, "ann", http.MethodPost, "/sessions", key, body)
}

// letter gives the dead letters an event as a broker does that gave up on it.
func (c *trial) letter(head map[string]string, data string) {
	status := 0
	_, ok := c.wait(time.Minute, func() (bool, string) {
		request, err := http.NewRequestWithContext(c.ctx, http.MethodPost, c.cluster.ServiceURL("dead-letter")+"/events", strings.NewReader(data))
		c.must(err)
		request.Header.Set("Content-Type", "application/json")
		for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Source": "/test", "Ce-Knativeerrordest": "http://agent-step", "Ce-Knativeerrorcode": "503"} {
			request.Header.Set(name, value)
		}
		for name, value := range head {
			request.Header.Set(name, value)
		}
		response, err := c.calls.client.Do(request)
		if err != nil {
			return false, err.Error()
		}
		status = response.StatusCode
		return status < 500, ""
	})
	if !ok || status != http.StatusAccepted {
		c.detail("the dead letter was answered %d", status)
	}
}

func terminated(c *trial) {
	c.speak(c.agents[0], "sleep 2", "note")
	c.speak(c.agents[1], "note", "sleep 2", "note")
	c.phones(2)
	n := 0
	for range 3 {
		for _, s := range c.set.Services {
			c.cluster.Renew(s.Name)
			n++
		}
		time.Sleep(700 * time.Millisecond) // some of the turn goes on
	}
	c.awaitAll()
	c.what = fmt.Sprintf("%d times over %d Services", n/len(c.set.Services), len(c.set.Services))
}

// unticked: everything is three hours older when the next tick comes. Nobody heard
// what was said before.
func unticked(c *trial) {
	c.still.Store(true)
	c.gate.set(gateLosing)
	messages := len(c.speak(c.agents[0], "run", "note")) + len(c.speak(c.agents[1], "note", "run"))
	c.await(time.Minute, "what was said is stored", func() (bool, string) {
		n := c.number(`SELECT count(*) FROM messages WHERE direction = 'INBOUND' AND provider_id LIKE $1`, c.name+"-%")
		return n >= len(c.chats), fmt.Sprint(n)
	})
	c.backdate(3 * time.Hour)
	c.heal()
	c.talking.Wait()
	c.what = fmt.Sprintf("%d messages, every row 3 hours older", messages)
}

// backdate makes every row older, as if nobody had swept meanwhile. Log entries
// stay: their day is their table.
func (w *world) backdate(d time.Duration) {
	w.t.Helper()
	statements := w.strings(`SELECT format('UPDATE %I SET %s', c.table_name, string_agg(format('%I = %1$I - %L::interval', c.column_name, $1::text), ', '))
		FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
		WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.data_type = 'timestamp with time zone' AND c.is_generated = 'NEVER'
		  AND c.table_name NOT LIKE 'agent\_execution\_logs%' AND c.table_name NOT LIKE 'goose%' GROUP BY c.table_name ORDER BY c.table_name`, d.String())
	w.await(30*time.Second, "rows are older", func() (bool, string) {
		tx, err := w.db.Begin(w.t.Context())
		if err != nil {
			return false, err.Error()
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(w.t.Context())) }() // after a commit it does nothing
		for _, sql := range statements {
			if _, err := tx.Exec(w.t.Context(), sql); err != nil {
				return false, sql + ": " + err.Error() // a deadlock with a function, perhaps: again
			}
		}
		return tx.Commit(w.t.Context()) == nil, "commit"
	})
}

func tickedAtOnce(c *trial) {
	c.gate.set(gateLosing)
	c.traffic()
	var ticking sync.WaitGroup
	const rounds, beside = 6, 6
	for range rounds {
		for range beside {
			ticking.Go(func() { _ = c.cluster.Tick(c.ctx, reaper) }) // one that fails is one that is missed
		}
		ticking.Wait()
	}
	c.heal()
	c.awaitAll()
	c.what = fmt.Sprintf("%d times %d", rounds, beside)
}

// crashes ends PostgreSQL as a crash does, when a Service has had a statement
// carried out and does not know yet, and starts it again.
func (c *trial) crashes(service, statement string) {
	reached := make(chan struct{})
	var once sync.Once
	c.wires.set(func(of string, at moment, e pgproxy.Exchange) bool {
		if of == service && at == afterServer && strings.Contains(strings.Join(e.Statements, "\n"), statement) {
			once.Do(func() { close(reached) })
		}
		return true
	})
	if service == "reaper-cron" { // whose statement needs somebody who was not heard
		c.gate.set(gateLosing)
	}
	c.traffic()
	c.phones(1)
	select {
	case <-reached:
	case <-time.After(time.Minute):
		c.detail("the statement was not reached: %s", statement)
	}
	began := time.Now()
	c.must(c.crashDatabase())
	c.what = fmt.Sprintf("back after %s", time.Since(began).Round(100*time.Millisecond))
	c.heal()
	c.awaitAll()
}

func cutConnections(c *trial) {
	c.traffic()
	c.phones(2)
	n := 0
	for range 12 {
		time.Sleep(250 * time.Millisecond) // some of the turn goes on
		for _, p := range c.proxies {
			p.Cut()
			n++
		}
	}
	c.heal()
	c.awaitAll()
	c.what = fmt.Sprintf("%d times over %d Services", n/len(c.proxies), len(c.proxies))
}

func (c *trial) brokers(state gateState) {
	before := c.gate.count()
	c.gate.set(state)
	c.traffic()
	c.phones(1)
	c.awaitAll()
	n := c.gate.count() - before
	c.what = fmt.Sprintf("%d events", n)
	if n == 0 {
		c.detail("the broker had no event")
	}
}

func replayed(c *trial) {
	c.still.Store(true)
	c.gate.set(gateLosing)
	messages := c.speak(c.agents[0], "run")
	var head, data string
	c.await(time.Minute, "the message is announced", func() (bool, string) {
		err := c.db.QueryRow(c.ctx, `SELECT o.event_id || ' ' || o.event_type || ' ' || o.session_id, o.payload::text FROM outbox o JOIN messages m ON m.session_id = o.session_id
			WHERE m.provider_id = $1 ORDER BY o.created_at LIMIT 1`, messages[0].id).Scan(&head, &data)
		return err == nil, fmt.Sprint(err)
	})
	parts := strings.Split(head, " ")
	c.letter(map[string]string{"Ce-Id": parts[0], "Ce-Type": parts[1], "Ce-Tuluatsession": parts[2]}, data)
	letter := c.strings(`SELECT dead_letter_id::text || ' ' || state FROM dead_letters WHERE event_id = $1`, parts[0])
	if len(letter) != 1 || !strings.HasSuffix(letter[0], " OPEN") {
		c.detail("the letter is %q, want one OPEN", letter)
		return
	}
	id, _, _ := strings.Cut(letter[0], " ")
	c.gate.set(gateOpen)
	c.knows(http.MethodPost, "/deadletters/"+id+"/replay", nil)
	c.talking.Wait()
	if state, ok := c.wait(time.Minute, c.settled); !ok {
		c.detail("replayed, and not settled: %s", state)
	}
	const all = `SELECT concat_ws(' ', (SELECT count(*) FROM messages), (SELECT count(*) FROM steps), (SELECT count(*) FROM executions), (SELECT count(*) FROM replies), (SELECT count(*) FROM outbox))`
	before := c.strings(all)[0]
	for range 2 {
		c.knows(http.MethodPost, "/deadletters/"+id+"/replay", nil)
	}
	time.Sleep(2 * time.Second) // what a replay would start has started by then
	if after := c.strings(all)[0]; after != before {
		c.doubled++
		c.detail("replays of something done changed messages, steps, executions, replies or announcements: %s, then %s", before, after)
	}
	c.what = "answered after the first, nothing after two more"
}

func sandboxDies(c *trial) {
	c.speak(c.agents[0], "sleep 4", "run")
	killed := 0
	c.await(time.Minute, "a command's sandbox is killed", func() (bool, string) {
		if c.killSandbox() {
			killed++
		}
		return killed > 0, ""
	})
	c.awaitAll()
	c.what = "told in its chat; the next command has a new one"
}

func idleSandboxDies(c *trial) {
	c.speak(c.agents[0], "run")
	c.awaitAll()
	name := c.strings(`SELECT s.sandbox_name FROM sandboxes s JOIN executions e USING (sandbox_id) WHERE e.command LIKE '%' || $1 || '%' AND s.state = 'READY'`, c.name+"-")
	if len(name) != 1 || !c.killNamed(name[0]) {
		c.detail("no sandbox was killed: %q", name)
	}
	messages := c.words(c.agents[0], c.chats[0][0].chat, "run", "run")[1:]
	c.chats[0] = append(c.chats[0], messages...)
	c.must(c.calls.send(c.ctx, messages[0]))
	if err := c.calls.awaitAnswers(c.ctx, messages[0].chat, 2); err != nil {
		c.detail("%v", err)
	}
	c.what = "the next command has a new one"
}

// stuckRemoval: something holds on to what must be free before a sandbox counts
// as gone, longer than a removal may take.
func stuckRemoval(c *trial) {
	c.speak(c.agents[0], "run")
	c.awaitAll()
	names := c.strings(`SELECT s.sandbox_name FROM sandboxes s JOIN executions e USING (sandbox_id) WHERE e.command LIKE '%' || $1 || '%' AND s.state = 'READY'`, c.name+"-")
	if len(names) != 1 {
		c.detail("sandboxes %q", names)
		return
	}
	if !c.killNamed(names[0]) {
		c.detail("the sandbox was not ended")
	}
	hold, err := os.OpenFile(filepath.Join(c.sandboxs, names[0], "alive"), os.O_RDWR, 0)
	c.must(err)
	defer hold.Close()
	c.await(20*time.Second, "the sandbox is held", func() (bool, string) {
		err := syscall.Flock(int(hold.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		return err == nil, fmt.Sprint(err)
	})
	_, err = c.db.Exec(c.ctx, `UPDATE sandboxes SET state = 'TERMINATING', reason = 'OPERATOR', updated_at = now() - interval '1 hour' WHERE sandbox_name = $1`, names[0])
	c.must(err)
	began := time.Now()
	c.await(time.Minute, "a pass says that it cannot", func() (bool, string) {
		n := c.number(`SELECT count(*) FROM sweep_reports WHERE started_at > now() - interval '1 minute' AND findings->'sandboxes'->>'reason' <> ''`)
		return n > 0, fmt.Sprint(n)
	})
	if state := c.strings(`SELECT state FROM sandboxes WHERE sandbox_name = $1`, names[0])[0]; state != "TERMINATING" {
		c.detail("the sandbox that cannot be removed is %s", state)
	}
	c.speak(c.agents[1], "note", "run") // goes on beside it
	c.talking.Wait()
	c.what = fmt.Sprintf("stuck for %s and said so", time.Since(began).Round(time.Second))
}

func fillsDisk(c *trial) {
	m := c.speak(c.agents[0], "head -c 60000000 /dev/zero > /workspace/big || echo no room", "rm -f /workspace/big")
	c.awaitAll()
	got, _ := c.receiver.answer(m[0].id)
	if !strings.Contains(got.Text, "no room") && !says(got.Text, toldEnded) {
		c.detail("the person is told %q", got.Text)
	}
	c.what = "told in its chat; the next command runs"
}

func usesMemory(c *trial) {
	m := c.speak(c.agents[0], "head -c 400000000 /dev/zero | tail -c 399999999 > /dev/null || echo no memory", "run")
	c.awaitAll()
	got, _ := c.receiver.answer(m[0].id)
	if !strings.Contains(got.Text, "no memory") && !says(got.Text, toldEnded) {
		c.detail("the person is told %q", got.Text)
	}
	c.what = "told in its chat; the next command runs"
}

func (c *trial) models(how mood, times int) {
	c.model.set(how, times)
	c.traffic()
	c.awaitAll()
	c.what = fmt.Sprintf("%d requests", c.model.had())
	if c.model.had() != times {
		c.detail("%d requests went wrong, want %d", c.model.had(), times)
	}
}

// providers has the first answers of every channel go wrong.
func (c *trial) providers(hook string, f person.Fault) {
	f.On, f.Times = "send", 2
	c.receiver.fail(hook, hook)
	c.must(c.people.whatsapp.Fault(f))
	c.must(c.people.telegram.Fault(f))
	c.speak(c.agents[0], "note", "run", "note")
	c.speak(c.agents[1], "note", "note")
	c.phones(3)
	c.awaitAll()
	c.what = "twice on each channel"
}

func (c *trial) webhooks(how string, times int) {
	f := person.Fault{On: "webhook", Do: how, Times: times} // what is held back goes behind the next, of another chat
	c.must(c.people.whatsapp.Fault(f))
	c.must(c.people.telegram.Fault(f))
	c.phones(4)
	c.phones(4)
	c.awaitAll()
	c.what = fmt.Sprintf("%d of 8 on each messenger", times)
}

// log writes n entries of a day that is old, each day's once.
func (c *trial) log(n int) {
	day := 40 + len(c.rows)
	for range n {
		text := fmt.Sprintf("%s entry %d", c.name, len(c.old))
		_, err := c.db.Exec(c.ctx, `INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message, created_at)
			VALUES ($1, 'ses_of_the_past', 'n', 'INFO', $2, date_trunc('day', now()) - $3 * interval '1 day' + $4 * interval '1 minute')`, c.agents[0].name, text, day, len(c.old))
		if err != nil {
			c.detail("%v", err)
			continue
		}
		c.old = append(c.old, text)
	}
}

// archives has the bucket go wrong for a number of requests, and of ticks.
func (c *trial) archives(how mood, times, ticks int) {
	c.still.Store(true)
	c.bucket.set(how, times)
	c.log(40)
	c.traffic()
	for range ticks {
		c.age(c.ctx)
		if err := c.cluster.Tick(c.ctx, reaper); err != nil {
			c.detail("a tick: %v", err)
		}
	}
	c.what = fmt.Sprintf("%d requests in %d passes", c.bucket.had(), ticks)
	if how != moodWell && c.bucket.had() == 0 {
		c.detail("no request went wrong")
	}
	if waiting := c.number(`SELECT count(*) FROM agent_execution_logs WHERE message LIKE $1`, c.name+" %"); how == moodDown && waiting != len(c.old) {
		c.lost += len(c.old) - waiting
		c.detail("%d entries are in PostgreSQL while the bucket is down, want %d", waiting, len(c.old))
	}
	c.heal()
	c.awaitAll()
}

// unpartitioned: nobody made the table of today, and what is said today is kept.
func unpartitioned(c *trial) {
	c.still.Store(true)
	c.await(time.Minute, "nobody sweeps", func() (bool, string) {
		n := c.number(`SELECT count(*) FROM sweeps WHERE lease_owner IS NOT NULL`)
		return n == 0, ""
	})
	day := time.Now().UTC().Format("20060102")
	before := c.logged()
	for _, sql := range []string{
		`ALTER TABLE agent_execution_logs DETACH PARTITION agent_execution_logs_` + day,
		`INSERT INTO agent_execution_logs_overflow SELECT * FROM agent_execution_logs_` + day,
		`DROP TABLE agent_execution_logs_` + day,
	} {
		_, err := c.db.Exec(c.ctx, sql)
		c.must(err)
	}
	c.traffic()
	c.awaitAll()
	meanwhile := c.logged()
	waiting := c.number(`SELECT count(*) FROM agent_execution_logs_overflow`)
	c.still.Store(false)
	c.await(time.Minute, "entries are in their table", func() (bool, string) {
		n := c.number(`SELECT count(*) FROM agent_execution_logs_overflow`)
		return n == 0, fmt.Sprint(n)
	})
	if after := c.logged(); meanwhile <= before || after < meanwhile {
		c.lost += max(1, meanwhile-after)
		c.detail("%d log entries before, %d without the table, %d after", before, meanwhile, after)
	}
	c.what = fmt.Sprintf("%d entries waited", waiting)
	if waiting == 0 {
		c.detail("no entry was written without the table")
	}
}

// logged is how many log entries there are.
func (c *trial) logged() int {
	return c.number(`SELECT (SELECT count(*) FROM agent_execution_logs) + (SELECT count(*) FROM agent_execution_logs_overflow)`)
}

// overflown: the table of the day is there, and entries are beside it.
func overflown(c *trial) {
	const n = 5000
	_, err := c.db.Exec(c.ctx, `INSERT INTO agent_execution_logs_overflow (agent_name, session_id, node_id, level, message) SELECT $1, 'ses_of_now', 'n', 'INFO', $2 || ' entry ' || i FROM generate_series(1, $3::int) i`, c.agents[0].name, c.name, n)
	c.must(err)
	c.traffic()
	c.awaitAll()
	c.await(time.Minute, "entries are in their table", func() (bool, string) {
		n := c.number(`SELECT count(*) FROM agent_execution_logs_overflow`)
		return n == 0, fmt.Sprint(n)
	})
	all, different := c.number(`SELECT count(*) FROM agent_execution_logs WHERE message LIKE $1`, c.name+" entry %"), c.number(`SELECT count(DISTINCT message) FROM agent_execution_logs WHERE message LIKE $1`, c.name+" entry %")
	c.lost, c.doubled = c.lost+n-different, c.doubled+all-different
	c.what = fmt.Sprintf("%d entries moved", all)
}

// jumps has clocks be others, and after some talk their own again.
func (c *trial) jumps(by time.Duration) {
	c.clock.await(c.t)
	services := c.clock.services()
	for _, by := range []time.Duration{by, 0} {
		c.clock.set(by)
		for _, service := range services {
			c.cluster.Renew(service)
		}
		c.traffic()
		c.phones(2)
		c.awaitAll()
	}
	c.what = fmt.Sprintf("%s: %s, and back", strings.Join(services, ", "), by)
}

// revise writes the agent anew.
func (c *trial) revise(description string) {
	a := c.agents[0]
	text := fmt.Sprintf(agentYAML, a.name, c.receiver.url, a.commands, a.budget)
	c.must(os.WriteFile(filepath.Join(c.agentsDir(), a.name+".yaml"), []byte(strings.Replace(text, "Runs what the test says.", description, 1)), 0o644))
}

func (c *trial) revision() int {
	return c.number(`SELECT revision FROM agents WHERE agent_name = $1`, c.agents[0].name)
}

func revised(c *trial) {
	a := c.agents[0]
	before := c.revision()
	c.speak(a, "sleep 3", "note")
	var begun atomic.Bool
	c.await(time.Minute, "the command runs", func() (bool, string) {
		n := c.number(`SELECT count(*) FROM executions WHERE state = 'RUNNING' AND command LIKE '%' || $1 || '%'`, c.name+"-")
		begun.Store(n > 0)
		return n > 0, ""
	})
	c.revise("Is another one now.")
	c.await(time.Minute, "there is a new revision", func() (bool, string) { return c.revision() > before, fmt.Sprint(c.revision()) })
	_, refused := c.db.Exec(c.ctx, `DELETE FROM agent_revisions WHERE agent_name = $1 AND revision <= $2`, a.name, before)
	c.awaitAll() // an agent that is removed in a turn has no way left to answer by
	c.must(os.Remove(filepath.Join(c.agentsDir(), a.name+".yaml")))
	c.await(time.Minute, "the agent is gone", func() (bool, string) {
		n := c.number(`SELECT count(*) FROM channel_routes WHERE channel = 'WEBHOOK' AND account = $1`, a.name)
		return n == 0, fmt.Sprint(n)
	})
	c.revise("Is back.")
	c.await(time.Minute, "the agent is back", func() (bool, string) {
		n := c.number(`SELECT count(*) FROM channel_routes WHERE channel = 'WEBHOOK' AND account = $1`, a.name)
		return n == 1, fmt.Sprint(n)
	})
	c.speak(a, "run", "note")
	c.awaitAll()
	c.what = "the old revision could be deleted"
	if refused != nil {
		c.what = "the old revision may not be deleted"
	}
}
