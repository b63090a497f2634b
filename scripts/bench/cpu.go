package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/localpg"
)

// tick is the unit of CPU time in /proc, USER_HZ, the same on every Linux.
const tick = 10 * time.Millisecond

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
	return time.Duration(sum) * tick
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
	u := usage{functions: map[string]time.Duration{}, postgres: treeOf(all, database), self: time.Duration(all[os.Getpid()].own) * tick}
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
