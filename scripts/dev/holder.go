package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// holderOf names the process that listens on a TCP port, as far as this user
// may know: the kernel lists sockets in /proc/net, and processes their sockets.
func holderOf(port string) string {
	const nobody = "another program"
	number, err := strconv.Atoi(port)
	if err != nil {
		return nobody
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		if inode := listenerInode(string(text), number); inode != "" {
			if holder := processWith("socket:[" + inode + "]"); holder != "" {
				return holder
			}
		}
	}
	return nobody
}

// listenerInode finds the socket that listens on port in a table of /proc/net.
func listenerInode(table string, port int) string {
	const listening = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 9 && strings.HasSuffix(fields[1], suffix) && fields[3] == listening {
			return fields[9]
		}
	}
	return ""
}

func processWith(socket string) string {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || to != socket {
			continue
		}
		pid := strings.Split(link, "/")[2]
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			return "process " + pid
		}
		return strings.TrimSpace(string(name)) + " (process " + pid + ")"
	}
	return ""
}
