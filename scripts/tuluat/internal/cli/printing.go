package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

// printing is what of an execution's output has been printed.
type printing struct {
	m       *manager
	id      harness.ExecutionID
	streams func(string) bool
	offsets map[string]int64
	rest    map[string][]byte // a character that has come in part, for a terminal
}

func newPrinting(m *manager, id harness.ExecutionID) *printing {
	return &printing{m: m, id: id, streams: func(string) bool { return true }, offsets: map[string]int64{}, rest: map[string][]byte{}}
}

// once prints what there is and reports whether that is all there will be.
func (p *printing) once(ctx context.Context) (done bool, err error) {
	done = true
	for _, stream := range []string{"stdout", "stderr"} {
		for p.streams(stream) {
			o, err := p.m.client.Output(ctx, p.id, stream, p.offsets[stream])
			if err != nil {
				return false, err
			}
			if o.Offset > p.offsets[stream] {
				fmt.Fprintf(p.m.sys.Stderr, "(%d bytes of %s are not stored)\n", o.Offset-p.offsets[stream], stream)
			}
			if err := p.print(stream, o.Data); err != nil {
				return false, err
			}
			moved := o.Next > p.offsets[stream]
			p.offsets[stream] = o.Next
			if !moved || o.Ended {
				done = done && o.Ended
				break
			}
		}
	}
	return done, nil
}

func (p *printing) print(stream string, data []byte) error {
	w := p.writer(stream)
	if !terminal(w) {
		_, err := w.Write(data)
		return err
	}
	data = append(p.rest[stream], data...)
	end := len(data)
	for back := 1; back < utf8.UTFMax && back <= len(data); back++ {
		if at := len(data) - back; utf8.RuneStart(data[at]) {
			if !utf8.FullRune(data[at:]) {
				end = at
			}
			break
		}
	}
	p.rest[stream] = append([]byte(nil), data[end:]...)
	_, err := io.WriteString(w, visible(string(data[:end])))
	return err
}

func (p *printing) writer(stream string) io.Writer {
	if stream == "stderr" {
		return p.m.sys.Stderr
	}
	return p.m.sys.Stdout
}

// flush prints characters that never came in whole.
func (p *printing) flush() error {
	var all error
	for _, stream := range []string{"stdout", "stderr"} {
		if rest := p.rest[stream]; len(rest) > 0 {
			_, err := io.WriteString(p.writer(stream), visible(string(rest)))
			all = errors.Join(all, err)
		}
	}
	return all
}

const outputPause = 300 * time.Millisecond

// follow prints until the command has ended, and says how. It outlives a server
// that is away for up to two minutes.
func (p *printing) follow(ctx context.Context) (view.Execution, error) {
	ticker := time.NewTicker(outputPause)
	defer ticker.Stop()
	lost := p.m.lost()
	var failing time.Time
	for {
		done, err := p.once(ctx)
		if err == nil && done {
			item, err := p.m.client.Execution(ctx, p.id)
			if err == nil && item.View.State.Ended() {
				return item.View, p.flush()
			}
			if err != nil {
				return item.View, err
			}
		}
		switch {
		case ctx.Err() != nil:
			return view.Execution{}, ctx.Err()
		case err == nil:
			failing = time.Time{}
		case !api.Passing(err):
			return view.Execution{}, err
		default:
			if failing.IsZero() {
				failing = time.Now()
			}
			if time.Since(failing) > api.GiveUp {
				return view.Execution{}, err
			}
			lost(err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return view.Execution{}, ctx.Err()
		}
	}
}
