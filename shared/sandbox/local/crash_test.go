//go:build local

package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/local"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

// helperEnv makes the test binary do one thing of a function's process, so that
// a test can kill it in the middle: a JSON order.
const helperEnv = "SANDBOX_TEST_HELPER"

type order struct {
	Dir, Runner, Do string
	Sandbox         sandbox.Sandbox
	Command         string
}

func helper() {
	var o order
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(json.Unmarshal([]byte(os.Getenv(helperEnv)), &o))
	d, err := local.New(local.Options{Dir: o.Dir, Runner: o.Runner, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	fail(err)
	fmt.Println("ready")
	ctx := context.Background()
	switch o.Do {
	case "start":
		uid, err := d.Start(ctx, o.Sandbox)
		fail(err)
		fmt.Println(uid)
	case "terminate":
		fail(d.Terminate(ctx, o.Sandbox))
	case "whole life":
		o.Sandbox.UID, err = d.Start(ctx, o.Sandbox)
		fail(err)
		res, err := sandbox.Exec(ctx, d, o.Sandbox, sandboxtest.Command(o.Command), func(_ string, _ int64, b []byte) { os.Stdout.Write(b) })
		fail(err)
		fail(d.Terminate(ctx, o.Sandbox))
		fmt.Println(res.State)
	}
	fmt.Println("done")
}

func (o order) command(ctx context.Context, t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+string(text))
	return cmd
}

// nothingLeft fails the test if anything of the sandbox exists on this machine.
func nothingLeft(t *testing.T, dir, name string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*-" + name, "/sys/fs/cgroup/*/*-" + name} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("its cgroups: %v", left)
		}
	}
	if pids := bearing(t, name); len(pids) > 0 {
		t.Errorf("its processes: %v", pids)
	}
}

// bearing returns the living processes that have name as an argument.
func bearing(t *testing.T, name string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil && bytes.Contains(text, []byte("\x00"+name+"\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}

// A crash between any two lines of Start or Terminate leaves what List shows or
// nothing, Start repeats, and Terminate removes.
func TestCrashAtAnyPoint(t *testing.T) {
	const rounds = 40
	d, dir, _ := newDriver(t)
	began, finished := 0, 0
	for i := range rounds {
		sb := sandboxtest.New(sandboxtest.Spec())
		o := order{Dir: dir, Runner: runner, Do: "start", Sandbox: sb}
		if i%4 == 3 {
			uid, err := d.Start(t.Context(), sb)
			if err != nil {
				t.Fatal(err)
			}
			o.Do, o.Sandbox.UID = "terminate", uid
		}
		cmd := o.command(t.Context(), t)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, len("ready\n"))
		if _, err := out.Read(line); err != nil {
			t.Fatal(err)
		}
		// The moment is the point of this test, not a wait for anything.
		time.Sleep(time.Duration(i) * 6 * time.Millisecond)
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()

		found, err := d.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case len(found) > 0 && found[0].UID == "":
			began++
		case len(found) > 0:
			finished++
		}
		if len(found) == 0 {
			nothingLeft(t, dir, sb.Name)
		}
		if o.Do == "start" && i%2 == 0 {
			uid, err := d.Start(t.Context(), sb)
			if err != nil {
				t.Fatalf("round %d: start again: %v", i, err)
			}
			again := sb
			again.UID = uid
			sandboxtest.Usable(t, d, again)
		}
		if err := d.Terminate(t.Context(), sandbox.Sandbox{Name: sb.Name}); err != nil {
			t.Fatalf("round %d: terminate: %v", i, err)
		}
		nothingLeft(t, dir, sb.Name)
	}
	t.Logf("of %d crashes %d left an unfinished sandbox and %d a whole one", rounds, began, finished)
	if began == 0 {
		t.Error("no crash hit the middle of a start: the delays do not fit this machine")
	}
}

// A sandbox outlives the process that started it.
func TestOutlivesItsStarter(t *testing.T) {
	d, dir, _ := newDriver(t)
	sb := sandboxtest.New(sandboxtest.Spec())
	out, err := order{Dir: dir, Runner: runner, Do: "start", Sandbox: sb}.command(t.Context(), t).Output()
	if err != nil {
		t.Fatal(err)
	}
	sb.UID = strings.Split(string(out), "\n")[1]
	sandboxtest.Usable(t, d, sb)
	if uid, err := d.Start(t.Context(), sb); err != nil || uid != sb.UID {
		t.Errorf("start again: %q, %v", uid, err)
	}
	if err := d.Terminate(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir, sb.Name)
}

// edit changes a sandbox's state.json as a crash or a reboot would have left it.
func edit(t *testing.T, dir, name string, change func(map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, name, "state.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	st := map[string]any{}
	if err := json.Unmarshal(text, &st); err != nil {
		t.Fatal(err)
	}
	change(st)
	if text, err = json.Marshal(st); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A crash after PID 1 was made and before anybody wrote its pid down.
func TestUnknownPID1IsFound(t *testing.T) {
	d, dir, _ := newDriver(t)
	sb := sandboxtest.Started(t, d, sandboxtest.Spec())
	edit(t, dir, sb.Name, func(st map[string]any) {
		delete(st, "uid")
		delete(st, "process")
		delete(st, "cgroups") // as where no cgroup can be made
	})
	uid, err := d.Start(t.Context(), sb)
	if err != nil || uid == sb.UID {
		t.Fatalf("start again: %q, %v", uid, err)
	}
	old := strings.Split(sb.UID, "-")[1]
	if slices.Contains(bearing(t, sb.Name), old) {
		t.Errorf("the first PID 1 lives on")
	}
	sb.UID = uid
	sandboxtest.Usable(t, d, sb)
	if err := d.Terminate(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir, sb.Name)
}

// After a reboot pids mean other processes; a number used again is never
// believed and never killed.
func TestReusedPIDIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(process map[string]any, innocent int){
		"another start":  func(p map[string]any, innocent int) { p["pid"] = innocent },
		"another reboot": func(p map[string]any, _ int) { p["boot"] = "000000000000" },
	} {
		t.Run(name, func(t *testing.T) {
			d, dir, _ := newDriver(t)
			sb := sandboxtest.Started(t, d, sandboxtest.Spec())
			if err := sandboxKill(sb); err != nil {
				t.Fatal(err)
			}
			innocent := exec.CommandContext(t.Context(), "sleep", "600")
			if err := innocent.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = innocent.Process.Kill(); _ = innocent.Wait() }()
			edit(t, dir, sb.Name, func(st map[string]any) { change(st["process"].(map[string]any), innocent.Process.Pid) })
			if cond, err := d.Inspect(t.Context(), sb); err != nil || cond.Exists {
				t.Errorf("believed: %+v, %v", cond, err)
			}
			if err := d.Terminate(t.Context(), sb); err != nil {
				t.Fatal(err)
			}
			if err := innocent.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("the innocent process: %v", err)
			}
			nothingLeft(t, dir, sb.Name)
		})
	}
}

func sandboxKill(sb sandbox.Sandbox) error {
	pid, err := strconv.Atoi(strings.Split(sb.UID, "-")[1])
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); os.IsNotExist(err) {
			return nil
		}
	}
	return fmt.Errorf("PID 1 (%d) does not die", pid)
}

// Without root and without a writable cgroup a sandbox still works, and says
// that its limits are weaker.
func TestWithoutRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	const somebody = 65531
	dir := shortDir(t)
	if err := os.Chown(dir, somebody, somebody); err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(dir, "test")
	if out, err := exec.Command("cp", os.Args[0], self).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	o := order{
		Dir: filepath.Join(dir, "s"), Runner: runner, Do: "whole life", Sandbox: sandboxtest.New(sandboxtest.Spec()),
		Command: "id -u; ulimit -d; tail /dev/zero 2>&1; sh -c 'i=0; while [ $i -lt 400 ]; do sleep 60 >/dev/null 2>&1 & i=$((i+1)); done' 2>&1 | head -n 1; exit 0",
	}
	cmd := o.command(t.Context(), t)
	cmd.Path, cmd.Args = self, []string{self}
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: somebody, Gid: somebody}}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, stderr.String())
	}
	if got := string(out); !strings.Contains(got, fmt.Sprintf("%d\n%d\n", somebody, 64<<10)) || !strings.Contains(got, "memory exhausted") || !strings.Contains(got, "Cannot fork") || !strings.HasSuffix(got, "COMPLETED\ndone\n") {
		t.Errorf("got %q", got)
	}
	if n := strings.Count(stderr.String(), "no cgroup is writable"); n != 1 {
		t.Errorf("said %d times: %s", n, stderr.String())
	}
	nothingLeft(t, o.Dir, o.Sandbox.Name)
}

// What a machine lacks is said with what to do about it.
func TestMissingTools(t *testing.T) {
	dir := shortDir(t)
	for _, tool := range []string{"sh", "setpriv"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	_, err := local.New(local.Options{Dir: filepath.Join(dir, "s"), Runner: runner})
	if sandbox.ReasonOf(err) != sandbox.ReasonMissingTool || !strings.Contains(harness.MessageOf(err), "apt-get install bubblewrap") {
		t.Errorf("without bubblewrap: %v", err)
	}
	// A bubblewrap that the kernel refuses.
	if err := os.WriteFile(filepath.Join(dir, "bwrap"), []byte("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := local.New(local.Options{Dir: filepath.Join(dir, "s"), Runner: runner})
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"check": d.Check(t.Context()), "start": startOnly(t, d)} {
		if sandbox.ReasonOf(err) != sandbox.ReasonRefused || harness.KindOf(err) != harness.Unavailable || !strings.Contains(harness.MessageOf(err), "sysctl") {
			t.Errorf("refused, %s: %v", what, err)
		}
	}
	if found, err := d.List(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("left: %v, %v", found, err)
	}
}

func startOnly(t *testing.T, d *local.Driver) error {
	_, err := d.Start(t.Context(), sandboxtest.New(sandboxtest.Spec()))
	return err
}

func TestBadOptionsAndSpecs(t *testing.T) {
	dir := shortDir(t)
	for name, o := range map[string]local.Options{
		"relative":     {Dir: "x", Runner: runner},
		"too long":     {Dir: filepath.Join(dir, strings.Repeat("x", 60)), Runner: runner},
		"a wrong bind": {Dir: filepath.Join(dir, "s"), Runner: runner, Binds: []string{"/x"}},
		"no runner":    {Dir: filepath.Join(dir, "s"), Runner: filepath.Join(dir, "none")},
	} {
		if _, err := local.New(o); harness.KindOf(err) != harness.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	d, _, _ := newDriver(t)
	for name, change := range map[string]func(*sandbox.Sandbox){
		"name":    func(sb *sandbox.Sandbox) { sb.Name = "../x" },
		"upper":   func(sb *sandbox.Sandbox) { sb.Name = "ABC" },
		"no id":   func(sb *sandbox.Sandbox) { sb.ID = "" },
		"expired": func(sb *sandbox.Sandbox) { sb.ExpiresAt = time.Now() },
		"memory":  func(sb *sandbox.Sandbox) { sb.Spec.MemoryBytes = 0 },
	} {
		sb := sandboxtest.New(sandboxtest.Spec())
		change(&sb)
		if _, err := d.Start(t.Context(), sb); harness.KindOf(err) != harness.Invalid || sandbox.ReasonOf(err) != sandbox.ReasonSpec {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := d.Terminate(t.Context(), sandbox.Sandbox{Name: "../x"}); err != nil {
		t.Error(err)
	}
}

// A start that fails leaves nothing and says why.
func TestFailedStart(t *testing.T) {
	root := shortDir(t)
	dir := filepath.Join(root, "s")
	d, err := local.New(local.Options{Dir: dir, Runner: runner, Binds: []string{filepath.Join(root, "none") + ":/x"}})
	if err != nil {
		t.Fatal(err)
	}
	sb := sandboxtest.New(sandboxtest.Spec())
	_, err = d.Start(t.Context(), sb)
	if sandbox.ReasonOf(err) != sandbox.ReasonStartFailed || harness.KindOf(err) != harness.Unavailable || !strings.Contains(err.Error(), "none") {
		t.Errorf("%v", err)
	}
	nothingLeft(t, dir, sb.Name)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := d.Start(ctx, sb); sandbox.ReasonOf(err) != sandbox.ReasonStartTimeout && sandbox.ReasonOf(err) != sandbox.ReasonStartFailed {
		t.Errorf("%v", err)
	}
	nothingLeft(t, dir, sb.Name)
}
