//go:build local

package local

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/sandbox"
)

const (
	insideRunner = "/opt/tuluat/runner"

	runBytes      = 16 << 20 // of /run
	shmBytes      = 64 << 20 // of /dev/shm
	overheadBytes = 64 << 20 // PID 1 with the output it keeps
	maxProcesses  = 256      // of commands
	ownProcesses  = 64       // of the runner itself, beyond those
)

// idleMargin keeps PID 1's own idle end behind the platform's, which knows of
// commands that are on their way. It matters only when the platform is down.
const idleMargin = 30 * time.Second

// etcFiles are the files of /etc that name users and hosts: none of this
// machine's.
var etcFiles = map[string]string{
	"passwd":        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nsandbox:x:%UID%:%GID%:sandbox:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"group":         "root:x:0:\nsandbox:x:%GID%:\nnogroup:x:65534:\n",
	"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
}

// etcShared are the parts of the machine's /etc that programs below /usr need
// and that hold no secret. Everything else of /etc does not exist inside.
var etcShared = [...]string{
	"alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts", "inputrc",
	"java*-openjdk", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic", "magic.mime",
	"maven", "mime.types", "os-release", "perl", "pki/ca-trust", "pki/tls/certs", "protocols", "python3*", "services",
	"ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
}

// searchPath is where commands look for programs.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// memoryBytes is the limit of the whole sandbox: what its commands may use, and
// its disks, which are memory here.
func memoryBytes(sb sandbox.Sandbox) int64 {
	return sb.Spec.MemoryBytes + 2*sb.Spec.VolumeBytes + runBytes + shmBytes + overheadBytes
}

// inherited are the files PID 1 gets from us by number.
type inherited struct{ listen, info, oom int }

// bwrapArgs is the sandbox, from the program that makes it to its PID 1.
func (d *Driver) bwrapArgs(sb sandbox.Sandbox, token string, fds inherited, now time.Time) []string {
	size := func(n int64) string { return strconv.FormatInt(max(n, 4096), 10) }
	volume := size(sb.Spec.VolumeBytes)
	args := append(d.dropArgs(), "bwrap",
		"--unshare-user", "--unshare-all", "--disable-userns", "--hostname", sb.Name, "--as-pid-1", "--new-session",
		"--info-fd", strconv.Itoa(fds.info), "--clearenv")
	args = append(args, "--setenv", "PATH", searchPath)
	for name, value := range sandbox.Environment() {
		args = append(args, "--setenv", name, value)
	}
	args = append(args, "--ro-bind", "/usr", "/usr")
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		info, err := os.Lstat(dir)
		if err != nil {
			continue
		}
		if target, err := os.Readlink(dir); err == nil {
			args = append(args, "--symlink", target, dir)
		} else if info.IsDir() {
			args = append(args, "--ro-bind", dir, dir)
		}
	}
	args = append(args, d.etcArgs()...)
	args = append(args,
		"--proc", "/proc", "--dev", "/dev",
		"--perms", "1777", "--size", size(shmBytes), "--tmpfs", "/dev/shm",
		"--perms", "0755", "--size", size(runBytes), "--tmpfs", "/run",
		"--perms", "1777", "--size", volume, "--tmpfs", "/tmp",
		"--perms", "0755", "--size", volume, "--tmpfs", "/workspace",
		"--ro-bind", d.runner, insideRunner)
	for _, b := range d.binds {
		args = append(args, "--bind", b.host, b.inside)
	}
	args = append(args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/workspace", "--", insideRunner)
	return append(args, d.initArgs(sb, token, fds, now)...)
}

func (d *Driver) etcArgs() []string {
	args := []string{"--dir", "/etc"}
	for name := range etcFiles {
		args = append(args, "--ro-bind", filepath.Join(d.dir, ".etc", name), "/etc/"+name)
	}
	for _, pattern := range etcShared {
		paths, err := filepath.Glob("/etc/" + pattern)
		if err != nil {
			continue
		}
		for _, file := range paths {
			if _, err := os.Stat(file); err == nil { // a dangling link cannot be bound
				args = append(args, "--ro-bind-try", file, file)
			}
		}
	}
	return args
}

func (d *Driver) initArgs(sb sandbox.Sandbox, token string, fds inherited, now time.Time) []string {
	args := []string{
		"init", "--name", sb.Name, "--token", token,
		"--ttl", sb.ExpiresAt.Sub(now).String(), "--idle", (time.Duration(sb.Spec.IdleSeconds)*time.Second + idleMargin).String(),
		"--listen-fd", strconv.Itoa(fds.listen), "--oom-fd", strconv.Itoa(fds.oom),
		"--file-size", strconv.FormatInt(sb.Spec.VolumeBytes, 10),
		// The user namespace is this sandbox's alone, so the user's processes are
		// too; PID 1's threads are among them.
		"--processes", strconv.Itoa(maxProcesses),
	}
	if sb.Spec.KeepBackground {
		args = append(args, "--keep-background")
	}
	if !d.limits.works() {
		args = append(args, "--data-size", strconv.FormatInt(min(sb.Spec.MemoryBytes, math.MaxInt64), 10))
	}
	return args
}

// withIDs fills a file of etcFiles in.
func (d *Driver) withIDs(text string) string {
	uid, gid := os.Geteuid(), os.Getegid()
	if d.drop {
		uid, gid = sandboxUID, sandboxUID
	}
	return strings.NewReplacer("%UID%", fmt.Sprint(uid), "%GID%", fmt.Sprint(gid)).Replace(text)
}
