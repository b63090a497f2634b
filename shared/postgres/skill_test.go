package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// skilled is text with one skill, csv, whose file holds data.
func skilled(text postgres.AgentText, data string) postgres.AgentText {
	content := harness.SkillContent{Instructions: "Do it.", Files: []harness.SkillFile{{Path: "a/x.sh", Data: []byte(data)}, {Path: "B", Data: []byte{}}}}
	agent := *text.Agent
	agent.Skills = []harness.Skill{{Name: "csv", Description: "d", Digest: content.Digest()}}
	text.Agent, text.Skills = &agent, []harness.SkillContent{content}
	return text
}

// Contents come with the revision that names them, once for all who name them, and
// the function's own rights are enough.
func TestSkillsComeWithTheirRevision(t *testing.T) {
	s := postgrestest.New(t)
	contents := func() int {
		t.Helper()
		var n int
		if err := s.Pool().QueryRow(context.Background(), `SELECT count(*) FROM skill_contents JOIN skill_files USING (digest)`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	one, other := agentText("a", "f", "p"), agentText("b", "f", "p")
	for _, c := range []struct {
		what     string
		texts    []postgres.AgentText
		revision int64
		files    int
	}{
		{"one skill of two agents", []postgres.AgentText{skilled(one, "1"), skilled(other, "1")}, 1, 2},
		{"the same again", []postgres.AgentText{skilled(one, "1"), skilled(other, "1")}, 1, 2},
		{"a file changed", []postgres.AgentText{skilled(one, "\xff\x00"), skilled(other, "1")}, 2, 4},
		{"and back", []postgres.AgentText{skilled(one, "1"), skilled(other, "1")}, 3, 4},
	} {
		putAgents(t, s, nil, c.texts...)
		agents, err := s.Agents(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if got := contents(); agents[0].Revision != c.revision || got != c.files {
			t.Errorf("%s: revision %d, %d files; want %d, %d", c.what, agents[0].Revision, got, c.revision, c.files)
		}
	}
	files, err := s.SkillFiles(context.Background(), skilled(one, "\xff\x00").Agent.Skills[0].Digest)
	if diff := cmp.Diff([]harness.SkillFile{{Path: "B", Data: []byte{}}, {Path: "a/x.sh", Data: []byte("\xff\x00")}}, files); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	run(t, s, `SET ROLE tuluat_agent_status`)
	if changed, _, err := s.PutAgents(context.Background(), []postgres.AgentText{skilled(one, "as agent-status"), skilled(other, "1")}, nil); err != nil || len(changed) != 1 {
		t.Errorf("as agent-status: %v, %v", changed, err)
	}
}

// What a session has loaded is what its sandboxes lack until they have it, while
// the agent has a skill of the name.
func TestLoadedSkillsComeToSandboxes(t *testing.T) {
	ctx := context.Background()
	s, prepare := asAgentStep(t)
	first := skilled(agentText("coder", "f", "p"), "1")
	second := skilled(agentText("coder", "f", "p"), "2")
	for _, text := range []postgres.AgentText{first, second} {
		c := text.Skills[0]
		prepare(`INSERT INTO skill_contents (digest, instructions) VALUES ($1, $2)`, c.Digest(), c.Instructions)
		prepare(`INSERT INTO skill_files (digest, path, data) VALUES ($1, 'a/x.sh', $2), ($1, 'B', '')`, c.Digest(), c.Files[0].Data)
	}
	on, off := *first.Agent, *first.Agent
	off.Skills = nil
	prepare(`UPDATE agent_revisions SET spec = $1`, on)
	due, err := s.DueSessions(ctx, "coder", 1)
	if err != nil || len(due) != 1 {
		t.Fatal(due, err)
	}
	claim, err := s.ClaimSession(ctx, due[0].Session, lease)
	if err != nil {
		t.Fatal(err)
	}
	prepare(`INSERT INTO sandboxes (sandbox_id, sandbox_name, sandbox_uid, agent_name, session_id, state, spec, spec_digest, expires_at, ended_at) SELECT id, id, id, 'coder', $1, CASE id WHEN 'sbx_2' THEN 'READY' ELSE 'GONE' END, '{}', 'd', now(), CASE id WHEN 'sbx_1' THEN now() END FROM unnest(ARRAY['sbx_1', 'sbx_2']) id`, claim.ID)
	of := &postgres.ExecutionClaim{Session: claim.ID, Agent: "coder"}
	lacks := func(sandbox harness.SandboxID, want string) {
		t.Helper()
		run(t, s, `SET ROLE tuluat_sandbox_exec`)
		defer run(t, s, `SET ROLE tuluat_agent_step`)
		skills, err := s.LackingSkills(ctx, of, sandbox)
		var got []string
		for _, l := range skills {
			got = append(got, l.Name+" "+l.Digest)
		}
		if err != nil || strings.Join(got, ", ") != want {
			t.Errorf("%s lacks %q, %v; want %q", sandbox, got, err, want)
		}
	}
	place := func(sandbox harness.SandboxID, digest string) {
		t.Helper()
		run(t, s, `SET ROLE tuluat_sandbox_exec`)
		defer run(t, s, `SET ROLE tuluat_agent_step`)
		for range 2 {
			if err := s.PlaceSkill(ctx, sandbox, postgres.LackingSkill{Name: "csv", Digest: digest}); err != nil {
				t.Fatal(err)
			}
		}
		if files, err := s.SkillFiles(ctx, digest); err != nil || len(files) != 2 {
			t.Errorf("%v, %v", files, err)
		}
	}
	lacks("sbx_1", "")
	one, two := on.Skills[0].Digest, second.Agent.Skills[0].Digest
	for range 2 {
		loaded, err := s.LoadSkill(ctx, claim, on.Skills[0])
		if diff := cmp.Diff(postgres.LoadedSkill{Instructions: "Do it.", Files: []string{"B", "a/x.sh"}}, loaded); err != nil || diff != "" {
			t.Fatalf("%v, %s", err, diff)
		}
	}
	lacks("sbx_1", "csv "+one)
	place("sbx_1", one)
	lacks("sbx_1", "")
	lacks("sbx_2", "csv "+one)
	prepare(`UPDATE agent_revisions SET spec = $1`, off)
	lacks("sbx_2", "")
	prepare(`UPDATE agent_revisions SET spec = $1`, *second.Agent)
	lacks("sbx_2", "csv "+one) // until it is loaded again: as the model was told
	if _, err := s.LoadSkill(ctx, claim, second.Agent.Skills[0]); err != nil {
		t.Fatal(err)
	}
	lacks("sbx_1", "csv "+two)
	place("sbx_1", two)
	lacks("sbx_1", "")
	if _, err := s.LoadSkill(ctx, claim, harness.Skill{Name: "csv", Digest: "none"}); harness.KindOf(err) != harness.NotFound {
		t.Errorf("a content that is not there: %v", err)
	}
	prepare(`UPDATE sessions SET lease_token = lease_token + 1`)
	if _, err := s.LoadSkill(ctx, claim, on.Skills[0]); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("a lost claim: %v", err)
	}
	lacks("sbx_1", "")
}
