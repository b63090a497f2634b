package postgres

import (
	"context"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// SkillImage is what the image of a skill held when it was last looked at.
type SkillImage struct {
	Digest    string            // what its reference was resolved to; empty: it never gave anything
	Files     map[string][]byte // of the skill, by path
	Confirmed time.Time         // when the image was last seen to be that
	Tried     bool              // somebody has looked, with or without success
	Age       time.Duration     // since then
	Refused   string            // the digest of a newer image that is none for a skill; empty: none
	Reason    string            // why nothing came at the last look; empty when it did
}

// SkillImage returns what is kept of the image of an agent's skill with these
// settings: nothing where it had others.
func (s *Store) SkillImage(ctx context.Context, agent harness.AgentName, skill, settings string) (SkillImage, error) {
	var is SkillImage
	var confirmed *time.Time
	var age float64
	err := s.pool.QueryRow(ctx, `SELECT image_digest, files, confirmed_at, extract(epoch FROM now() - tried_at)::float8, refused_digest, reason
		FROM skill_images WHERE agent_name = $1 AND skill_name = $2 AND settings = $3`, agent, skill, settings).
		Scan(&is.Digest, &is.Files, &confirmed, &age, &is.Refused, &is.Reason)
	if err = translate(err); harness.KindOf(err) == harness.NotFound {
		return SkillImage{}, nil
	}
	if confirmed != nil {
		is.Confirmed = *confirmed
	}
	is.Tried, is.Age = true, time.Duration(age*float64(time.Second))
	return is, err
}

// SkillImageIs stores what a look at the image gave. What nobody has looked at for
// a month is deleted.
func (s *Store) SkillImageIs(ctx context.Context, agent harness.AgentName, skill, settings string, is SkillImage) error {
	_, err := s.pool.Exec(ctx, `WITH old AS (DELETE FROM skill_images WHERE tried_at < now() - interval '30 days' AND (agent_name, skill_name) <> ($1, $2))
		INSERT INTO skill_images AS i (agent_name, skill_name, settings, image_digest, files, confirmed_at, tried_at) VALUES ($1, $2, $3, $4, $5, now(), now())
		ON CONFLICT (agent_name, skill_name) DO UPDATE SET settings = EXCLUDED.settings, image_digest = EXCLUDED.image_digest, files = EXCLUDED.files,
			confirmed_at = now(), tried_at = now(), refused_digest = '', reason = ''`, agent, skill, settings, is.Digest, is.Files)
	return translate(err)
}

// SkillImageFailed stores that a look gave nothing, and why; what an older look
// with these settings gave is kept.
func (s *Store) SkillImageFailed(ctx context.Context, agent harness.AgentName, skill, settings, refused, reason string) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO skill_images AS i (agent_name, skill_name, settings, tried_at, refused_digest, reason) VALUES ($1, $2, $3, now(), $4, $5)
		ON CONFLICT (agent_name, skill_name) DO UPDATE SET settings = EXCLUDED.settings, tried_at = now(), refused_digest = EXCLUDED.refused_digest, reason = EXCLUDED.reason,
			image_digest = CASE WHEN i.settings = EXCLUDED.settings THEN i.image_digest ELSE '' END,
			files = CASE WHEN i.settings = EXCLUDED.settings THEN i.files ELSE '{}' END,
			confirmed_at = CASE WHEN i.settings = EXCLUDED.settings THEN i.confirmed_at END`, agent, skill, settings, refused, cleanReason(reason))
	return translate(err)
}
