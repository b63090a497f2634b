// Package driver chooses the sandbox driver of a process, the same way for every
// function that has one.
package driver

import (
	"log/slog"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/kubernetes"
)

// The drivers.
const (
	Local      = "local"      // this machine, by bubblewrap; only in builds with the tag "local"
	Kubernetes = "kubernetes" // Pods
)

// Options say which driver a process has and what it needs.
type Options struct {
	Driver      string
	LocalDir    string   // where local sandboxes are kept
	LocalRunner string   // the runner's binary
	LocalBinds  []string // HOST:INSIDE folders that local sandboxes may write to; tests only

	// Of Pods.
	InCluster    string // the address of the API server inside the cluster; empty: outside
	Kubeconfig   string // for outside
	Namespace    string
	RunnerImage  string // needed to start sandboxes, not to remove them; so is ImagesDir
	RunnerMount  kubernetes.Mount
	ImagesDir    string
	PullSecrets  []string
	StartTimeout time.Duration
	RuntimeClass string
	StorageClass string
	CheckNetwork bool
}

// Read reads what every process with sandboxes needs from the environment:
// SANDBOX_DRIVER; for local ones SANDBOX_LOCAL_DIR, SANDBOX_LOCAL_RUNNER and
// SANDBOX_LOCAL_BINDS; for Pods SANDBOX_NAMESPACE, and KUBECONFIG outside a
// cluster.
func Read(c *function.Config) Options {
	o := Options{Driver: c.OneOf("SANDBOX_DRIVER", Kubernetes, Local, Kubernetes)}
	if o.Driver != Local {
		o.InCluster = c.Text("KUBERNETES_SERVICE_HOST", "")
		o.Kubeconfig = c.Text("KUBECONFIG", "")
		o.Namespace = c.Text("SANDBOX_NAMESPACE", "tuluat-sandbox")
		return o
	}
	o.LocalDir = c.Required("SANDBOX_LOCAL_DIR", "the folder in which local sandboxes are kept")
	o.LocalRunner = c.Required("SANDBOX_LOCAL_RUNNER", "the path of the runner's binary")
	if binds := c.Text("SANDBOX_LOCAL_BINDS", ""); binds != "" {
		o.LocalBinds = strings.Split(binds, ",")
	}
	return o
}

// ReadStart is Read for a process that starts sandboxes: for Pods it reads also
// SANDBOX_RUNNER_IMAGE, SANDBOX_RUNNER_MOUNT, SANDBOX_IMAGES_DIR,
// SANDBOX_PULL_SECRETS, SANDBOX_START_TIMEOUT, SANDBOX_RUNTIME_CLASS,
// SANDBOX_STORAGE_CLASS and SANDBOX_NETWORK_CHECK.
func ReadStart(c *function.Config) Options {
	o := Read(c)
	if o.Driver != Kubernetes {
		return o
	}
	o.RunnerImage = c.Required("SANDBOX_RUNNER_IMAGE", "the image that brings the runner into a sandbox")
	o.RunnerMount = kubernetes.Mount(c.OneOf("SANDBOX_RUNNER_MOUNT", string(kubernetes.InitContainer), string(kubernetes.InitContainer), string(kubernetes.ImageVolume)))
	o.ImagesDir = c.Required("SANDBOX_IMAGES_DIR", "the folder with the platform's images, one reference a file, of which one is named default")
	for name := range strings.SplitSeq(c.Text("SANDBOX_PULL_SECRETS", ""), ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.PullSecrets = append(o.PullSecrets, name)
		}
	}
	o.StartTimeout = c.Duration("SANDBOX_START_TIMEOUT", kubernetes.DefaultStartTimeout)
	o.RuntimeClass = c.Text("SANDBOX_RUNTIME_CLASS", "")
	o.StorageClass = c.Text("SANDBOX_STORAGE_CLASS", "")
	o.CheckNetwork = c.OneOf("SANDBOX_NETWORK_CHECK", "required", "required", "off") == "required"
	return o
}

// New returns the driver that o names. It is called once, when a process begins:
// for Pods it also gives log to client-go's own logging, which a process has one of. What a build cannot do is refused with
// what to do about it.
func New(o Options, log *slog.Logger) (sandbox.Driver, error) {
	switch o.Driver {
	case Local:
		return newLocal(o, log)
	case Kubernetes:
		return newKubernetes(o, log)
	default:
		return nil, harness.Errorf(harness.Invalid, "SANDBOX_DRIVER is %q: use %q or %q", o.Driver, Local, Kubernetes)
	}
}

func newKubernetes(o Options, log *slog.Logger) (sandbox.Driver, error) {
	config, err := kubernetes.LoadConfig(o.InCluster, o.Kubeconfig)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "SANDBOX_DRIVER is \"kubernetes\" and there is no cluster")
	}
	klog.SetSlogLogger(log) // else there would be plain lines on stderr
	d, err := kubernetes.New(kubernetes.Options{
		Config: config, Namespace: o.Namespace, RunnerImage: o.RunnerImage, RunnerMount: o.RunnerMount, ImagesDir: o.ImagesDir,
		PullSecrets: o.PullSecrets, StartTimeout: o.StartTimeout, RuntimeClass: o.RuntimeClass, StorageClass: o.StorageClass,
		CheckNetwork: o.CheckNetwork, Log: log,
	})
	if err != nil {
		return nil, err // and not a typed nil
	}
	return d, nil
}
