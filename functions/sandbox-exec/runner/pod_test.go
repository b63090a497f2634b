package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/sandbox/trailer"
)

func TestInstall(t *testing.T) {
	runner, volume := binary(t), build(t)
	look := func() (os.FileInfo, []os.DirEntry) {
		t.Helper()
		info, err := os.Stat(filepath.Join(volume, "runner"))
		if err != nil {
			t.Fatal(err)
		}
		all, err := os.ReadDir(volume)
		if err != nil {
			t.Fatal(err)
		}
		return info, all
	}
	if info, all := look(); info.Mode() != 0o111 || len(all) != 1 {
		t.Errorf("%v, %v", info.Mode(), all)
	}
	first, _ := look()
	// Again, after an attempt that was killed, and into a folder of its own.
	if err := os.WriteFile(filepath.Join(volume, ".runner"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(volume, uid, uid), os.Chown(filepath.Join(volume, ".runner"), uid, uid)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if out, err := asUser(t.Context(), runner, "install", "--to", volume).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	again, all := look()
	if again.Size() != first.Size() || again.Mode() != 0o111 || len(all) != 1 {
		t.Errorf("%v, %v", again.Mode(), all)
	}
	if info, err := os.Stat(volume); err != nil || info.Mode().Perm() != 0o555 {
		t.Errorf("its folder: %v, %v", info.Mode(), err)
	}
	for name, args := range map[string][]string{
		"no folder":        {"--to", filepath.Join(volume, "none")},
		"a file":           {"--to", runner},
		"not ours":         {"--to", "/usr"},
		"nothing":          nil,
		"more than is due": {"--to", volume, "x"},
	} {
		out, err := asUser(t.Context(), append([]string{runner, "install"}, args...)...).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "runner: ") || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v, %q", name, err, out)
		}
	}
}

// In a Pod nobody of the same user can look into the runner from its first
// moment on, or put anything in its place.
func TestCommandsAndTheRunner(t *testing.T) {
	p := newPod(t, build(t), "--ttl", "60s", "--idle", "60s")
	attack := func(id, text string) {
		t.Helper()
		out, st, err := p.call("run", "--id", id, "--", "sh", "-c", text+"\necho tried")
		if err != nil || st.State != trailer.Exited || out != "tried\n" {
			t.Errorf("%s: %q, %+v, %v", id, out, st, err)
		}
	}
	attack("replace", `for f in /opt/tuluat/x /opt/tuluat/runner /opt/x; do (echo x >$f) 2>/dev/null && echo got $f; done
chmod 777 /opt/tuluat 2>/dev/null && echo got folder; chmod 755 /opt/tuluat/runner 2>/dev/null && echo got mode; mv /opt/tuluat/runner /opt/tuluat/y 2>/dev/null && echo got mv
rm -f /opt/tuluat/runner 2>/dev/null && echo got rm; cat /opt/tuluat/runner >/dev/null 2>&1 && echo got content; cp /opt/tuluat/runner /tmp/r 2>/dev/null && echo got copy; true`)
	attack("end", `kill -KILL 1 2>/dev/null; kill -STOP 1 2>/dev/null; for s in HUP INT QUIT USR1 USR2 ALRM TSTP TERM; do kill -$s 1 2>/dev/null; done; true`)
	// A client is a process of the same user: killed, its place is taken by the next.
	if _, _, err := p.call("run", "--id", "everything", "--", "sh", "-c", "kill -9 -1"); err == nil {
		t.Error("the client lives")
	}
	if _, st, err := p.call("run", "--id", "everything"); err != nil || st.State != trailer.Exited || st.Signal != "SIGKILL" && st.ExitCode == nil {
		t.Errorf("everything: %+v, %v", st, err)
	}
	attack("pid1", `for f in mem environ maps fd/0 exe; do head -c1 /proc/1/$f >/dev/null 2>&1 && echo got $f; done; (echo -1000 >/proc/1/oom_score_adj) 2>/dev/null && echo got score; true`)
	// A client is shut from exec on: whoever races it for a look never wins.
	attack("client", `cat >/tmp/race.py <<'END'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(60):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_RDWR), 2)
        os.execv("/opt/tuluat/runner", ["runner", "ping"])
    tries = 0
    while True:
        seen = False
        try:
            comm = open("/proc/%d/comm" % pid).read().strip()
            seen = comm == "runner"
        except OSError: pass
        if seen:
            tries += 1
            if libc.ptrace(0x4206, pid, 0, 0) == 0: print("got client"); sys.exit()
            try:
                open("/proc/%d/mem" % pid).close(); print("got memory"); sys.exit()
            except OSError: pass
        if os.waitpid(pid, os.WNOHANG)[0]: break
END
python3 /tmp/race.py || echo got no race`)
	attack("faces", `/opt/tuluat/runner init --ttl 9s --idle 9s 2>/dev/null && echo got init; /opt/tuluat/runner ping 2>/dev/null && echo got ping; /opt/tuluat/runner install --to /tmp 2>/dev/null && echo got install; true`)
	// The memory limit looks at commands first, also behind a file nobody reads.
	out, _, err := p.call("run", "--id", "score", "--", "sh", "-c", "cat /proc/self/oom_score_adj; head -c1 /proc/self/environ >/dev/null && echo own")
	if err != nil || out != "1000\nown\n" {
		t.Errorf("score: %q, %v", out, err)
	}
}

// cgroup is one that limits memory, and how a pod sees it.
type cgroup struct {
	dir  string
	bind []string
}

// inside makes a command begin in the cgroup.
func (c cgroup) inside(cmd *exec.Cmd) *exec.Cmd {
	if c.dir == "" {
		return cmd
	}
	argv := append([]string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, c.dir}, cmd.Args...)
	return exec.Command("sh", argv[1:]...)
}

// newCgroup makes one, of whichever version this machine has.
func newCgroup(t *testing.T, bytes int) cgroup {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a cgroup")
	}
	c := cgroup{dir: fmt.Sprintf("/sys/fs/cgroup/memory/tuluat-runner-%d", os.Getpid())}
	limit := "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		c.dir, limit = fmt.Sprintf("/sys/fs/cgroup/tuluat-runner-%d", os.Getpid()), "memory.max"
		c.bind = []string{"--ro-bind", c.dir, "/sys/fs/cgroup"}
	} else {
		c.bind = []string{"--ro-bind", c.dir, "/sys/fs/cgroup/memory"}
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Skipf("no cgroup can be made here: %v", err)
	}
	t.Cleanup(func() { // its last process may still be on its way out
		for deadline := time.Now().Add(5 * time.Second); os.Remove(c.dir) != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("%s cannot be removed", c.dir)
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(c.dir, limit), fmt.Append(nil, bytes), 0o644); err != nil {
		t.Skipf("memory cannot be limited here: %v", err)
	}
	return c
}

// A Pod gives PID 1 no file to read its counters from: it finds them.
func TestMemoryLimitOfAPod(t *testing.T) {
	c := newCgroup(t, 48<<20)
	p := startPod(t, build(t), place{cgroup: c}, "--ttl", "60s", "--idle", "60s")
	p.answers()
	for _, id := range []string{"first", "second"} {
		out, st, err := p.call("run", "--id", id, "--", "sh", "-c", "python3 -c 'bytearray(100<<20)' 2>/dev/null; echo $?")
		if err != nil || out != "137\n" || st.OOMKills == nil || *st.OOMKills != 1 {
			t.Errorf("%q, %+v, %v", out, st, err)
		}
		if _, st, err := p.call("run", "--id", id+"-after", "--", "true"); err != nil || st.State != trailer.Exited || st.OOMKills == nil || *st.OOMKills != 0 {
			t.Errorf("%+v, %v", st, err)
		}
	}
	// What is kept of the output is the sandbox's memory too: half of it at most.
	_, st, err := p.call("run", "--id", "long", "--max-output", fmt.Sprint(32<<20), "--", "head", "-c", fmt.Sprint(20<<20), "/dev/zero")
	if err != nil || st.State != trailer.Exited || st.StdoutBytes != 20<<20 || st.StdoutStored != 12<<20 {
		t.Errorf("%+v, %v", st, err)
	}
	if _, _, err := p.call("shutdown"); err != nil {
		t.Error(err)
	}
	if err := p.ended(5 * time.Second); err != nil {
		t.Error(err)
	}
}

// network makes the test's goroutine, and all it starts, live in a network of
// its own: 127.0.0.1, and 10.8.0.0/24 that cannot be reached.
func network(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a network")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"link set lo up", "route add unreachable 10.8.0.0/24"} {
		if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
}

func TestNetworkGate(t *testing.T) {
	runner := build(t)
	const refused, unreachable = "127.0.0.1:9", "10.8.0.1:443"

	t.Run("opens where there is nothing to reach", func(t *testing.T) {
		network(t)
		for _, addrs := range []string{"", refused, refused + "," + unreachable} {
			args := []string{"--ttl", "60s", "--idle", "60s"}
			if addrs != "" {
				args = append(args, "--must-not-reach", addrs)
			}
			begun := time.Now()
			p := startPod(t, runner, place{net: true}, args...)
			waits(t, p)
			t.Logf("%q: %v", addrs, time.Since(begun))
			if _, _, err := p.call("shutdown"); err != nil {
				t.Error(err)
			}
			if err := p.ended(3 * time.Second); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("opens when the policy comes", func(t *testing.T) {
		network(t)
		open, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		p := startPod(t, runner, place{net: true}, "--ttl", "60s", "--idle", "60s", "--must-not-reach", refused+","+open.Addr().String(), "--gate-timeout", "30s")
		if _, err := open.Accept(); err != nil {
			t.Fatal(err)
		}
		for _, argv := range [][]string{{"ping"}, {"run", "--id", "early", "--", "touch", "/tmp/early"}, {"ping", "--wait", "200ms"}} {
			if _, _, err := p.call(argv...); err == nil || !strings.Contains(err.Error(), "not ready") {
				t.Errorf("%v: %v", argv, err)
			}
		}
		open.Close()
		waits(t, p)
		if out, st, err := p.call("run", "--id", "early", "--", "ls", "/tmp"); err != nil || st.State != trailer.Exited || out != "" {
			t.Errorf("what was refused has run: %q, %+v, %v", out, st, err)
		}
	})
	t.Run("ends when it does not", func(t *testing.T) {
		network(t)
		open, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		p := startPod(t, runner, place{net: true}, "--ttl", "60s", "--idle", "60s", "--must-not-reach", open.Addr().String(), "--gate-timeout", "6s")
		if _, err := open.Accept(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.call("ping", "--wait", "30s"); err == nil || !strings.Contains(err.Error(), open.Addr().String()) {
			t.Errorf("whoever waits is told: %v", err)
		}
		exit, ok := errors.AsType[*exec.ExitError](p.ended(20 * time.Second))
		if !ok || exit.ExitCode() != 3 {
			t.Errorf("%v", exit)
		}
		lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
		var last struct{ Level, Msg, Reason, Error string }
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Reason != "NETWORK_OPEN" || !strings.Contains(last.Error, open.Addr().String()) {
			t.Errorf("%+v, %v", last, err)
		}
	})
	t.Run("takes numbers only", func(t *testing.T) {
		p := startPod(t, runner, place{}, "--ttl", "60s", "--idle", "60s", "--must-not-reach", "kubernetes.default:443")
		if err := p.ended(5 * time.Second); err == nil || !strings.Contains(p.log.String(), "kubernetes.default:443") {
			t.Errorf("%v: %s", err, p.log)
		}
	})
}

// waits calls until PID 1 is there, and lets it say when it takes commands.
func waits(t *testing.T, p *pod) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		_, _, err := p.call("ping", "--wait", "10s")
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(fmt.Errorf("%w: %s", err, p.log))
		}
	}
}
