package postgres_test

import (
	"context"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestStream(t *testing.T) {
	ctx := context.Background()
	s := postgrestest.New(t)
	agent(t, s)
	if _, err := s.Conversation(ctx, harness.ChannelWebhook, "hook", "chat", ""); harness.KindOf(err) != harness.NotFound {
		t.Fatalf("a chat nobody spoke in: %v", err)
	}
	first := arrive(t, s, "a")[0]
	claim, err := s.ClaimSession(ctx, first.Session, lease)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Step: &postgres.NewStep{
		ID: "stp_1", Calls: []postgres.NewCall{{
			CallOutcome: postgres.CallOutcome{ID: "call_1", State: harness.ToolCallRunning}, ProviderID: "p1", Name: "executeShell", Arguments: "{}",
			Execution: &postgres.NewExecution{ID: "exe_1", Command: "true", Spec: harness.DefaultSandbox(), MaxSandboxes: 1, Nonce: "n"},
		}},
	}}); err != nil {
		t.Fatal(err)
	}
	c, err := s.Conversation(ctx, harness.ChannelWebhook, "hook", "chat", first.Session)
	if err != nil || c.Session != first.Session || c.Turns != 1 || !c.Holds || len(c.Open) != 1 || c.Open[0] != "call_1" {
		t.Fatalf("conversation %+v %v", c, err)
	}
	if c, err = s.Conversation(ctx, harness.ChannelWebhook, "hook", "chat", "ses_other"); err != nil || c.Holds || len(c.Open) != 0 {
		t.Fatalf("a session of elsewhere: %+v %v", c, err)
	}
	if _, err := s.Pool().Exec(ctx, `INSERT INTO execution_output (execution_id, stream, start_byte, data) VALUES
		('exe_1', 'stdout', 0, 'abc'), ('exe_1', 'stdout', 3, 'def'), ('exe_1', 'stderr', 0, 'x')`); err != nil {
		t.Fatal(err)
	}
	chunks, err := s.Output(ctx, []postgres.OutputPlace{{Call: "call_1", Stream: "stdout", Offset: 1}, {Call: "call_1", Stream: "stderr", Offset: 1}}, 10)
	if err != nil || len(chunks) != 2 || string(chunks[0].Data) != "bc" || chunks[0].Offset != 1 || string(chunks[1].Data) != "def" || chunks[1].Offset != 3 {
		t.Fatalf("output %+v %v", chunks, err)
	}
	if chunks, err = s.Output(ctx, []postgres.OutputPlace{{Call: "call_1", Stream: "stdout"}}, 1); err != nil || len(chunks) != 1 {
		t.Fatalf("output beyond the limit: %+v %v", chunks, err)
	}

	// The conversation ends, and another opens in the same chat.
	if _, err := s.Pool().Exec(ctx, `UPDATE sessions SET due_at = now()`); err != nil {
		t.Fatal(err)
	}
	if claim, err = s.ClaimSession(ctx, first.Session, lease); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Reply: []string{"one", "two"}, End: true,
		Results: []postgres.CallOutcome{{ID: "call_1", State: harness.ToolCallDone, Result: "exit code 0"}},
	}); err != nil {
		t.Fatal(err)
	}
	second := arrive(t, s, "b")[0]
	if claim, err = s.ClaimSession(ctx, second.Session, lease); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionRunning, Start: true}); err != nil {
		t.Fatal(err)
	}
	events, err := s.Stream(ctx, harness.ChannelWebhook, "hook", "chat", postgres.StreamCursor{Session: first.Session, Seq: 1}, 10)
	if err != nil || len(events) != 4 {
		t.Fatalf("stream %+v %v", events, err)
	}
	call, result, reply, turn := events[0], events[1], events[2], events[3]
	if call.Kind != postgres.StreamToolCall || call.Call != "call_1" || call.Execution != "exe_1" || result.Kind != postgres.StreamToolResult || result.Result != "exit code 0" {
		t.Errorf("call %+v, result %+v", call, result)
	}
	if reply.Kind != postgres.StreamReply || reply.Text != "onetwo" || reply.InReplyTo != first.Message || reply.Seq != 4 {
		t.Errorf("reply %+v", reply)
	}
	if turn.Kind != postgres.StreamTurn || turn.Session != second.Session || turn.Text != "text b" || turn.ProviderID != "b" {
		t.Errorf("turn %+v", turn)
	}
	if events, err = s.Stream(ctx, harness.ChannelWebhook, "hook", "chat", postgres.StreamCursor{Session: first.Session, Seq: 1}, 2); err != nil || len(events) != 2 {
		t.Errorf("a page of two: %+v %v", events, err)
	}
	if events, err = s.Stream(ctx, harness.ChannelWebhook, "hook", "other chat", postgres.StreamCursor{Session: first.Session}, 10); err != nil || len(events) != 0 {
		t.Errorf("another chat sees %+v %v", events, err)
	}
}
