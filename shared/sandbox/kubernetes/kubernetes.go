package kubernetes

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"time"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// Mount is how the runner gets into a Pod.
type Mount string

// The mounts.
const (
	InitContainer Mount = "initContainer" // an init container copies it; works everywhere, takes about a second
	ImageVolume   Mount = "imageVolume"   // its image is a volume; Kubernetes 1.33 and a container runtime that has them
)

// DefaultStartTimeout is how long a start may take when Options do not say.
const DefaultStartTimeout = 60 * time.Second

// Options are what a Driver needs. A process that only removes sandboxes needs
// Config and Namespace alone.
type Options struct {
	Config       *rest.Config
	Namespace    string   // of sandboxes
	RunnerImage  string   // has the runner as its entry point and at /ko-app/runner
	RunnerMount  Mount    // empty: InitContainer
	ImagesDir    string   // one file per image of the platform, holding its reference; "default" is for agents that name none
	PullSecrets  []string // for every image of a sandbox
	StartTimeout time.Duration
	RuntimeClass string // for sandboxes that name none; empty: the cluster's default
	StorageClass string // of volumes that stay; empty: the cluster's default
	CheckNetwork bool   // no command is taken until the API server is proved to be out of reach
	Log          *slog.Logger
}

// Driver keeps the sandboxes of one namespace. It holds nothing in memory that
// the API server does not know: any number of processes may have one.
type Driver struct {
	Options
	core     corev1client.CoreV1Interface
	policies networkingv1client.NetworkPolicyInterface
	now      func() time.Time
}

var (
	_ sandbox.Driver     = (*Driver)(nil)
	_ sandbox.Bookkeeper = (*Driver)(nil)
	_ sandbox.Keeper     = (*Driver)(nil)
)

const (
	userAgent = "tuluat-harness"
	queries   = 50 // per second and process, with twice as many at once
)

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// New returns a Driver. It does no network I/O.
func New(o Options) (*Driver, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.StartTimeout <= 0 {
		o.StartTimeout = DefaultStartTimeout
	}
	switch o.RunnerMount {
	case "":
		o.RunnerMount = InitContainer
	case InitContainer, ImageVolume:
	default:
		return nil, harness.Errorf(harness.Invalid, "the runner's mount is %q: use %q or %q", o.RunnerMount, InitContainer, ImageVolume)
	}
	if o.Config == nil || o.Namespace == "" {
		return nil, harness.Errorf(harness.Invalid, "sandboxes on Kubernetes need the cluster's address and a namespace")
	}
	// One limiter and one set of connections for both clients.
	o.Config = rest.CopyConfig(o.Config)
	o.Config.UserAgent = userAgent
	o.Config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(queries, 2*queries)
	client, err := rest.HTTPClientFor(o.Config)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "the cluster's configuration cannot be used")
	}
	core, err := corev1client.NewForConfigAndClient(o.Config, client)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "the cluster's configuration cannot be used")
	}
	networking, err := networkingv1client.NewForConfigAndClient(o.Config, client)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "the cluster's configuration cannot be used")
	}
	return &Driver{Options: o, core: core, policies: networking.NetworkPolicies(o.Namespace), now: time.Now}, nil
}

func (d *Driver) pods() corev1client.PodInterface { return d.core.Pods(d.Namespace) }

// CountsOnlyTheEnd is true: the API server knows of a memory limit only when it
// has ended the container.
func (*Driver) CountsOnlyTheEnd() bool { return true }

// LoadConfig finds the cluster: the one this process runs in, when inCluster
// (its KUBERNETES_SERVICE_HOST) is not empty, else the one of kubeconfig, a path
// or several as in the variable KUBECONFIG. It does no network I/O.
func LoadConfig(inCluster, kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	switch {
	case inCluster != "":
		config, err = rest.InClusterConfig()
	case kubeconfig != "":
		rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(kubeconfig)}
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	default:
		err = errors.New("neither KUBERNETES_SERVICE_HOST nor KUBECONFIG is set")
	}
	if err != nil {
		return nil, &harness.Error{Kind: harness.Invalid, Message: "no cluster: run inside one, or set KUBECONFIG to a readable file", Err: fmt.Errorf("KUBECONFIG: %w", err)}
	}
	return config, nil
}
