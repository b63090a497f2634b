package main

import (
	"bytes"
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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const apiToken = "benchdata-0123456789abcdefghij"

// process is a function of the system that runs.
type process struct {
	command *exec.Cmd
	url     string
}

// begin builds a function and starts it.
func begin(ctx context.Context, dir, name string, env []string) (*process, error) {
	binary := filepath.Join(dir, name)
	build := exec.CommandContext(ctx, "go", "build", "-tags", "local", "-o", binary, "tuluat.ai/harness/functions/"+name)
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(free.Addr().(*net.TCPAddr).Port)
	if err := free.Close(); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	p := &process{command: exec.CommandContext(ctx, binary), url: "http://127.0.0.1:" + port}
	p.command.Env = append(slices.Clone(env), "PORT="+port, "METRICS_PORT=0")
	p.command.Stdout, p.command.Stderr = log, log
	if err := errors.Join(p.command.Start(), log.Close()); err != nil {
		return nil, err
	}
	for range 200 {
		if response, err := http.Get(p.url + "/readyz"); err == nil {
			return p, response.Body.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	said, err := os.ReadFile(log.Name())
	return nil, errors.Join(fmt.Errorf("%s does not become ready: %s", name, said), err, p.end())
}

// beginAPI starts the management API with no agents and no limit of rate.
func beginAPI(ctx context.Context, dir string, env []string) (*process, error) {
	agents := filepath.Join(dir, "agents")
	if err := os.MkdirAll(agents, 0o755); err != nil {
		return nil, err
	}
	return begin(ctx, dir, "management-api", append(slices.Clone(env), "MANAGEMENT_TOKEN="+apiToken, "AGENTS_DIR="+agents, "RATE_LIMIT=100000", "RATE_BURST=100000"))
}

func (p *process) end() error {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.command.Wait()
}

// peak is the most memory that the process has held, in bytes; 0 on systems that do
// not say.
func (p *process) peak() int64 {
	held, _ := p.held("VmHWM")
	return held
}

// held is what the process says under a name of proc(5), in bytes.
func (p *process) held(name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("the process does not say its %s", name)
}

// listPage is a page of a list as the API gives it.
type listPage struct {
	Items []json.RawMessage `json:"items"`
	Next  string            `json:"next"` // where the next one begins; empty: nowhere
}

// list asks the API for one page.
func (p *process) list(ctx context.Context, path string, query url.Values) (listPage, error) {
	mark := "?"
	if strings.Contains(path, mark) {
		mark = "&"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1"+path+mark+query.Encode(), nil)
	if err != nil {
		return listPage{}, err
	}
	request.Header.Set("Authorization", "Bearer "+apiToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return listPage{}, err
	}
	text, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return listPage{}, err
	}
	if response.StatusCode != http.StatusOK {
		return listPage{}, fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(text[:min(len(text), 300)]))
	}
	var l listPage
	err = json.Unmarshal(text, &l)
	return l, err
}
