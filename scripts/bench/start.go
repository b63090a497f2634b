package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/localport"
)

// startLimit is the promise: from exec to the first 200 of /readyz, the median.
const startLimit = 80.0 // milliseconds

// starts measures each function from exec to ready. Its database does not
// exist: readiness needs nothing.
func starts(ctx context.Context, o options, bin string, _ *localpg.Server) ([]figure.Figure, error) {
	say("process starts: %d per function", o.starts)
	var figures []figure.Figure
	for _, f := range functions {
		var took []float64
		for range o.starts {
			d, err := startOnce(ctx, filepath.Join(bin, f), bin)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f, err)
			}
			took = append(took, figure.Milliseconds(d))
		}
		figures = append(figures, figure.Of("start to ready: "+f, "ms", took...).AtMost(startLimit, "p50 at most 80 ms"))
	}
	return figures, nil
}

func startOnce(ctx context.Context, program, bin string) (time.Duration, error) {
	port, err := localport.Free()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		fmt.Sprint("PORT=", port), "METRICS_PORT=0", "LOG_LEVEL=ERROR", "SERVE=public", "DATABASE_URL=postgres://none@127.0.0.1:1/none",
		"BROKER_URL=http://127.0.0.1:1/", "MODEL_NAME=none", "OPENAI_API_KEY=none", "AGENTS_SOURCE=folder", "AGENTS_DIR=" + bin, "SANDBOX_DRIVER=local",
		"SANDBOX_LOCAL_DIR=" + os.TempDir(), "SANDBOX_LOCAL_RUNNER=" + filepath.Join(bin, "runner"),
		"MANAGEMENT_TOKEN=" + rand.Text(),
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	took, err := untilReady(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", port), began)
	if err != nil {
		err = fmt.Errorf("%w: %s", err, said.String())
	}
	if kill := cmd.Process.Signal(syscall.SIGTERM); err == nil {
		err = kill
	}
	if wait := cmd.Wait(); err == nil {
		err = wait
	}
	return took, err
}

// untilReady asks as a kubelet's exec-free probe would, only more often.
func untilReady(ctx context.Context, url string, began time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return 0, err
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return time.Since(began), nil
			}
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("not ready in time: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}
