package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// caseOutcome is one right outcome of a case.
type caseOutcome struct {
	Status   int `json:"http_status"`
	Messages []struct {
		Channel       string                     `json:"channel"`
		ChannelUserID string                     `json:"channelUserId"`
		Text          string                     `json:"text"`
		Metadata      map[string]json.RawMessage `json:"metadata"`
	} `json:"messages"`
	BodyExcludes string        `json:"body_excludes"`
	AlsoOK       []caseOutcome `json:"also_ok"`
}

// TestCases posts the bodies under testdata/channels, byte for byte, and
// compares what is stored and announced.
func TestCases(t *testing.T) {
	bodies, err := filepath.Glob("testdata/channels/hook-*.expect.json")
	if err != nil || len(bodies) < 11 {
		t.Fatalf("%d cases, %v", len(bodies), err)
	}
	w := newWorld(t)
	p := w.start("public", nil)
	for _, path := range bodies {
		base := strings.TrimSuffix(path, ".expect.json")
		t.Run(filepath.Base(base), func(t *testing.T) {
			var want caseOutcome
			readJSON(t, path, &want)
			request := struct {
				Sign   string `json:"sign"`
				Repeat int    `json:"repeat"`
			}{Repeat: 1}
			if _, err := os.Stat(base + ".request.json"); err == nil {
				readJSON(t, base+".request.json", &request)
			}
			body, err := os.ReadFile(base + ".json")
			if err != nil {
				t.Fatal(err)
			}
			hook := filepath.Base(base)
			w.hook(hook, harness.ChannelSpec{})
			var got []answer
			for range max(request.Repeat, 1) {
				r := signed(http.MethodPost, p.URL+hooksPath+hook, string(body), secret, time.Now())
				if request.Sign == "none" {
					r.Header.Del("X-Tuluat-Timestamp")
					r.Header.Del("X-Tuluat-Signature")
				}
				got = append(got, p.do(r))
			}
			wakes := len(w.Broker.Take())
			var problems []string
			for _, outcome := range append([]caseOutcome{want}, want.AlsoOK...) {
				problem := w.compare(outcome, hook, got, wakes)
				if problem == "" {
					return
				}
				problems = append(problems, problem)
			}
			t.Error(strings.Join(problems, "\nor else: "))
		})
	}
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(path, err)
	}
}

// compare returns what differs from outcome, nothing if nothing does.
func (w *world) compare(want caseOutcome, hook string, got []answer, wakes int) string {
	for _, a := range got {
		if a.Status != want.Status && (want.Status != http.StatusOK || a.Status/100 != 2) {
			return http.StatusText(a.Status) + ": " + a.Body
		}
		if want.BodyExcludes != "" && strings.Contains(a.Body, want.BodyExcludes) {
			return "the answer repeats the input: " + a.Body
		}
	}
	rows, err := w.Store.Pool().Query(context.Background(), `SELECT s.channel, m.channel_user_id, m.text, m.metadata
		FROM messages m JOIN sessions s USING (session_id) WHERE s.account = $1 ORDER BY m.seq`, hook)
	if err != nil {
		return err.Error()
	}
	type message struct {
		Channel, ChannelUserID, Text string
		Metadata                     map[string]json.RawMessage
	}
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByPos[message])
	if err != nil {
		return err.Error()
	}
	var expected []message
	for _, m := range want.Messages {
		expected = append(expected, message{m.Channel, m.ChannelUserID, m.Text, m.Metadata})
	}
	if diff := cmp.Diff(expected, stored, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b json.RawMessage) bool { return string(a) == string(b) })); diff != "" {
		return diff
	}
	if wakes != len(want.Messages) {
		return "the number of wakes differs from the number of messages"
	}
	return ""
}
