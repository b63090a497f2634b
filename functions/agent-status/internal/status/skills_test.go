package status_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tuluat.ai/harness/shared/harness"
)

func skilledYAML(folder string) string {
	return agentYAML("a") + "  skills:\n    items:\n      - name: csv\n        description: d\n        folder: " + folder + "\n"
}

func (r *rig) files() string {
	r.t.Helper()
	var text string
	if err := r.store.Pool().QueryRow(context.Background(), `SELECT COALESCE(string_agg(f.path || '=' || encode(f.data, 'escape'), ' ' ORDER BY f.path), '')
		FROM agents a JOIN agent_revisions r USING (agent_name, revision) JOIN skill_files f ON f.digest = r.spec #>> '{skills,0,digest}'`).Scan(&text); err != nil {
		r.t.Fatal(err)
	}
	return text
}

// standing is phase, revision and reason of the only agent.
func (r *rig) standing() string {
	r.t.Helper()
	all, err := r.store.Agents(context.Background())
	if err != nil || len(all) != 1 {
		r.t.Fatal(all, err)
	}
	return fmt.Sprint(all[0].Phase, " ", all[0].Revision, " ", all[0].Reason)
}

func TestSkillsOfAFolder(t *testing.T) {
	r := newRig(t)
	r.write("a.yaml", skilledYAML("skills/csv"))
	r.deliver()
	if _, reasons := r.agents(); !strings.Contains(reasons["a"], "spec.skills.items[0].folder is skills/csv, which is not there: make the folder") {
		t.Fatalf("without the folder: %q", reasons["a"])
	}
	if err := os.MkdirAll(filepath.Join(r.dir, "skills/csv/b/.git"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.write("skills/csv/SKILL.md", "Do it.")
	r.write("skills/csv/b/run.sh", "echo")
	r.write("skills/csv/.hidden", "no")
	r.write("skills/csv/b/.git/x", "no")
	r.deliver()
	r.write("skills/csv/b/run.sh", "echo more")
	r.deliver()
	if got := r.standing(); got != "READY 2 " || r.files() != "b/run.sh=echo more" {
		t.Errorf("%s, files %s", got, r.files())
	}
}

// Nothing but plain files below the agents' folder is read, and what is wrong
// leaves the revision in use.
func TestSkillFoldersThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(dir string) error
		want  string
	}{
		"a link out":       {func(dir string) error { return os.Symlink("/etc/passwd", dir+"/x") }, `folder has "x", which is a link or a special file`},
		"a link inside":    {func(dir string) error { return os.Symlink("SKILL.md", dir+"/x") }, `folder has "x", which is a link or a special file`},
		"a pipe":           {func(dir string) error { return syscall.Mkfifo(dir+"/x", 0o600) }, `folder has "x", which is a link or a special file`},
		"itself a link":    {func(dir string) error { return firstError(os.RemoveAll(dir), os.Symlink("/etc", dir)) }, "folder cannot be read"},
		"a file":           {func(dir string) error { return firstError(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)) }, "folder is not a folder"},
		"too large":        {func(dir string) error { return os.WriteFile(dir+"/x", make([]byte, 64<<20), 0o600) }, "folder has more than 262144 bytes"},
		"too many":         {func(dir string) error { return many(dir) }, "folder has more than 64 files"},
		"without SKILL.md": {func(dir string) error { return os.Remove(dir + "/SKILL.md") }, "folder has no SKILL.md"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			dir := filepath.Join(r.dir, "csv")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			r.write("csv/SKILL.md", "Do it.")
			r.write("a.yaml", skilledYAML("csv"))
			r.deliver()
			if err := c.spoil(dir); err != nil {
				t.Fatal(err)
			}
			r.deliver()
			if got := r.standing(); !strings.HasPrefix(got, "INVALID 1 ") || !strings.Contains(got, "spec.skills.items[0]."+c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestAConfigMapIsNotOfAFolder(t *testing.T) {
	r := newRig(t)
	r.write("a.yaml", strings.Replace(skilledYAML("csv"), "folder: csv", "configMapRef: {name: m}", 1))
	r.deliver()
	if _, reasons := r.agents(); !strings.Contains(reasons["a"], "spec.skills.items[0].configMapRef is of agents in a cluster: use folder, or text") {
		t.Errorf("%q", reasons["a"])
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func many(dir string) error {
	for i := range harness.MaxSkillFiles {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}
