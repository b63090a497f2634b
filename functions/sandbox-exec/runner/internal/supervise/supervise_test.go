package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/wire"
)

// The first bytes and the last are kept, the rest counted, whatever the pieces.
func TestCapture(t *testing.T) {
	for _, c := range []struct{ limit, total, piece int }{
		{10, 0, 1},
		{10, 10, 3},
		{10, 11, 3},
		{100, tailBytes - 1, 7},
		{100, tailBytes, 1000},
		{100, tailBytes + 1, 999},
		{100, 3*tailBytes + 5, tailBytes},
		{100, 5 * tailBytes, 3 * tailBytes},
		{1 << 20, 1 << 20, 65536},
		{0, 100, 9},
	} {
		text := make([]byte, c.total)
		for i := range text {
			text[i] = byte('a' + i%26)
		}
		capture, w, err := newCapture(int64(c.limit))
		if err != nil {
			t.Fatal(err)
		}
		go capture.drain()
		for rest := text; len(rest) > 0; {
			n := min(c.piece, len(rest))
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		w.Close()
		<-capture.done
		total, stored, tail := capture.counts()
		head := make([]byte, c.limit+1)
		n, _ := capture.at(0, head)
		want := text[:min(c.limit, c.total)]
		if total != int64(c.total) || stored != int64(len(want)) || !bytes.Equal(head[:n], want) {
			t.Errorf("%+v: total %d, stored %d, read %d", c, total, stored, n)
		}
		var end []byte
		if c.total > c.limit {
			end = text[max(0, c.total-tailBytes):]
		}
		if !bytes.Equal(tail, end) {
			t.Errorf("%+v: tail of %d, want %d", c, len(tail), len(end))
		}
		capture.forget()
		if n, _ := capture.at(0, head); n != 0 {
			t.Errorf("%+v: read %d after it was forgotten", c, n)
		}
	}
}

// What the command wrote before it ended is kept although another holds the
// pipe; what comes later is not, and its writer is not ended by it.
func TestSettle(t *testing.T) {
	capture, w, err := newCapture(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	go capture.drain()
	if _, err := w.Write(bytes.Repeat([]byte("x"), 60_000)); err != nil {
		t.Fatal(err)
	}
	capture.settle()
	if total, _, _ := capture.counts(); total != 60_000 {
		t.Errorf("kept %d", total)
	}
	for range 10 { // far more than a pipe holds: somebody still reads
		if _, err := w.Write(make([]byte, 1<<16)); err != nil {
			t.Fatal(err)
		}
	}
	if total, _, _ := capture.counts(); total != 60_000 {
		t.Errorf("counted %d", total)
	}
	w.Close()
}

func TestOOMCount(t *testing.T) {
	for text, want := range map[string]int{
		"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n":               3,
		"low 0\nhigh 0\nmax 9\noom 4\noom_kill 2\noom_group_kill 1\n": 2,
		"oom_kill_disable 0\nunder_oom 0\n":                           -1, "": -1, "oom_kill x\n": -1,
	} {
		n, ok := oomCount([]byte(text))
		if ok != (want >= 0) || ok && n != want {
			t.Errorf("%q: %d, %v", text, n, ok)
		}
	}
}

// What a Pod sees of its own cgroup, of both versions and of neither.
func TestMemoryLimit(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		limit      int64
		seen       bool
		room       int64
	}{
		"version 2":           {"memory.max", "67108864\n", 64 << 20, true, 32 << 20},
		"version 2, no limit": {"memory.max", "max\n", 0, false, keptBytes},
		"version 1":           {"memory/memory.limit_in_bytes", "536870912\n", 512 << 20, true, keptBytes},
		"version 1, no limit": {"memory/memory.limit_in_bytes", "9223372036854771712\n", 9223372036854771712, true, keptBytes},
		"nothing":             {"other", "1\n", 0, false, keptBytes},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(root+"/memory", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+"/"+c.file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if limit, seen := memoryLimit(root); limit != c.limit && c.seen || seen != c.seen || room(root) != c.room {
			t.Errorf("%s: %d, %v, room %d", name, limit, seen, room(root))
		}
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"A=1", "B=2=3", "C="}, map[string]string{"B": "new", "D": "a\nb"})
	slices.Sort(got)
	if want := []string{"A=1", "B=new", "C=", "D=a\nb"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A process may call itself anything.
func TestStatOfAnyName(t *testing.T) {
	sh, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/) Z 1 (\n"
	text, err := os.ReadFile(sh)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if state, parent, err := stat(cmd.Process.Pid); err != nil || state == 'Z' || parent != os.Getpid() {
		t.Errorf("%c, %d, %v", state, parent, err)
	}
}

func TestStatusFileIsWholeOrAbsent(t *testing.T) {
	dir := t.TempDir()
	s := newCommand(wire.Request{ID: "x"}).now()
	if err := writeStatus(dir, s); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dir + "/x.json")
	if err != nil || !strings.Contains(string(text), `"id":"x"`) {
		t.Errorf("%s, %v", text, err)
	}
	s.ID = "no/such/folder"
	if err := writeStatus(dir, s); err == nil {
		t.Error("written nowhere")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestWireBounds(t *testing.T) {
	var b bytes.Buffer
	if err := wire.WriteFrame(&b, wire.Stdout, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	if kind, payload, err := wire.ReadFrame(&b); err != nil || kind != wire.Stdout || string(payload) != "abc" {
		t.Errorf("%c %q %v", kind, payload, err)
	}
	for name, in := range map[string]string{"frame": "o\xff\xff\xff\xff", "torn": "o\x00\x00\x00\x09abc", "nothing": ""} {
		if _, _, err := wire.ReadFrame(strings.NewReader(in)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for name, in := range map[string]string{"request": "\xff\xff\xff\xff", "torn": "\x00\x00\x00\x09abc", "no JSON": "\x00\x00\x00\x03abc"} {
		if _, err := wire.ReadRequest(strings.NewReader(in)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := wire.WriteRequest(io.Discard, wire.Request{Command: []string{strings.Repeat("x", wire.MaxRequest)}}); !errors.Is(err, wire.ErrTooLarge) {
		t.Error(err)
	}
}

// The oldest output goes first when more is kept than may be; the newest and
// every outcome stay, and no id is started again.
func TestKeptOutputIsBounded(t *testing.T) {
	s := &supervisor{commands: map[string]*command{}, kept: keptBytes}
	const each = 20 << 20
	for i := range 5 {
		c, fresh, _ := s.enter(wire.Request{ID: fmt.Sprint("c", i), Nonce: "n"})
		if !fresh {
			t.Fatal("not fresh")
		}
		for _, stream := range []**capture{&c.stdout, &c.stderr} {
			capture, w, err := newCapture(1)
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
			capture.stored = each / 2
			*stream = capture
		}
		close(c.started)
		s.leave(c)
	}
	kept := 0
	for i := range 5 {
		c, fresh, _ := s.enter(wire.Request{ID: fmt.Sprint("c", i), Nonce: "n"})
		if fresh {
			t.Errorf("c%d would start again", i)
		}
		if c.stdout.file != nil {
			kept++
		} else if i == 4 {
			t.Error("the newest was dropped")
		}
	}
	if kept != 3 {
		t.Errorf("%d are kept", kept)
	}
	if len(s.order) != kept || time.Since(s.lastUse) > time.Minute {
		t.Errorf("order %d", len(s.order))
	}
}
