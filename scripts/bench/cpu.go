package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/localpg"
)

// tickTime is the unit of CPU time in /proc, USER_HZ, the same on every Linux.
const tickTime = 10 * time.Millisecond

// running is one process as /proc shows it.
type running struct {
	name   string // of its program, cut to 15 characters
	parent int
	own    int // ticks, with those of threads that ended
	waited int // ticks of children that have ended and been waited for
}

// allRunning reads every process.
func allRunning() (map[int]running, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := map[int]running{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		// The name, in brackets, may hold anything.
		start, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
		if start < 0 || end < start {
			return nil, fmt.Errorf("%s is not understood: %q", file, text)
		}
		fields := strings.Fields(string(text[end+1:]))
		if len(fields) < 15 {
			return nil, fmt.Errorf("%s is not understood: %q", file, text)
		}
		var numbers [5]int
		for i, field := range append(fields[1:2], fields[11:15]...) { // ppid, utime stime cutime cstime
			if numbers[i], err = strconv.Atoi(field); err != nil {
				return nil, fmt.Errorf("%s is not understood: %q", file, text)
			}
		}
		id, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		all[id] = running{name: string(text[start+1 : end]), parent: numbers[0], own: numbers[1] + numbers[2], waited: numbers[3] + numbers[4]}
	}
	return all, nil
}

// cpuOf returns the CPU time that the process pid has used, with its children
// that run and those it has waited for, and theirs.
func cpuOf(pid int) (time.Duration, error) {
	all, err := allRunning()
	if err != nil {
		return 0, err
	}
	if _, runs := all[pid]; !runs {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return treeOf(all, pid), nil
}

func treeOf(all map[int]running, pid int) time.Duration {
	sum := 0
	for id, p := range all {
		for at := id; at > 1; at = all[at].parent {
			if at == pid {
				sum += p.own + p.waited
				break
			}
		}
	}
	return time.Duration(sum) * tickTime
}

// usage is the CPU time used so far.
type usage struct {
	functions map[string]time.Duration // by program
	postgres  time.Duration
	self      time.Duration // this process: platform, model, receiver, load
}

// readUsage reads what this process, the functions it has started and the server
// have used. Functions that end in between are forgotten: keep them alive.
func readUsage(pg *localpg.Server) (usage, error) {
	all, err := allRunning()
	if err != nil {
		return usage{}, err
	}
	database, err := pg.PID()
	if err != nil {
		return usage{}, err
	}
	u := usage{functions: map[string]time.Duration{}, postgres: treeOf(all, database), self: time.Duration(all[os.Getpid()].own) * tickTime}
	for _, f := range functions {
		for pid, p := range all {
			if p.parent == os.Getpid() && p.name == f[:min(len(f), 15)] {
				u.functions[f] += treeOf(all, pid)
			}
		}
	}
	return u, nil
}

func (u usage) minus(before usage) usage {
	less := usage{functions: map[string]time.Duration{}, postgres: u.postgres - before.postgres, self: u.self - before.self}
	for name, used := range u.functions {
		less.functions[name] = used - before.functions[name]
	}
	return less
}

// functionsRunning counts the processes of functions that this one has started,
// and says what they hold, in bytes.
func functionsRunning() (n int, bytes float64, err error) {
	pids, err := functionPIDs("")
	for _, pid := range pids {
		held, err := heldBy(pid, "VmRSS")
		if err != nil {
			continue // it has ended meanwhile
		}
		n++
		bytes += held
	}
	return n, bytes, err
}

// peakOf is the most memory that a process of the function has held, in bytes.
func peakOf(function string) (most float64, err error) {
	pids, err := functionPIDs(function)
	for _, pid := range pids {
		held, failed := heldBy(pid, "VmHWM")
		most, err = max(most, held), errors.Join(err, failed)
	}
	if err == nil && most == 0 {
		err = fmt.Errorf("no process of %s runs", function)
	}
	return most, err
}

// functionPIDs are the processes of a function, or of all, that this one has started.
func functionPIDs(function string) (pids []int, err error) {
	all, err := allRunning()
	for pid, p := range all {
		if p.parent == os.Getpid() && slices.ContainsFunc(functions, func(f string) bool {
			return p.name == f[:min(len(f), 15)] && (function == "" || f == function)
		}) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// heldBy is what a process says under a name of proc(5), in bytes.
func heldBy(pid int, name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d does not say its %s", pid, name)
}
