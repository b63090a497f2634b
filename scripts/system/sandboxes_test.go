//go:build system

package system_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"tuluat.ai/harness/shared/sandbox/driver"
)

// killSandbox ends the sandbox in which a command began last, as a node that
// dies takes it along. It reports whether there was one.
func (w *world) killSandbox() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var name string
	err := w.db.QueryRow(ctx, `SELECT s.sandbox_name FROM executions e JOIN sandboxes s USING (sandbox_id)
		WHERE e.state = 'RUNNING' ORDER BY e.started_at DESC LIMIT 1`).Scan(&name)
	return err == nil && w.killNamed(name)
}

// killNamed ends a sandbox by its name.
func (w *world) killNamed(name string) bool {
	text, err := os.ReadFile(filepath.Join(w.sandboxs, name, "state.json"))
	if err != nil {
		return false
	}
	var state struct {
		Token   string
		Process struct{ PID int }
	}
	if err := json.Unmarshal(text, &state); err != nil || state.Process.PID <= 1 {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", state.Process.PID))
	if err != nil || !bytes.Contains(line, []byte(state.Token)) {
		return false // it has ended; the number may be another's by now
	}
	return syscall.Kill(state.Process.PID, syscall.SIGKILL) == nil
}

// remains are the traces of sandboxes on this machine: what their driver lists,
// and processes and cgroups that carry a name of theirs.
func (w *world) remains() (listed, processes, cgroups []string) {
	w.t.Helper()
	d, err := driver.New(driver.Options{
		Driver: driver.Local, LocalDir: w.sandboxs, LocalRunner: filepath.Join(programDir(w.t), "runner"),
	}, slog.New(slog.DiscardHandler))
	w.must(err)
	found, err := d.List(w.t.Context())
	w.must(err)
	for _, f := range found {
		listed = append(listed, f.Name)
	}
	names := w.sandboxNames()
	named := func(text string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(text, name) })
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	w.must(err)
	for _, file := range lines {
		text, err := os.ReadFile(file)
		if err == nil && (named(string(text)) || bytes.Contains(text, []byte(w.sandboxs))) {
			processes = append(processes, filepath.Base(filepath.Dir(file))+" "+strings.ReplaceAll(string(text[:min(len(text), 200)]), "\x00", " "))
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone since it was listed, or not ours to read
		}
		if entry.IsDir() && named(entry.Name()) {
			cgroups = append(cgroups, path)
		}
		return nil
	})
	w.must(err)
	return listed, processes, cgroups
}

func (w *world) sandboxNames() []string {
	w.t.Helper()
	return w.strings("SELECT sandbox_name FROM sandboxes ORDER BY 1")
}
