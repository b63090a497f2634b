package localpg

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func start(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(context.Background(), Options{Dir: dir, Throwaway: true, Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func query(t *testing.T, dsn, sql string) (string, error) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.Background())
	var value string
	return value, conn.QueryRow(context.Background(), sql).Scan(&value)
}

func mustQuery(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var value string
	if err := conn.QueryRow(context.Background(), sql).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// A restart keeps data, port and password, so that a saved connection string
// stays good; and no socket file is there for anything to find.
func TestRestartKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir)
	keep(t, first)
	if sockets := mustQuery(t, first, "SHOW unix_socket_directories"); sockets != "" {
		t.Errorf("the server has a socket in %s", sockets)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
	second := start(t, dir)
	if first.DSN("x") != second.DSN("x") {
		t.Error("the connection string changed")
	}
	if got := mustQuery(t, second, "SELECT v FROM kept"); got != "yes" {
		t.Errorf("got %q", got)
	}
}

func TestPasswordIsNeeded(t *testing.T) {
	s := start(t, t.TempDir())
	wrong := strings.Replace(s.DSN("postgres"), s.password, "guess", 1)
	if _, err := query(t, wrong, "SELECT 'in'"); err == nil {
		t.Error("a wrong password was accepted")
	}
}

// keep leaves a row to be found by the server's next start.
func keep(t *testing.T, s *Server) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), "CREATE TABLE kept AS SELECT 'yes' AS v"); err != nil {
		t.Fatal(err)
	}
}

// However a server ended, and even if its parent was killed and it has not, the
// next one starts and has the data. All on one folder, one after the other.
func TestStartAfterACrash(t *testing.T) {
	dir := t.TempDir()
	keep(t, start(t, dir))
	for _, c := range []struct {
		name  string
		crash func(*testing.T, *Server)
	}{
		{"still running", func(*testing.T, *Server) {}},
		{"killed", func(t *testing.T, s *Server) {
			pid, err := s.postmaster()
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-s.exited
		}},
		{"pid of another", func(t *testing.T, s *Server) { stopAndWrite(t, s, strconv.Itoa(os.Getpid())) }},
		{"pid file of rubbish", func(t *testing.T, s *Server) { stopAndWrite(t, s, "") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := start(t, dir)
			c.crash(t, first)
			second := start(t, dir)
			if got := mustQuery(t, second, "SELECT v FROM kept"); got != "yes" {
				t.Errorf("got %q", got)
			}
			select {
			case <-first.Exited():
			default:
				t.Error("two servers run on one folder")
			}
		})
	}
}

func stopAndWrite(t *testing.T, s *Server, pid string) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	text := pid + "\n" + s.data() + "\n1\n5432\n\n127.0.0.1\n\nready\n"
	if pid == "" {
		text = "rubbish"
	}
	if err := os.WriteFile(filepath.Join(s.data(), "postmaster.pid"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A folder that initdb did not finish is made again.
func TestHalfMadeFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := mustQuery(t, start(t, dir), "SELECT 'yes'"); got != "yes" {
		t.Errorf("got %q", got)
	}
}

func TestDataOfAnotherVersion(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(context.Background(), Options{Dir: dir, Log: filepath.Join(dir, "log")})
	if err == nil || !strings.Contains(err.Error(), "was made by PostgreSQL 9") {
		t.Errorf("got %v", err)
	}
}

// Old servers are refused, and the message says what to run.
func TestNewestInstall(t *testing.T) {
	program := func(version string) string {
		dir := t.TempDir()
		for _, name := range []string{"initdb", "postgres"} {
			script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
			if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	old, fifteen, eighteen := program("13.4"), program("15.18 (Debian 15.18-0+deb12u1)"), program("18beta1")
	got, err := newest([]string{fifteen, eighteen, old, t.TempDir()})
	if err != nil || got != (Install{Bin: eighteen, Version: 18}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, folders := range [][]string{{old}, nil} {
		_, err := newest(folders)
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), InstallCommand) {
			t.Errorf("%v: got %v", folders, err)
		}
	}
}

// A server must not outlive a starter that is killed.
func TestServerEndsWithItsStarter(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperStarter$")
	cmd.Env = append(os.Environ(), "LOCALPG_HELPER_DIR="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	probe := &Server{o: Options{Dir: dir}}
	pid := 0
	await(t, "the helper's server", func() bool {
		lines, err := probe.pidFile()
		if err != nil || len(lines) < 8 || strings.TrimSpace(lines[7]) != "ready" {
			return false
		}
		pid, err = probe.postmaster()
		return err == nil
	})
	if !probe.isServer(pid) {
		t.Fatalf("process %d is not the server", pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	await(t, "the end of the orphan", func() bool { return !probe.isServer(pid) })
}

func TestHelperStarter(t *testing.T) {
	dir := os.Getenv("LOCALPG_HELPER_DIR")
	if dir == "" {
		t.Skip("run by TestServerEndsWithItsStarter")
	}
	s, err := Start(context.Background(), Options{Dir: dir, Throwaway: true, Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	<-s.Exited()
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
