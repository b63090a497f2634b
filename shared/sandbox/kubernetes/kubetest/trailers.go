package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	"tuluat.ai/harness/shared/sandbox/trailer"
)

// Input is what a runner's client reads from stdin.
type Input struct {
	Nonce   string            `json:"nonce"`
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
}

// Input reads the exec's stdin to its end.
func (x *Exec) Input() (Input, error) {
	var in Input
	if x.Stdin == nil {
		return in, io.EOF
	}
	text, err := io.ReadAll(x.Stdin)
	if err != nil {
		return in, err
	}
	return in, json.Unmarshal(text, &in)
}

// Flag returns the value of --name, as in `--id x`.
func (x *Exec) Flag(name string) string {
	for i, arg := range x.Argv {
		if arg == "--"+name && i+1 < len(x.Argv) {
			return x.Argv[i+1]
		}
		if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return v
		}
	}
	return ""
}

// Line prints one of the runner's lines: st, sealed by nonce, of the id that was
// asked for unless st has another.
func (x *Exec) Line(st trailer.Status, nonce string) {
	if st.ID == "" {
		st.ID = x.Flag("id")
	}
	sealed, err := trailer.Seal(st, nonce)
	if err != nil { // a status always marshals
		panic(err)
	}
	_, _ = fmt.Fprintf(x.Stderr, "%s%s\n", trailer.Marker, sealed)
}

// Prints is a script without a trailer: it reads its input, prints, and ends.
func Prints(stdout, stderr string, end Ending) Script {
	return func(_ context.Context, x *Exec) Ending {
		if x.Stdin != nil {
			_, _ = io.Copy(io.Discard, x.Stdin)
		}
		_, _ = io.WriteString(x.Stdout, stdout)
		_, _ = io.WriteString(x.Stderr, stderr)
		return end
	}
}

// Answers is a script as a runner's: a note that the command has begun, when st
// is an outcome of one that did; output; the last word; the ending.
func Answers(st trailer.Status, stdout, stderr string, end Ending) Script {
	return func(_ context.Context, x *Exec) Ending {
		in, err := x.Input()
		if err != nil {
			return Cut()
		}
		if operation(x.Argv) == "run" && st.Started {
			x.Line(trailer.Status{State: trailer.Running, Started: true}, in.Nonce)
		}
		_, _ = io.WriteString(x.Stdout, stdout)
		_, _ = io.WriteString(x.Stderr, stderr)
		x.Line(st, in.Nonce)
		return end
	}
}

// Begins is a script of a command that begins, prints, and whose stream then ends
// without the runner's last word.
func Begins(stdout string, end Ending) Script {
	return func(_ context.Context, x *Exec) Ending {
		in, err := x.Input()
		if err != nil {
			return Cut()
		}
		x.Line(trailer.Status{State: trailer.Running, Started: true}, in.Nonce)
		_, _ = io.WriteString(x.Stdout, stdout)
		return end
	}
}

// Instead lets script run and ends in another way.
func Instead(script Script, end Ending) Script {
	return func(ctx context.Context, x *Exec) Ending {
		script(ctx, x)
		return end
	}
}

// Short lets script run and loses the last n bytes of its stdout.
func Short(script Script, n int) Script {
	return func(ctx context.Context, x *Exec) Ending {
		kept := &tail{w: x.Stdout, n: n}
		x.Stdout = kept
		return script(ctx, x)
	}
}

// tail passes on everything but the last n bytes.
type tail struct {
	w    io.Writer
	n    int
	hold []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.hold = append(t.hold, p...)
	if ready := len(t.hold) - t.n; ready > 0 {
		if _, err := t.w.Write(t.hold[:ready]); err != nil {
			return 0, err
		}
		t.hold = append([]byte(nil), t.hold[ready:]...)
	}
	return len(p), nil
}

// After lets script run until it has printed n bytes on stdout, and then ends the
// stream in another way while the script goes on, as a command does whose stream
// is lost.
func After(script Script, n int, end Ending) Script {
	return func(_ context.Context, x *Exec) Ending {
		m := &meter{left: n, reached: make(chan struct{})}
		inner := *x
		inner.Stdout, inner.Stderr = m.writer(x.Stdout, true), m.writer(x.Stderr, false)
		ended := make(chan Ending, 1)
		x.server.work.Go(func() { ended <- script(x.server.ctx, &inner) })
		select {
		case <-m.reached:
			return end
		case e := <-ended:
			return e
		}
	}
}

// meter passes on everything until left bytes of what counts have come, and then
// drops all of it.
type meter struct {
	mu      sync.Mutex
	left    int
	reached chan struct{}
	over    bool
}

func (m *meter) writer(w io.Writer, counts bool) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		take := p
		switch {
		case m.over:
			return len(p), nil
		case counts:
			take = p[:min(m.left, len(p))]
			m.left -= len(take)
		}
		if _, err := w.Write(take); err != nil {
			return 0, err
		}
		if counts && m.left == 0 {
			m.over = true
			close(m.reached)
		}
		return len(p), nil
	})
}
