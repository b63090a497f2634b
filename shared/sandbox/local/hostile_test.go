//go:build local

package local_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/local"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

// stage is one sandbox that something hostile happens in.
type stage struct {
	t        *testing.T
	driver   *local.Driver
	sandbox  sandbox.Sandbox
	evidence string
}

func (s stage) exec(text string, change ...func(*sandbox.Request)) (sandbox.Result, *sandboxtest.Output) {
	s.t.Helper()
	req := sandboxtest.Command(text)
	for _, c := range change {
		c(&req)
	}
	return sandboxtest.Exec(s.t, s.driver, s.sandbox, req)
}

// refused runs a text whose every line that begins with "got" is a breach.
func (s stage) refused(text string) string {
	s.t.Helper()
	res, out := s.exec(text)
	if res.State != harness.ExecutionCompleted || !strings.Contains(out.String("stdout"), "tried\n") {
		s.t.Errorf("the attack itself failed: %+v\n%s%s", res, out.String("stdout"), out.String("stderr"))
	}
	if regexp.MustCompile(`(?m)^got`).MatchString(out.String("stdout")) {
		s.t.Errorf("breach:\n%s", out.String("stdout"))
	}
	return out.String("stdout")
}

func timeout(d time.Duration) func(*sandbox.Request) {
	return func(r *sandbox.Request) { r.Timeout = d }
}

// pid1 is the sandbox's PID 1 as this machine sees it.
func (s stage) pid1() string { return strings.Split(s.sandbox.UID, "-")[1] }

// Whatever a command does: it is contained, its outcome is the one stated, and
// the next command of the same sandbox works.
func TestHostile(t *testing.T) {
	for name, attack := range map[string]func(stage){
		"Prints200MB":             prints200MB,
		"ForksWithoutEnd":         forksWithoutEnd,
		"IgnoresTERM":             ignoresTERM,
		"StopsItself":             stopsItself,
		"ReadsPID1":               readsPID1,
		"TracesPID1":              tracesPID1,
		"WritesOutside":           writesOutside,
		"ReadsTheHost":            readsTheHost,
		"OpensSockets":            opensSockets,
		"LeavesADaemon":           leavesADaemon,
		"KillsEverything":         killsEverything,
		"FillsTheDisk":            fillsTheDisk,
		"FillsTheRunnersFolder":   fillsRun,
		"EatsMemory":              eatsMemory,
		"ForgesOutcomes":          forgesOutcomes,
		"TalksToTheRunner":        talksToTheRunner,
		"DigsDeep":                digsDeep,
		"GainsPrivileges":         gainsPrivileges,
		"DeletesEverything":       deletesEverything,
		"ShutsItsFolder":          shutsItsFolder,
		"ClosesOrKeepsItsStreams": streams,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _, evidence := newDriver(t)
			s := stage{t: t, driver: d, evidence: evidence}
			s.sandbox = sandboxtest.Started(t, d, sandboxtest.Spec())
			attack(s)
			sandboxtest.Usable(t, d, s.sandbox)
		})
	}
}

func prints200MB(s stage) {
	begun := time.Now()
	res, out := s.exec("head -c 200000000 /dev/zero | tr '\\0' x; echo end >&2")
	if res.State != harness.ExecutionCompleted || res.StdoutBytes != 200_000_000 || out.String("stderr") != "end\n" || res.Incomplete {
		s.t.Errorf("%+v", res)
	}
	if int64(len(out.String("stdout"))) != sandbox.DefaultMaxOutput || len(res.StdoutTail) != sandbox.TailBytes {
		s.t.Errorf("kept %d and a tail of %d", len(out.String("stdout")), len(res.StdoutTail))
	}
	if took := time.Since(begun); took > 20*time.Second {
		s.t.Errorf("took %v", took)
	}
	status, err := os.ReadFile("/proc/" + s.pid1() + "/status")
	if err != nil {
		s.t.Fatal(err)
	}
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if kb, err := strconv.Atoi(string(peak[1])); err != nil || kb > 48<<10 {
		s.t.Errorf("the runner needed %d KiB", kb)
	}
}

func forksWithoutEnd(s stage) {
	for _, text := range []string{
		"f() { f | f & }; f; sleep 600",
		"f() { setsid sh -c 'while :; do (sleep 600 &); done' & f; }; f",
		"python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
	} {
		begun := time.Now()
		res, _ := s.exec(text, timeout(3*time.Second))
		if res.State != harness.ExecutionTimedOut && res.State != harness.ExecutionFailed && res.State != harness.ExecutionOutOfMemory {
			s.t.Errorf("%s: %+v", text, res)
		}
		if took := time.Since(begun); took > 25*time.Second {
			s.t.Errorf("%s: took %v", text, took)
		}
		_, out := s.exec("ls -d /proc/[0-9]* | wc -l")
		if n, err := strconv.Atoi(strings.TrimSpace(out.String("stdout"))); err != nil || n > 5 {
			s.t.Errorf("%s: %d processes left, %v", text, n, err)
		}
	}
}

func shutsItsFolder(s stage) {
	if res, _ := s.exec("echo kept > a; chmod 000 /workspace"); res.State != harness.ExecutionCompleted {
		s.t.Errorf("%+v", res)
	}
	if res, out := s.exec("cat a"); out.String("stdout") != "kept\n" {
		s.t.Errorf("the folder stays shut: %+v %q", res, out.String("stderr"))
	}
}

func ignoresTERM(s stage) {
	res, out := s.exec(`trap '' TERM INT HUP QUIT; echo deaf; (trap '' TERM; setsid sh -c "trap '' TERM; while :; do sleep 1; done") & while :; do sleep 1; done`, timeout(time.Second))
	if res.State != harness.ExecutionTimedOut || res.Signal != "SIGKILL" || out.String("stdout") != "deaf\n" {
		s.t.Errorf("%+v, %q", res, out.String("stdout"))
	}
	if res.Duration < 6*time.Second || res.Duration > 10*time.Second {
		s.t.Errorf("TERM, five seconds, KILL: took %v", res.Duration)
	}
}

func stopsItself(s stage) {
	res, _ := s.exec("kill -STOP $$; echo woken", timeout(time.Second))
	if res.State != harness.ExecutionTimedOut {
		s.t.Errorf("%+v", res)
	}
}

func readsPID1(s stage) {
	s.refused(`for f in environ mem maps auxv stack syscall io pagemap; do head -c 1 /proc/1/$f >/dev/null 2>&1 && echo got $f; done
ls /proc/1/fd >/dev/null 2>&1 && echo got fd; ls /proc/1/root >/dev/null 2>&1 && echo got root; ls /proc/1/cwd/ >/dev/null 2>&1 && echo got cwd
echo tried`)
}

func tracesPID1(s stage) {
	s.refused(`python3 -c '
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, request in (("attach", 16), ("seize", 0x4206)):
    if libc.ptrace(request, 1, 0, 0) == 0: print("got", name)
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
buf = ctypes.create_string_buffer(8)
local, remote = iovec(ctypes.addressof(buf), 8), iovec(0x400000, 8)
if libc.process_vm_readv(1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) > 0: print("got memory")
pidfd = os.pidfd_open(1)
for fd in range(20):
    if libc.syscall(438, pidfd, fd, 0) >= 0: print("got file", fd)
print("tried")'`)
}

func writesOutside(s stage) {
	s.refused(`for f in /x /usr/x /usr/bin/x /etc/x /etc/passwd /opt/x /opt/tuluat/runner /dev/x /lib/x /workspace/../x /proc/sys/kernel/hostname /proc/sysrq-trigger /proc/1/oom_score_adj; do
  (echo x > $f) 2>/dev/null && echo got $f
done
mkdir /y 2>/dev/null && echo got /y; chmod 777 /etc 2>/dev/null && echo got chmod; mv /opt /opt2 2>/dev/null && echo got mv; rm -f /opt/tuluat/runner 2>/dev/null && echo got rm
ln -s / /workspace/root; (echo x > /workspace/root/x) 2>/dev/null && echo got link
echo tried`)
}

func readsTheHost(s stage) {
	secret := filepath.Join(filepath.Dir(s.evidence), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o644); err != nil {
		s.t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		s.t.Fatal(err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		s.t.Fatal(err)
	}
	outside := []string{"/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/sudoers", "/etc/machine-id", "/etc/pip.conf", "/root", "/home", "/var", "/srv", "/mnt", "/sys", "/boot", home, here, secret, os.TempDir() + "/" + filepath.Base(filepath.Dir(s.evidence)), "/run/postgresql", "/var/run/docker.sock"}
	got := s.refused("for f in " + strings.Join(outside, " ") + `; do [ -e "$f" ] && echo got $f; done; echo tried; hostname; id -u; tr '\0' ' ' </proc/1/cmdline; echo; ls -A /tmp | wc -l; ls -d /proc/[0-9]* | wc -l`)
	if !strings.Contains(got, s.sandbox.Name+"\n") || !strings.Contains(got, "/opt/tuluat/runner init") || regexp.MustCompile(`(?m)^0$`).FindString(got) == "" {
		s.t.Errorf("not the sandbox's own view:\n%s", got)
	}
	if strings.Contains(got, s.sandbox.Name+"\n0\n") {
		s.t.Error("commands run as root")
	}
	// Nothing of our own environment either.
	_, out := s.exec("env")
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		if len(value) > 8 && name != "PATH" && name != "DEBIAN_FRONTEND" && strings.Contains(out.String("stdout"), value) {
			s.t.Errorf("the variable %s of the machine is inside", name)
		}
	}
}

func opensSockets(s stage) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	got := s.refused(fmt.Sprintf(`python3 -c '
import socket
for host, port in (("127.0.0.1", %s), ("1.1.1.1", 53), ("169.254.169.254", 80), ("::1", %[1]s), ("2606:4700:4700::1111", 53)):
    c = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    c.settimeout(2)
    try: c.connect((host, port)); print("got", host)
    except OSError as e: print("refused", host, e)
try: print("got", socket.getaddrinfo("example.com", 80))
except OSError: pass
for kind in (socket.SOCK_RAW,):
    try: socket.socket(socket.AF_INET, kind, 1); print("got raw")
    except OSError: pass
print("tried")
print(",".join(name for _, name in socket.if_nameindex()))'`, port))
	if !strings.HasSuffix(got, "tried\nlo\n") {
		s.t.Errorf("interfaces: %s", got)
	}
}

func leavesADaemon(s stage) {
	late := filepath.Join(s.evidence, "late")
	res, _ := s.exec("setsid sh -c 'sleep 2; echo x > " + evidenceInside + "/late' >/dev/null 2>&1 </dev/null & (setsid sleep 600 &) ; nohup sleep 600 >/dev/null 2>&1 & echo done")
	if res.State != harness.ExecutionCompleted {
		s.t.Errorf("%+v", res)
	}
	_, out := s.exec("sleep 3; ls -d /proc/[0-9]* | wc -l")
	if n, err := strconv.Atoi(strings.TrimSpace(out.String("stdout"))); err != nil || n > 4 {
		s.t.Errorf("%d processes, %v", n, err)
	}
	if _, err := os.Stat(late); !os.IsNotExist(err) {
		s.t.Errorf("the daemon lived on: %v", err)
	}
}

func killsEverything(s stage) {
	for _, text := range []string{
		"kill -9 -1; exit 4",
		"for i in $(seq 1 64); do kill -$i 1 2>/dev/null; done; exit 4",
		"for i in $(seq 1 64); do trap '' $i; kill -$i -1 2>/dev/null; done; exit 4",
		// With data of their own signals look like those the kernel sends.
		`python3 -c '
import ctypes, struct, sys, os
libc = ctypes.CDLL(None, use_errno=True)
for sig in range(1, 65):
    info = struct.pack("iii", sig, 0, -1) + bytes(116)
    libc.syscall(129, 1, sig, info)
    libc.syscall(234, 1, 1, sig)
    for tid in range(1, 30): libc.syscall(200, tid, 11) if tid != os.getpid() else None
sys.exit(4)'`,
	} {
		res, _ := s.exec(text)
		if res.State != harness.ExecutionFailed || res.ExitCode == nil || *res.ExitCode != 4 {
			s.t.Errorf("%s: %+v", text, res)
		}
		sandboxtest.Usable(s.t, s.driver, s.sandbox)
	}
}

func fillsTheDisk(s stage) {
	for _, dir := range []string{"/workspace", "/tmp"} {
		res, _ := s.exec("i=0; while head -c 4194304 /dev/zero > " + dir + "/f$i; do i=$((i+1)); done; exit 1")
		if res.State != harness.ExecutionDiskLimit || res.Reason != sandbox.ReasonDisk {
			s.t.Errorf("%s: %+v", dir, res)
		}
		// While it is full: commands run, their output arrives, nothing is blamed
		// on them that is not theirs.
		res, out := s.exec("echo full; false")
		if res.State != harness.ExecutionFailed || res.Reason != sandbox.ReasonDisk || out.String("stdout") != "full\n" {
			s.t.Errorf("%s: %+v, %q", dir, res, out.String("stdout"))
		}
		if res, _ := s.exec("rm -f " + dir + "/f*; echo x > " + dir + "/x"); res.State != harness.ExecutionCompleted {
			s.t.Errorf("%s: %+v", dir, res)
		}
	}
	// One file larger than any may be.
	if res, _ := s.exec("exec head -c 400000000 /dev/zero > /workspace/one"); res.State != harness.ExecutionDiskLimit {
		s.t.Errorf("%+v", res)
	}
}

func fillsRun(s stage) {
	res, _ := s.exec("head -c 400000000 /dev/zero > /run/tuluat/x; head -c 400000000 /dev/zero > /dev/shm/x; i=0; while echo > /run/tuluat/i$i; do i=$((i+1)); done 2>/dev/null; exit 6")
	if res.ExitCode == nil || *res.ExitCode != 6 {
		s.t.Errorf("%+v", res)
	}
	res, out := s.exec("seq 1 100000")
	if res.State != harness.ExecutionCompleted || len(out.String("stdout")) != 588895 {
		s.t.Errorf("%+v, %d bytes", res, len(out.String("stdout")))
	}
}

func eatsMemory(s stage) {
	for name, text := range map[string]string{
		"heap":    sandboxtest.EatMemory,
		"a child": "sh -c 'tail /dev/zero'; exit $?",
		"many":    "for i in 1 2 3 4 5 6 7 8; do tail /dev/zero & done; wait; exit 9",
	} {
		res, _ := s.exec(text)
		if res.State != harness.ExecutionOutOfMemory || res.Reason != sandbox.ReasonMemory {
			s.t.Errorf("%s: %+v", name, res)
		}
		sandboxtest.Usable(s.t, s.driver, s.sandbox)
	}
	if res, _ := s.exec("tail /dev/zero; exit 0"); res.State != harness.ExecutionCompleted || res.Reason != sandbox.ReasonMemory {
		s.t.Errorf("a child that was killed, and a command that does not mind: %+v", res)
	}
}

func forgesOutcomes(s stage) {
	const forged = `{"status":{"id":"%[1]s","state":"EXITED","started":true,"exitCode":0,"stdoutBytes":0,"stderrBytes":0,"stdoutStored":0,"stderrStored":0,"durationMs":1},"mac":"%[2]s"}`
	req := sandboxtest.Command("")
	line := fmt.Sprintf(forged, req.ID, strings.Repeat("00", 32))
	req.Command = []string{"sh", "-c", `printf '\n@tuluat-runner %s\n\n@tuluat-runner ' "$1" >&2; printf '\n@tuluat-runner %s\n' "$1"; echo "$1" > /run/tuluat/$2.json; mkdir /run/tuluat/d; exit 9`, "sh", line, string(req.ID)}
	res, out := sandboxtest.Exec(s.t, s.driver, s.sandbox, req)
	if res.State != harness.ExecutionFailed || res.ExitCode == nil || *res.ExitCode != 9 {
		s.t.Errorf("%+v", res)
	}
	if want := "\n@tuluat-runner " + line + "\n\n@tuluat-runner "; out.String("stderr") != want || res.StderrBytes != int64(len(want)) {
		s.t.Errorf("what it printed is its output, no more: %q", out.String("stderr"))
	}
	if again, _ := sandboxtest.Exec(s.t, s.driver, s.sandbox, req); again.ExitCode == nil || *again.ExitCode != 9 {
		s.t.Errorf("asked again: %+v", again)
	}
}

func talksToTheRunner(s stage) {
	victim := sandboxtest.Command("echo victim")
	got := s.refused(fmt.Sprintf(`for c in ping shutdown; do /opt/tuluat/runner $c 2>/dev/null && echo got $c; done
for c in run status output cancel; do echo '{"nonce":"mine"}' | /opt/tuluat/runner $c --id %[1]s 2>/dev/null && echo got $c; done
echo '{"nonce":"mine"}' | setsid /opt/tuluat/runner cancel --id %[1]s 2>/dev/null && echo got orphan
(setsid sh -c "sleep 0.3; echo '{\"nonce\":\"mine\"}' | /opt/tuluat/runner cancel --id %[1]s && echo got daemon" &)
sleep 0.6
/opt/tuluat/runner init --ttl 1s --idle 1s 2>/dev/null && echo got init
python3 -c '
import socket, struct, json
many = []
for i in range(300):
    c = socket.socket(socket.AF_UNIX); c.connect("\0tuluat-runner"); many.append(c)
for c in many:
    text = json.dumps({"op": "cancel", "id": "%[1]s", "nonce": "mine"}).encode()
    try:
        c.sendall(struct.pack(">I", len(text)) + text)
        kind = c.recv(1)
        if kind not in (b"x", b""): print("got", kind)
    except OSError: pass
try: s = socket.socket(socket.AF_UNIX); s.bind("\0tuluat-runner"); print("got the name")
except OSError: pass
'
echo tried; ls /proc/self/fd | wc -l`, victim.ID))
	if !strings.HasSuffix(got, "tried\n4\n") { // 0, 1, 2 and the folder itself
		s.t.Errorf("inherited files: %s", got)
	}
	res, out := sandboxtest.Exec(s.t, s.driver, s.sandbox, victim)
	if res.State != harness.ExecutionCompleted || out.String("stdout") != "victim\n" {
		s.t.Errorf("%+v", res)
	}
}

func digsDeep(s stage) {
	res, out := s.exec(`python3 -c '
import os
for i in range(3000): os.mkdir("d" * 100); os.chdir("d" * 100)
open("f", "w").write("x"); print("deep")'
i=0; while [ $i -lt 3000 ]; do : > "/workspace/$(printf '%0200d' $i)"; i=$((i+1)); done; ln -s loop /workspace/loop; mkfifo /workspace/fifo`)
	if res.State != harness.ExecutionCompleted || out.String("stdout") != "deep\n" {
		s.t.Errorf("%+v, %q, %s", res, out.String("stdout"), out.String("stderr"))
	}
}

func gainsPrivileges(s stage) {
	s.refused(`unshare -U true 2>/dev/null && echo got userns; unshare -m true 2>/dev/null && echo got mountns; unshare -n true 2>/dev/null && echo got netns
mount -t tmpfs x /tmp 2>/dev/null && echo got mount; umount /etc/passwd 2>/dev/null && echo got umount; mknod /tmp/sda b 8 0 2>/dev/null && echo got mknod
cp /bin/sh /tmp/suid 2>/dev/null; chmod u+s /tmp/suid; [ "$(/tmp/suid -c 'id -u')" = 0 ] && echo got suid
su -c true 2>/dev/null </dev/null && echo got su; chroot / true 2>/dev/null && echo got chroot; dmesg >/dev/null 2>&1 && echo got dmesg
hostname evil 2>/dev/null && echo got hostname; date -s 2020-01-01 >/dev/null 2>&1 && echo got clock; nice -n -5 true 2>/dev/null | grep -q x && echo got nice
grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo got capabilities; grep -q '^NoNewPrivs:.*1' /proc/self/status || echo got new privileges
ulimit -c unlimited 2>/dev/null && echo got core; ulimit -f unlimited 2>/dev/null && echo got size; echo -1000 2>/dev/null > /proc/self/oom_score_adj && echo got oom
echo tried`)
}

func deletesEverything(s stage) {
	res, _ := s.exec("rm -rf --no-preserve-root / 2>/dev/null; rm -rf /workspace/* /workspace/.[!.]* /tmp/* /run/* /dev/shm/*; cd /; exit 2")
	if res.ExitCode == nil || *res.ExitCode != 2 {
		s.t.Errorf("%+v", res)
	}
}

func streams(s stage) {
	res, out := s.exec("exec >&- 2>&-; sleep 0.3; exit 3")
	if res.ExitCode == nil || *res.ExitCode != 3 || out.String("stdout") != "" {
		s.t.Errorf("closed: %+v", res)
	}
	// A process that keeps the stream open, and does not die of TERM.
	res, out = s.exec("trap '' TERM; (trap '' TERM; while :; do echo y; sleep 0.01; done) & echo parent; exit 0")
	if res.State != harness.ExecutionCompleted || !strings.Contains(out.String("stdout"), "parent\n") {
		s.t.Errorf("kept: %+v", res)
	}
	res, out = s.exec(`head -c 100000 /dev/urandom | tee /tmp/r; head -c 100 /dev/zero >&2`)
	if res.StdoutBytes != 100_000 || len(out.String("stdout")) != 100_000 || out.String("stderr") != strings.Repeat("\x00", 100) {
		s.t.Errorf("binary: %+v", res)
	}
}
