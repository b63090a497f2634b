package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"tuluat.ai/harness/scripts/internal/manifest"
)

const runnerPackage = "tuluat.ai/harness/functions/sandbox-exec/runner"

// build compiles every function that the YAML names, with the local sandbox
// driver, and the runner; it says how far it is while it works. The flags are
// those of a plain `go build`, so that nothing is compiled twice for `go run`.
func (s *system) build(ctx context.Context, set *manifest.Set) error {
	packages := map[string]bool{}
	for _, service := range set.Services {
		packages[service.ImportPath()] = true
	}
	args := []string{"build", "-v", "-tags", "local", "-o", s.state.path("bin") + "/"}
	for p := range packages {
		args = append(args, p)
	}
	if err := s.compile(ctx, args); err != nil {
		return err
	}
	return s.compile(ctx, []string{"build", "-v", "-o", s.state.path("bin") + "/", runnerPackage}, "CGO_ENABLED=0")
}

func (s *system) compile(ctx context.Context, args []string, env ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.cfg.repository
	cmd.Env = append(os.Environ(), env...)
	output, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	cmd.Stdout = io.Discard
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("go: %w", err)
	}
	stop := s.progress()
	problems := s.read(output, &s.compiled)
	stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("the functions do not compile:\n%s", strings.Join(problems, "\n"))
	}
	return nil
}

// read counts the packages that the compiler names, a line each, and keeps what
// is not a package.
func (s *system) read(output io.Reader, compiled *atomic.Int64) (problems []string) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line != "" && !strings.ContainsAny(line, " :#\t") {
			compiled.Add(1)
			continue
		}
		problems = append(problems, line)
	}
	return problems
}

// progress says every few seconds how many packages are compiled, until stop.
func (s *system) progress() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				s.out.say("compiling the functions: %d packages so far, %s", s.compiled.Load(), time.Since(began).Round(time.Second))
			}
		}
	}()
	return func() { close(done); <-ended }
}

// binary is where build put the program of a main package.
func (s *system) binary(importPath string) string {
	return s.state.path("bin", path.Base(importPath))
}
