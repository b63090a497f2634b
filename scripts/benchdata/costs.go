package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The indexes of 0007 and what was there before them.
var (
	withIndexes = []string{
		`DROP INDEX IF EXISTS sessions_active, executions_agent, executions_session`,
		`CREATE INDEX IF NOT EXISTS sessions_agent ON sessions (agent_name, state, session_id)`,
		`CREATE INDEX IF NOT EXISTS sessions_account ON sessions (channel, account, session_id)`,
		`CREATE INDEX IF NOT EXISTS messages_person ON messages (channel_user_id, session_id) WHERE direction = 'INBOUND'`,
		`CREATE INDEX IF NOT EXISTS executions_ended ON executions (agent_name, state, execution_id)
			WHERE state IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'OUT_OF_MEMORY', 'DISK_LIMIT', 'SANDBOX_GONE', 'CANCELLED', 'UNKNOWN')`,
		`CREATE INDEX IF NOT EXISTS replies_lost ON replies (updated_at) WHERE state IN ('FAILED', 'UNKNOWN')`,
		`CREATE INDEX IF NOT EXISTS executions_agent ON executions (agent_name, execution_id)`,
		`CREATE INDEX IF NOT EXISTS executions_session ON executions (session_id, execution_id)`,
	}
	withoutIndexes = []string{
		`DROP INDEX IF EXISTS sessions_agent, sessions_account, messages_person, executions_ended, replies_lost, executions_agent, executions_session`,
		`CREATE INDEX IF NOT EXISTS sessions_active ON sessions (agent_name) WHERE state IN ('PENDING', 'RUNNING', 'AWAITING_APPROVAL', 'AWAITING_EXECUTION')`,
		`CREATE INDEX IF NOT EXISTS executions_agent ON executions (agent_name, seq)`,
		`CREATE INDEX IF NOT EXISTS executions_session ON executions (session_id)`,
	}
	withLogIndexes = []string{
		`CREATE INDEX IF NOT EXISTS agent_execution_logs_newest ON agent_execution_logs (created_at, log_id)`,
		`CREATE INDEX IF NOT EXISTS agent_execution_logs_warnings ON agent_execution_logs (agent_name, created_at, log_id) WHERE level IN ('WARN', 'ERROR')`,
	}
	withoutLogIndexes = []string{`DROP INDEX IF EXISTS agent_execution_logs_newest, agent_execution_logs_warnings`}
)

// cost is what one unit of work took.
type cost struct {
	time time.Duration
	wal  float64 // bytes
}

// costs prints, in the time that lists are judged by, what a turn and a log entry take with the lists' indexes and
// without, each twice, in turn.
func costs(ctx context.Context, s *postgres.Store, o options) error {
	if o.turns == 0 {
		return nil
	}
	say("measuring what the indexes cost, %d turns each", o.turns)
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	turns := func(ctx context.Context, round int) error {
		for n := range o.turns {
			if err := turn(ctx, s, fmt.Sprintf("%s/%d/%d", run, round, n), agentOf(n)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := compare(ctx, s, o, "a turn with one command", o.turns, [2][]string{withIndexes, withoutIndexes}, turns); err != nil {
		return err
	}
	entries := o.turns * 10
	return compare(ctx, s, o, "a log entry", entries, [2][]string{withLogIndexes, withoutLogIndexes}, func(ctx context.Context, _ int) error {
		_, err := s.Pool().Exec(ctx, `SELECT log_entry('agent-' || to_char(n % 39, 'FM00'), 'ses_' || n % 1000, '1', CASE WHEN n % 20 = 0 THEN 'WARN' ELSE 'INFO' END, 'command exe_' || n || ' ended as COMPLETED exit code 0', '')
			FROM generate_series(1, $1::int) n`, entries)
		return err
	})
}

// compare runs work with each of the two sets of indexes, in turn, twice.
func compare(ctx context.Context, s *postgres.Store, o options, what string, units int, sets [2][]string, work func(context.Context, int) error) error {
	var got [2][]cost
	for round := range 4 {
		set := round % 2
		for _, sql := range sets[set] {
			if _, err := s.Pool().Exec(ctx, sql); err != nil {
				return err
			}
		}
		c, err := measureCost(ctx, s, o, units, func(ctx context.Context) error { return work(ctx, round) })
		if err != nil {
			return err
		}
		got[set] = append(got[set], c)
	}
	least := func(costs []cost) cost {
		return slices.MinFunc(costs, func(a, b cost) int { return int(a.time - b.time) })
	}
	with, without := least(got[0]), least(got[1])
	fmt.Printf("%s: %.0f µs with the indexes, %.0f µs without (%+.1f%%); %.0f and %.0f bytes of WAL (%+.1f%%)\n", what,
		float64(with.time)/1000, float64(without.time)/1000, 100*(float64(with.time)/float64(without.time)-1), with.wal, without.wal, 100*(with.wal/without.wal-1))
	for _, sql := range sets[0] {
		if _, err := s.Pool().Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func measureCost(ctx context.Context, s *postgres.Store, o options, units int, work func(context.Context) error) (cost, error) {
	var before string
	if err := s.Pool().QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&before); err != nil {
		return cost{}, err
	}
	watch, err := watchBackend(ctx, s)
	if err != nil {
		return cost{}, err
	}
	used, begun := watch.used(), time.Now()
	if err := work(ctx); err != nil {
		return cost{}, err
	}
	took := time.Since(begun)
	if o.busy {
		took = watch.used() - used
	}
	c := cost{time: took / time.Duration(units)}
	err = s.Pool().QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::pg_lsn)::float8`, before).Scan(&c.wal)
	c.wal /= float64(units)
	return c, err
}

// turn is one turn with one command, as ingest, steps and sandbox-exec write it.
func turn(ctx context.Context, s *postgres.Store, id string, agent harness.AgentName) error {
	lease := postgres.Lease{Owner: "benchdata", For: time.Minute}
	accepted, _, err := s.Accept(ctx, harness.ChannelAPI, postgres.Inbound{Arrivals: []postgres.Arrival{{
		Account: string(agent), ProviderID: id, Chat: id, Message: harness.Message{Channel: harness.ChannelAPI, ChannelUserID: "person-" + id, Text: "please look"},
	}}}, "")
	if err != nil {
		return err
	}
	claim, err := s.ClaimSession(ctx, accepted[0].Session, lease)
	if err != nil {
		return err
	}
	call, execution := harness.NewToolCallID(time.Now()), harness.NewExecutionID(time.Now())
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionAwaitingExecution, Start: true, Step: &postgres.NewStep{
		ID: harness.NewStepID(time.Now()), Text: "I look", Model: "model", Calls: []postgres.NewCall{{
			CallOutcome: postgres.CallOutcome{ID: call, State: harness.ToolCallRunning}, ProviderID: "p", Name: harness.ToolExecuteShell, Arguments: "{}",
			Execution: &postgres.NewExecution{ID: execution, Command: "true", Spec: harness.DefaultSandbox(), MaxSandboxes: 1, Nonce: "nonce"},
		}},
	}}); err != nil {
		return err
	}
	command, err := s.ClaimExecution(ctx, execution, lease)
	if err != nil {
		return err
	}
	if _, err := s.FinishExecution(ctx, command, postgres.ExecutionOutcome{State: harness.ExecutionFailed, Reason: "no sandbox"}); err != nil {
		return err
	}
	if claim, err = s.ClaimSession(ctx, accepted[0].Session, lease); err != nil {
		return err
	}
	_, err = s.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Results: []postgres.CallOutcome{{ID: call, State: harness.ToolCallDone, Result: "done"}},
		Step: &postgres.NewStep{ID: harness.NewStepID(time.Now()), Text: "it is so", Model: "model"}, Reply: []string{"it is so"},
	})
	return err
}
