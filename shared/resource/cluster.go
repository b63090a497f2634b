package resource

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// Options say which resources of a cluster there are, and what they may ask for.
type Options struct {
	Namespace string
	Limits    v1alpha1.Limits
	ImagesDir string // a file per image of the platform, named as an imageRef; empty or not there: the images every platform has
	UserAgent string // the function, as the API server's audit log shows it
}

// Cluster is the resources of one namespace of a Kubernetes cluster. It speaks
// client-go's rest client: a clientset would bring every API of Kubernetes along.
type Cluster struct {
	Options
	client *rest.RESTClient
}

var _ Store = (*Cluster)(nil)

const (
	pageSize = 200
	// A request of ours is small; an API server that takes longer is not there.
	requestTime = 15 * time.Second
	queries     = 50 // a second: a reconcile after an upgrade writes every status once
	// attempts is how often a write of any version is tried when somebody else
	// writes at the same time.
	attempts = 5
)

// plurals are the names of the kinds in paths.
var plurals = map[string]string{v1alpha1.KindAgent: "aiagents", v1alpha1.KindWorkflow: "aiworkflows"}

// Config finds the API server: that of the Pod's own ServiceAccount, or outside
// of a cluster that of KUBECONFIG.
func Config(getenv func(string) string) (*rest.Config, error) {
	if getenv("KUBERNETES_SERVICE_HOST") != "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, harness.Wrap(harness.Invalid, err, "AGENTS_SOURCE=kubernetes needs a Pod with a ServiceAccount token")
		}
		return config, nil
	}
	path := getenv("KUBECONFIG")
	if path == "" {
		return nil, harness.Errorf(harness.Invalid, "AGENTS_SOURCE=kubernetes needs a Pod, or KUBECONFIG outside of a cluster")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "KUBECONFIG cannot be read")
	}
	return config, nil
}

// NewCluster returns the Cluster at config. It talks to nobody yet.
func NewCluster(config *rest.Config, o Options) (*Cluster, error) {
	own := rest.CopyConfig(config)
	known := runtime.NewScheme()
	metav1.AddToGroupVersion(known, schema.GroupVersion{Version: "v1"})
	own.GroupVersion = &schema.GroupVersion{Group: "tuluat.ai", Version: "v1alpha1"}
	own.APIPath = "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
	own.ContentConfig.ContentType, own.ContentConfig.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	own.QPS, own.Burst, own.Timeout, own.UserAgent = queries, 2*queries, requestTime, o.UserAgent
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "the API server's address or credentials cannot be used")
	}
	return &Cluster{Options: o, client: client}, nil
}

// Close frees idle connections. http.Client's own way ends at the first of
// client-go's wrappers.
func (c *Cluster) Close() { utilnet.CloseIdleConnectionsFor(c.client.Client.Transport) }

// Now returns the platform's limits with the images it has now.
func (o Options) Now() (v1alpha1.Limits, error) {
	limits := o.Limits
	if o.ImagesDir == "" {
		return limits, nil
	}
	entries, err := os.ReadDir(o.ImagesDir)
	if os.IsNotExist(err) {
		return limits, nil
	}
	if err != nil {
		return limits, harness.Wrap(harness.Unavailable, err, "the folder of the platform's images cannot be read")
	}
	for _, entry := range entries {
		if name := entry.Name(); name[0] != '.' && name != defaultImage {
			limits.ImageRefs = append(limits.ImageRefs, name)
		}
	}
	return limits, nil
}

// defaultImage is the entry of the platform's images that an agent gets that
// names none.
const defaultImage = "default"

// All returns every resource of a kind: all of them, or an error. A continuation
// that the API server no longer keeps begins anew, once.
func (c *Cluster) All(ctx context.Context, kind string) ([]Resource, error) {
	items, err := c.pages(ctx, kind)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		items, err = c.pages(ctx, kind)
	}
	return items, listError(err, kind)
}

func (c *Cluster) pages(ctx context.Context, kind string) ([]Resource, error) {
	var items []Resource
	for next := ""; ; {
		page, more, err := c.page(ctx, kind, next, pageSize)
		if err != nil {
			return nil, err
		}
		items = append(items, page...)
		if next = more; next == "" {
			return items, nil
		}
	}
}

// page reads one page, and where the next one begins.
func (c *Cluster) page(ctx context.Context, kind, from string, limit int) ([]Resource, string, error) {
	request := c.client.Get().Namespace(c.Namespace).Resource(plurals[kind]).Param("limit", strconv.Itoa(limit))
	if from != "" {
		request = request.Param("continue", from)
	}
	body, err := raw(request.Do(ctx))
	if err != nil {
		return nil, "", err
	}
	var page struct {
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, "", err
	}
	items := make([]Resource, len(page.Items))
	for i, item := range page.Items {
		if items[i], err = answered(item, kind); err != nil {
			return nil, "", err
		}
	}
	return items, page.Metadata.Continue, nil
}

// raw returns the body of an answer. Of a refusal, only Error reads what the API
// server says.
func raw(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// answered is the resource in an answer.
func answered(body []byte, kind string) (Resource, error) {
	object, problems := parse(body, false)
	if len(problems) > 0 {
		return Resource{}, harness.Wrap(harness.Unavailable, problems, "the API server's answer cannot be read")
	}
	return resourceOf(kind, object), nil
}

// List implements Store. next is the last name and the API server's own
// continuation; where that is no longer kept, the list goes on with the one that
// the API server gives instead, or else behind the name.
func (c *Cluster) List(ctx context.Context, kind, after string, limit int) ([]Resource, string, error) {
	behind, token, _ := strings.Cut(after, " ")
	items, renewed := []Resource{}, false
	for {
		size := limit - len(items)
		if behind != "" { // what is before the name may come first
			size = pageSize
		}
		page, next, err := c.page(ctx, kind, token, size)
		if token != "" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
			if token = ""; !renewed {
				token, renewed = continuation(err), true
			}
			continue
		}
		if token != "" && apierrors.IsBadRequest(err) {
			return nil, "", harness.Wrap(harness.Invalid, err, "the place to go on from is none of this list")
		}
		if err != nil {
			return nil, "", listError(err, kind)
		}
		for _, item := range page {
			switch {
			case item.Name <= behind:
			case len(items) == limit:
				return items, placed(items[limit-1].Name, token), nil
			default:
				items = append(items, item)
			}
		}
		if token = next; token == "" {
			return items, "", nil
		}
		if len(items) >= limit {
			return items, placed(items[len(items)-1].Name, token), nil
		}
	}
}

// continuation is what the API server gives for a continuation that it no longer
// keeps.
func continuation(err error) string {
	answer, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return ""
	}
	return answer.ErrStatus.Continue
}

func placed(name, token string) string { return strings.TrimSuffix(name+" "+token, " ") }

// Behind is where a list goes on behind the resource called name, which is one of
// those that List returned for after. It costs no more than reading those again.
func Behind(after, name string) string {
	_, token, _ := strings.Cut(after, " ")
	return placed(name, token)
}

// Get implements Store.
func (c *Cluster) Get(ctx context.Context, kind, name string) (Resource, error) {
	object, err := c.get(ctx, kind, name)
	if err != nil {
		return Resource{}, err
	}
	return resourceOf(kind, object), nil
}

func (c *Cluster) get(ctx context.Context, kind, name string) (fields, error) {
	if len(rest.IsValidPathSegmentName(name)) > 0 || name == "" {
		return nil, harness.Errorf(harness.NotFound, "%s cannot be read: there is no such resource", plurals[kind])
	}
	body, err := raw(c.client.Get().Namespace(c.Namespace).Resource(plurals[kind]).Name(name).Do(ctx))
	if err != nil {
		return nil, translate(err, plurals[kind]+" cannot be read")
	}
	object, problems := parse(body, false)
	if len(problems) > 0 {
		return nil, harness.Wrap(harness.Unavailable, problems, "the API server's answer cannot be read")
	}
	return object, nil
}
