package driver_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

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

func TestReadOfPods(t *testing.T) {
	env := map[string]string{"SANDBOX_RUNNER_MOUNT": "hostPath", "SANDBOX_START_TIMEOUT": "soon", "SANDBOX_NETWORK_CHECK": "maybe"}
	c := function.NewConfig(func(name string) string { return env[name] })
	driver.ReadStart(c)
	for _, name := range []string{"SANDBOX_RUNNER_IMAGE", "SANDBOX_RUNNER_MOUNT", "SANDBOX_IMAGES_DIR", "SANDBOX_START_TIMEOUT", "SANDBOX_NETWORK_CHECK"} {
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), name+" ") {
			t.Errorf("nothing said of %s: %v", name, err)
		}
	}
	c = function.NewConfig(func(name string) string { return env[name] })
	if o := driver.Read(c); c.Err() != nil || o.Namespace != "tuluat-sandbox" || o.RunnerImage != "" {
		t.Errorf("to remove sandboxes: %+v, %v", o, c.Err())
	}
	env = map[string]string{
		"KUBECONFIG": "/k", "SANDBOX_NAMESPACE": "ns", "SANDBOX_RUNNER_IMAGE": "r/runner:1", "SANDBOX_IMAGES_DIR": "/images", "SANDBOX_PULL_SECRETS": "a, b,",
		"SANDBOX_RUNTIME_CLASS": "gvisor", "SANDBOX_STORAGE_CLASS": "fast",
	}
	c = function.NewConfig(func(name string) string { return env[name] })
	want := driver.Options{
		Driver: "kubernetes", Kubeconfig: "/k", Namespace: "ns", RunnerImage: "r/runner:1", RunnerMount: "initContainer", ImagesDir: "/images", PullSecrets: []string{"a", "b"},
		StartTimeout: time.Minute, RuntimeClass: "gvisor", StorageClass: "fast", CheckNetwork: true,
	}
	if diff := cmp.Diff(want, driver.ReadStart(c)); diff != "" || c.Err() != nil {
		t.Errorf("%v (-want +got)\n%s", c.Err(), diff)
	}
}

const kubeconfig = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1:6443"}}],"users":[{"name":"u","user":{"token":"hidden"}}]}`

// Nothing listens at the address: a driver is made without asking the cluster.
func TestKubernetes(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if _, err := driver.New(driver.Options{Driver: driver.Kubernetes, Namespace: "ns"}, log); harness.KindOf(err) != harness.Invalid || !strings.Contains(err.Error(), "SANDBOX_DRIVER") || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("without a cluster: %v", err)
	}
	path := filepath.Join(t.TempDir(), "config")
	if _, err := driver.New(driver.Options{Driver: driver.Kubernetes, Namespace: "ns", Kubeconfig: path}, log); harness.KindOf(err) != harness.Invalid || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	d, err := driver.New(driver.Options{Driver: driver.Kubernetes, Namespace: "ns", Kubeconfig: path}, slog.New(slog.NewJSONHandler(&said, nil)))
	if err != nil || d == nil {
		t.Errorf("with everything: %v", err)
	}
	// What client-go says of itself is a line like all others.
	klog.ErrorS(nil, "a word of client-go")
	var line struct{ Level, Msg string }
	if err := json.Unmarshal(said.Bytes(), &line); err != nil || line.Msg != "a word of client-go" || line.Level != "ERROR" {
		t.Errorf("client-go's line %q: %v", said.String(), err)
	}
}
