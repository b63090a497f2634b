//go:build e2e

package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/kubernetes"
	"tuluat.ai/harness/shared/sandbox/sandboxtest"
)

// journeySuites runs what every driver must pass, and what people do first with
// the curated images, in a namespace of its own: the sweep would remove Pods that
// have no row.
func journeySuites(t *testing.T, s *system) {
	ctx := t.Context()
	must(t, s.restore(ctx, s.sandboxes(), s.suites()))
	images, err := s.images(ctx)
	must(t, err)
	runner := ""
	for _, image := range images {
		if image.Name == "runner" {
			runner = image.Ref
		}
	}
	if runner == "" {
		t.Fatal("sandbox-exec names no image of the runner")
	}
	folder := t.TempDir()
	for name, reference := range map[string]string{"default": s.settings.standard, "python": s.settings.python} {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(reference), 0o600))
	}
	driver, err := kubernetes.New(kubernetes.Options{
		Config: s.cluster.config, Namespace: s.suites(), RunnerImage: runner, ImagesDir: folder, StartTimeout: kubernetes.DefaultStartTimeout, CheckNetwork: true,
	})
	must(t, err)
	t.Run("python", func(t *testing.T) {
		spec := harness.DefaultSandbox()
		spec.ImageRef, spec.Egress, spec.CPUMillis = "python", harness.EgressNone, 1000
		sandboxtest.Toolchain(t, driver, spec, "python")
	})
	t.Run("driver", func(t *testing.T) { s.driverSuite(t, runner) })
	for _, language := range sandboxtest.Languages() {
		if language != "python" {
			t.Logf("not run here: %s: there is no image of it made of Debian's packages", language)
		}
	}
}

// driverSuite runs the suite that both sandbox drivers pass, of the driver's own
// package.
func (s *system) driverSuite(t *testing.T, runner string) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-tags", "cluster", "-timeout", "20m", "-run", "Cluster", "-v", "./shared/sandbox/kubernetes")
	cmd.Dir = s.home
	cmd.Env = append(os.Environ(), "SANDBOX_TEST_IMAGE="+s.settings.standard, "SANDBOX_TEST_RUNNER_IMAGE="+runner, "SANDBOX_TEST_NAMESPACE="+s.settings.prefix+"driver")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	must(t, err)
}
