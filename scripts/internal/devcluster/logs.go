package devcluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// logSplitter takes a process's output: all of it goes to a file, and what a
// person should see at once goes to onError, a line each: what the function
// logs as an ERROR, and what is no log entry at all (a bad configuration, a
// panic), at most maxPlain lines of it.
type logSplitter struct {
	service string
	onError func(service, line string)

	mu    sync.Mutex
	file  *os.File
	rest  []byte // an unfinished line
	plain []string
}

const (
	maxPlain = 20
	maxLine  = 64 << 10
)

func openLog(folder, service string, onError func(service, line string)) (*logSplitter, error) {
	file, err := os.OpenFile(filepath.Join(folder, service+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &logSplitter{service: service, onError: onError, file: file}, nil
}

// Write never fails for its reader's sake: a full disk must not stop a function.
func (l *logSplitter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.file.Write(p)
	l.rest = append(l.rest, p...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		if end < 0 {
			break
		}
		l.line(string(l.rest[:end]))
		l.rest = l.rest[end+1:]
	}
	if len(l.rest) > maxLine {
		l.rest = nil
	}
	return len(p), nil
}

func (l *logSplitter) line(text string) {
	entry := map[string]any{}
	if json.Unmarshal([]byte(text), &entry) != nil {
		if len(l.plain) < maxPlain && strings.TrimSpace(text) != "" {
			l.plain = append(l.plain, text)
			l.report(text)
		}
		return
	}
	if entry["level"] == "ERROR" || entry["level"] == "WARN" {
		l.report(readable(entry))
	}
}

func (l *logSplitter) report(line string) {
	if l.onError != nil {
		l.onError(l.service, line)
	}
}

// readable is a log entry as one line: what, why, and which session or agent.
func readable(entry map[string]any) string {
	var line strings.Builder
	fmt.Fprint(&line, entry["msg"])
	if err, ok := entry["err"]; ok {
		fmt.Fprintf(&line, ": %v", err)
	}
	if reason, ok := entry["reason"].(string); ok && reason != "" {
		fmt.Fprintf(&line, ": %s", reason)
	}
	for _, key := range []string{"agent", "session", "type"} {
		if value, ok := entry[key].(string); ok && value != "" {
			fmt.Fprintf(&line, " (%s %s)", key, value)
		}
	}
	return strings.ReplaceAll(line.String(), "\n", "; ")
}

// lastWords is what the process said outside its log, for an error message.
func (l *logSplitter) lastWords() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.plain) == 0 {
		return ""
	}
	return ": " + strings.Join(l.plain, "; ")
}

func (l *logSplitter) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
