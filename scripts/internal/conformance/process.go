package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/internal/localport"
)

// build compiles the programs into folder.
func build(ctx context.Context, root, folder string, packages ...string) error {
	args := append([]string{"build", "-buildvcs=false", "-o", folder + string(filepath.Separator)}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", strings.Join(packages, " "), err, out)
	}
	return nil
}

// process is one running function.
type process struct {
	name   string // with its side
	url    string
	cmd    *exec.Cmd
	log    logBuffer
	exited chan struct{}
	spent  atomic.Bool // it was asked to end
}

const (
	startTime = 20 * time.Second
	stopTime  = 30 * time.Second // a function drains before it ends
)

// start starts a program on a free port and returns when it is ready.
func start(ctx context.Context, name, program string, env []string) (*process, error) {
	port, err := localport.Free()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, url: "http://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(port)), exited: make(chan struct{})}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(env, fmt.Sprintf("PORT=%d", port), "METRICS_PORT=0", "BIND_ADDRESS=127.0.0.1", "LOG_LEVEL=DEBUG")
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches it through stop, in order
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process, which stop ends
		_ = p.cmd.Wait() // how it ended is in cmd.ProcessState
		close(p.exited)
	}()
	if err := p.awaitReady(ctx); err != nil {
		p.stop()
		return nil, fmt.Errorf("%s did not start: %w\n%s", name, err, p.log.since(0))
	}
	return p, nil
}

func (p *process) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	client := &http.Client{Timeout: time.Second}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/readyz", nil)
		if err != nil {
			return err
		}
		if answer, err := client.Do(request); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.exited:
			return errors.New("it ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// ended reports whether p has ended by itself.
func (p *process) ended() bool {
	select {
	case <-p.exited:
		return !p.spent.Load()
	default:
		return false
	}
}

// stop asks p to drain and kills it if that takes too long.
func (p *process) stop() {
	p.spent.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.exited:
	case <-time.After(stopTime):
		_ = p.cmd.Process.Signal(os.Kill)
		<-p.exited
	}
}

// logBuffer keeps what a process writes.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// since returns what was written after the first mark bytes.
func (b *logBuffer) since(mark int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text.Bytes()[min(mark, b.text.Len()):])
}

func (b *logBuffer) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Len()
}

// functionLog is what a function under test has logged so far.
type functionLog struct {
	name string
	text interface {
		since(mark int) string
		len() int
	}
	ended func() bool // by itself
}

// logFile is the log of a function that runs elsewhere. One that cannot be read
// is empty: its cases differ.
type logFile string

func (f logFile) since(mark int) string {
	text, err := os.ReadFile(string(f))
	if err != nil {
		return ""
	}
	return string(text[min(mark, len(text)):])
}

func (f logFile) len() int {
	info, err := os.Stat(string(f))
	if err != nil {
		return 0
	}
	return int(info.Size())
}
