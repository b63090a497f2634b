//go:build local

package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/harness"
)

// state is what state.json says of a sandbox.
type state struct {
	ID        harness.SandboxID `json:"id"`
	Agent     harness.AgentName `json:"agent,omitempty"`
	Session   harness.SessionID `json:"session,omitempty"`
	Token     string            `json:"token"` // in the command line of its PID 1 and of nothing else
	CreatedAt time.Time         `json:"createdAt"`
	Cgroups   []string          `json:"cgroups,omitempty"` // ours to remove, made after this was written
	Process   process           `json:"process"`           // PID 1, as this machine sees it
	UID       string            `json:"uid,omitempty"`     // set when it took commands
}

func readState(p place) (state, error) {
	text, err := os.ReadFile(p.state())
	if err != nil {
		return state{}, err
	}
	var st state
	return st, json.Unmarshal(text, &st)
}

func (st state) write(p place) error {
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return writeFile(p.state(), bytes.NewReader(text), 0o600)
}

// process names a process for good: a number used again has another start.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	Boot  string `json:"boot"`
}

// uid is the identity of the sandbox whose PID 1 this is.
func (p process) uid() string { return fmt.Sprintf("%s-%d-%d", p.Boot, p.PID, p.Start) }

// identify returns the process that has this pid now.
func identify(pid int) (process, error) {
	boot, err := bootID()
	if err != nil {
		return process{}, err
	}
	start, alive, err := procStat(pid)
	if err == nil && !alive {
		err = os.ErrProcessDone
	}
	return process{PID: pid, Start: start, Boot: boot}, err
}

// alive reports whether the very process still runs.
func (p process) alive() bool {
	if p.PID <= 0 {
		return false
	}
	now, err := identify(p.PID)
	return err == nil && now == p
}

// kill ends the very process, never another that got its number.
func (p process) kill() error {
	if p.PID <= 1 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !p.alive() { // looked at after the pidfd is fixed to one process
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")[:12], nil
}

// procStat returns when a process started and whether it is more than a zombie.
func procStat(pid int) (start uint64, alive bool, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false, err
	}
	const stateField, startField = 0, 19 // after the name, which may hold anything
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= startField {
		return 0, false, errors.New("unreadable stat")
	}
	start, err = strconv.ParseUint(string(fields[startField]), 10, 64)
	return start, fields[stateField][0] != 'Z' && fields[stateField][0] != 'X', err
}

// bearers returns the processes whose command line carries token as an
// argument of its own: PID 1 of a sandbox and, while it starts, its makers.
func bearers(token string) []process {
	if token == "" {
		return nil
	}
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var found []process
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(text, []byte("\x00"+token+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			continue
		}
		if p, err := identify(pid); err == nil {
			found = append(found, p)
		}
	}
	return found
}
