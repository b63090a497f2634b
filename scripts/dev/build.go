package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/dev/handover"
)

// platform is the package that plays the platform; its program has its name.
const platform = "./scripts/dev/platform"

// slowest is the function whose model SDKs take the longest to compile, one
// package of them minutes on one core. The go command begins with what it is
// named first, so that the rest is compiled beside it and not before it.
const slowest = "./functions/agent-step"

// packages lists what is built: every function, the sandbox's runner and the
// platform.
func packages(root string) ([]string, error) {
	mains, err := filepath.Glob(filepath.Join(root, "functions", "*", "main.go"))
	if err != nil {
		return nil, err
	}
	all := []string{slowest, platform, "./functions/sandbox-exec/runner"}
	for _, main := range mains {
		if name := "./functions/" + filepath.Base(filepath.Dir(main)); name != slowest {
			all = append(all, name)
		}
	}
	return all, nil
}

// build compiles everything in one go command, which shares what the programs
// have in common, and says every few seconds how far it is. Nothing but Go's own
// caches decides what is compiled again. The flags are those of a plain
// `CGO_ENABLED=0 go run`, so that both find each other's work in the cache.
func build(ctx context.Context, h handover.Handover) error {
	what, err := packages(h.Root)
	if err != nil {
		return err
	}
	begun := time.Now()
	flags := []string{"-tags", "local", "-buildvcs=false"}
	// Without debug information the programs are linked in two thirds of the time.
	cmd := goCommand(ctx, h.Root, append(append([]string{"build", "-v", "-ldflags=-s -w", "-o", h.Bin() + "/"}, flags...), what...)...)
	output, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &progress{begun: begun}
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { p.report(watching) })
	watch.Go(func() { p.count(watching, h.Root, append(append([]string{"list", "-deps"}, flags...), what...)) })
	problems := p.read(output)
	stop()
	watch.Wait()
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("the build failed: %w\n%s", err, strings.Join(problems, "\n"))
	}
	if p.compiled > 0 {
		say("built in %s (%d packages compiled)", time.Since(begun).Round(time.Second), p.compiled)
	}
	return nil
}

// goCommand ends with all it started when ctx ends.
func goCommand(ctx context.Context, root string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// reportEvery is how long a person waits without a sign of life.
const reportEvery = 3 * time.Second

// progress is how far a build is.
type progress struct {
	begun time.Time

	mu         sync.Mutex
	downloaded int
	compiled   int
	total      int // packages in all, 0 while unknown; compiled ones are among them
	last       string
}

// read follows the go command's output and returns what is neither a package
// it compiled nor a module it downloaded: the compiler's complaints.
func (p *progress) read(output io.Reader) (problems []string) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		p.mu.Lock()
		switch {
		case strings.HasPrefix(line, "go: downloading "):
			p.downloaded++
			p.last = strings.TrimPrefix(line, "go: downloading ")
		case strings.HasPrefix(line, "#") || strings.ContainsAny(line, " \t:"):
			problems = append(problems, line)
		default:
			p.compiled++
			p.last = line
		}
		p.mu.Unlock()
	}
	return problems
}

func (p *progress) report(ctx context.Context) {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			say("%s", p.line(time.Now()))
		}
	}
}

func (p *progress) line(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := now.Sub(p.begun).Round(time.Second)
	switch {
	case p.compiled == 0 && p.downloaded == 0:
		return fmt.Sprintf("checking what is to be compiled, and linking, %s so far", took)
	case p.compiled == 0:
		return fmt.Sprintf("downloading modules, %s so far: %d (%s)", took, p.downloaded, p.last)
	case p.total == 0:
		return fmt.Sprintf("compiling, %s so far: %d packages (%s)", took, p.compiled, p.last)
	}
	return fmt.Sprintf("compiling, %s so far: %d of at most %d packages (%s)", took, p.compiled, p.total, p.last)
}

// count finds out how many packages there are. Without it the report only lacks
// a number. It waits for the first package, because until then the build is
// downloading, which both would do twice.
func (p *progress) count(ctx context.Context, root string, list []string) {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		p.mu.Lock()
		begun := p.compiled > 0
		p.mu.Unlock()
		if begun {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	out, err := goCommand(ctx, root, list...).Output()
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total = strings.Count(string(out), "\n")
}
