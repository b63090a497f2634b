package resource_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// blocks are the ways in which people write each block of a spec: in lines at an
// indent of two, or between braces. %s is where its enabled stands, if anywhere.
var blocks = map[string][]string{
	"harness": {
		"  harness: # what it does\n    %stype: CODE # c\n    # sandbox\n    sandbox:\n      memory: 64Mi\n",
		"  harness: {%stype: CODE, sandbox: {memory: 64Mi}} # c\n",
		"  \"harness\":\n\n    %s'type': \"CODE\"\n",
		"  harness:\n      # deep\n      %stype: CHANNEL\n      channels:\n      - type: WEBHOOK # c\n        name: h\n        secretRef: {name: s, key: k}\n        senders:\n          allow:\n          - u # last\n",
		"  harness: {\n    %stype: CODE,  # c\n    maxSandboxes: 2,\n  }\n",
	},
	"guardrails": {
		"  guardrails:\n    %sinput: # c\n      - name: l\n        type: LENGTH\n        maxBytes: 10\n",
		"  guardrails: {%sinput: [{name: p, type: PATTERN, action: redact, patterns: [\"secret, # {\"]}]}\n",
	},
	"skills":     {"  skills:\n    %sitems:\n      - name: s\n        description: d\n        text: |\n          # no comment\n          enabled: true\n\n        # comment\n", "  skills: {%sitems: [{name: s, description: d, text: t}]}\n"},
	"mcpServers": {"  mcpServers:\n    %sservers: [{name: m, url: \"https://example.com/mcp\"}] # c\n"},
	"a2a":        {"  a2a:   \n    # c\n    %speers:\n    - name: p\n      description: d\n      url: https://example.com/agent\n"},
}

// others are blocks that no features patch touches.
var others = []string{
	"  systemPrompt: |\n    You are ü 🙂.\n\n    harness:\n      enabled: true # no comment\n", "  systemPrompt: >-\n    folded\n    text\n\n", "  description: 'it''s # fine' # c\n", "  description: two\n    lines\n",
	"  budget:\n    maxSteps: 5\n\n", "  budget: {maxSteps: 5} #\n", "  # comment: {\n", "\n", "  model: {name: \"a:b\"}\n", "  model: null\n", "# at the margin\n", "  model:\n",
}

// written is a valid document, and whether each line may change in a patch of a
// block: those that hold its name or its enabled, and those of one in braces.
type written struct {
	text   string
	blocks map[string]bool // it has
}

func document(r *rand.Rand, name string) written {
	w := written{blocks: map[string]bool{}}
	w.text = "# " + name + "\n" + head + "metadata:\n  name: " + name + "\n  # labels\n  labels: {a: b}\nspec: # all\n"
	parts := []string{}
	for _, block := range []string{"a2a", "guardrails", "harness", "mcpServers", "skills"} {
		if r.IntN(3) > 0 {
			how := blocks[block][r.IntN(len(blocks[block]))]
			enabled := ""
			if block != "harness" || r.IntN(2) == 0 { // this release takes no other that is on
				enabled = fmt.Sprintf([]string{"enabled: %v", "\"enabled\": %v", "enabled:   %v"}[r.IntN(3)], block == "harness" && r.IntN(2) == 0)
				if strings.Contains(how, "{%s") || strings.Contains(how, "{\n    %s") {
					enabled += ", "
				} else {
					_, before, _ := strings.Cut("\n"+how[:strings.Index(how, "%s")], "\n")
					before = before[strings.LastIndexByte(before, '\n')+1:]
					enabled += []string{"", " # why", "  "}[r.IntN(3)] + "\n" + before
				}
			}
			parts, w.blocks[block] = append(parts, fmt.Sprintf(how, enabled)), true
		}
	}
	seen := map[string]bool{}
	for range r.IntN(5) {
		other := others[r.IntN(len(others))]
		key, _, _ := strings.Cut(strings.TrimSpace(other), ":")
		if !seen[key] || strings.HasPrefix(key, "#") || key == "" {
			parts, seen[key] = append(parts, other), true
		}
	}
	r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	if len(w.blocks) == 0 {
		parts = append(parts, "  description: last\n")
		if seen["description"] {
			parts = parts[:len(parts)-1]
		}
	}
	w.text += strings.Join(parts, "")
	return w
}

// Any valid document, any features patch: the reader sees just the change, and
// all other lines and files stay byte for byte.
func TestAnyFeaturesPatchOfAnyDocument(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	f := folder(t, nil)
	path := filepath.Join(f.Path, "agents.yaml")
	if err := os.WriteFile(filepath.Join(f.Path, "other.yaml"), []byte(head+"metadata: {name: other}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	patched, refused := 0, 0
	reasons := map[string]int{}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 11))
		documents := []written{document(r, "a"), document(r, "b"), document(r, "c")}
		text := documents[0].text + "---\n" + documents[1].text + "--- # c\n" + documents[2].text
		if r.IntN(3) == 0 {
			text = strings.TrimSuffix(text, "\n")
		}
		if r.IntN(3) == 0 {
			text = strings.ReplaceAll(text, "\n", "\r\n")
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := v1alpha1.Parse([]byte(text))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		which := r.IntN(3)
		features, patch := map[string]bool{}, map[string]any{}
		for range 1 + r.IntN(3) {
			block := []string{"a2a", "guardrails", "harness", "mcpServers", "skills"}[r.IntN(5)]
			features[block] = r.IntN(2) == 0 && (block == "harness" || r.IntN(4) == 0)
			patch[block] = map[string]bool{"enabled": features[block]}
		}
		body, err := json.Marshal(map[string]any{"spec": patch})
		if err != nil {
			t.Fatal(err)
		}
		name := string(rune('a' + which))
		problem := func(what string, args ...any) {
			got, _ := os.ReadFile(path)
			t.Fatalf("seed %d: %s of %s: %s\n%q\nbecame\n%q", seed, body, name, fmt.Sprintf(what, args...), text, got)
		}
		_, err = f.Patch(t.Context(), agents, name, "", body, false)
		got, readErr := os.ReadFile(path)
		if readErr != nil {
			t.Fatal(readErr)
		}
		want := before[which]
		set(&want.Spec, features)
		if valid := want.Validate(f.Limits); len(valid) > 0 {
			if harness.KindOf(err) != harness.Invalid || string(got) != text {
				problem("%v, want %v", err, valid)
			}
			refused++
			reasons[valid[0].String()]++
			continue
		}
		if err != nil {
			problem("%v", err)
		}
		patched++
		after, err := v1alpha1.Parse(got)
		if err != nil {
			problem("%v", err)
		}
		before[which] = want
		if diff := cmp.Diff(before, after); diff != "" {
			problem("the reader sees (-want +got):\n%s", diff)
		}
		if lost := lostLines(text, string(got), features); lost != "" {
			problem("loses %s", lost)
		}
	}
	if entries, err := os.ReadDir(f.Path); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	if patched < rounds/3 || refused == 0 {
		t.Error("the patches are all alike")
	}
	t.Logf("%d patched, %d refused: %v", patched, refused, reasons)
}

func set(s *v1alpha1.Spec, features map[string]bool) {
	for block, on := range features {
		switch block {
		case "a2a":
			s.A2A = clone(s.A2A)
			s.A2A.Enabled = &on
		case "guardrails":
			s.Guardrails = clone(s.Guardrails)
			s.Guardrails.Enabled = &on
		case "harness":
			s.Harness = clone(s.Harness)
			s.Harness.Enabled = &on
		case "mcpServers":
			s.MCPServers = clone(s.MCPServers)
			s.MCPServers.Enabled = &on
		case "skills":
			s.Skills = clone(s.Skills)
			s.Skills.Enabled = &on
		}
	}
}

func clone[T any](value *T) *T {
	if value == nil {
		return new(T)
	}
	copied := *value
	return &copied
}

// lostLines returns a line that is gone and did not have to, or says that there
// are more new ones than switches.
func lostLines(before, after string, features map[string]bool) string {
	was, is := strings.SplitAfter(before, "\n"), strings.SplitAfter(after, "\n")
	longest := make([][]int, len(was)+1) // common subsequence of was[i:] and is[j:]
	for i := range longest {
		longest[i] = make([]int, len(is)+1)
	}
	for i := len(was) - 1; i >= 0; i-- {
		for j := len(is) - 1; j >= 0; j-- {
			longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			if was[i] == is[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			}
		}
	}
	for i, j := 0, 0; i < len(was); {
		switch {
		case j < len(is) && was[i] == is[j]:
			i, j = i+1, j+1
		case j < len(is) && longest[i][j+1] >= longest[i+1][j]:
			j++
		default:
			mine := strings.Contains(was[i], "enabled") || strings.Contains(was[i], "type: CODE")
			for block := range features {
				mine = mine || strings.Contains(was[i], block) && strings.Contains(was[i], "{")
			}
			if last := !strings.HasSuffix(was[i], "\n"); !mine && !(last && slices.ContainsFunc(is, func(l string) bool { return strings.TrimRight(l, "\r\n") == was[i] })) {
				return fmt.Sprintf("%q", was[i])
			}
			i++
		}
	}
	if added := len(is) - longest[0][0]; added > 2*len(features)+1 { // a block that was not there has two lines
		return fmt.Sprintf("nothing, and has %d new lines for %d switches", added, len(features))
	}
	return ""
}
