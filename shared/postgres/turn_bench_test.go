package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// BenchmarkPlainTurn is a message and its answer as ingest, a step and the sender
// write them, over one connection. Beside the time it says what each of the five
// round trips costs the server's processor, where the server runs on this machine.
func BenchmarkPlainTurn(b *testing.B) {
	ctx := context.Background()
	s := postgrestest.New(b)
	agent(b, s)
	if _, err := s.Pool().Exec(ctx, `UPDATE channel_routes SET spec = '{"callbackURL": "https://receiver.example"}'`); err != nil {
		b.Fatal(err)
	}
	conn, err := s.Pool().Acquire(ctx)
	if err != nil {
		b.Fatal(err)
	}
	backend := conn.Conn().PgConn().PID()
	conn.Release()
	used := map[string]time.Duration{}
	names := []string{"accept", "claim", "commit", "send", "mark"}
	last := onCPU(backend)
	lap := func(name string) {
		now := onCPU(backend)
		used[name] += now - last
		last = now
	}
	lease := postgres.Lease{Owner: "bench", For: time.Minute}
	sending := postgres.ReplyLease{Lease: lease, Begins: true}
	n := 0
	turn := func() {
		n++
		chat := fmt.Sprint("chat-", n/10)
		accepted, _, err := s.Accept(ctx, harness.ChannelWebhook, postgres.Inbound{Arrivals: []postgres.Arrival{{
			Account: "hook", ProviderID: fmt.Sprint("p-", n), Chat: chat, Message: harness.Message{Channel: harness.ChannelWebhook, ChannelUserID: chat, Text: "hello"},
		}}}, "")
		if err != nil {
			b.Fatal(err)
		}
		lap("accept")
		claim, err := s.ClaimSession(ctx, accepted[0].Session, lease)
		if err != nil {
			b.Fatal(err)
		}
		lap("claim")
		now := time.Now()
		if _, err := s.CommitStep(ctx, postgres.StepCommit{
			Claim: claim, State: harness.SessionIdle, Start: true, Step: &postgres.NewStep{ID: harness.NewStepID(now), Text: "hello", Model: "m", InputTokens: 20, OutputTokens: 8},
			Reply: []string{"hello"}, Model: "m",
			Attempts: []postgres.NewAttempt{{Purpose: harness.AttemptAnswer, Provider: harness.ProviderOpenAI, Model: "m", Took: time.Millisecond}},
		}); err != nil {
			b.Fatal(err)
		}
		lap("commit")
		reply, err := s.ClaimReply(ctx, claim.ID, sending)
		if err != nil {
			b.Fatal(err)
		}
		lap("send")
		if _, err := s.MarkReply(ctx, reply, postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: fmt.Sprint("r-", n)}, &sending); !errors.Is(err, postgres.ErrNothingDue) {
			b.Fatal(err)
		}
		lap("mark")
	}
	for range 50 { // plans are made
		turn()
	}
	clear(used)
	for b.Loop() {
		turn()
	}
	for _, name := range names {
		b.ReportMetric(float64(used[name].Microseconds())/float64(b.N), name+"-cpu-µs")
	}
}

// onCPU is the time that a process of this machine has been on a processor.
func onCPU(pid uint32) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	var ns int64
	if err != nil {
		return 0
	}
	if _, err := fmt.Fscan(strings.NewReader(string(text)), &ns); err != nil {
		return 0
	}
	return time.Duration(ns)
}
