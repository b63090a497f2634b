//go:build local

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// Options are what a Driver needs.
type Options struct {
	Dir    string   // where sandboxes are kept; absolute, short, every folder above it passable for anyone
	Runner string   // the runner binary, static
	Binds  []string // HOST:INSIDE folders, writable; for tests only
	Log    *slog.Logger
}

// Driver keeps the sandboxes of one folder. What it holds in memory is only
// what the machine told it: any number of processes may have one for the same
// folder.
type Driver struct {
	dir    string
	source string // the runner as it was given
	binds  []bind
	drop   bool // this process is root: sandboxes run as another uid
	log    *slog.Logger

	mu       sync.Mutex // guards what prepare finds out
	prepared bool
	runner   string // our copy, readable for the sandbox's user
	limits   limiter
}

var _ sandbox.Driver = (*Driver)(nil)

type bind struct{ host, inside string }

const (
	sandboxUID = 65532 // of sandboxes when we are root; else the caller's own
	lockShards = 64
	maxSocket  = 107 // bytes of a unix socket's path
)

var (
	validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	errLocked = errors.New("still locked")
)

// New returns a Driver. It fails, with what to do about it, when an option is
// wrong or the machine lacks bubblewrap. It starts nothing and is quick; Check
// finds out whether the machine refuses what sandboxes need.
func New(o Options) (*Driver, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Driver{dir: o.Dir, source: o.Runner, drop: os.Geteuid() == 0, log: o.Log}
	if !filepath.IsAbs(o.Dir) {
		return nil, sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, "the sandbox folder must be an absolute path", nil)
	}
	if longest := filepath.Join(o.Dir, strings.Repeat("n", 63), "ctl"); len(longest) > maxSocket {
		return nil, sandbox.Fail(harness.Invalid, sandbox.ReasonSpec,
			fmt.Sprintf("the sandbox folder's path is too long: at most %d bytes", maxSocket-len("/ctl")-64), nil)
	}
	for _, text := range o.Binds {
		host, inside, ok := strings.Cut(text, ":")
		if !ok || !filepath.IsAbs(host) || !filepath.IsAbs(inside) {
			return nil, sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, "a bind must be HOST:INSIDE, both absolute: "+text, nil)
		}
		d.binds = append(d.binds, bind{host, inside})
	}
	if info, err := os.Stat(o.Runner); err != nil || !info.Mode().IsRegular() {
		return nil, sandbox.Fail(harness.Invalid, sandbox.ReasonMissingTool, "there is no runner binary at "+o.Runner+": build functions/sandbox-exec/runner", err)
	}
	if err := d.checkTools(); err != nil {
		return nil, err
	}
	return d, nil
}

// checkTools finds what a machine may lack, and says how to get it.
func (d *Driver) checkTools() error {
	need := []string{"bwrap", "sh"}
	if d.drop {
		need = append(need, "setpriv")
	}
	packages := map[string]string{"bwrap": "bubblewrap", "sh": "dash", "setpriv": "util-linux"}
	for _, tool := range need {
		if _, err := exec.LookPath(tool); err != nil {
			return sandbox.Fail(harness.Unavailable, sandbox.ReasonMissingTool, fmt.Sprintf(
				"%s is needed for local sandboxes: apt-get install %[2]s (or dnf install %[2]s, apk add %[2]s)", tool, packages[tool]), err)
		}
	}
	return nil
}

// Check makes an empty sandbox and fails, with what to do about it, when this
// machine refuses it.
func (d *Driver) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("probe of bubblewrap"))
	defer cancel()
	argv := append(d.dropArgs(), "bwrap", "--unshare-user", "--unshare-all", "--disable-userns", "--ro-bind", "/", "/", "true")
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return sandbox.Fail(harness.Unavailable, sandbox.ReasonRefused,
			"this machine refuses what local sandboxes need: bubblewrap 0.8 or newer and unprivileged user namespaces "+
				"(try: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 kernel.apparmor_restrict_unprivileged_userns=0)",
			fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out))))
	}
	return nil
}

// dropArgs is the command that gives up root, if we have it.
func (d *Driver) dropArgs() []string {
	if !d.drop {
		return nil
	}
	id := fmt.Sprint(sandboxUID)
	return []string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps=-all"}
}

// prepare does once per process what every sandbox needs: it makes the folder
// and what all sandboxes share in it, and looks for cgroups. A failure is tried
// again the next time.
func (d *Driver) prepare() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.prepared {
		return nil
	}
	if err := d.prepareFolder(); err != nil {
		return err
	}
	var err error
	if d.limits, err = findLimiter(); err != nil {
		d.log.Warn("no cgroup is writable here: sandboxes are limited per process only, by rlimits", "error", err)
	}
	d.prepared = true
	return nil
}

func (d *Driver) prepareFolder() error {
	for _, dir := range []string{d.dir, filepath.Join(d.dir, ".bin"), filepath.Join(d.dir, ".etc"), filepath.Join(d.dir, ".lock")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox folder cannot be made", err)
		}
	}
	if d.drop {
		for dir := d.dir; dir != "/"; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil || info.Mode().Perm()&0o001 == 0 {
				return sandbox.Fail(harness.Invalid, sandbox.ReasonSpec,
					fmt.Sprintf("sandboxes run as another user, who cannot pass %s: choose a sandbox folder elsewhere, or chmod o+x it", dir), err)
			}
		}
	}
	for name, text := range etcFiles {
		if err := writeFile(filepath.Join(d.dir, ".etc", name), strings.NewReader(d.withIDs(text)), 0o644); err != nil {
			return sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox folder cannot be written", err)
		}
	}
	var err error
	if d.runner, err = copyRunner(d.source, filepath.Join(d.dir, ".bin")); err != nil {
		return sandbox.Fail(harness.Invalid, sandbox.ReasonMissingTool, "the runner binary cannot be read: build functions/sandbox-exec/runner", err)
	}
	return nil
}

// copyRunner copies the runner to where sandboxes can read it, under a name
// that changes with its bytes: a sandbox keeps the one it was started with.
func copyRunner(from, dir string) (string, error) {
	source, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer source.Close()
	h := sha256.New()
	if _, err := io.Copy(h, source); err != nil {
		return "", err
	}
	to := filepath.Join(dir, "runner-"+hex.EncodeToString(h.Sum(nil))[:16])
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	if _, err := source.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	// A process forked while we write would hold the file open for writing for a
	// moment, and what is open for writing cannot be executed.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return to, writeFile(to, source, 0o755)
}

// writeFile writes whole or not at all.
func writeFile(path string, text io.Reader, mode os.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(temp, text)
	err = errors.Join(err, temp.Chmod(mode), temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return nil
}

// place is one sandbox's folder.
type place string

func (d *Driver) place(name string) place { return place(filepath.Join(d.dir, name)) }

func (p place) state() string  { return filepath.Join(string(p), "state.json") }
func (p place) alive() string  { return filepath.Join(string(p), "alive") }
func (p place) socket() string { return filepath.Join(string(p), "ctl") }
func (p place) log() string    { return filepath.Join(string(p), "log") }

// lock keeps others, in any process, from starting or removing a sandbox of
// this name. Lock files are never removed; names share a few of them.
func (d *Driver) lock(ctx context.Context, name string) (unlock func(), err error) {
	h := fnv.New32a()
	h.Write([]byte(name))
	path := filepath.Join(d.dir, ".lock", fmt.Sprintf("%02d", h.Sum32()%lockShards))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, sandbox.Fail(harness.Unavailable, sandbox.ReasonStartFailed, "the sandbox folder cannot be locked", err)
	}
	if err := flock(ctx, file); err != nil {
		return nil, errors.Join(sandbox.Fail(harness.Unavailable, sandbox.ReasonStartTimeout, "another start or removal of this sandbox takes too long", err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// flock takes the exclusive lock of an open file, asking again until ctx ends.
func flock(ctx context.Context, file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(errLocked, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}
