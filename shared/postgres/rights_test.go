package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// agent-status reads what its SQL needs of commands and sandboxes, and nothing of
// what they run, say or prove themselves by.
func TestAgentStatusReadsNoCommand(t *testing.T) {
	ctx := context.Background()
	owner, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	run(t, owner, `SET ROLE tuluat_agent_status`)
	for sql, allowed := range map[string]bool{
		`SELECT agent_name, seq, state, started_at, created_at FROM executions`:                          true,
		`SELECT agent_name, state, spec_digest, created_at, sandbox_uid, reason, message FROM sandboxes`: true,
		`SELECT * FROM secret_checks`:         true,
		`SELECT nonce FROM executions`:        false,
		`SELECT command FROM executions`:      false,
		`SELECT e::text FROM executions e`:    false,
		`SELECT spec FROM sandboxes`:          false,
		`SELECT * FROM execution_output`:      false,
		`UPDATE executions SET state = state`: false,
	} {
		code := ""
		if _, err := owner.Pool().Exec(ctx, sql); err != nil {
			var refused *pgconn.PgError
			if !errors.As(err, &refused) {
				t.Fatal(err)
			}
			code = refused.Code
		}
		if refused := code == "42501"; refused == allowed || !refused && code != "" {
			t.Errorf("%s: %q", sql, code)
		}
	}
}

// What the functions do with statuses they may do.
func TestRolesMayKeepStatuses(t *testing.T) {
	ctx := context.Background()
	s, err := postgres.Open(postgrestest.DSN(t), postgres.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	run(t, s, `SET ROLE tuluat_agent_status`)
	text := agentText("a", "agents/a", "one", "h1")
	text.Generation = 1
	put(t, s, text)
	a := standing(t, s, "a")
	token, err := s.ClaimStatus(ctx, "a", postgres.StatusEvery)
	if err != nil {
		t.Fatal(err)
	}
	if token, err = s.RenewStatus(ctx, "a", token); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.StatusIs(ctx, []postgres.Standing{a}), s.StatusWritten(ctx, "a", token, a.Digest), s.StatusIsNot(ctx, standing(t, s, "a"))); err != nil {
		t.Fatal(err)
	}
	run(t, s, `SET ROLE tuluat_reaper_cron`)
	if names, err := s.StatusDirty(ctx, 0, 10); err != nil || len(names) != 1 || names[0] != harness.AgentName("a") {
		t.Errorf("the sweep: %v, %v", names, err)
	}
}
