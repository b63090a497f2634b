//go:build system

package system_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/checkout"
)

var flagFrom = flag.String("from", "", "the commit whose functions are upgraded and rolled back to; empty: the newest that lacks the last three migrations")

const (
	migrationsDir = "shared/postgres/schema/migrations"
	migrationsOff = 3 // that the older release does not know
)

// release is the functions of a commit of this repository.
type release struct {
	commit, dir string // dir has the programs
}

// git runs it in the checkout and returns what it prints.
func git(t *testing.T, home string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = home
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// olderCommit is the newest commit that lacks the last migrations.
func olderCommit(t *testing.T, home string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(home, migrationsDir, "*.sql"))
	if err != nil || len(files) < migrationsOff {
		t.Fatalf("%d migrations: %v", len(files), err)
	}
	slices.Sort(files)
	first := path.Join(migrationsDir, filepath.Base(files[len(files)-migrationsOff]))
	for commit := range strings.FieldsSeq(git(t, home, "rev-list", "--first-parent", "HEAD")) {
		has := exec.Command("git", "cat-file", "-e", commit+":"+first)
		has.Dir = home
		if has.Run() != nil {
			return commit
		}
	}
	t.Fatalf("the checkout does not reach back to before %s was added: run git fetch --unshallow, or name a commit that it has by -from", first)
	return ""
}

// olderRelease checks a commit out beside this one and builds its functions, its
// runner and its migrator.
func olderRelease(t *testing.T) release {
	t.Helper()
	home, err := checkout.Root()
	if err != nil {
		t.Fatal(err)
	}
	r := release{commit: *flagFrom, dir: t.TempDir()}
	if r.commit == "" {
		r.commit = olderCommit(t, home)
	}
	if err := os.Chmod(r.dir, 0o711); err != nil { // sandboxes run the runner as another user
		t.Fatal(err)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	git(t, home, "worktree", "add", "--detach", tree, r.commit)
	t.Cleanup(func() { git(t, home, "worktree", "remove", "--force", tree) })
	mains, err := filepath.Glob(filepath.Join(tree, "functions", "*", "main.go"))
	if err != nil || len(mains) == 0 {
		t.Fatalf("%s has no functions: %v", r.commit, err)
	}
	args := []string{"build", "-tags", "local", "-buildvcs=false", "-o", r.dir + "/", "./functions/sandbox-exec/runner", "./scripts/migrate"}
	for _, main := range mains {
		args = append(args, "./functions/"+filepath.Base(filepath.Dir(main)))
	}
	build := exec.CommandContext(t.Context(), "go", args...)
	build.Dir, build.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go %s at %s: %v\n%s", strings.Join(args, " "), r.commit, err, out)
	}
	return r
}

func (r release) migrate(ctx context.Context, dsn string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(r.dir, "migrate"))
	cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate of %s: %w\n%s", r.commit, err, out)
	}
	return nil
}

// running says which release processes are started of.
type running string

const (
	runsOld  running = "old"
	runsBoth running = "old and new side by side"
	runsNew  running = "new"
)

// rollout starts processes of one release, of the other, or of both in turn.
type rollout struct {
	old release

	mu      sync.Mutex
	runs    running
	started map[string]int // by function
	counts  map[running]int
}

func (o *rollout) set(r running) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.runs = r
}

// processes is how many were started of each release.
func (o *rollout) processes() (old, new int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[runsOld], o.counts[runsNew]
}

func (o *rollout) program(name string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started[name]++
	if o.runs == runsNew || o.runs == runsBoth && o.started[name]%2 == 0 {
		o.counts[runsNew]++
		return ""
	}
	o.counts[runsOld]++
	return filepath.Join(o.old.dir, name)
}

// env gives old functions their own runner.
func (o *rollout) env(_ string, env map[string]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if env["SANDBOX_LOCAL_RUNNER"] != "" && o.runs != runsNew {
		env["SANDBOX_LOCAL_RUNNER"] = filepath.Join(o.old.dir, "runner")
	}
}

// TestUpgradeAndRollback upgrades the functions of an older commit under traffic:
// old ones on the old schema, the migration while they run, old and new side by
// side, new alone; then back to old ones on the new schema, and to new ones again.
// Every change comes while messages, commands and answers are under way.
func TestUpgradeAndRollback(t *testing.T) {
	o := &rollout{old: olderRelease(t), runs: runsOld, started: map[string]int{}, counts: map[running]int{}}
	agents := newAgents(6)
	w := newWorld(t, plan{agents: agents, people: &crowd{}, gated: true, archived: true, ageing: 15 * time.Second, processes: 2, program: o.program, more: o.env, migrate: o.old.migrate})
	oldest := w.number(`SELECT max(version_id) FROM goose_db_version`)
	m := &matrix{world: w, wires: &wires{}, model: &front{}, clock: &jumpingClock{}, calls: newCaller(w), both: w.people.phones()}
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Minute)
	defer cancel()
	c := &trial{matrix: m, name: "up", agents: agents, ctx: ctx, result: result{fault: "upgrade and rollback"}}
	for i, phase := range []struct {
		what string
		do   func()
	}{
		{"old functions, old schema", func() {}},
		{"the schema is migrated under old functions", func() { w.must(migrate(ctx, w.dsn)) }},
		{"old and new functions side by side", func() { o.set(runsBoth) }},
		{"new functions", func() { o.set(runsNew) }},
		{"back to old functions, side by side", func() { o.set(runsBoth) }},
		{"back to old functions on the new schema", func() { o.set(runsOld) }},
		{"new functions again", func() { o.set(runsNew) }},
	} {
		began := time.Now()
		for j := range 3 { // under way while it changes
			c.speak(agents[(i+j)%len(agents)], "note", "sleep 2", "note", "run")
		}
		c.phones(2)
		w.await(time.Minute, "commands run", func() (bool, string) {
			n := w.number(`SELECT count(*) FROM executions WHERE state IN ('PENDING', 'RUNNING')`)
			return n > 0, fmt.Sprint(n)
		})
		phase.do()
		for range 2 { // the first takes those that run, the second what they had started meanwhile
			for _, s := range w.set.Services {
				w.cluster.Renew(s.Name)
			}
			time.Sleep(time.Second) // some of the turns goes on
		}
		c.awaitAll()
		old, new := o.processes()
		t.Logf("%s: %d messages answered after %s; processes started so far: %d old, %d new", phase.what,
			w.number(`SELECT count(*) FROM messages WHERE in_reply_to IS NOT NULL`), time.Since(began).Round(time.Second), old, new)
	}
	newest := w.number(`SELECT max(version_id) FROM goose_db_version`)
	t.Logf("from schema %d of %.12s to schema %d", oldest, o.old.commit, newest)
	if old, new := o.processes(); oldest >= newest || old == 0 || new == 0 {
		t.Errorf("schema %d, then %d; %d old processes, %d new ones: nothing was upgraded", oldest, newest, old, new)
	}
	w.await(2*time.Minute, "it is settled", c.settled)
	c.count()
	if c.leaked+c.lost+c.doubled > 0 {
		t.Errorf("leaked %d, lost %d, doubled %d", c.leaked, c.lost, c.doubled)
	}
	for _, d := range c.details {
		t.Error(d)
	}
	if open := w.strings(`SELECT event_type || ': ' || cause FROM dead_letters WHERE state = 'OPEN'`); len(open) > 0 {
		t.Errorf("dead letters: %q", open)
	}
	if crashes := w.cluster.Counts().Crashes; sum(crashes) != 0 {
		t.Errorf("processes ended by themselves: %v", crashes)
	}
	if left := w.awaitRest(4 * time.Minute); left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	w.stop()
	w.assertNothingRemains()
}
