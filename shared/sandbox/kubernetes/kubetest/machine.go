package kubetest

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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Machine runs Pods for real, where a node's kubelet and runtime would: first the
// init containers, then the command line of the Pod's first container as PID 1 of
// namespaces of its own, with the Pod's environment, user and volumes, a read-only
// root, no network and no limits. Volumes of a claim outlive the Pod.
type Machine struct {
	t      testing.TB
	runner string
	root   string // of volumes

	// Binds are folders of this machine that every Pod sees, by their path inside.
	Binds map[string]string
}

// NewMachine returns a machine on which runner, a binary, is the entry point of
// every init container. It skips the test for anyone but root, who alone can enter
// another's namespaces.
func NewMachine(t testing.TB, runner string) *Machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can enter another's namespaces")
	}
	for _, tool := range []string{"bwrap", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is needed: apt-get install bubblewrap util-linux", tool)
		}
	}
	root, err := os.MkdirTemp("", "km")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil { //nolint:gosec // other users must get in
		t.Fatal(err)
	}
	return &Machine{t: t, runner: runner, root: root, Binds: map[string]string{}}
}

// volume returns the folder of a Pod's volume as a kubelet leaves it: writable for
// the group of the Pod.
func (m *Machine) volume(pod *corev1.Pod, name string) (string, error) {
	dir := filepath.Join(m.root, string(pod.UID)+"-"+name)
	for _, v := range pod.Spec.Volumes {
		if v.Name == name && v.PersistentVolumeClaim != nil {
			dir = filepath.Join(m.root, "claim-"+v.PersistentVolumeClaim.ClaimName)
		}
	}
	group := 0
	if sc := pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		group = int(*sc.FSGroup)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, errors.Join(os.Chown(dir, 0, group), os.Chmod(dir, 0o777|os.ModeSetgid)) //nolint:gosec // as emptyDir has it
}

// Use lets all Pods of s from now on live on the machine, and execs without a
// script run in them.
func (m *Machine) Use(s *Server) {
	s.Lives(m.Life())
	s.Otherwise(m.Script())
}

// process is PID 1 of a Pod.
type process struct {
	pid      int // as this machine sees it
	cmd      *exec.Cmd
	uid, gid int64
	log      bytes.Buffer // its stderr; to be read once it has ended
	ended    chan struct{}
}

func (p *process) kill() { _ = syscall.Kill(p.pid, syscall.SIGKILL) }

// terminate ends it as a kubelet does.
func (p *process) terminate(grace time.Duration) {
	_ = syscall.Kill(p.pid, syscall.SIGTERM)
	wait(p.ended, grace)
	p.kill()
	<-p.ended
}

// Life is the life of a Pod whose process runs here: the Pod is Running once it
// was started, and has ended as it ended.
func (m *Machine) Life() Life {
	return func(ctx context.Context, p *Pod) {
		p.Change(Scheduled())
		proc, err := m.start(&p.Spec)
		if err != nil {
			m.t.Errorf("start the process of a Pod: %v", err)
			p.Change(Waiting("CreateContainerError", err.Error()))
			return
		}
		p.server.mu.Lock()
		p.process = proc
		gone := ctx.Err() != nil
		p.server.mu.Unlock()
		if gone {
			proc.kill()
		}
		p.Change(Running())
		select {
		case <-proc.ended:
		case <-ctx.Done():
			proc.kill()
			<-proc.ended
		}
		if code := proc.cmd.ProcessState.ExitCode(); code == 0 {
			p.Change(Terminated(0, "Completed", ""))
		} else {
			p.Change(Terminated(int32(code), "Error", proc.log.String())) //nolint:gosec // an exit code
		}
	}
}

// identity is the user of a container.
func identity(pod *corev1.Pod, c corev1.Container) (uid, gid int64) {
	uid, gid = 65532, 65532
	if sc := pod.Spec.SecurityContext; sc != nil && sc.RunAsUser != nil {
		uid, gid = *sc.RunAsUser, *sc.RunAsUser
	}
	if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
		uid, gid = *sc.RunAsUser, *sc.RunAsUser
	}
	return uid, gid
}

// container returns the command line that is container c of the pod.
func (m *Machine) container(pod *corev1.Pod, c corev1.Container, entry string, flags ...string) (*exec.Cmd, error) {
	uid, gid := identity(pod, c)
	args := []string{
		"--reuid", fmt.Sprint(uid), "--regid", fmt.Sprint(gid), "--clear-groups", "bwrap", "--unshare-user", "--unshare-all", "--clearenv",
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--proc", "/proc", "--dev", "/dev",
	}
	env := map[string]string{
		"PATH":                    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443",
	}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	var expand []string
	for name, value := range env {
		args = append(args, "--setenv", name, value)
		expand = append(expand, "$("+name+")", value)
	}
	for _, mount := range c.VolumeMounts {
		dir, err := m.volume(pod, mount.Name)
		if err != nil {
			return nil, err
		}
		how := "--bind"
		if mount.ReadOnly {
			how = "--ro-bind"
		}
		args = append(args, how, dir, mount.MountPath)
	}
	for inside, outside := range m.Binds {
		args = append(args, "--bind", outside, inside)
	}
	argv := slices.Concat(c.Command, c.Args)
	if len(c.Command) == 0 {
		args = append(args, "--ro-bind", m.runner, entry)
		argv = append([]string{entry}, argv...)
	}
	args = append(args, "--remount-ro", "/")
	if c.WorkingDir != "" {
		args = append(args, "--chdir", c.WorkingDir)
	}
	args = append(args, flags...)
	for _, arg := range argv {
		args = append(args, strings.NewReplacer(expand...).Replace(arg))
	}
	return exec.Command("setpriv", args...), nil
}

func (m *Machine) start(pod *corev1.Pod) (*process, error) {
	for _, c := range pod.Spec.InitContainers {
		cmd, err := m.container(pod, c, "/entry")
		if err != nil {
			return nil, err
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("init container %s: %w: %s", c.Name, err, out)
		}
	}
	infoR, infoW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer infoR.Close()
	c := pod.Spec.Containers[0]
	p := &process{ended: make(chan struct{})}
	p.uid, p.gid = identity(pod, c)
	if p.cmd, err = m.container(pod, c, "/entry", "--as-pid-1", "--new-session", "--info-fd", "3"); err != nil {
		return nil, err
	}
	p.cmd.ExtraFiles = []*os.File{infoW}
	p.cmd.Stderr = &p.log
	err = p.cmd.Start()
	_ = infoW.Close()
	if err != nil {
		return nil, err
	}
	var info struct {
		PID int `json:"child-pid"`
	}
	if err := json.NewDecoder(infoR).Decode(&info); err != nil {
		_ = p.cmd.Wait()
		return nil, fmt.Errorf("%w: %s", err, p.log.String())
	}
	p.pid = info.PID
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Script runs an exec's command line in the Pod's namespaces, put in from outside
// as a runtime does. Like a runtime it does not end the process when the client
// goes.
func (m *Machine) Script() Script {
	return func(ctx context.Context, x *Exec) Ending {
		x.server.mu.Lock()
		var proc *process
		if x.pod != nil {
			proc = x.pod.process
		}
		x.server.mu.Unlock()
		if proc == nil {
			m.t.Errorf("exec into a Pod that has no process")
			return Exit(126)
		}
		cmd := exec.Command("nsenter", append([]string{
			"-t", fmt.Sprint(proc.pid), "-U", "-m", "-p", "-n", "-i", "--preserve-credentials",
			"-S", fmt.Sprint(proc.uid), "-G", fmt.Sprint(proc.gid), "--",
		}, x.Argv...)...)
		cmd.Stdout, cmd.Stderr = x.Stdout, x.Stderr
		if x.Stdin != nil {
			in, err := cmd.StdinPipe()
			if err != nil {
				return Exit(126)
			}
			go func() {
				defer in.Close()
				_, _ = io.Copy(in, x.Stdin)
			}()
		}
		if err := cmd.Start(); err != nil {
			return Exit(126)
		}
		ended := make(chan struct{})
		go func() {
			select {
			case <-proc.ended: // with its PID 1 the whole Pod is gone
				_ = cmd.Process.Kill()
			case <-ended:
			}
		}()
		err := cmd.Wait()
		close(ended)
		var exit *exec.ExitError
		switch {
		case err == nil:
			return Exit(0)
		case ctx.Err() != nil:
			return Cut()
		case errors.As(err, &exit) && exit.ExitCode() >= 0:
			return Exit(exit.ExitCode())
		}
		return Exit(137)
	}
}

// BuildRunner builds the runner's binary into a folder that anyone may enter, for
// a TestMain, and returns what removes it.
func BuildRunner(module string) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "kt")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	if err := os.Chmod(dir, 0o755); err != nil {
		remove()
		return "", nil, err
	}
	path = filepath.Join(dir, "runner")
	build := exec.Command("go", "build", "-o", path, "./runner")
	build.Dir = module
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("build the runner: %w: %s", err, out)
	}
	return path, remove, nil
}
