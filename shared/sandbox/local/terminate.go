//go:build local

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// Terminate removes the sandbox.
func (d *Driver) Terminate(ctx context.Context, sb sandbox.Sandbox) error {
	if !validName.MatchString(sb.Name) {
		return nil // nothing can have this name
	}
	if err := d.prepare(); err != nil {
		return err
	}
	unlock, err := d.lock(ctx, sb.Name)
	if err != nil {
		return err
	}
	defer unlock()
	p := d.place(sb.Name)
	st, err := readState(p)
	if err == nil && sb.UID != "" && st.UID != "" && st.UID != sb.UID {
		return nil // the one meant is gone; this is another
	}
	return d.purge(ctx, p)
}

// purge kills whatever of a sandbox lives, proves that nothing does, and
// removes its traces, the folder last. The caller holds the name's lock.
func (d *Driver) purge(ctx context.Context, p place) error {
	// What has been begun is finished though the caller gives up: a half removed
	// sandbox helps nobody.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), purgeBound, errors.New("removal of a local sandbox"))
	defer cancel()
	failed := func(err error) error {
		return harness.Wrap(harness.Unavailable, err, "the sandbox could not be proved gone")
	}
	st, err := readState(p)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err)
	}
	alive, err := os.OpenFile(p.alive(), os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist): // nothing was ever started
	case err != nil:
		return failed(err)
	default:
		err = errors.Join(d.killAll(ctx, st, alive), alive.Close())
		if err != nil {
			return failed(err)
		}
	}
	if err := removeCgroups(ctx, st.Cgroups); err != nil {
		return failed(err)
	}
	if err := os.RemoveAll(string(p)); err != nil {
		return failed(err)
	}
	return nil
}

// killAll kills until the sandbox's own lock is free, which the kernel keeps
// while any process that could be of it lives.
func (d *Driver) killAll(ctx context.Context, st state, alive *os.File) error {
	for {
		targets := append(members(st.Cgroups), st.Process)
		if st.UID == "" { // its start did not finish: PID 1 may be known to nobody
			targets = append(targets, bearers(st.Token)...)
		}
		for _, t := range targets {
			if err := t.kill(); err != nil {
				return err
			}
		}
		round, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		err := flock(round, alive)
		cancel()
		if err == nil && len(members(st.Cgroups)) == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, errLocked) || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		time.Sleep(time.Millisecond) // the lock is free already, the last of its processes is not
	}
}

// List returns every sandbox that has a folder, dead or alive, started whole or
// in part.
func (d *Driver) List(_ context.Context) ([]sandbox.Found, error) {
	entries, err := os.ReadDir(d.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no sandbox was ever started here
	}
	if err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, "the sandbox folder cannot be read")
	}
	found := make([]sandbox.Found, 0, len(entries))
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		f := sandbox.Found{Name: e.Name()}
		if st, err := readState(d.place(e.Name())); err == nil {
			f.UID, f.CreatedAt = st.UID, st.CreatedAt
		} else if info, err := e.Info(); err == nil {
			f.CreatedAt = info.ModTime()
		} else {
			continue // removed this moment
		}
		found = append(found, f)
	}
	return found, nil
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}
