package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// processes knows every process of the sandbox: it reaps them all, tells the
// end of those that were started here, and can kill the rest.
type processes struct {
	mu      sync.Mutex // held over fork and the note of its pid: a child that ends at once is not missed
	waiting map[int]chan syscall.WaitStatus
}

// start runs a program in a session and process group of its own. The channel
// gives its wait status once.
func (p *processes) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	p.waiting[pid] = ended
	return pid, ended, nil
}

// reap collects ended children, also those that others left behind, for ever.
func (p *processes) reap() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	for {
		p.collect()
		<-signals
	}
}

func (p *processes) collect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ended, ok := p.waiting[pid]; ok {
			delete(p.waiting, pid)
			ended <- status
		}
	}
}

// groupGone reports whether a process group has no member left.
func groupGone(pgid int) bool { return errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH) }

// sweep kills everything in the sandbox but PID 1 and those who came in from
// outside, and returns when they are gone, or after the bound with an error.
func (p *processes) sweep(bound time.Duration) error {
	deadline := time.Now().Add(bound)
	for {
		others, visitors, err := list()
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		if len(others) == 0 {
			return nil
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("%d processes do not die", len(others))
		}
		if visitors == 0 {
			// One call that no fork can slip through.
			_ = syscall.Kill(-1, syscall.SIGKILL)
		} else {
			killEach(others)
		}
		p.collect()
		time.Sleep(time.Millisecond)
	}
}

// killEach stops everything first, again and again until nothing new appears:
// what is stopped cannot fork, and its place is taken.
func killEach(others []int) {
	stopped := map[int]bool{}
	for range 100 {
		fresh := 0
		for _, pid := range others {
			if !stopped[pid] {
				stopped[pid] = true
				fresh++
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if fresh == 0 {
			break
		}
		var err error
		if others, _, err = list(); err != nil {
			break
		}
	}
	for pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// list returns the living processes of the sandbox but PID 1, and counts those
// that came in from outside apart: whose parent is not of this pid namespace.
func list() (others []int, visitors int, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == 1 {
			continue
		}
		state, parent, err := stat(pid)
		switch {
		case err != nil: // it has gone meanwhile
		case parent == 0:
			visitors++
		case state != 'Z' && state != 'X':
			others = append(others, pid)
		}
	}
	return others, visitors, nil
}

// stat returns the state and the parent of a process. Its name may hold
// anything, parentheses and newlines too, so the last one counts.
func stat(pid int) (state byte, parent int, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return 0, 0, errors.New("unreadable stat")
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 2 {
		return 0, 0, errors.New("unreadable stat")
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent, err
}
