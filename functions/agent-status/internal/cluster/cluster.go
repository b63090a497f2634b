// Package cluster reads AiAgents and AiWorkflows from the Kubernetes API server
// and writes their statuses there. It speaks client-go's rest client: a
// clientset would bring every API of Kubernetes along.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// Options say which resources there are.
type Options struct {
	Namespace string
	Limits    v1alpha1.Limits
	ImagesDir string // a file per image of the platform, named as an imageRef; empty or not there: the images every platform has
}

// Cluster is the agents and workflows of one namespace. It is a status.Source
// and status.Resources.
type Cluster struct {
	Options
	client *rest.RESTClient
}

const (
	pageSize = 200
	// A request of ours is small; an API server that takes longer is not there.
	requestTime = 15 * time.Second
	queries     = 50 // a second: a reconcile after an upgrade writes every status once
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

// New returns the Cluster at config. It talks to nobody yet.
func New(config *rest.Config, o Options) (*Cluster, error) {
	own := rest.CopyConfig(config)
	known := runtime.NewScheme()
	metav1.AddToGroupVersion(known, schema.GroupVersion{Version: "v1"})
	own.GroupVersion = &schema.GroupVersion{Group: "tuluat.ai", Version: "v1alpha1"}
	own.APIPath = "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
	own.ContentConfig.ContentType, own.ContentConfig.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	own.QPS, own.Burst, own.Timeout, own.UserAgent = queries, 2*queries, requestTime, "tuluat-agent-status"
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "the API server's address or credentials cannot be used")
	}
	return &Cluster{Options: o, client: client}, nil
}

// Close frees idle connections.
func (c *Cluster) Close() { c.client.Client.CloseIdleConnections() }

// Read implements status.Source. Either all agents were read or nothing is known.
// Workflows that cannot be listed keep nobody from the agents: they keep their
// statuses until the next look.
func (c *Cluster) Read(ctx context.Context) (status.Found, error) {
	limits, err := c.limits()
	if err != nil {
		return status.Found{}, err
	}
	var found status.Found
	for _, kind := range []string{v1alpha1.KindAgent, v1alpha1.KindWorkflow} {
		items, err := c.list(ctx, kind)
		if err != nil && kind == v1alpha1.KindWorkflow {
			found.Warnings = append(found.Warnings, err.Error())
			continue
		}
		if err != nil {
			return status.Found{}, err
		}
		for _, item := range items {
			if err := add(&found, kind, c.Namespace, item, limits); err != nil {
				return status.Found{}, err
			}
		}
	}
	return found, nil
}

// limits are the platform's with the images it has now.
func (c *Cluster) limits() (v1alpha1.Limits, error) {
	limits := c.Limits
	if c.ImagesDir == "" {
		return limits, nil
	}
	entries, err := os.ReadDir(c.ImagesDir)
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

// list reads every page. A continuation that the API server no longer keeps
// begins anew, once.
func (c *Cluster) list(ctx context.Context, kind string) ([]json.RawMessage, error) {
	items, err := c.pages(ctx, kind)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		items, err = c.pages(ctx, kind)
	}
	return items, translate(err, plurals[kind]+" cannot be listed")
}

func (c *Cluster) pages(ctx context.Context, kind string) ([]json.RawMessage, error) {
	var items []json.RawMessage
	for next := ""; ; {
		request := c.client.Get().Namespace(c.Namespace).Resource(plurals[kind]).Param("limit", strconv.Itoa(pageSize))
		if next != "" {
			request = request.Param("continue", next)
		}
		body, err := request.Do(ctx).Raw()
		if err != nil {
			return nil, err
		}
		var page struct {
			Metadata metav1.ListMeta   `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, err
		}
		items = append(items, page.Items...)
		if next = page.Metadata.Continue; next == "" {
			return items, nil
		}
	}
}

// Get implements status.Resources.
func (c *Cluster) Get(ctx context.Context, kind, name string) (status.Resource, error) {
	body, err := c.client.Get().Namespace(c.Namespace).Resource(plurals[kind]).Name(name).Do(ctx).Raw()
	if err != nil {
		return status.Resource{}, translate(err, plurals[kind]+" cannot be read")
	}
	o, err := parse(body)
	return o.resource(kind), err
}

// PutStatus implements status.Resources: a merge patch of the status
// subresource that names the version it was made for and empties every field
// that is there and should not be.
func (c *Cluster) PutStatus(ctx context.Context, r status.Resource, next any) error {
	patch, err := statusPatch(r, next)
	if err != nil {
		return err
	}
	err = c.client.Patch(types.MergePatchType).Namespace(c.Namespace).Resource(plurals[r.Kind]).Name(r.Name).SubResource("status").
		Body(patch).Do(ctx).Error()
	return translate(err, "the status of "+r.Name+" cannot be written")
}

func statusPatch(r status.Resource, next any) ([]byte, error) {
	text, err := json.Marshal(next)
	if err != nil {
		return nil, err
	}
	fields, is := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if len(r.Status) > 0 && json.Unmarshal(r.Status, &is) == nil {
		for name := range is {
			if _, stays := fields[name]; !stays {
				fields[name] = json.RawMessage("null")
			}
		}
	}
	return json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": r.Version}, "status": fields})
}

// translate turns an error of the API server into one of ours, here and nowhere
// else. Only what depends on the version that was read is told apart: everything
// else may be otherwise the next time.
func translate(err error, what string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err):
		return harness.Wrap(harness.Conflict, err, what+": it was changed meanwhile")
	case apierrors.IsNotFound(err):
		return harness.Wrap(harness.NotFound, err, what+": there is no such resource")
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return harness.Wrap(harness.Unavailable, err, what+": the API server does not allow it: check the function's Role")
	}
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsUnsupportedMediaType(err) {
		return harness.Wrap(harness.Internal, err, what+": the API server refuses its form")
	}
	if answer, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return harness.Wrap(harness.Unavailable, err, fmt.Sprintf("%s: the API server answers %d", what, answer.ErrStatus.Code))
	}
	return harness.Wrap(harness.Unavailable, err, what+": the API server does not answer")
}
