package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/dev/handover"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/driver"
)

// sandboxes is where the local sandboxes of this state folder live: a short
// path that the sandboxes' unprivileged user may pass, outside the state folder.
type sandboxes struct {
	dir, runner string
	driver      sandbox.Driver
}

func openSandboxes(h handover.Handover, log *slog.Logger) (*sandboxes, error) {
	sum := sha256.Sum256([]byte(h.State))
	dir := filepath.Join(os.TempDir(), "tuluat-"+hex.EncodeToString(sum[:4]))
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	// Everybody may make names in the temporary folder: take only our own.
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%s belongs to another user: remove it, or set TMPDIR", dir)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	b := &sandboxes{dir: filepath.Join(dir, "sb"), runner: filepath.Join(h.Bin(), "runner")}
	b.driver, err = driver.New(driver.Options{Driver: driver.Local, LocalDir: b.dir, LocalRunner: b.runner}, log)
	return b, err
}

func (b *sandboxes) environment() map[string]string {
	return map[string]string{"SANDBOX_DRIVER": driver.Local, "SANDBOX_LOCAL_DIR": b.dir, "SANDBOX_LOCAL_RUNNER": b.runner}
}

// endTime bounds the end of all sandboxes together.
const endTime = 20 * time.Second

// end removes every sandbox. They outlive the functions that made them, but not
// this platform; the next sweep finds their rows without an object.
func (b *sandboxes) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	found, err := b.driver.List(ctx)
	problems := []error{err}
	for _, f := range found {
		problems = append(problems, b.driver.Terminate(ctx, sandbox.Sandbox{Name: f.Name, UID: f.UID}))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("end the sandboxes: %w", err)
	}
	return nil
}
