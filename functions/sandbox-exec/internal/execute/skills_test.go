//go:build local

package execute_test

import (
	"strings"
	"testing"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

// skilled makes the agent one that has the skill csv with these files, and
// session one that has loaded it. It returns the content's digest.
func (w *world) skilled(session string, files ...harness.SkillFile) string {
	w.Helper()
	c := harness.SkillContent{Instructions: "Do it.", Files: files}
	w.sql(`INSERT INTO skill_contents (digest, instructions) VALUES ($1, $2)`, c.Digest(), c.Instructions)
	for _, f := range files {
		w.sql(`INSERT INTO skill_files (digest, path, data) VALUES ($1, $2, $3)`, c.Digest(), f.Path, f.Data)
	}
	w.sql(`INSERT INTO agent_revisions (agent_name, revision, spec) VALUES ('coder', 1, '{"name": "coder", "skills": [{"name": "csv"}]}') ON CONFLICT DO NOTHING`)
	w.sql(`INSERT INTO session_skills (session_id, skill_name, digest) VALUES ($1, 'csv', $2) ON CONFLICT (session_id, skill_name) DO UPDATE SET digest = EXCLUDED.digest`, session, c.Digest())
	return c.Digest()
}

func (w *world) ran(command string) string {
	w.Helper()
	e := w.ask("ses_a", command)
	w.deliverTwice(e)
	if got := query[string](w, `SELECT concat_ws(' ', state, exit_code) FROM executions WHERE execution_id = $1`, e.Payload.Execution); got != "COMPLETED 0" {
		w.Errorf("%s: %s", command, got)
	}
	return w.printed(e, "stdout")
}

// Without an object store: the files of a loaded skill are there before the next
// command, in the sandbox that there is and in any later one, until the block is off.
func TestSkillsComeIn(t *testing.T) {
	w := newWorld(t)
	w.ran("true") // a sandbox from before
	one := w.skilled("ses_a", harness.SkillFile{Path: "scripts/run.sh", Data: []byte("echo ran with $1")}, harness.SkillFile{Path: "b.bin", Data: []byte("\x00\xff")}, harness.SkillFile{Path: "empty", Data: []byte{}})
	if got := w.ran("sh skills/csv/scripts/run.sh it; wc -c < skills/csv/b.bin; test -f skills/csv/empty; echo mine > skills/csv/b.bin"); strings.Join(strings.Fields(got), " ") != "ran with it 2" {
		t.Errorf("printed %q", got)
	}
	if got := query[string](w, `SELECT skill_name || ' ' || digest FROM skill_placements`); got != "csv "+one {
		t.Errorf("placed %s", got)
	}
	if got := w.ran("cat skills/csv/b.bin"); got != "mine\n" {
		t.Errorf("files that are there were brought again: %q", got)
	}
	w.skilled("ses_a", harness.SkillFile{Path: "scripts/run.sh", Data: []byte("echo newer")})
	if got := w.ran("sh skills/csv/scripts/run.sh"); got != "newer\n" {
		t.Errorf("loaded again: %q", got)
	}
	w.endSandbox()
	if got := w.ran("sh /workspace/skills/csv/scripts/run.sh"); got != "newer\n" {
		t.Errorf("in a new sandbox: %q", got)
	}
	w.endSandbox()
	w.sql(`UPDATE agent_revisions SET spec = '{"name": "coder"}'`)
	if got := w.ran("ls -A"); got != "" {
		t.Errorf("with the block off: %q", got)
	}
}

// endSandbox ends the only sandbox that there is.
func (w *world) endSandbox() {
	w.Helper()
	id := query[string](w, `SELECT execution_id FROM executions ORDER BY created_at DESC LIMIT 1`)
	if err := w.driver.Terminate(w.Context(), w.sandboxOf(event.Event{Payload: event.Payload{Execution: harness.ExecutionID(id)}})); err != nil {
		w.Fatal(err)
	}
}

// What a command has put in the way is not followed: the command runs, and is told.
func TestSkillsThatCannotComeIn(t *testing.T) {
	w := newWorld(t)
	w.ran("mkdir skills; ln -s /evidence skills/csv")
	w.skilled("ses_a", harness.SkillFile{Path: "run.sh", Data: []byte("echo")})
	e := w.ask("ses_a", "true")
	w.deliverTwice(e)
	if reason := w.reason(e); !strings.Contains(reason, `files of skills are not in the workspace: "skills/csv/run.sh" (`) {
		t.Errorf("told %q", reason)
	}
	if left := w.lines("run.sh"); len(left) > 0 {
		t.Errorf("outside the workspace: %q", left)
	}
	w.ran("rm skills/csv")
	if got := w.ran("cat skills/csv/run.sh"); got != "echo" {
		t.Errorf("when the way is free: %q", got)
	}
}
