//go:build system

package system_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Where commands leave their evidence: a folder of the host, mounted into every
// sandbox of the test.
const (
	insideEvidence = "/evidence"
	startsFile     = "starts"
	endsFile       = "ends"
)

// readEvidence returns the lines of a file by command.
func (w *world) readEvidence(file string) map[string][]string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.evidence, file))
	w.must(err)
	lines := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		id, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[id] = append(lines[id], strings.TrimSpace(line))
	}
	return lines
}

// followEvidence calls heard with each new line's command as soon as it is
// written, until ctx ends.
func (w *world) followEvidence(ctx context.Context, heard func(file, command string)) {
	var following sync.WaitGroup
	for _, name := range []string{startsFile, endsFile} {
		following.Go(func() {
			file, err := os.Open(filepath.Join(w.evidence, name))
			if err != nil {
				w.t.Error(err)
				return
			}
			defer file.Close()
			ticker := time.NewTicker(2 * time.Millisecond)
			defer ticker.Stop()
			var rest []byte
			piece := make([]byte, 4<<10)
			for {
				n, err := file.Read(piece)
				if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, fs.ErrClosed) {
					w.t.Error(err)
					return
				}
				rest = append(rest, piece[:n]...)
				for {
					line, after, ok := bytes.Cut(rest, []byte{'\n'})
					if !ok {
						break
					}
					id, _, _ := strings.Cut(string(line), " ")
					heard(name, id)
					rest = after
				}
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
			}
		})
	}
	following.Wait()
}
