package driver_test

import (
	"log/slog"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox/driver"
)

func TestRead(t *testing.T) {
	env := map[string]string{"SANDBOX_DRIVER": "local"}
	c := function.NewConfig(func(name string) string { return env[name] })
	driver.Read(c)
	for _, name := range []string{"SANDBOX_LOCAL_DIR", "SANDBOX_LOCAL_RUNNER"} {
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("the local driver without %s: %v", name, err)
		}
	}
	env["SANDBOX_LOCAL_DIR"], env["SANDBOX_LOCAL_RUNNER"], env["SANDBOX_LOCAL_BINDS"] = "/dir", "/runner", "/a:/b,/c:/d"
	c = function.NewConfig(func(name string) string { return env[name] })
	if o := driver.Read(c); c.Err() != nil || o.LocalDir != "/dir" || o.LocalRunner != "/runner" || len(o.LocalBinds) != 2 {
		t.Errorf("read %+v, %v", o, c.Err())
	}
	env["SANDBOX_DRIVER"] = "docker"
	c = function.NewConfig(func(name string) string { return env[name] })
	driver.Read(c)
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "SANDBOX_DRIVER") {
		t.Errorf("an unknown driver: %v", err)
	}
}

func TestKubernetesIsRefusedInWords(t *testing.T) {
	_, err := driver.New(driver.Options{Driver: driver.Kubernetes}, slog.New(slog.DiscardHandler))
	if harness.KindOf(err) != harness.Invalid || !strings.Contains(err.Error(), "SANDBOX_DRIVER") || !strings.Contains(err.Error(), "not in this build yet") {
		t.Errorf("kubernetes: %v", err)
	}
}
