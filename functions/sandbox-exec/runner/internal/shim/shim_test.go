package shim

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNoProgram(t *testing.T) {
	for err, want := range map[error]bool{
		unix.ENOENT: true, unix.EACCES: true, unix.ENOEXEC: true,
		unix.E2BIG: false, unix.EAGAIN: false, unix.ENOMEM: false, unix.EIO: false, // the command's length, or what the sandbox has left
	} {
		if got := noProgram(fmt.Errorf("exec: %w", err)); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

func TestReadFailure(t *testing.T) {
	if err := ReadFailure(strings.NewReader("")); err != nil {
		t.Errorf("silence is no failure: %v", err)
	}
	f, ok := errors.AsType[*Failure](ReadFailure(strings.NewReader(`{"message":"no bash","noProgram":true}`)))
	if !ok || !f.NoProgram || f.Error() != "no bash" {
		t.Errorf("%+v", f)
	}
	if err := ReadFailure(strings.NewReader("fatal error: out of memory")); err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("a shim that broke: %v", err)
	}
}
