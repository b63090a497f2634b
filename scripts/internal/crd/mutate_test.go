package crd

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"tuluat.ai/harness/shared/api/v1alpha1"
)

// odd are values that a field may not have, or not expect.
func odd() []any {
	return []any{
		nil, true, 0, 1.5, int64(1) << 40, "x y", "+1h", "http://a/#", strings.Repeat("é", 2000), map[string]any{}, []any{nil},
	}
}

// mutants calls visit for each way in which one place of a document is odd or
// missing. The document is the same before and after.
func mutants(document map[string]any, visit func(what string)) {
	var walk func(path string, value any)
	try := func(path string, value any, set func(any), remove func()) {
		for _, v := range odd() {
			set(v)
			visit(fmt.Sprintf("%s = %.40v", path, v))
		}
		if remove != nil {
			remove()
			visit(path + " removed")
		}
		set(value)
		walk(path, value)
	}
	walk = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(value)) {
				try(path+"."+key, value[key], func(v any) { value[key] = v }, func() { delete(value, key) })
			}
			value["unknown"] = 1
			visit(path + " with an unknown field")
			delete(value, "unknown")
		case []any:
			for i := range value {
				try(fmt.Sprintf("%s[%d]", path, i), value[i], func(v any) { value[i] = v }, nil)
			}
		}
	}
	walk("spec", document["spec"])
}

// Whatever an API server refuses, a folder's reader refuses: else an agent that
// works on one machine would not apply to a cluster. Every field of every block
// is tried with every odd value, one block at a time.
func TestWhatTheClusterRefusesTheFolderRefuses(t *testing.T) {
	for _, test := range []struct {
		file, text string
		known      int // problems of the text as it is
		together   bool
	}{{agentsFile, everything, 0, false}, {flowsFile, rightWorkflow, 0, true}} {
		crd := open(t, test.file)
		var whole map[string]any
		if err := yaml.UnmarshalStrict([]byte(test.text), &whole); err != nil {
			t.Fatal(err)
		}
		// both says what each side has against the document.
		both := func(document map[string]any) (cluster []string, folder v1alpha1.Problems) {
			text, err := yaml.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			_, cluster = crd.admit(t, string(text))
			_, folder = strict(t, string(text))
			return cluster, folder
		}
		blocks := []map[string]any{whole["spec"].(map[string]any)}
		if !test.together {
			blocks = nil
			for name, block := range whole["spec"].(map[string]any) {
				alone := map[string]any{name: block}
				if name == "mcpServers" { // programs need a sandbox
					alone["harness"] = map[string]any{"type": "CODE"}
				}
				blocks = append(blocks, alone)
			}
		}
		tried, refused := 0, 0
		for _, block := range blocks {
			document := maps.Clone(whole)
			document["spec"] = block
			if cluster, folder := both(document); len(cluster) > 0 || len(folder) != test.known {
				t.Fatalf("as it is: %q, %v", cluster, folder)
			}
			mutants(document, func(what string) {
				cluster, folder := both(document)
				tried++
				if len(cluster) > 0 {
					refused++
				}
				if len(cluster) > 0 && len(folder) <= test.known {
					t.Errorf("%s: only the cluster says %q", what, cluster)
				}
			})
		}
		if t.Logf("%s: %d tried, the cluster refused %d", test.file, tried, refused); tried < 500 || refused < tried/2 {
			t.Errorf("too few")
		}
	}
}
