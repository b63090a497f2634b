//go:build local

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// Stream runs the runner on this machine, outside, against the sandbox's
// socket.
func (d *Driver) Stream(ctx context.Context, sb sandbox.Sandbox, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if err := d.prepare(); err != nil {
		return err
	}
	p, _, err := d.living(sb)
	if err != nil {
		return err
	}
	err = d.client(ctx, p, argv, stdin, stdout, stderr)
	if err == nil {
		return nil
	}
	if _, _, gone := d.living(sb); gone != nil {
		return errors.Join(gone, err)
	}
	return harness.Wrap(harness.Unavailable, err, "the sandbox could not be reached")
}

// living returns the sandbox's folder when it is the one meant and lives.
func (d *Driver) living(sb sandbox.Sandbox) (place, state, error) {
	if !validName.MatchString(sb.Name) {
		return "", state{}, sandbox.ErrGone
	}
	p := d.place(sb.Name)
	st, err := readState(p)
	if errors.Is(err, fs.ErrNotExist) {
		return p, st, sandbox.ErrGone
	}
	if err != nil {
		return p, st, harness.Wrap(harness.Internal, err, "the sandbox's state is unreadable")
	}
	if sb.UID == "" || st.UID != sb.UID || !st.Process.alive() {
		return p, st, sandbox.ErrGone
	}
	return p, st, nil
}

// client runs one of the runner's clients. When ctx ends it is killed, which
// changes nothing for the command.
func (d *Driver) client(ctx context.Context, p place, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(argv) == 0 {
		return errors.New("no runner command")
	}
	args := append([]string{argv[0], "--socket", p.socket()}, argv[1:]...)
	cmd := exec.CommandContext(ctx, d.runner, args...)
	cmd.Env = []string{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.WaitDelay = time.Second // for pipes to drain once it is dead
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("runner %s: %w", argv[0], err)
	}
	return nil
}

// Inspect reads the sandbox's books.
func (d *Driver) Inspect(_ context.Context, sb sandbox.Sandbox) (sandbox.Condition, error) {
	p, st, err := d.living(sb)
	switch {
	case errors.Is(err, sandbox.ErrGone) && (st.UID == "" || st.UID != sb.UID):
		return sandbox.Condition{Reason: "removed"}, nil
	case errors.Is(err, sandbox.ErrGone):
		return sandbox.Condition{OOMKills: oomKills(st.Cgroups), Reason: endReason(p)}, nil
	case err != nil:
		return sandbox.Condition{}, err
	}
	return sandbox.Condition{Exists: true, OOMKills: oomKills(st.Cgroups)}, nil
}

// endReason is why PID 1 ended, if it had the time to say so.
func endReason(p place) string {
	text, err := os.ReadFile(p.log())
	if err != nil {
		return "the sandbox ended"
	}
	text = bytes.TrimSpace(text)
	var last struct {
		Reason string `json:"reason"`
	}
	if json.Unmarshal(text[bytes.LastIndexByte(text, '\n')+1:], &last) != nil || last.Reason == "" {
		return "the sandbox ended without a word"
	}
	return "the sandbox ended: " + last.Reason
}
