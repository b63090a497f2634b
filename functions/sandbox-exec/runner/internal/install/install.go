// Package install puts the runner where a sandbox finds it: what the init
// container of a Pod does.
package install

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Name is the runner's file name in its folder.
const Name = "runner"

// Main copies this executable. See README.md.
func Main(args []string) error {
	var dir string
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	flags.StringVar(&dir, "to", "", "an existing folder, writable now and read-only in the sandbox")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if dir == "" || flags.NArg() > 0 {
		return errors.New("usage: runner install --to DIR")
	}
	if err := Install("/proc/self/exe", dir); err != nil {
		return fmt.Errorf("install to %s: %w", dir, err)
	}
	return nil
}

// Install copies the program to dir/runner, whole or not at all, also over an
// earlier one. The file can be executed and not read: the kernel then lets no
// process of the same user look into one that runs it, from its first moment on.
func Install(program, dir string) (err error) {
	from, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("read the runner: %w", err)
	}
	defer from.Close()
	if err := writable(dir); err != nil {
		return err
	}
	temp := filepath.Join(dir, ".runner") // always the same: what a killed call has left goes
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("make room: %w", err)
	}
	to, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make a file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	_, err = io.Copy(to, from)
	err = errors.Join(err, to.Chmod(0o111), to.Close())
	if err != nil {
		return fmt.Errorf("write the runner: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(dir, Name)); err != nil {
		return fmt.Errorf("name the runner: %w", err)
	}
	// A volume's own folder belongs to the kubelet and stays as it is; what keeps
	// commands from writing there is that the sandbox mounts it read-only.
	if err := os.Chmod(dir, 0o555); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("shut the folder: %w", err)
	}
	return nil
}

// writable opens a folder that an earlier call has shut.
func writable(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("it is no folder")
	}
	if unix.Access(dir, unix.W_OK) == nil {
		return nil
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("it cannot be written: %w", err)
	}
	return nil
}
