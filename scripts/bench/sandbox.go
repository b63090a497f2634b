package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/driver"
)

const (
	crowd       = 20  // sandboxes at once
	outputShare = 0.8 // of the raw rate, at least
	mostOutput  = 100_000_000
	flatGrowth  = 1.5 // of the memory of sandbox-exec, at most
)

// outputs are how much a command prints, in bytes.
var outputs = []int{1, 1_000, 1_000_000, 10_000_000, mostOutput}

// sandboxes measures local sandboxes beside what bubblewrap needs for the same
// namespaces without a runner, proof, limits and books.
func sandboxes(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	dir, err := os.MkdirTemp("", "tb") // short and passable
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	d, err := driver.New(driver.Options{Driver: driver.Local, LocalDir: filepath.Join(dir, "sb"), LocalRunner: filepath.Join(bin, "runner")}, slog.New(slog.DiscardHandler))
	if harness.KindOf(err) == harness.Invalid {
		return []figure.Figure{{Name: "sandboxes on this machine", Note: harness.MessageOf(err) + ": not measured"}}, nil
	}
	if err != nil {
		return nil, err
	}
	figures, err := coldAndWarm(ctx, o, d)
	if err != nil {
		return nil, err
	}
	more, err := printed(ctx, o, d)
	if err != nil {
		return nil, err
	}
	held, err := heldMeanwhile(ctx, o, bin, pg)
	return append(append(figures, more...), held...), err
}

func boxSpec() harness.SandboxSpec {
	spec := harness.DefaultSandbox()
	spec.MemoryBytes, spec.VolumeBytes = 1<<30, 512<<20
	return spec
}

func newBox() sandbox.Sandbox {
	now := time.Now()
	id := harness.NewSandboxID(now)
	return sandbox.Sandbox{ID: id, Name: "bench-" + string(id)[len(id)-16:], Agent: "bench", Session: harness.NewSessionID(now), Spec: boxSpec(), ExpiresAt: now.Add(10 * time.Minute)}
}

// inBox runs one command and takes what it prints: as much of it as a sandbox
// keeps, 32 MiB of a stream at most; the rest is drained and counted.
func inBox(ctx context.Context, d sandbox.Driver, sb sandbox.Sandbox, command ...string) (printed, came int64, err error) {
	result, err := sandbox.Exec(ctx, d, sb, sandbox.Request{
		ID: harness.NewExecutionID(time.Now()), Nonce: rand.Text(), Command: command, Timeout: time.Minute, MaxOutput: 2 * mostOutput,
	}, func(_ string, _ int64, data []byte) { came += int64(len(data)) })
	if err == nil && result.State != harness.ExecutionCompleted {
		err = fmt.Errorf("%q is %s %s %q", command, result.State, result.Reason, result.Message)
	}
	return result.StdoutBytes, came, err
}

// startBox makes a sandbox and runs `true` there.
func startBox(ctx context.Context, d sandbox.Driver) (sandbox.Sandbox, time.Duration, error) {
	sb := newBox()
	began := time.Now()
	var err error
	if sb.UID, err = d.Start(ctx, sb); err != nil {
		return sb, 0, err
	}
	_, _, err = inBox(ctx, d, sb, "true")
	return sb, time.Since(began), err
}

// raw runs a command with bubblewrap alone.
func raw(ctx context.Context, command ...string) (printed int64, err error) {
	args := []string{"--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--ro-bind", "/usr", "/usr"}
	for _, folder := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		if target, err := os.Readlink(folder); err == nil {
			args = append(args, "--symlink", target, folder)
		} else if _, err := os.Stat(folder); err == nil {
			args = append(args, "--ro-bind", folder, folder)
		}
	}
	args = append(args, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "--chdir", "/workspace", "--")
	cmd := exec.CommandContext(ctx, "bwrap", append(args, command...)...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	printed, err = io.Copy(io.Discard, pipe)
	return printed, errors.Join(err, cmd.Wait())
}

func coldAndWarm(ctx context.Context, o options, d sandbox.Driver) ([]figure.Figure, error) {
	say("sandboxes: %d cold, follow-up and %d at once, each beside bubblewrap alone, in turn", o.boxes, crowd)
	var cold, warm, bare, coldOver, warmOver []float64
	for n := range o.boxes + 1 {
		sb, took, err := startBox(ctx, d)
		if err != nil {
			return nil, errors.Join(err, d.Terminate(context.WithoutCancel(ctx), sb))
		}
		began := time.Now()
		_, _, err = inBox(ctx, d, sb, "true")
		again := time.Since(began)
		if err = errors.Join(err, d.Terminate(context.WithoutCancel(ctx), sb)); err != nil {
			return nil, err
		}
		began = time.Now()
		if _, err := raw(ctx, "true"); err != nil {
			return nil, err
		}
		alone := time.Since(began)
		if n == 0 {
			continue // files are read for the first time
		}
		cold, warm, bare = append(cold, figure.Milliseconds(took)), append(warm, figure.Milliseconds(again)), append(bare, figure.Milliseconds(alone))
		coldOver, warmOver = append(coldOver, took.Seconds()/alone.Seconds()), append(warmOver, again.Seconds()/alone.Seconds())
	}
	var together, bareTogether, ratio []float64
	for range min(o.pairs, 5) {
		ours, err := atOnceTook(func() error {
			sb, _, err := startBox(ctx, d)
			return errors.Join(err, d.Terminate(context.WithoutCancel(ctx), sb))
		})
		if err != nil {
			return nil, err
		}
		alone, err := atOnceTook(func() error {
			_, err := raw(ctx, "true")
			return err
		})
		if err != nil {
			return nil, err
		}
		together, bareTogether = append(together, figure.Milliseconds(ours)), append(bareTogether, figure.Milliseconds(alone))
		ratio = append(ratio, ours.Seconds()/alone.Seconds())
	}
	return []figure.Figure{
		figure.Of("sandbox on this machine, cold: start and `true`, proved", "ms", cold...),
		figure.Of("sandbox on this machine, follow-up: `true`, proved", "ms", warm...),
		figure.Of("bwrap alone with the same namespaces: `true`", "ms", bare...),
		figure.Of("cold / bwrap alone", "ratio", coldOver...),
		figure.Of("follow-up / bwrap alone", "ratio", warmOver...),
		figure.Of("20 sandboxes at once: start, `true`, end", "ms", together...),
		figure.Of("20 times bwrap alone at once", "ms", bareTogether...),
		figure.Of("20 at once / bwrap alone", "ratio", ratio...),
	}, nil
}

func atOnceTook(do func() error) (time.Duration, error) {
	var running sync.WaitGroup
	failed := make([]error, crowd)
	began := time.Now()
	for n := range crowd {
		running.Go(func() { failed[n] = do() })
	}
	running.Wait()
	return time.Since(began), errors.Join(failed...)
}

// printing is a command that prints n bytes as fast as it can.
func printing(n int) []string { return []string{"head", "-c", fmt.Sprint(n), "/dev/zero"} }

func printed(ctx context.Context, o options, d sandbox.Driver) ([]figure.Figure, error) {
	var figures []figure.Figure
	for _, n := range outputs {
		say("sandboxes: a command that prints %d bytes", n)
		var ours, alone, ratio []float64
		var came int64
		for run := range o.pairs + 1 {
			took, kept, err := printOnce(ctx, d, n)
			if err != nil {
				return nil, err
			}
			began := time.Now()
			got, err := raw(ctx, printing(n)...)
			bare := time.Since(began)
			if err == nil && got != int64(n) {
				err = fmt.Errorf("%d bytes were printed, %d came", n, got)
			}
			if err != nil {
				return nil, err
			}
			if run > 0 {
				came = kept
				ours, alone = append(ours, figure.Milliseconds(took)), append(alone, figure.Milliseconds(bare))
				ratio = append(ratio, bare.Seconds()/took.Seconds())
			}
		}
		name := fmt.Sprintf("%d bytes printed", n)
		rate := figure.Of(name+": rate, ours / bwrap alone", "ratio", ratio...)
		if n == mostOutput {
			rate = rate.AtLeast(outputShare, "at least 0.8")
			figures = append(figures, figure.Of(name+": of them kept by the sandbox and taken", "B", float64(came)))
		}
		figures = append(figures, figure.Of(name+", proved", "ms", ours...), figure.Of(name+", bwrap alone", "ms", alone...), rate)
	}
	return figures, nil
}

// printOnce has a sandbox of its own, whose volume what it prints does not share.
func printOnce(ctx context.Context, d sandbox.Driver, n int) (took time.Duration, came int64, err error) {
	sb, _, err := startBox(ctx, d)
	defer func() { err = errors.Join(err, d.Terminate(context.WithoutCancel(ctx), sb)) }()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	got, kept, err := inBox(ctx, d, sb, printing(n)...)
	if err == nil && got != int64(n) {
		err = fmt.Errorf("%d bytes were printed, %d were counted", n, got)
	}
	return time.Since(began), kept, err
}

// heldMeanwhile reads the most memory that sandbox-exec has held behind commands
// that print nothing, and behind one that prints 100 MB into the database.
func heldMeanwhile(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	w, err := startWorld(ctx, bin, pg, worldOptions{database: "bench_output", model: commands, output: 2 * mostOutput})
	if err != nil {
		return nil, err
	}
	defer w.stop()
	for range 5 {
		if _, err := w.turn(ctx, "user", "true"); err != nil {
			return nil, err
		}
	}
	before, err := peakOf("sandbox-exec")
	if err != nil {
		return nil, err
	}
	say("sandboxes: %d bytes through every function into the database", mostOutput)
	took, err := w.turn(ctx, "user", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", mostOutput))
	if err != nil {
		return nil, err
	}
	after, err := peakOf("sandbox-exec")
	if err != nil {
		return nil, err
	}
	return []figure.Figure{
		figure.Of("sandbox-exec: most memory held, commands without output", "MiB", before/(1<<20)),
		figure.Of("sandbox-exec: most memory held, 100 MB printed, stored as far as kept", "MiB", after/(1<<20)),
		figure.Of("sandbox-exec: memory with 100 MB of output / without", "ratio", after/before).AtMost(flatGrowth, "at most 1.5: it does not grow with what flows"),
		figure.Of("message to reply with 100 MB printed, stored as far as kept", "s", took.Seconds()),
	}, nil
}
