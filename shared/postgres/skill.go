package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// skills stores what a new revision's skills hold, where that is not stored yet.
func (w *agentWriter) skills(contents []harness.SkillContent) {
	for _, c := range contents {
		digest := c.Digest()
		w.Queue(`INSERT INTO skill_contents (digest, instructions) VALUES ($1, $2) ON CONFLICT (digest) DO NOTHING`, digest, c.Instructions)
		for _, f := range c.Files {
			w.Queue(`INSERT INTO skill_files (digest, path, data) VALUES ($1, $2, $3) ON CONFLICT (digest, path) DO NOTHING`, digest, f.Path, f.Data)
		}
	}
}

// LoadedSkill is what a model is told of a skill.
type LoadedSkill struct {
	Instructions string
	Files        []string // their paths below the skill's folder
}

// LoadSkill records that the claimed session has loaded the skill, in the place of
// what it had loaded under the name before, and returns it. ErrLeaseLost: somebody
// else has claimed the session since; nothing is written. harness.NotFound: there
// is no such content.
func (s *Store) LoadSkill(ctx context.Context, claim *Claim, skill harness.Skill) (LoadedSkill, error) {
	var loaded LoadedSkill
	b := &pgx.Batch{}
	b.Queue(`SELECT fence_session($1, $2)`, claim.ID, claim.Token)
	b.Queue(`INSERT INTO session_skills AS l (session_id, skill_name, digest) SELECT $1, $2, c.digest FROM skill_contents c WHERE c.digest = $3
		ON CONFLICT (session_id, skill_name) DO UPDATE SET digest = EXCLUDED.digest WHERE l.digest <> EXCLUDED.digest`, claim.ID, skill.Name, skill.Digest)
	b.Queue(`SELECT c.instructions, ARRAY (SELECT f.path FROM skill_files f WHERE f.digest = c.digest ORDER BY f.path COLLATE "C")
		FROM skill_contents c WHERE c.digest = $1`, skill.Digest).
		QueryRow(func(row pgx.Row) error { return row.Scan(&loaded.Instructions, &loaded.Files) })
	return loaded, s.batch(ctx, b, nil)
}

// LackingSkill is a skill whose files a sandbox does not have.
type LackingSkill struct{ Name, Digest string }

// LackingSkills returns the skills that the claim's session has loaded, that its
// agent still has, and whose files the sandbox does not have, by name. Each is of
// the content that the model was told of.
func (s *Store) LackingSkills(ctx context.Context, c *ExecutionClaim, sandbox harness.SandboxID) ([]LackingSkill, error) {
	return list(ctx, s, `SELECT l.skill_name, l.digest FROM session_skills l
		WHERE l.session_id = $1 AND NOT EXISTS (SELECT 1 FROM skill_placements p WHERE p.sandbox_id = $2 AND p.skill_name = l.skill_name AND p.digest = l.digest)
		AND EXISTS (SELECT 1 FROM agents a JOIN agent_revisions r USING (agent_name, revision)
			WHERE a.agent_name = $3 AND r.spec -> 'skills' @> jsonb_build_array(jsonb_build_object('name', l.skill_name)))
		ORDER BY l.skill_name`, []any{c.Session, sandbox, c.Agent}, pgx.RowToStructByPos[LackingSkill])
}

// SkillFiles returns the files of a content, by path: at most
// harness.MaxSkillBytes together.
func (s *Store) SkillFiles(ctx context.Context, digest string) ([]harness.SkillFile, error) {
	return list(ctx, s, `SELECT path, data FROM skill_files WHERE digest = $1 ORDER BY path COLLATE "C"`, []any{digest}, pgx.RowToStructByPos[harness.SkillFile])
}

// PlaceSkill records that the sandbox has the files of the skill.
func (s *Store) PlaceSkill(ctx context.Context, sandbox harness.SandboxID, skill LackingSkill) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO skill_placements (sandbox_id, skill_name, digest) VALUES ($1, $2, $3)
		ON CONFLICT (sandbox_id, skill_name) DO UPDATE SET digest = EXCLUDED.digest`, sandbox, skill.Name, skill.Digest)
	return translate(err)
}
