package resource_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is the object of an agent.
func agent(name, spec string) json.RawMessage {
	return json.RawMessage(`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"` + name + `"},"spec":` + spec + `}`)
}

const flowSpec = `{"start":"ask","nodes":[{"id":"end","type":"END"},{"id":"ask","type":"AGENT","agent":"a","prompt":"p"}],"edges":[{"from":"ask","to":"end"}]}`

func flow(name string) json.RawMessage {
	return json.RawMessage(strings.Replace(string(agent(name, flowSpec)), "AiAgent", "AiWorkflow", 1))
}

func spec(t *testing.T, r resource.Resource) string {
	t.Helper()
	var o struct {
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(r.Object, &o); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(o.Spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func mustBe(t *testing.T, err error, kind harness.Kind) {
	t.Helper()
	if harness.KindOf(err) != kind {
		t.Errorf("is %s (%v), want %s", harness.KindOf(err), err, kind)
	}
}

// problems are the paths of what is wrong.
func problems(err error) []string {
	var paths []string
	if invalid, ok := errors.AsType[*resource.Invalid](err); ok {
		for _, p := range invalid.Problems {
			if p.Line != 0 || p.Document != 0 || p.What == "" {
				return []string{fmt.Sprintf("%+v", p)}
			}
			paths = append(paths, p.Path)
		}
	}
	return paths
}

// suite is what every Store does, in an empty one. bare says that what is stored
// gets no defaults.
func suite(t *testing.T, s resource.Store, bare bool) {
	ctx := context.Background()
	const kind = v1alpha1.KindAgent
	create := func(name, spec string) resource.Resource {
		t.Helper()
		r, err := s.Create(ctx, resource.Resource{Kind: kind, Name: name, Object: agent(name, spec)}, false)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	t.Run("an empty store", func(t *testing.T) {
		items, next, err := s.List(ctx, kind, "", 10)
		if err != nil || items == nil || len(items) != 0 || next != "" {
			t.Errorf("%v, %q, %v", items, next, err)
		}
		for _, name := range []string{"a", "", ".", "..", "../a", "a/b", "a%2fb", strings.Repeat("a", 300), "A", "a b", "ü", "\x00"} {
			_, err := s.Get(ctx, kind, name)
			mustBe(t, err, harness.NotFound)
			mustBe(t, s.Delete(ctx, kind, name, ""), harness.NotFound)
			_, err = s.Patch(ctx, kind, name, "", []byte(`{}`), false)
			mustBe(t, err, harness.NotFound)
		}
		_, err = s.Update(ctx, resource.Resource{Kind: kind, Name: "a", Object: agent("a", "{}")}, false)
		mustBe(t, err, harness.NotFound)
	})

	t.Run("create", func(t *testing.T) {
		tried, err := s.Create(ctx, resource.Resource{Kind: kind, Name: "one", Object: agent("one", `{"description":"d"}`)}, true)
		if err != nil || tried.Name != "one" || !strings.Contains(spec(t, tried), `"description":"d"`) {
			t.Fatalf("a try: %+v, %v", tried, err)
		}
		_, err = s.Get(ctx, kind, "one")
		mustBe(t, err, harness.NotFound)
		made := create("one", `{"description":"d","systemPrompt":"Say \"hi\" — Grüße, 🙂\u2028 and \u007f: it's # fine\n\n two\n","harness":{"type":"CODE","sandbox":{"cpu":2,"memory":"64Mi"}}}`)
		got, err := s.Get(ctx, kind, "one")
		if err != nil || got.Version == "" || got.Version != made.Version || string(got.Object) != string(made.Object) || string(got.YAML) != string(made.YAML) || got.Kind != kind {
			t.Errorf("%+v, %v\n%+v", got, err, made)
		}
		var o struct {
			Metadata map[string]any
			Spec     struct{ SystemPrompt string }
		}
		if err := json.Unmarshal(got.Object, &o); err != nil || o.Spec.SystemPrompt != "Say \"hi\" — Grüße, 🙂\u2028 and \u007f: it's # fine\n\n two\n" {
			t.Errorf("%v\n%s", err, got.Object)
		}
		if o.Metadata["resourceVersion"] != got.Version || o.Metadata["managedFields"] != nil {
			t.Errorf("metadata %v", o.Metadata)
		}
		if agents, err := v1alpha1.Parse(got.YAML); err != nil || len(agents) != 1 || agents[0].Spec.SystemPrompt != o.Spec.SystemPrompt {
			t.Errorf("YAML: %v\n%s", err, got.YAML)
		}
		for _, dryRun := range []bool{true, false} {
			_, err = s.Create(ctx, resource.Resource{Kind: kind, Name: "one", Object: agent("one", "{}")}, dryRun)
			mustBe(t, err, harness.Conflict)
		}
		named, err := s.Create(ctx, resource.Resource{Kind: kind, Object: agent("unnamed", "{}")}, true)
		if err != nil || named.Name != "unnamed" {
			t.Errorf("a name from the object: %+v, %v", named, err)
		}
		flows, err := s.Create(ctx, resource.Resource{Kind: v1alpha1.KindWorkflow, Name: "one", Object: flow("one")}, false)
		if err != nil || flows.Kind != v1alpha1.KindWorkflow {
			t.Errorf("a workflow of the same name: %+v, %v", flows, err)
		}
	})

	t.Run("what is wrong is said by field", func(t *testing.T) {
		for name, c := range map[string]struct {
			object string
			want   []string
		}{
			"no JSON":          {`{`, []string{""}},
			"a list":           {`[]`, []string{""}},
			"two":              {`{} {}`, []string{""}},
			"nothing":          {`{}`, []string{"apiVersion"}}, // what the rest is to be is not known then
			"a field":          {string(agent("bad", `{"colour":"red"}`)), []string{"spec.colour"}},
			"twice":            {string(agent("bad", `{"description":"a","description":"b"}`)), []string{"spec.description"}},
			"another name":     {string(agent("other", `{}`)), []string{"metadata.name"}},
			"no name":          {string(agent("", `{}`)), []string{"metadata.name"}},
			"another kind":     {string(flow("bad")), []string{"kind"}},
			"types and bounds": {string(agent("bad", `{"description":5,"harness":{"type":"NONE","sandbox":{"ttlSeconds":-5,"timeoutSeconds":1}},"budget":[]}`)), []string{"spec.budget", "spec.description", "spec.harness.sandbox.ttlSeconds", "spec.harness.type"}},
			"finalizers":       {`{"apiVersion":"tuluat.ai/v1alpha1","kind":"AiAgent","metadata":{"name":"bad","finalizers":["x"]},"spec":{}}`, []string{"metadata.finalizers"}},
		} {
			_, err := s.Create(ctx, resource.Resource{Kind: kind, Name: "bad", Object: json.RawMessage(c.object)}, false)
			mustBe(t, err, harness.Invalid)
			got := problems(err)
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, want %q: %v", name, got, c.want, err)
			}
		}
		_, err := s.Get(ctx, kind, "bad")
		mustBe(t, err, harness.NotFound)
		if _, err := s.Create(ctx, resource.Resource{Kind: v1alpha1.KindWorkflow, Name: "torn", Object: json.RawMessage(strings.Replace(string(flow("torn")), "END", "EMD", 1))}, false); !slices.Contains(problems(err), "spec.nodes[0].type") {
			t.Errorf("a workflow: %v", err)
		}
	})

	t.Run("update", func(t *testing.T) {
		first := create("two", `{"description":"first","harness":{"type":"CODE"}}`)
		sent := resource.Resource{Kind: kind, Name: "two", Version: first.Version, Object: json.RawMessage(strings.Replace(string(first.Object), "first", "second", 1))}
		tried, err := s.Update(ctx, sent, true)
		if err != nil || !strings.Contains(spec(t, tried), "second") {
			t.Errorf("a try: %+v, %v", tried, err)
		}
		second, err := s.Update(ctx, sent, false) // with what a server wrote, as whoever read it sends it back
		if err != nil || !strings.Contains(spec(t, second), "second") || second.Version == first.Version {
			t.Fatalf("%+v, %v", second, err)
		}
		if !bare && (second.Generation != first.Generation+1 || second.CreatedAt.IsZero()) {
			t.Errorf("generation %d, %s", second.Generation, second.CreatedAt)
		}
		for _, dryRun := range []bool{true, false} {
			_, err = s.Update(ctx, sent, dryRun)
			mustBe(t, err, harness.Stale)
		}
		again, err := s.Update(ctx, resource.Resource{Kind: kind, Name: "two", Object: agent("two", `{"description":"third"}`)}, false)
		if err != nil || !strings.Contains(spec(t, again), "third") || strings.Contains(spec(t, again), "CODE") {
			t.Errorf("of any version: %+v, %v", again, err)
		}
		same, err := s.Update(ctx, resource.Resource{Kind: kind, Name: "two", Version: again.Version, Object: again.Object}, false)
		if err != nil || same.Version != again.Version {
			t.Errorf("no change: %+v, %v", same, err)
		}
		_, err = s.Update(ctx, resource.Resource{Kind: kind, Name: "two", Object: agent("two", `{"harness":{}}`)}, false)
		if got := problems(err); !slices.Equal(got, []string{"spec.harness.type"}) {
			t.Errorf("%q: %v", got, err)
		}
	})

	t.Run("patch", func(t *testing.T) {
		first := create("three", `{"description":"d","systemPrompt":"a\nb\n","harness":{"type":"CODE","sandbox":{"memory":"64Mi"}},"budget":{"maxSteps":3}}`)
		was := spec(t, first)
		tried, err := s.Patch(ctx, kind, "three", first.Version, []byte(`{"spec":{"harness":{"enabled":false}}}`), true)
		if err != nil || !strings.Contains(spec(t, tried), `"enabled":false`) {
			t.Errorf("a try: %+v, %v", tried, err)
		}
		off, err := s.Patch(ctx, kind, "three", first.Version, []byte(`{"spec":{"harness":{"enabled":false}}}`), false)
		if err != nil {
			t.Fatal(err)
		}
		without := strings.Replace(strings.Replace(spec(t, off), `"enabled":false,`, "", 1), `"enabled":true,`, "", 1)
		if without != strings.Replace(was, `"enabled":true,`, "", 1) {
			t.Errorf("the patch changed more:\n%s\n%s", was, spec(t, off))
		}
		_, err = s.Patch(ctx, kind, "three", first.Version, []byte(`{"spec":{"description":"x"}}`), false)
		mustBe(t, err, harness.Stale)
		got, err := s.Get(ctx, kind, "three")
		if err != nil || got.Version != off.Version || string(got.Object) != string(off.Object) {
			t.Errorf("%+v, %v", got, err)
		}
		same, err := s.Patch(ctx, kind, "three", "", []byte(`{"spec":{"harness":{"enabled":false}},"status":{"phase":"READY"},"metadata":{"resourceVersion":"1"}}`), false)
		if err != nil || same.Version != off.Version {
			t.Errorf("no change: %+v, %v", same, err)
		}
		labelled, err := s.Patch(ctx, kind, "three", "", []byte(`{"metadata":{"labels":{"team":"x"}},"spec":{"budget":null}}`), false)
		if err != nil || strings.Contains(spec(t, labelled), "budget") || !strings.Contains(string(labelled.Object), `"labels":{"team":"x"}`) {
			t.Errorf("%s, %v", labelled.Object, err)
		}
		for patch, want := range map[string]string{
			`[]`: "", `5`: "", `{"metadata":{"name":"other"}}`: "metadata.name", `{"metadata":null}`: "metadata.name", `{"kind":"AiWorkflow"}`: "kind", `{"apiVersion":"v2"}`: "apiVersion",
			`{"spec":{"harness":{"enabled":"no"}}}`: "spec.harness.enabled", `{"spec":{"harness":{"colour":1}}}`: "spec.harness.colour", `{"spec":[]}`: "spec",
			`{"spec":{"harness":{"sandbox":{"memory":"999Gi"}}}}`: "spec.harness.sandbox.memory", `{"metadata":{"finalizers":["x"]}}`: "metadata.finalizers",
		} {
			_, err := s.Patch(ctx, kind, "three", "", []byte(patch), false)
			mustBe(t, err, harness.Invalid)
			if !slices.Contains(problems(err), want) {
				t.Errorf("%s: %v", patch, err)
			}
		}
	})

	t.Run("writers at the same time", func(t *testing.T) {
		create("four", `{"budget":{"maxSteps":1}}`)
		var writers sync.WaitGroup
		var mu sync.Mutex
		done := 0
		for i := range 8 {
			writers.Go(func() {
				for {
					r, err := s.Get(ctx, kind, "four")
					if err != nil {
						t.Error(err)
						return
					}
					_, err = s.Patch(ctx, kind, "four", r.Version, []byte(fmt.Sprintf(`{"metadata":{"annotations":{"writer-%d":"x"}}}`, i)), false)
					if harness.KindOf(err) == harness.Stale {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					done++
					mu.Unlock()
					return
				}
			})
		}
		writers.Wait()
		r, err := s.Get(ctx, kind, "four")
		if err != nil || done != 8 || strings.Count(string(r.Object), `"writer-`) != 8 {
			t.Errorf("%d of 8 writers: %s, %v", done, r.Object, err)
		}
	})

	t.Run("list", func(t *testing.T) {
		for _, name := range []string{"l3", "l1", "l2"} {
			create(name, "{}")
		}
		var want []string
		for _, limit := range []int{100, 1, 2, 3} {
			var names []string
			for after, rounds := "", 0; rounds < 20; rounds++ {
				items, next, err := s.List(ctx, kind, after, limit)
				if err != nil || len(items) > limit {
					t.Fatalf("%d items, %v", len(items), err)
				}
				for _, item := range items {
					names = append(names, item.Name)
				}
				if after = next; next == "" {
					break
				}
			}
			if limit == 100 {
				want = names
			}
			if !slices.IsSorted(names) || !slices.Equal(names, want) || !slices.Equal(names, slices.Compact(slices.Clone(names))) || len(names) < 7 {
				t.Errorf("by %d: %q, want %q", limit, names, want)
			}
		}
		items, _, err := s.List(ctx, kind, "l1", 2) // a name will do
		if err != nil || len(items) != 2 || items[0].Name != "l2" {
			t.Errorf("behind l1: %+v, %v", items, err)
		}
	})

	t.Run("delete", func(t *testing.T) {
		first := create("five", "{}")
		second, err := s.Patch(ctx, kind, "five", "", []byte(`{"spec":{"description":"d"}}`), false)
		if err != nil {
			t.Fatal(err)
		}
		mustBe(t, s.Delete(ctx, kind, "five", first.Version), harness.Stale)
		if err := s.Delete(ctx, kind, "five", second.Version); err != nil {
			t.Error(err)
		}
		_, err = s.Get(ctx, kind, "five")
		mustBe(t, err, harness.NotFound)
		mustBe(t, s.Delete(ctx, kind, "five", ""), harness.NotFound)
		if err := s.Delete(ctx, kind, "one", ""); err != nil {
			t.Error(err)
		}
		if _, err := s.Get(ctx, v1alpha1.KindWorkflow, "one"); err != nil {
			t.Errorf("the workflow of that name: %v", err)
		}
		create("five", "{}")
	})
}

func TestFolderIsAStore(t *testing.T) {
	suite(t, resource.Folder{Path: t.TempDir(), Limits: v1alpha1.DefaultLimits()}, true)
}
