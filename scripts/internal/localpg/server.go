// Package localpg runs a private PostgreSQL server as a child process: its own
// folder, a generated password, a TCP port on 127.0.0.1 and no socket file, so
// that nothing that merely sees the file system can reach it. It never outlives
// the process that started it. It imports nothing but the standard library, so
// that it is running while everything else is still being compiled.
package localpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Options says which server to run.
type Options struct {
	Dir       string // its folder; made if absent, kept after Stop
	Throwaway bool   // for tests: no fsync, many connections; a crash loses everything
	Log       string // file that takes the server's own log
}

// Server is a running PostgreSQL server.
type Server struct {
	install  Install
	o        Options
	port     int
	password string
	cmd      *exec.Cmd
	exited   chan struct{} // closed when the process has ended
	exitErr  error         // valid after exited is closed
}

const (
	superuser = "postgres"
	startTime = 60 * time.Second // crash recovery included
	stopTime  = 20 * time.Second // fast shutdown, then SIGKILL

	startTries = 3
	startPause = time.Second
)

// Start makes the server's folder if needed, ends a server that an earlier,
// killed process left behind there, starts the server and returns when it
// takes connections. The context bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	install, err := Find()
	if err != nil {
		return nil, err
	}
	if err := checkRoot(); err != nil {
		return nil, err
	}
	s := &Server{install: install, o: o}
	if s.o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.o.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.initialise(ctx); err != nil {
		return nil, err
	}
	if err := s.stopStale(); err != nil {
		return nil, err
	}
	if s.port, err = s.choosePort(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		if err := s.launch(); err != nil {
			return nil, err
		}
		err := s.awaitReady(ctx)
		if err == nil {
			return s, nil
		}
		err = errors.Join(err, s.Stop())
		// The helpers of a killed server hold its memory for a moment longer.
		if try == startTries || ctx.Err() != nil {
			return nil, err
		}
		time.Sleep(startPause)
	}
}

// DSN is the connection string of the superuser for the database named.
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Version is the server's major version.
func (s *Server) Version() int { return s.install.Version }

// PID is the server's first process, whose children do the work.
func (s *Server) PID() (int, error) { return s.postmaster() }

// Exited is closed when the server has ended, wanted or not.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// Stop shuts the server down: its sessions are cut, its data is flushed. It is
// killed if that takes too long. Stop of a stopped server does nothing.
func (s *Server) Stop() error {
	select {
	case <-s.exited:
		return nil
	default:
	}
	s.signal(syscall.SIGINT)
	select {
	case <-s.exited:
		return nil
	case <-time.After(stopTime):
		s.signal(syscall.SIGKILL)
		_ = s.cmd.Process.Kill() // what runs the server, where that is another process
		<-s.exited
		return fmt.Errorf("PostgreSQL did not stop within %s and was killed; it recovers at its next start", stopTime)
	}
}

// signal reaches the server itself, which as root is a grandchild.
func (s *Server) signal(signal syscall.Signal) {
	if pid, err := s.postmaster(); err == nil && s.isServer(pid) {
		_ = syscall.Kill(pid, signal) // gone already is as good
		return
	}
	_ = s.cmd.Process.Signal(signal)
}

func (s *Server) data() string { return filepath.Join(s.o.Dir, "data") }

// initialise runs initdb once. It works in a folder of another name and
// renames it at the end, so that a half-made one is never taken for whole.
func (s *Server) initialise(ctx context.Context) error {
	kept := filepath.Join(s.o.Dir, "password")
	if version, err := os.ReadFile(filepath.Join(s.data(), "PG_VERSION")); err == nil {
		if have := strings.TrimSpace(string(version)); have != strconv.Itoa(s.install.Version) {
			return fmt.Errorf("%s was made by PostgreSQL %s but %d is installed: install that version, or remove the folder to start empty", s.data(), have, s.install.Version)
		}
		password, err := os.ReadFile(kept)
		if err != nil {
			return fmt.Errorf("the password of the PostgreSQL server: %w", err)
		}
		s.password = strings.TrimSpace(string(password))
		return nil
	}
	s.password = rand.Text()
	if err := os.WriteFile(kept, []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	half := filepath.Join(s.o.Dir, "data.new")
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	args := []string{"-D", half, "-U", superuser, "-A", "scram-sha-256", "--pwfile", kept, "-E", "UTF8", "--locale=C.UTF-8"}
	if s.o.Throwaway {
		args = append(args, "--no-sync")
	}
	cmd := s.command(ctx, "initdb", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, tail(string(out)))
	}
	return os.Rename(half, s.data())
}

func (s *Server) launch() error {
	settings := []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(s.port), "unix_socket_directories=", "timezone=UTC", "log_timezone=UTC",
		"max_connections=100", "shared_buffers=64MB",
	}
	if s.o.Throwaway {
		settings = append(settings, "fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=400", "autovacuum=off")
	}
	args := []string{"-D", s.data()}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	log, err := os.OpenFile(s.o.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	s.cmd = s.command(context.Background(), "postgres", args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.exited = make(chan struct{})
	go func() { // ends with the process, which Stop ends
		s.exitErr = s.cmd.Wait()
		close(s.exited)
	}()
	return nil
}

// awaitReady returns when the server says ready in its pid file, the sign that
// pg_ctl goes by.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("PostgreSQL was not ready after %s", startTime))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		lines, err := s.pidFile()
		if err == nil && len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.exited:
			return fmt.Errorf("PostgreSQL ended while starting: %w\n%s", s.exitErr, s.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%w\n%s", context.Cause(ctx), s.logTail())
		}
	}
}

// pidFile returns the lines of postmaster.pid: 0 the process id, 7 the state.
func (s *Server) pidFile() ([]string, error) {
	text, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	return strings.Split(string(text), "\n"), nil
}

func (s *Server) postmaster() (int, error) {
	lines, err := s.pidFile()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(lines[0]))
}

// stopStale ends a server still running on this folder and removes the pid file
// of one that is gone: its number may belong to any process by now. The caller
// holds the folder, so a running server can only be one whose parent was killed.
// Without /proc nobody can tell, and PostgreSQL's own check has to do.
func (s *Server) stopStale() error {
	pid, err := s.postmaster()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, noProc := os.Stat("/proc/self/cmdline"); err == nil && noProc != nil {
		return nil
	}
	deadline := time.Now().Add(stopTime)
	for signal := syscall.SIGINT; err == nil && s.isServer(pid); time.Sleep(20 * time.Millisecond) {
		if syscall.Kill(pid, signal) != nil {
			break
		}
		if time.Now().After(deadline) {
			signal = syscall.SIGKILL
		}
	}
	if err := os.Remove(filepath.Join(s.data(), "postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// isServer reports whether pid is a live PostgreSQL process of this folder.
func (s *Server) isServer(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := strings.Split(string(line), "\x00")
	return filepath.Base(args[0]) == "postgres" && strings.Contains(string(line), s.data())
}

// choosePort returns the port of the last start if it is free, so that a saved
// connection string keeps working, else any free one.
func (s *Server) choosePort() (int, error) {
	kept := filepath.Join(s.o.Dir, "port")
	if text, err := os.ReadFile(kept); err == nil {
		if port, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && free(port) {
			return port, nil
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return 0, err
	}
	return port, os.WriteFile(kept, []byte(strconv.Itoa(port)+"\n"), 0o600)
}

func free(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

func (s *Server) logTail() string {
	text, err := os.ReadFile(s.o.Log)
	if err != nil {
		return ""
	}
	return tail(string(text))
}

func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}
