package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// inbox is a database with a session to ask in.
func inbox(t *testing.T) *functiontest.Database {
	t.Helper()
	d := functiontest.NewDatabase(t)
	d.Agents("coder", "other")
	d.Exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state) VALUES ('ses_1', 'coder', 'API', 'api', 'c', 'IDLE'), ('ses_2', 'other', 'API', 'api', 'c', 'IDLE')`)
	return d
}

const askSQL = `INSERT INTO approvals (approval_id, session_id, agent_name, title, input, digest, state) SELECT $1, session_id, agent_name, 't', '{}', 'd', 'PENDING' FROM sessions WHERE session_id = $2`

func names(t *testing.T, store *postgres.Store, agent harness.AgentName, after *postgres.ApprovalCursor, limit int) string {
	t.Helper()
	found, err := store.ApprovalFeed(t.Context(), agent, *after, limit)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range found {
		all, *after = append(all, string(e.Approval.ID)+" "+string(e.Approval.State)), e.At
		if read, ok := postgres.ParseApprovalCursor(e.At.String()); !ok || read != e.At {
			t.Fatalf("%v is read as %v", e.At, read)
		}
	}
	return strings.Join(all, ", ")
}

// What a transaction has written that is not over yet is waited for: nothing comes
// in before what was read.
func TestTheFeedWaitsForOpenTransactions(t *testing.T) {
	d := inbox(t)
	ctx := t.Context()
	var at postgres.ApprovalCursor
	slow, err := d.Store.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Rollback(context.Background()) }()
	if _, err := slow.Exec(ctx, askSQL, "apr_slow", "ses_1"); err != nil {
		t.Fatal(err)
	}
	d.Exec(askSQL, "apr_fast", "ses_1") // is held up by nobody
	if got := names(t, d.Store, "", &at, 10); got != "" {
		t.Fatalf("before the other one is over: %q", got)
	}
	if err := slow.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	d.Exec(askSQL, "apr_other", "ses_2")
	head, err := d.Store.ApprovalHead(ctx)
	if err != nil {
		t.Fatal(err)
	}
	d.Exec(`UPDATE approvals SET state = 'CANCELLED', decided_at = now() WHERE approval_id = 'apr_fast'`)
	d.Exec(`UPDATE approvals SET reason = 'x'`) // no state, no event
	if got := names(t, d.Store, "", &head, 10); got != "apr_fast CANCELLED" {
		t.Fatalf("behind the head: %q", got)
	}
	var pages []string
	for got := names(t, d.Store, "", &at, 1); got != ""; got = names(t, d.Store, "", &at, 1) {
		pages = append(pages, got)
	}
	if got := strings.Join(pages, ", "); got != "apr_slow PENDING, apr_fast CANCELLED, apr_other PENDING, apr_fast CANCELLED" {
		t.Fatalf("one by one: %q", got)
	}
	if got := names(t, d.Store, "other", new(postgres.ApprovalCursor), 10); got != "apr_other PENDING" {
		t.Fatalf("of one agent: %q", got)
	}
}

// A reader that reads all the while has every event once, however long their
// transactions take.
func TestTheFeedSkipsNothing(t *testing.T) {
	d := inbox(t)
	const writers, each = 6, 15
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for n := range each {
				tx, err := d.Store.Pool().Begin(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				_, err = tx.Exec(context.Background(), askSQL, fmt.Sprintf("apr_%d_%d", w, n), "ses_1")
				time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
				if err != nil || tx.Commit(context.Background()) != nil {
					t.Error("an approval is not asked: ", err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	var at postgres.ApprovalCursor
	var seen []string
	deadline := time.Now().Add(2 * time.Minute)
	for over := false; len(seen) < writers*each; {
		found, err := d.Store.ApprovalFeed(t.Context(), "", at, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range found {
			seen, at = append(seen, string(e.Approval.ID)), e.At
		}
		if over && time.Now().After(deadline) {
			break
		}
		select {
		case <-done:
			over = true
		default:
		}
		time.Sleep(2 * time.Millisecond)
	}
	<-done
	slices.Sort(seen)
	if n := len(slices.Compact(slices.Clone(seen))); n != writers*each || len(seen) != n {
		t.Fatalf("%d events of %d approvals, want %d of each", len(seen), n, writers*each)
	}
}

func TestApprovalsAreCounted(t *testing.T) {
	d := inbox(t)
	for i, session := range []string{"ses_1", "ses_1", "ses_1", "ses_2"} {
		d.Exec(askSQL, fmt.Sprint("apr_", i), session)
	}
	d.Exec(`UPDATE approvals SET created_at = ('2026-01-0' || (1 + substr(approval_id, 5)::int) || ' 00:00:00+00')::timestamptz`)
	d.Exec(`UPDATE approvals SET expires_at = '2126-01-01 00:00:00+00' WHERE approval_id = 'apr_1'`)
	d.Exec(`UPDATE approvals SET expires_at = now() WHERE approval_id = 'apr_2'`) // its time is over
	counts, err := d.Store.CountApprovals(t.Context())
	if err != nil || len(counts) != 2 {
		t.Fatalf("%+v, %v", counts, err)
	}
	first := counts[0]
	if first.Agent != "coder" || first.Pending != 2 || first.OldestRequestedAt.UTC().Format(time.DateOnly) != "2026-01-01" || first.NextExpiresAt == nil || first.NextExpiresAt.UTC().Year() != 2126 {
		t.Errorf("%+v", first)
	}
	if second := counts[1]; second.Agent != "other" || second.Pending != 1 || second.NextExpiresAt != nil {
		t.Errorf("%+v", second)
	}
}
