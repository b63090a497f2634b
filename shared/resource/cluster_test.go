package resource_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource"
	"tuluat.ai/harness/shared/resource/resourcetest"
)

const agents = v1alpha1.KindAgent

func newCluster(t *testing.T) (*resource.Cluster, *resourcetest.Server) {
	t.Helper()
	server := resourcetest.New(t)
	c, err := resource.NewCluster(&rest.Config{Host: server.URL}, resource.Options{Namespace: "agents", Limits: v1alpha1.DefaultLimits(), UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, server
}

func TestClusterIsAStore(t *testing.T) {
	c, _ := newCluster(t)
	suite(t, c, false)
}

// What others keep in a resource stays, whoever writes it.
func TestWritesKeepWhatIsOthers(t *testing.T) {
	c, server := newCluster(t)
	server.Put("aiagents", "a", `{"description": "d", "future": [1, {"x": null}]}`)
	server.SetField("aiagents", "a", "metadata", map[string]any{
		"name": "a", "namespace": "agents", "uid": "u", "generation": 1.0, "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": []any{"f"},
		"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}", "x": "y"}, "managedFields": []any{map[string]any{"manager": "m"}},
	})
	server.SetField("aiagents", "a", "status", map[string]any{"phase": "READY"})
	r, err := c.Get(t.Context(), agents, "a")
	if err != nil || strings.Contains(string(r.Object), "last-applied") || strings.Contains(string(r.Object), "managedFields") || strings.Contains(string(r.YAML), "status") {
		t.Fatalf("%s\n%s\n%v", r.Object, r.YAML, err)
	}
	if string(r.Status()) != `{"phase":"READY"}` || r.Generation != 1 || r.CreatedAt.Year() != 2026 {
		t.Errorf("%+v", r)
	}
	// A field that this release does not know is a problem of the whole, also where the patch does not touch it.
	if _, err = c.Patch(t.Context(), agents, "a", r.Version, []byte(`{"spec":{"description":"e"}}`), false); !slices.Equal(problems(err), []string{"spec.future"}) {
		t.Errorf("%v", err)
	}
	if _, err = c.Patch(t.Context(), agents, "a", r.Version, []byte(`{"spec":{"future":null,"description":"e"}}`), false); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Update(t.Context(), resource.Resource{Kind: agents, Name: "a", Object: agent("a", `{"description":"f"}`)}, false); err != nil {
		t.Fatal(err)
	}
	var metadata map[string]any
	server.Object("aiagents", "a", "metadata", &metadata)
	if diff := cmp.Diff(map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}"}, metadata["annotations"]); diff != "" || !cmp.Equal(metadata["finalizers"], []any{"f"}) {
		t.Errorf("%v %s", metadata, diff)
	}
	var status, spec map[string]any
	server.Object("aiagents", "a", "status", &status)
	server.Object("aiagents", "a", "spec", &spec)
	if !cmp.Equal(status, map[string]any{"phase": "READY"}) || !cmp.Equal(spec, map[string]any{"description": "f"}) {
		t.Errorf("%v %v", status, spec)
	}
}

// A write of any version is made again for the version that came between; one of
// this version is not.
func TestAWriteThatComesTooLate(t *testing.T) {
	for name, write := range map[string]func(c *resource.Cluster, version string) error{
		"patch": func(c *resource.Cluster, version string) error {
			_, err := c.Patch(t.Context(), agents, "a", version, []byte(`{"spec":{"description":"mine"}}`), false)
			return err
		},
		"update": func(c *resource.Cluster, version string) error {
			_, err := c.Update(t.Context(), resource.Resource{Kind: agents, Name: "a", Version: version, Object: agent("a", `{"description":"mine"}`)}, false)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, server := newCluster(t)
			server.Put("aiagents", "a", `{}`)
			r, err := c.Get(t.Context(), agents, "a")
			if err != nil {
				t.Fatal(err)
			}
			between := func(times int) {
				var mu sync.Mutex
				server.Before = func(request *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					if request.Method != http.MethodGet && times > 0 {
						times--
						server.Touch("aiagents", "a")
					}
				}
			}
			between(1)
			mustBe(t, write(c, r.Version), harness.Stale)
			between(2)
			if err := write(c, ""); err != nil {
				t.Error(err)
			}
			between(100)
			mustBe(t, write(c, ""), harness.Conflict)
		})
	}
}

// What the API server has against a resource is said by field.
func TestTheServersOwnProblems(t *testing.T) {
	c, server := newCluster(t)
	server.Put("aiagents", "a", `{}`)
	server.Causes = func(map[string]any) []resourcetest.Cause {
		return []resourcetest.Cause{
			{Field: "spec.model", Message: "Invalid value: use ours", Reason: "FieldValueInvalid"},
			{Field: "spec.model", Message: "Invalid value: use ours", Reason: "FieldValueInvalid"},
			{Field: "<nil>", Message: "some validation rules were not checked"},
		}
	}
	want := v1alpha1.Problems{{Path: "spec.model", What: "Invalid value: use ours"}, {What: "some validation rules were not checked"}}
	for name, write := range map[string]func() error{
		"create": func() error {
			_, err := c.Create(t.Context(), resource.Resource{Kind: agents, Name: "b", Object: agent("b", "{}")}, true)
			return err
		},
		"update": func() error {
			_, err := c.Update(t.Context(), resource.Resource{Kind: agents, Name: "a", Object: agent("a", "{}")}, false)
			return err
		},
		"patch": func() error {
			_, err := c.Patch(t.Context(), agents, "a", "", []byte(`{"spec":{"description":"x"}}`), false)
			return err
		},
	} {
		err := write()
		mustBe(t, err, harness.Invalid)
		invalid, ok := errors.AsType[*resource.Invalid](err)
		if !ok || !cmp.Equal(invalid.Problems, want) || harness.MessageOf(err) != want.Error() {
			t.Errorf("%s: %v", name, err)
		}
	}
	server.Causes = nil
	for code, want := range map[int]harness.Kind{
		http.StatusForbidden: harness.Denied, http.StatusUnauthorized: harness.Unavailable, http.StatusInternalServerError: harness.Unavailable, http.StatusServiceUnavailable: harness.Unavailable,
		http.StatusBadRequest: harness.Invalid, http.StatusRequestEntityTooLarge: harness.Invalid, http.StatusUnprocessableEntity: harness.Invalid, http.StatusNotFound: harness.Unavailable,
	} {
		server.RefuseWrites = code
		_, err := c.Create(t.Context(), resource.Resource{Kind: agents, Name: "b", Object: agent("b", "{}")}, false)
		if harness.KindOf(err) != want {
			t.Errorf("%d: %s: %v", code, harness.KindOf(err), err)
		}
	}
	for _, code := range []int{http.StatusForbidden, http.StatusUnauthorized, http.StatusInternalServerError, http.StatusNotFound} {
		server.Refuse = code
		_, _, err := c.List(t.Context(), agents, "", 5)
		mustBe(t, err, harness.Unavailable)
	}
	server.Close()
	_, err := c.Get(t.Context(), agents, "a")
	mustBe(t, err, harness.Unavailable)
	_, err = c.Create(t.Context(), resource.Resource{Kind: agents, Name: "b", Object: agent("b", "{}")}, false)
	mustBe(t, err, harness.Unavailable)
}

// A page whose continuation is not kept any more goes on behind the last name.
func TestAListGoesOnWithoutItsContinuation(t *testing.T) {
	c, server := newCluster(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		server.Put("aiagents", name, `{}`)
	}
	var names []string
	for after := ""; ; {
		items, next, err := c.List(t.Context(), agents, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			names = append(names, item.Name)
		}
		if after = next; after == "" {
			break
		}
		server.Expired = true
	}
	if got := strings.Join(names, ""); got != "abcde" {
		t.Error(got)
	}
	server.Expired = true
	if all, err := c.All(t.Context(), agents); err != nil || len(all) != 5 {
		t.Errorf("%d, %v", len(all), err)
	}
}

func TestThePlatformsImages(t *testing.T) {
	server, images := resourcetest.New(t), t.TempDir()
	c, err := resource.NewCluster(&rest.Config{Host: server.URL}, resource.Options{Namespace: "agents", Limits: v1alpha1.DefaultLimits(), ImagesDir: images})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for _, image := range []string{"default", "rust", "..data"} {
		if err := os.WriteFile(filepath.Join(images, image), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for image, valid := range map[string]bool{"rust": true, "python": false, "default": false} {
		_, err := c.Create(context.Background(), resource.Resource{Kind: agents, Name: "a", Object: agent("a", `{"harness":{"type":"CODE","sandbox":{"imageRef":"`+image+`"}}}`)}, true)
		if (err == nil) != valid {
			t.Errorf("%s: %v", image, err)
		}
	}
}

func TestReadTakesWhatTheServerAdds(t *testing.T) {
	c, server := newCluster(t)
	server.Put("aiagents", "a", `{"description": null, "systemPrompt": "no"}`)
	r, err := c.Get(t.Context(), agents, "a")
	if err != nil {
		t.Fatal(err)
	}
	d, problems := resource.Read(r, v1alpha1.DefaultLimits())
	if len(problems) > 0 || d.Agent.Spec.SystemPrompt != "no" || d.Agent.Metadata.Namespace != "agents" {
		t.Errorf("%+v, %v", d, problems)
	}
	if _, problems := resource.Read(resource.Resource{Kind: agents, Object: json.RawMessage("[")}, v1alpha1.DefaultLimits()); len(problems) == 0 {
		t.Error("what is no object is read")
	}
}

// Every page begins where the one before it ended, in the middle of what was read
// as well, and a continuation that is not kept costs one request.
func TestPagesAreNotReadFromTheStart(t *testing.T) {
	c, server := newCluster(t)
	server.Page = 1000
	for i := range 100 {
		server.Put("aiagents", fmt.Sprintf("a%02d", i), `{}`)
	}
	read := func(after string, limit, requests int, first string) ([]resource.Resource, string) {
		t.Helper()
		before := server.Lists
		items, next, err := c.List(t.Context(), agents, after, limit)
		if err != nil || len(items) > limit || items[0].Name != first || server.Lists-before != requests {
			t.Fatalf("%d items from %s, %d requests, %v", len(items), items[0].Name, server.Lists-before, err)
		}
		return items, next
	}
	_, next := read("", 40, 1, "a00")
	items, _ := read(next, 40, 1, "a40")
	read(resource.Behind(next, items[9].Name), 10, 1, "a50")
	server.Expired, server.Instead = true, "40"
	read(next, 10, 2, "a40")
	read("a79", 1, 1, "a80")
	_, next = read("a19", 2, 1, "a20")
	read(next, 2, 1, "a22")
	for _, forged := range []string{"a \x00", "a b", "a " + strings.Repeat("x", 1000), " x"} {
		_, _, err := c.List(t.Context(), agents, forged, 5)
		mustBe(t, err, harness.Invalid)
	}
}
