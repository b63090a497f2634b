package postgres_test

import (
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// A step knows what its own turn's questions came to, however much else its agent
// asks meanwhile, and reads of that only the newest.
func TestATurnKnowsItsQuestionsBesideABusyAgent(t *testing.T) {
	ctx := t.Context()
	s := postgrestest.New(t)
	agent(t, s)
	id := arrive(t, s, "a")[0].Session
	claim, err := s.ClaimSession(ctx, id, lease)
	if err != nil {
		t.Fatal(err)
	}
	asked := func(model, reason string) []postgres.NewAttempt {
		return []postgres.NewAttempt{{Purpose: harness.AttemptAnswer, Provider: harness.ProviderOpenAI, Model: model, Reason: reason, Final: reason != "", Took: time.Second}}
	}
	// The turn before this one, and then one whose first question is refused for good.
	if _, err := s.CommitStep(ctx, postgres.StepCommit{
		Claim: claim, State: harness.SessionIdle, Start: true, Step: &postgres.NewStep{ID: "stp_1", Text: "one"}, Reply: []string{"one"}, Attempts: asked("earlier", ""),
	}); err != nil {
		t.Fatal(err)
	}
	arrive(t, s, "b")
	if claim, err = s.ClaimSession(ctx, id, lease); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CommitStep(ctx, postgres.StepCommit{Claim: claim, State: harness.SessionRunning, Start: true, Again: true, Attempts: asked("mine", "REFUSED")}); err != nil {
		t.Fatal(err)
	}
	// The same agent's other conversations of the last minute; and old ones of this.
	for _, sql := range []string{
		`UPDATE model_attempts SET created_at = now() - interval '5 minutes'`,
		`INSERT INTO model_attempts (session_id, agent_name, message_id, step_seq, attempts, purpose, provider, model, millis, created_at)
		SELECT session_id, 'coder', message_id, 1, 1, 'TURN', 'openai', 'theirs', 1, now() - n * interval '100 milliseconds' FROM model_attempts, generate_series(1, 200) n WHERE model = 'earlier'`,
	} {
		if _, err := s.Pool().Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	if claim, err = s.ClaimSession(ctx, id, lease); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, a := range claim.Asked {
		count[a.Model]++
		if own := a.Model == "mine"; a.Now != own || a.Final != own {
			t.Errorf("of %s it is said that it is of now %v and final %v", a.Model, a.Now, a.Final)
		}
	}
	if count["mine"] != 1 || count["earlier"] != 0 || count["theirs"] != 50 {
		t.Errorf("the step knows of %v: want its own one, and the newest 50 of the agent", count)
	}
	if claim.Asked[0].Model != "mine" {
		t.Errorf("the oldest question is of %s, want mine", claim.Asked[0].Model)
	}
}
