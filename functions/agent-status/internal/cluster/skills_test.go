package cluster_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

func (r *rig) skill() (files string) {
	r.t.Helper()
	if err := r.store.Pool().QueryRow(context.Background(), `SELECT concat_ws(' ', c.instructions, (SELECT string_agg(f.path || '=' || encode(f.data, 'escape'), ' ' ORDER BY f.path) FROM skill_files f WHERE f.digest = c.digest))
		FROM agents a JOIN agent_revisions r USING (agent_name, revision) JOIN skill_contents c ON c.digest = r.spec #>> '{skills,0,digest}'`).Scan(&files); err != nil {
		r.t.Fatal(err)
	}
	return files
}

// A ConfigMap is a folder, or one of its keys is all; a change of it is another
// revision, and what is wrong leaves the one in use.
func TestSkillsOfConfigMaps(t *testing.T) {
	const whole, one = `{"skills": {"items": [{"name": "csv", "description": "d", "configMapRef": {"name": "m"}}]}}`, `{"skills": {"items": [{"name": "csv", "description": "d", "configMapRef": {"name": "m", "key": "other"}}]}}`
	r := newRig(t)
	steps := []struct {
		what    string
		spec    string
		files   map[string]string
		refuse  int
		want    string // of the condition; empty: accepted
		skill   string
		version int64
	}{
		{what: "no ConfigMap", spec: whole, want: "spec.skills.items[0].configMapRef.name is m, and there is no such ConfigMap in agents: create it, or name another"},
		{what: "a folder", spec: whole, files: map[string]string{"SKILL.md": "Do it.", "a__b.sh": "echo", "c.bin": "\xff"}, skill: `Do it. a/b.sh=echo c.bin=\377`, version: 1},
		{what: "changed", spec: whole, files: map[string]string{"SKILL.md": "Do it.", "a__b.sh": "echo 2"}, skill: `Do it. a/b.sh=echo 2`, version: 2},
		{what: "no answer", spec: whole, refuse: http.StatusForbidden, skill: `Do it. a/b.sh=echo 2`, version: 2, want: "the API server does not allow it: check the function's Role"},
		{what: "an unsafe key", spec: whole, files: map[string]string{"SKILL.md": "Do it.", "..__x": ""}, skill: `Do it. a/b.sh=echo 2`, version: 2, want: `spec.skills.items[0].configMapRef has a file "../x"`},
		{what: "no key", spec: one, files: map[string]string{"SKILL.md": "Do it."}, skill: `Do it. a/b.sh=echo 2`, version: 2, want: "spec.skills.items[0].configMapRef.key is other, which the ConfigMap m does not have"},
		{what: "a key", spec: one, files: map[string]string{"SKILL.md": "No.", "other": "---\nname: csv\n---\nYes."}, skill: "Yes.", version: 3},
		{what: "a folder of files", spec: strings.Replace(whole, `"configMapRef": {"name": "m"}`, `"folder": "f"`, 1), skill: "Yes.", version: 3, want: "spec.skills.items[0].folder is of agents that are kept as files: use configMapRef"},
	}
	for _, c := range steps {
		r.server.Put("aiagents", "a", c.spec)
		if c.files != nil {
			r.server.PutConfigMap("m", c.files)
		}
		r.server.RefuseConfigMaps = c.refuse
		r.timePasses()
		r.reconcile()
		s, accepted := r.status("a"), r.condition("a", v1alpha1.ConditionAccepted)
		phase := harness.AgentReady
		if c.want != "" {
			phase = harness.AgentInvalid
		}
		if s.Phase != phase || s.Revision != c.version || !strings.Contains(accepted.Message, c.want) {
			t.Errorf("%s: %s, revision %d, %q; want %s, %d, %q", c.what, s.Phase, s.Revision, accepted.Message, phase, c.version, c.want)
		}
		if c.version > 0 && r.skill() != c.skill {
			t.Errorf("%s: %q, want %q", c.what, r.skill(), c.skill)
		}
	}
}
