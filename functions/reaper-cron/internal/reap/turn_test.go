package reap_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/event"
)

// No item waits for another's backlog: each has its turn in every pass, and those
// with more to do have what is left of its time. What a pass has no time for, it says.
func TestEachItemHasItsTurn(t *testing.T) {
	const backlog = 60
	for _, test := range []struct {
		name string
		step time.Duration // that everything takes
		all  bool          // the pass has time for the backlog
	}{
		{"a fast database", time.Millisecond, true},
		{"turns end", 15 * time.Millisecond, true},
		{"the pass ends", 90 * time.Millisecond, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.agent()
			w.session("ses_1", `due_at = now() + interval '1 hour'`)
			for i := range backlog {
				w.announcement(fmt.Sprintf("message.received:msg_%d", i), event.MessageReceived, "ses_1", `due_at = now() - interval '1 minute'`)
			}
			w.sql(`INSERT INTO inbox (channel, account, provider_id, message_id, received_at) SELECT 'WEBHOOK', 'h', n::text, 'm', now() - interval '31 days' FROM generate_series(1, 3) n`)
			o := w.options
			o.Batch = 1
			now := time.Now()
			var mu sync.Mutex
			o.Now = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				now = now.Add(test.step)
				return now
			}
			if err := w.sweep(o); err != nil {
				t.Fatal(err)
			}
			found := w.report()
			if f := found["old_inbox"]; f.Done != 3 || f.Note != "" {
				t.Errorf("the item behind the backlog: %+v", f)
			}
			f := found["announcements"]
			if whole := f.Done == backlog && f.Note == ""; whole != test.all || f.Done == 0 || !test.all && f.Note == "" {
				t.Errorf("the backlog of %d: %+v", backlog, f)
			}
			if full := query[bool](w, `SELECT completed_at IS NOT NULL FROM sweeps`); !full {
				t.Error("a pass that has no time for a backlog is a full one: every item had its turn")
			}
		})
	}
}
