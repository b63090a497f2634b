package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time in /proc, USER_HZ, the same on every Linux.
const tick = 10 * time.Millisecond

// cpuOf returns the CPU time that the process pid has used, with its children
// that run and those it has waited for, and theirs.
func cpuOf(pid int) (time.Duration, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	type process struct{ parent, ticks int }
	all := map[int]process{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		// The name, in brackets, may hold anything.
		end := strings.LastIndexByte(string(text), ')')
		fields := strings.Fields(string(text[end+1:]))
		if end < 0 || len(fields) < 15 {
			return 0, fmt.Errorf("%s is not understood: %q", file, text)
		}
		var p process
		p.parent, _ = strconv.Atoi(fields[1])
		for _, field := range fields[11:15] { // utime stime cutime cstime
			n, err := strconv.Atoi(field)
			if err != nil {
				return 0, fmt.Errorf("%s is not understood: %q", file, text)
			}
			p.ticks += n
		}
		id, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		all[id] = p
	}
	if _, runs := all[pid]; !runs {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	sum := 0
	for id, p := range all {
		for at := id; at > 1; at = all[at].parent {
			if at == pid {
				sum += p.ticks
				break
			}
		}
	}
	return time.Duration(sum) * tick, nil
}

// postmaster returns the process of the Postgres server that keeps its data
// below dir.
func postmaster(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(strings.TrimSpace(first))
}
