package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"tuluat.ai/harness/scripts/dev/handover"
	"tuluat.ai/harness/scripts/internal/checkout"
	"tuluat.ai/harness/scripts/internal/localpg"
)

const defaultPort = "8080"

// locate finds the repository, makes the state folder and reads the variables
// that a person may set.
func locate() (handover.Handover, error) {
	root, err := checkout.Root()
	if err != nil {
		return handover.Handover{}, err
	}
	h := handover.Handover{Root: root}
	if h.State, err = filepath.Abs(or("TULUAT_HOME", filepath.Join(root, ".tuluat"))); err != nil {
		return h, err
	}
	if h.Agents, err = filepath.Abs(or("TULUAT_AGENTS", filepath.Join(root, "config", "samples"))); err != nil {
		return h, err
	}
	if info, err := os.Stat(h.Agents); err != nil || !info.IsDir() {
		return h, fmt.Errorf("TULUAT_AGENTS: %s is not a folder", h.Agents)
	}
	h.Address = net.JoinHostPort("127.0.0.1", or("TULUAT_PORT", defaultPort))
	for _, folder := range []string{h.State, h.Bin(), h.Logs(), h.Secrets()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return h, err
		}
	}
	return h, nil
}

func or(variable, def string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return def
}

// lock takes the state folder for this process. The kernel frees it, however
// the process ends.
func lock(state string) (release func() error, err error) {
	file, err := os.OpenFile(filepath.Join(state, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(file.Name())
		return nil, errors.Join(fmt.Errorf("another `make dev` (process %s) is using %s: stop it, or set TULUAT_HOME and TULUAT_PORT for a second one",
			strings.TrimSpace(string(holder)), state), file.Close())
	}
	err = errors.Join(file.Truncate(0), write(file, fmt.Sprintln(os.Getpid())))
	return file.Close, err
}

func write(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// checkMachine reports what is missing, each with what to do about it.
func checkMachine(address string) error {
	var problems []error
	if _, err := localpg.Find(); err != nil {
		problems = append(problems, err)
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		problems = append(problems, errors.New("bubblewrap, which isolates the commands agents run, is missing; install it with:\n\n    sudo apt-get install -y bubblewrap\n"))
	}
	if _, err := exec.LookPath("go"); err != nil {
		problems = append(problems, errors.New("the go command is not on PATH"))
	}
	return errors.Join(append(problems, checkPort(address))...)
}

// checkPort says who has the port, before anything slow begins.
func checkPort(address string) error {
	listener, err := net.Listen("tcp", address)
	if err == nil {
		return listener.Close()
	}
	_, port, splitErr := net.SplitHostPort(address)
	if splitErr != nil || !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("TULUAT_PORT: %w", err)
	}
	return fmt.Errorf("port %s is taken by %s; stop it, or set TULUAT_PORT to another port", port, holderOf(port))
}
