package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tuluat.ai/harness/shared/sandbox/trailer"
)

// pod is a sandbox as a Pod is one: nothing but the runner as PID 1, and a way
// to put processes into it from outside, by their namespaces, as an exec does.
type pod struct {
	t      *testing.T
	pid    int // of PID 1, as this machine sees it
	exit   chan error
	log    *syncBuffer
	shares bool // the test's network instead of one of its own
}

// syncBuffer is what PID 1 says.
type syncBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

const uid = 65532

// build returns a folder with the runner as an init container leaves it there.
func build(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can enter another's namespaces")
	}
	volume := filepath.Join(t.TempDir(), "volume")
	for _, dir := range []string{filepath.Dir(filepath.Dir(volume)), filepath.Dir(volume)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(volume, 0o777), os.Chown(volume, 0, uid), os.Chmod(volume, 0o777|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	if out, err := asUser(t.Context(), binary(t), "install", "--to", volume).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return volume
}

// asUser runs a program as the user of sandboxes.
func asUser(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "setpriv", append([]string{"--reuid", fmt.Sprint(uid), "--regid", fmt.Sprint(uid), "--clear-groups"}, argv...)...)
}

// binary returns the runner as it is in its image.
func binary(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "runner")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// newPod returns a pod that takes commands.
func newPod(t *testing.T, runner string, init ...string) *pod {
	t.Helper()
	p := startPod(t, runner, place{}, init...)
	p.answers()
	return p
}

// answers waits until PID 1 takes commands.
func (p *pod) answers() {
	p.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, _, err := p.call("ping"); err == nil {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("PID 1 does not answer: %s", p.log)
		}
	}
}

// place is what a pod shares with the test.
type place struct {
	net    bool
	cgroup cgroup
}

// startPod starts one, with a root file system that cannot be written.
func startPod(t *testing.T, runner string, in place, init ...string) *pod {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Fatal("bubblewrap is needed: apt-get install bubblewrap")
	}
	infoR, infoW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer infoR.Close()
	args := []string{"bwrap", "--unshare-user", "--unshare-all"}
	if in.net {
		args = append(args, "--share-net")
	}
	args = append(args, in.cgroup.bind...)
	args = append(append(args,
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace",
		"--ro-bind", runner, "/opt/tuluat", "--remount-ro", "/", "--as-pid-1", "--new-session", "--info-fd", "3", "/opt/tuluat/runner", "init",
	), init...)
	cmd := in.cgroup.inside(asUser(context.WithoutCancel(t.Context()), args...))
	cmd.ExtraFiles = []*os.File{infoW}
	var log syncBuffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	infoW.Close()
	p := &pod{t: t, exit: make(chan error, 1), log: &log, shares: in.net}
	go func() { p.exit <- cmd.Wait() }()
	var info struct {
		PID int `json:"child-pid"`
	}
	if err := json.NewDecoder(infoR).Decode(&info); err != nil {
		t.Fatalf("%v: %s", err, log.String())
	}
	p.pid = info.PID
	t.Cleanup(func() { _ = syscall.Kill(p.pid, syscall.SIGKILL) })
	return p
}

// command runs argv in the pod from outside.
func (p *pod) command(ctx context.Context, argv ...string) *exec.Cmd {
	args := []string{"-t", fmt.Sprint(p.pid), "-U", "-m", "-p", "-i", "--preserve-credentials", "-S", fmt.Sprint(uid), "-G", fmt.Sprint(uid)}
	if !p.shares {
		args = append(args, "-n")
	}
	return exec.CommandContext(ctx, "nsenter", append(append(args, "--"), argv...)...)
}

// call runs one of the runner's clients in the pod and returns its stdout and
// the last status it printed.
func (p *pod) call(argv ...string) (string, trailer.Status, error) {
	cmd := p.command(p.t.Context(), append([]string{"/opt/tuluat/runner"}, argv...)...)
	cmd.Stdin = strings.NewReader(`{"nonce":"n"}`)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var st trailer.Status
	if i := strings.LastIndex(errs.String(), trailer.Marker); i >= 0 {
		opened, openErr := trailer.Open([]byte(strings.TrimSpace(errs.String()[i+len(trailer.Marker):])), "n")
		if openErr != nil {
			return out.String(), st, openErr
		}
		st = opened
	} else if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), st, err
}

// begin runs a text that says "on" when it has begun.
func (p *pod) begin(text string) (cmd *exec.Cmd, errs *bytes.Buffer) {
	p.t.Helper()
	cmd, errs = p.command(p.t.Context(), "/opt/tuluat/runner", "run", "--id", "a", "--", "sh", "-c", text), &bytes.Buffer{}
	cmd.Stdin, cmd.Stderr = strings.NewReader(`{"nonce":"n"}`), errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		p.t.Fatal(err)
	}
	return cmd, errs
}

// ended waits for the pod's end and returns how PID 1 exited.
func (p *pod) ended(within time.Duration) error {
	select {
	case err := <-p.exit:
		return err
	case <-time.After(within):
		return errors.New("it lives on")
	}
}

func TestIsPID1OrNothing(t *testing.T) {
	out, err := exec.Command(binary(t), "init", "--ttl", "1s", "--idle", "1s").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "must be PID 1") {
		t.Errorf("%v: %s", err, out)
	}
}

// The socket inside serves those who were put in from outside, and nobody who
// was born inside.
func TestInsideAPod(t *testing.T) {
	p := newPod(t, build(t), "--ttl", "60s", "--idle", "60s")
	out, st, err := p.call("run", "--id", "a", "--env", "X=y z", "--", "sh", "-c",
		`echo $X; echo '{"nonce":"n"}' | /opt/tuluat/runner cancel --id a && echo breach; cat /proc/1/environ && echo breach; sleep 300 & (setsid sleep 300 &); exit 3`)
	if err != nil || out != "y z\n" || st.State != trailer.Exited || st.ExitCode == nil || *st.ExitCode != 3 {
		t.Errorf("%q, %+v, %v", out, st, err)
	}
	// The same id: the saved result. Its output from an offset. Another id: never seen.
	if out, again, err := p.call("run", "--id", "a", "--stdout-offset", "2", "--", "sh", "-c", "echo again"); err != nil || out != "z\n" || again.State != trailer.Exited || again.DurationMS != st.DurationMS {
		t.Errorf("%q, %+v, %v", out, again, err)
	}
	if out, st, err := p.call("output", "--id", "a", "--stream", "stdout", "--offset", "1", "--limit", "2"); err != nil || out != " z" || st.State != trailer.Exited {
		t.Errorf("%q, %+v, %v", out, st, err)
	}
	if _, st, err := p.call("status", "--id", "b"); err != nil || st.State != trailer.Unknown {
		t.Errorf("%+v, %v", st, err)
	}
	// Files come in and go out for those from outside only.
	put := p.command(t.Context(), "/opt/tuluat/runner", "put", "--path", "in/x", "--size", "3")
	put.Stdin = strings.NewReader("abc")
	if out, err := put.Output(); err != nil || string(out) != "placed 3 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n" {
		t.Errorf("put: %q, %v", out, err)
	}
	if out, _, err := p.call("run", "--id", "files", "--", "sh", "-c", "cat in/x; mkdir out; echo y > out/y; printf abc | /opt/tuluat/runner put --path in/z --size 3; /opt/tuluat/runner out --id files --max-files 9; ls in"); err != nil || out != "abcx\n" {
		t.Errorf("inside: %q, %v", out, err)
	}
	if out, _, err := p.call("out", "--id", "files", "--max-files", "9", "--max-bytes", "9", "--max-total", "9"); err != nil || !strings.Contains(out, "y\n") {
		t.Errorf("out: %q, %v", out, err)
	}
	// The sweep took what the command left, but not a visitor who was there.
	visitor := p.command(t.Context(), "sh", "-c", "echo here; exec sleep 300")
	said, err := visitor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := visitor.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(said, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if out, _, err := p.call("run", "--id", "c", "--", "sh", "-c", "sleep 300 & (setsid sleep 300 &); tr '\\0' ' ' < /proc/1/cmdline | cut -c1-23"); err != nil || out != "/opt/tuluat/runner init\n" {
		t.Errorf("%q, %v", out, err)
	}
	out, _, err = p.call("run", "--id", "d", "--", "sh", "-c", `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; echo; done | grep -c '^sleep 300'`)
	if err != nil || out != "1\n" {
		t.Errorf("sleeps that are left: %q, %v", out, err)
	}
	_ = syscall.Kill(visitor.Process.Pid, syscall.SIGKILL)
	_ = visitor.Wait()
}

// Only a program that cannot be had says something of the image: a typed word,
// which the driver's side goes by.
func TestNoProgram(t *testing.T) {
	p := newPod(t, build(t), "--ttl", "60s", "--idle", "60s")
	if _, st, err := p.call("run", "--id", "prepare", "--", "sh", "-c",
		`echo '#!/no/such/interpreter' >script; chmod 755 script; printf '\0\1\2\3' >noise; chmod 755 noise; echo x >plain; chmod 644 plain`); err != nil || st.ExitCode == nil || *st.ExitCode != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	long := strings.Repeat("x", 64<<10)
	for id, argv := range map[string][]string{
		"nowhere": {"/no/such/shell", "-c", "true"}, "not-in-path": {"no-such-shell"}, "folder": {"/usr"}, "plain": {"./plain"},
		"interpreter": {"./script"}, "noise": {"./noise"}, "long": {long},
	} {
		_, st, err := p.call(append([]string{"run", "--id", id, "--"}, argv...)...)
		if err != nil || st.State != trailer.Failed || !st.NoProgram || st.Started || st.Message == "" || len(st.Message) > 4<<10 {
			t.Errorf("%s: %+v, %v", id, st, err)
		}
	}
	// What the command itself cannot find is its own matter.
	if _, st, err := p.call("run", "--id", "inside", "--", "sh", "-c", "/no/such/program"); err != nil || st.State != trailer.Exited || st.NoProgram {
		t.Errorf("inside: %+v, %v", st, err)
	}
}

func TestEnds(t *testing.T) {
	runner := build(t)
	t.Run("when idle", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, runner, "--ttl", "60s", "--idle", "1s")
		if _, st, err := p.call("run", "--id", "a", "--", "sleep", "2"); err != nil || st.State != trailer.Exited {
			t.Errorf("it was not idle while a command ran: %+v, %v", st, err)
		}
		if err := p.ended(10 * time.Second); err != nil {
			t.Error(err)
		}
	})
	t.Run("at its TTL, and says so", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, runner, "--ttl", "2s", "--idle", "60s")
		if _, st, err := p.call("run", "--id", "a", "--", "sh", "-c", "trap '' TERM; sleep 600"); err != nil || st.State != trailer.Ended || !st.Started {
			t.Errorf("%+v, %v", st, err)
		}
		if err := p.ended(10 * time.Second); err != nil {
			t.Error(err)
		}
	})
	t.Run("by SIGTERM from outside", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, runner, "--ttl", "60s", "--idle", "60s")
		if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := p.ended(3 * time.Second); err != nil {
			t.Error(err)
		}
	})
	t.Run("by request, also while a command runs", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, runner, "--ttl", "60s", "--idle", "60s")
		cmd, errs := p.begin("trap '' TERM; echo on; sleep 600")
		if _, _, err := p.call("shutdown"); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if !strings.Contains(errs.String(), string(trailer.Ended)) {
			t.Errorf("the client was not told: %s", errs.String())
		}
		if err := p.ended(5 * time.Second); err != nil {
			t.Error(err)
		}
	})
	t.Run("not by SIGTERM from inside", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, runner, "--ttl", "60s", "--idle", "60s")
		if _, st, err := p.call("run", "--id", "a", "--", "sh", "-c", "kill -TERM 1"); err != nil || st.State != trailer.Exited {
			t.Errorf("%+v, %v", st, err)
		}
		if _, st, err := p.call("run", "--id", "b", "--", "sleep", "0.5"); err != nil || st.State != trailer.Exited {
			t.Errorf("%+v, %v", st, err)
		}
	})
}
