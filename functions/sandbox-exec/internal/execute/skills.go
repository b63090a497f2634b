package execute

import (
	"bytes"
	"context"
	"errors"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
)

// bringSkills puts the files of skills that the session has loaded into a sandbox
// that lacks them. A skill that is brought half is brought again, whole, by the
// next command. ErrGone: the sandbox is. Any other error: try again.
func (x *Executor) bringSkills(ctx context.Context, claim *postgres.ExecutionClaim, sb sandbox.Sandbox, in *delivery) error {
	skills, err := x.Store.LackingSkills(ctx, claim, sb.ID)
	if err != nil {
		return err
	}
	in.skills = list{} // those of another sandbox are of no interest
	for _, skill := range skills {
		files, err := x.Store.SkillFiles(ctx, skill.Digest)
		if err != nil {
			return err
		}
		whole := true
		for _, f := range files {
			path := harness.SkillFolder(skill.Name) + "/" + f.Path
			_, err := sandbox.Put(ctx, x.Driver, sb, path, bytes.NewReader(f.Data), int64(len(f.Data)))
			if err == nil {
				continue
			}
			x.Log.Warn("skill's file not brought in", "skill", skill.Name, "file", f.Path, "sandbox", string(sb.ID), "execution", string(claim.ID), "attempt", claim.Attempts, "err", err)
			if errors.Is(err, sandbox.ErrGone) || ctx.Err() != nil || again(claim, err) {
				return err
			}
			whole = false
			in.skills.add(path, harness.MessageOf(err))
		}
		if !whole {
			continue
		}
		if err := x.Store.PlaceSkill(ctx, sb.ID, skill); err != nil {
			return err
		}
	}
	return nil
}
