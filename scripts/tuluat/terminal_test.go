//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// terminal is a pseudo terminal with the CLI on it.
type terminal struct {
	t      testing.TB
	keys   *os.File
	mu     sync.Mutex
	screen bytes.Buffer
	cmd    *exec.Cmd
	read   chan struct{}
}

func (w *world) terminal(args ...string) *terminal {
	w.T.Helper()
	return startTerminal(w.T, w.cli, []string{"TULUAT_HOME=" + w.home, "USER=ann"}, args...)
}

func startTerminal(t testing.TB, cli string, env []string, args ...string) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	var number, unlock uint32
	for request, value := range map[uintptr]*uint32{syscall.TIOCGPTN: &number, syscall.TIOCSPTLCK: &unlock} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, keys.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
			t.Fatal(errno)
		}
	}
	side, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, keys: keys, cmd: exec.Command(cli, args...), read: make(chan struct{})}
	x.cmd.Env = env
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = side, side, side
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	side.Close()
	go func() {
		defer close(x.read)
		buffer := make([]byte, 4096)
		for {
			n, err := keys.Read(buffer)
			x.mu.Lock()
			x.screen.Write(buffer[:n])
			x.mu.Unlock()
			if err != nil { // EIO: the other side is closed
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill() // it may have ended
		keys.Close()
		<-x.read
	})
	return x
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.screen.String()
}

// shows waits until text stands on the screen after the part seen before.
func (x *terminal) shows(text string) {
	x.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !strings.Contains(x.text(), text) {
		if time.Now().After(deadline) {
			x.t.Fatalf("the screen does not show %q:\n%q", text, x.text())
		}
		time.Sleep(10 * time.Millisecond)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	_, rest, _ := strings.Cut(x.screen.String(), text)
	x.screen.Reset()
	x.screen.WriteString(rest)
}

func (x *terminal) types(keys string) {
	x.t.Helper()
	if _, err := x.keys.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) ends(code int) {
	x.t.Helper()
	if err := x.cmd.Wait(); x.cmd.ProcessState.ExitCode() != code {
		x.t.Errorf("ended with %v, want code %d:\n%q", err, code, x.text())
	}
}

func TestTerminalChat(t *testing.T) {
	w := newWorld(t)
	w.agent()
	x := w.terminal("chat", "coder")
	x.shows("coder at " + w.url)
	x.shows("> ")
	x.types("run: ls\n")
	x.shows("\x1b[2mexecuteShell $ ls\x1b[0m")
	x.shows("\x1b[2m  second\x1b[0m")
	x.shows("\x1b[2m  exit 7\x1b[0m")
	x.shows("it printed ls\r\n> ")
	if got := w.tuluat(nil, "send", "coder", "from elsewhere", "--wait"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	x.shows("ann: from elsewhere")
	x.shows("you said: from elsewhere")
	x.types("/quit\n")
	x.ends(0)

	x = w.terminal("chat", "coder")
	x.shows("An earlier conversation goes on: 2 turns so far.")
	x.types("/new\n")
	x.shows("A new conversation.")
	x.types("\x04") // Ctrl-D
	x.ends(0)

	x = w.terminal("chat", "coder", "--timeout", "1s")
	x.shows("> ")
	if strings.Contains(x.text(), "earlier") {
		t.Error("after /new nothing goes on")
	}
	x.types("silent\n")
	x.shows("no answer within 1s")
	x.shows("> ")
	x.types("\x03") // Ctrl-C
	x.ends(130)
}
