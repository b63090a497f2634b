//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness/view"
)

// journeyStream: somebody follows a conversation, is away while the API is scaled
// to zero and the conversation goes on, and comes back behind the last event they
// have: each event reaches them once, in order.
func journeyStream(t *testing.T, s *system) {
	ctx := t.Context()
	viewer := s.caller(ctx, t, "viewer")
	const number = "15552000021"
	ann, err := s.outside.onWhatsApp(ctx, sampleNumber, number)
	must(t, err)
	_, _, err = ann.ask(ctx, patience, "hello")
	must(t, err)
	var sessions struct{ Items []view.Session }
	must(t, s.get(ctx, viewer, "/api/v1/sessions?limit=1&channel=WHATSAPP&channelUserId="+number, &sessions))
	if len(sessions.Items) != 1 {
		t.Fatalf("%d sessions of %s", len(sessions.Items), number)
	}
	session := string(sessions.Items[0].ID)

	got := s.watch(ctx, t, viewer, session, "", func() {
		_, _, err := ann.ask(ctx, patience, "run: echo followed")
		must(t, err)
	})
	if len(got) == 0 {
		t.Fatal("no event")
	}
	began := time.Now()
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		functions, _, err := s.functionPods(ctx)
		return err == nil && functions["management-api"] == 0, fmt.Sprint(functions, err)
	})
	if !ok {
		t.Fatalf("the API never goes to zero: %s", state)
	}
	s.figures.add("stream", "reader gone to no pod of the API", short(time.Since(began)), "")
	_, _, err = ann.ask(ctx, patience, "run: echo unseen")
	must(t, err)
	functions, _, err := s.functionPods(ctx)
	must(t, err)
	if functions["management-api"] > 0 {
		t.Error("the API runs while nobody asks it: nothing is shown by what follows")
	}
	began = time.Now()
	got = append(got, s.watch(ctx, t, viewer, session, got[len(got)-1].id, func() {
		s.figures.add("stream", "back on the stream, the API from zero", short(time.Since(began)), "")
		_, _, err := ann.ask(ctx, patience, "run: echo back")
		must(t, err)
	})...)

	rows, err := s.rows.Query(ctx, `SELECT seq FROM session_events WHERE session_id = $1 ORDER BY seq`, session)
	must(t, err)
	want, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	must(t, err)
	var seqs []int64
	for _, e := range got {
		seqs = append(seqs, e.seq)
	}
	t.Logf("%v", got)
	if !slices.Equal(seqs, want) {
		t.Errorf("the events %v reached the reader, there are %v", seqs, want)
	}
	s.figures.add("stream", "events lost, doubled or out of order", fmt.Sprintf("%d of %d", missed(seqs, want), len(want)), "0")
}

// missed counts the places in which two orders differ.
func missed(got, want []int64) int {
	n := max(len(got), len(want)) - min(len(got), len(want))
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			n++
		}
	}
	return n
}

// streamed is an event of a session as its reader gets it.
type streamed struct {
	id, name string
	seq      int64
}

func (e streamed) String() string { return fmt.Sprintf("%d %s", e.seq, e.name) }

// watch follows a session behind the event with the id last, does something once
// the stream is open, and returns what came up to the reply to that. Events
// without a place in the session are left out.
func (s *system) watch(ctx context.Context, t *testing.T, token, session, last string, do func()) []streamed {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	header := http.Header{"Authorization": {"Bearer " + token}, "Accept": {"text/event-stream"}}
	if last != "" {
		header.Set("Last-Event-ID", last)
	}
	response, err := s.ingress.open(ctx, "management-api", http.MethodGet, "/api/v1/sessions/"+session+"/events", header, nil)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the stream of %s is answered %d", session, response.StatusCode)
	}
	do()
	var newest int64 // of what is there now that it is done
	must(t, s.rows.QueryRow(ctx, `SELECT max(seq) FROM session_events WHERE session_id = $1`, session).Scan(&newest))
	var all []streamed
	var e streamed
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			var data struct{ Seq int64 }
			must(t, json.Unmarshal([]byte(value), &data))
			e.seq = data.Seq
		case "":
			if e.id != "" {
				all = append(all, e)
				if e.seq >= newest {
					return all
				}
			}
			e = streamed{}
		}
	}
	t.Fatalf("the stream ends before event %d: %v", newest, all)
	return nil
}
