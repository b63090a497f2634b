//go:build cluster

package resource_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource"
)

// The suite on a real API server, that of KUBECONFIG, with the definitions of
// config/crd installed; in a namespace that is made and removed. What is missing
// is a failure: whoever runs this wants to know.

func realCluster(t *testing.T, limits v1alpha1.Limits) *resource.Cluster {
	t.Helper()
	config, err := resource.Config(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"http/1.1"} // whose connections close at once
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	core, err := corev1client.NewForConfigAndClient(config, transport)
	if err != nil {
		t.Fatal(err)
	}
	space, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "tuluat-resource-test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := core.Namespaces().Delete(ctx, space.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		utilnet.CloseIdleConnectionsFor(transport.Transport)
	})
	c, err := resource.NewCluster(config, resource.Options{Namespace: space.Name, Limits: limits, UserAgent: "tuluat-resource-test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestRealClusterIsAStore(t *testing.T) {
	suite(t, realCluster(t, v1alpha1.DefaultLimits()), false)
}

// What our rules let through and the API server's do not is said by its fields.
func TestTheRealServersOwnProblems(t *testing.T) {
	limits := v1alpha1.DefaultLimits()
	limits.Budget.MaxSteps, limits.MaxTokens = 1<<40, 1<<40
	c := realCluster(t, limits)
	bad := agent("a", `{"budget":{"maxSteps":2000000},"model":{"maxTokens":20000000}}`)
	_, err := c.Create(t.Context(), resource.Resource{Kind: agents, Name: "a", Object: bad}, true)
	mustBe(t, err, harness.Invalid)
	got := problems(err)
	slices.Sort(got)
	if !slices.Equal(got, []string{"spec.budget.maxSteps", "spec.model.maxTokens"}) {
		t.Errorf("%q: %v", got, err)
	}
	if _, err := c.Create(t.Context(), resource.Resource{Kind: agents, Name: "a", Object: agent("a", "{}")}, false); err != nil {
		t.Fatal(err)
	}
	_, err = c.Update(t.Context(), resource.Resource{Kind: agents, Name: "a", Object: bad}, false)
	mustBe(t, err, harness.Invalid)
	_, err = c.Patch(t.Context(), agents, "a", "", []byte(`{"spec":{"budget":{"maxSteps":2000000}}}`), false)
	if got := problems(err); !slices.Equal(got, []string{"spec.budget.maxSteps"}) {
		t.Errorf("%q: %v", got, err)
	}
	mustBe(t, err, harness.Invalid)
}

// A status is written for a version, empties what it does not have, and is no
// change of the generation; a write of the spec leaves it.
func TestARealStatus(t *testing.T) {
	c := realCluster(t, v1alpha1.DefaultLimits())
	r, err := c.Create(t.Context(), resource.Resource{Kind: agents, Name: "a", Object: agent("a", "{}")}, false)
	if err != nil {
		t.Fatal(err)
	}
	of := func(r resource.Resource) resource.StatusOf {
		return resource.StatusOf{Kind: r.Kind, Name: r.Name, Version: r.Version, Is: r.Status()}
	}
	if err := c.PutStatus(t.Context(), of(r), v1alpha1.Status{Phase: harness.AgentReady, Revision: 3}); err != nil {
		t.Fatal(err)
	}
	mustBe(t, c.PutStatus(t.Context(), of(r), v1alpha1.Status{}), harness.Stale)
	after, err := c.Patch(t.Context(), agents, "a", "", []byte(`{"spec":{"description":"d"}}`), false)
	if err != nil {
		t.Fatal(err)
	}
	var status v1alpha1.Status
	if err := json.Unmarshal(after.Status(), &status); err != nil || status.Revision != 3 || after.Generation != 2 {
		t.Errorf("%+v, %v", after, err)
	}
	if err := c.PutStatus(t.Context(), of(after), v1alpha1.Status{Phase: harness.AgentInvalid}); err != nil {
		t.Fatal(err)
	}
	last, err := c.Get(t.Context(), agents, "a")
	if err != nil || strings.Contains(string(last.Status()), "revision") || last.Generation != 2 {
		t.Errorf("%s, %v", last.Object, err)
	}
	gone := of(last)
	gone.Name = "b"
	mustBe(t, c.PutStatus(t.Context(), gone, v1alpha1.Status{}), harness.NotFound)
}
