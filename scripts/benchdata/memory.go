package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/postgres"
)

const (
	memoryPages  = 1000 // of a list in each round, at most
	memoryGrowth = 1.3  // the most that it may hold after the last round, to what it held after the first
	memoryToken  = "token-of-this-measurement"
)

// memory prints what the function itself holds after each round over every list
// of its REST API, page by page, and fails where rounds make it larger. On
// systems without /proc it says that it cannot tell.
func memory(ctx context.Context, s *postgres.Store, dsn string, o options) error {
	if o.rounds == 0 {
		return nil
	}
	if _, err := os.Stat("/proc/self/status"); err != nil {
		say("this system does not say what a process holds: the function's memory is not measured")
		return nil
	}
	say("measuring the function's memory, %d rounds over every list", o.rounds)
	f, err := startAPI(ctx, dsn, o.dir)
	if err != nil {
		return err
	}
	defer f.stop()
	paths, err := listPaths(ctx, s)
	if err != nil {
		return err
	}
	var first, last int64
	for round := range o.rounds {
		pages := 0
		for _, path := range paths {
			n, err := f.walk(ctx, path)
			if err != nil {
				return err
			}
			pages += n
		}
		if last, err = f.resident(); err != nil {
			return err
		}
		if round == 0 {
			first = last
		}
		fmt.Printf("management-api after round %d, %d pages: %.1f MiB\n", round+1, pages, float64(last)/(1<<20))
	}
	if float64(last) > memoryGrowth*float64(first) {
		return fmt.Errorf("the function holds %d bytes after the last round and %d after the first: it grows with what it reads", last, first)
	}
	return nil
}

// listPaths is every list of the REST API, with the session, agent and sandbox
// of most rows where one is named.
func listPaths(ctx context.Context, s *postgres.Store) ([]string, error) {
	var session, sandbox string
	if err := s.Pool().QueryRow(ctx, `SELECT (SELECT session_id FROM large), (SELECT sandbox_id FROM sandboxes ORDER BY sandbox_id DESC LIMIT 1)`).Scan(&session, &sandbox); err != nil {
		return nil, err
	}
	agent := string(agentOf(0))
	return []string{
		"/sessions", "/sessions?channel=API", "/sessions?status=FAILED", "/sessions/" + session + "/messages", "/sessions/" + session + "/timeline",
		"/agents/" + agent + "/logs", "/agents/" + agent + "/sandboxes", "/logs", "/logs?level=ERROR", "/executions", "/sandboxes", "/sandboxes/" + sandbox + "/executions",
		"/approvals", "/deadletters", "/audit",
	}, nil
}

// api is a running management-api over the database.
type api struct {
	cmd  *exec.Cmd
	base string
}

// startAPI builds the function, starts it and waits until it answers.
func startAPI(ctx context.Context, dsn, dir string) (*api, error) {
	binary, agents := filepath.Join(dir, "management-api"), filepath.Join(dir, "agents")
	if err := os.MkdirAll(agents, 0o755); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "tuluat.ai/harness/functions/management-api")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("building management-api: %w", err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	f := &api{cmd: exec.CommandContext(ctx, binary), base: "http://127.0.0.1:" + port}
	f.cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "BROKER_URL=http://127.0.0.1:1", "AGENTS_DIR="+agents, "MANAGEMENT_TOKEN="+memoryToken,
		"RATE_LIMIT=100000", "RATE_BURST=100000", "BIND_ADDRESS=127.0.0.1", "PORT="+port, "METRICS_PORT=0", "LOG_LEVEL=ERROR")
	f.cmd.Stderr = os.Stderr
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err = f.get(ctx, "/whoami", nil); err == nil {
			return f, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			f.stop()
			return nil, fmt.Errorf("management-api does not answer: %w", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	return port, l.Close()
}

func (f *api) stop() {
	_ = f.cmd.Process.Signal(os.Interrupt)
	_ = f.cmd.Wait() // its state is of no interest: it was told to end
}

// walk reads a list to its end, or memoryPages of it, and returns how many pages.
func (f *api) walk(ctx context.Context, path string) (pages int, err error) {
	query := url.Values{"limit": {strconv.Itoa(pageRows)}}
	for pages < memoryPages {
		next, err := f.get(ctx, path, query)
		if err != nil {
			return pages, fmt.Errorf("%s, page %d: %w", path, pages+1, err)
		}
		if pages++; next == "" {
			break
		}
		query.Set("after", next)
	}
	return pages, nil
}

// get asks for one page and returns where the next one begins.
func (f *api) get(ctx context.Context, path string, query url.Values) (next string, err error) {
	mark := "?"
	if strings.Contains(path, mark) {
		mark = "&"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.base+"/api/v1"+path+mark+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+memoryToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", response.Status, body)
	}
	var page struct {
		Next string `json:"next"`
	}
	err = json.Unmarshal(body, &page)
	return page.Next, err
}

// resident is what the process holds in memory now, in bytes (proc(5), VmRSS).
func (f *api) resident() (int64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", f.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.Join(lines.Err(), errors.New("the process does not say what it holds"))
}
