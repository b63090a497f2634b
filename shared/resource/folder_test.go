package resource_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource"
)

const head = "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\n"

// folder is a Folder of these files.
func folder(t *testing.T, files map[string]string) resource.Folder {
	t.Helper()
	f := resource.Folder{Path: t.TempDir(), Limits: v1alpha1.DefaultLimits()}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(f.Path, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// files are all files of a folder, hidden ones among them.
func files(t *testing.T, f resource.Folder) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(f.Path, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		texts[entry.Name()] = string(text)
	}
	return texts
}

func is(t *testing.T, f resource.Folder, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, files(t, f)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

const off = `{"spec":{"harness":{"enabled":false}}}`

// The agents' names are those of the documents; only the lines of what changes do.
func TestAPatchChangesJustItsLines(t *testing.T) {
	const three = "\uFEFF# Our agents.\n---\n" + head + "metadata: {name: one} # first\nspec:\n  harness: {type: CODE}\n\n# About two\n--- # two\n" + head +
		"metadata:\n  name: two\nspec:\n  systemPrompt: |\n    Hello\n\n    # not a comment\n  harness: # what it does\n    # and how\n    type: CODE\n  # end\n---\n" +
		"apiVersion: tuluat.ai/v1alpha1\nkind: AiWorkflow\nmetadata: {name: two}\nspec: {nodes: [{id: ask, type: AGENT, agent: a, prompt: p}, {id: end, type: END}], edges: [{from: ask, to: end}]}\n---\n" + head + "metadata: {name: three}\nspec: {harness: {\"type\": CODE, enabled: true}}"
	f := folder(t, map[string]string{"all.yml": three, "crlf.yaml": strings.ReplaceAll(head+"metadata: {name: four}\nspec:\n  harness:\n    type: CODE\n", "\n", "\r\n"), "six.json": `{"apiVersion": "tuluat.ai/v1alpha1", "kind": "AiAgent", "metadata": {"name": "six"},
	"spec": {"harness": {"type": "CODE"}}}`, "no.txt": head, ".hidden.yaml": head + "metadata: {name: hidden}\n"})
	items, _, err := f.List(t.Context(), agents, "", 10)
	var names []string
	for _, item := range items {
		names = append(names, item.Name)
	}
	if err != nil || strings.Join(names, " ") != "four one six three two" {
		t.Fatalf("%q, %v", names, err)
	}
	want := files(t, f)
	for name, change := range map[string]struct{ file, old, new string }{
		"one":   {"all.yml", "{name: one} # first\nspec:\n  harness: {type", "{name: one} # first\nspec:\n  harness: {enabled: false, type"},
		"two":   {"all.yml", "# what it does\n", "# what it does\n    enabled: false\n"},
		"three": {"all.yml", "enabled: true", "enabled: false"},
		"four":  {"crlf.yaml", "harness:\r\n", "harness:\r\n    enabled: false\r\n"},
		"six":   {"six.json", `{"type": "CODE"}`, `{"enabled": false, "type": "CODE"}`},
	} {
		before, err := f.Get(t.Context(), agents, name)
		if err != nil || !strings.Contains(want[change.file], string(before.YAML)) {
			t.Fatalf("%s: %v\n%s", name, err, before.YAML)
		}
		after, err := f.Patch(t.Context(), agents, name, before.Version, []byte(off), false)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want[change.file] = strings.Replace(want[change.file], change.old, change.new, 1)
		is(t, f, want)
		if again, err := f.Get(t.Context(), agents, name); err != nil || again.Version != after.Version || again.Version == before.Version || !bytes.Equal(again.YAML, after.YAML) {
			t.Errorf("%s: %+v, %v", name, again, err)
		}
	}
	if !json.Valid([]byte(want["six.json"])) {
		t.Error(want["six.json"])
	}
	if err := f.Delete(t.Context(), agents, "two", ""); err != nil {
		t.Fatal(err)
	}
	begin, end := strings.Index(want["all.yml"], "--- # two"), strings.Index(want["all.yml"], "---\napiVersion: tuluat.ai/v1alpha1\nkind: AiWorkflow")
	want["all.yml"] = want["all.yml"][:begin] + want["all.yml"][end:]
	is(t, f, want)
	if err := f.Delete(t.Context(), agents, "four", ""); err != nil {
		t.Fatal(err)
	}
	delete(want, "crlf.yaml")
	is(t, f, want)
}

// A whole object changes what it says otherwise; a text that says the same is
// kept as its author wrote it.
func TestAnUpdateKeepsComments(t *testing.T) {
	f := folder(t, map[string]string{"a.yaml": "# Ours\n" + head + "metadata: {name: a}\nspec:\n  # why\n  description: old # c\n  harness:\n    type: CODE # d\n---\n" + head + "metadata: {name: b}\n"})
	if _, err := f.Update(t.Context(), resource.Resource{Kind: agents, Name: "a", Object: agent("a", `{"description":"new","harness":{"type":"CODE"},"budget":{"maxSteps":3}}`)}, false); err != nil {
		t.Fatal(err)
	}
	is(t, f, map[string]string{"a.yaml": "# Ours\n" + head + "metadata: {name: a}\nspec:\n  # why\n  description: new # c\n  harness:\n    type: CODE # d\n  budget:\n    maxSteps: 3\n---\n" + head + "metadata: {name: b}\n"})
	for name, text := range map[string]string{"a": "# Mine\n" + head + "metadata: {name: a}\nspec: {description: 'x'}", "b": head + "metadata: {name: b} # b\nspec: {description: 'x'}"} {
		if _, err := f.Update(t.Context(), resource.Resource{Kind: agents, Name: name, Object: agent(name, `{"description":"x"}`), YAML: []byte(text)}, false); err != nil {
			t.Fatal(err)
		}
	}
	is(t, f, map[string]string{"a.yaml": "# Mine\n" + head + "metadata: {name: a}\nspec: {description: 'x'}\n---\n" + head + "metadata: {name: b} # b\nspec: {description: 'x'}"})
	for _, text := range []string{"# other\n" + head + "metadata: {name: a}\nspec: {description: y}\n", "nonsense", head + "metadata: {name: a}\nspec: {description: z}\n---\n" + head + "metadata: {name: c}\n"} {
		if _, err := f.Update(t.Context(), resource.Resource{Kind: agents, Name: "a", Object: agent("a", `{"description":"z"}`), YAML: []byte(text)}, false); err != nil {
			t.Fatal(err)
		}
	}
	r, err := f.Create(t.Context(), resource.Resource{Kind: agents, Object: agent("c", `{}`), YAML: []byte("# c\n" + head + "metadata: {name: c}\nspec: {} # e")}, false)
	if err != nil || string(r.YAML) != "# c\n"+head+"metadata: {name: c}\nspec: {} # e" {
		t.Errorf("%s, %v", r.YAML, err)
	}
	is(t, f, map[string]string{
		"a.yaml": "# Mine\n" + head + "metadata: {name: a}\nspec: {description: z}\n---\n" + head + "metadata: {name: b} # b\nspec: {description: 'x'}",
		"c.yaml": "# c\n" + head + "metadata: {name: c}\nspec: {} # e",
	})
}

// What cannot be changed safely is refused, and stays as it is.
func TestWhatAFolderRefuses(t *testing.T) {
	bomb := head + "metadata: {name: bomb}\nspec:\n  a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for i := 'b'; i < 'j'; i++ {
		bomb += fmt.Sprintf("  %c: &%c [%s*%c]\n", i, i, strings.Repeat(fmt.Sprintf("*%c,", i-1), 9), i-1)
	}
	texts := map[string]string{
		"anchors.yaml":       head + "metadata: {name: anchors}\nspec: {description: &d x, systemPrompt: *d}\n",
		"twice.yaml":         head + "metadata: {name: twice}\n",
		"again.yaml":         head + "metadata: {name: twice}\n",
		"taken.yaml":         head + "metadata: {name: elsewhere}\n",
		"hostile.yaml":       head + "metadata: {name: ../x}\n---\n" + head + "metadata: {name: A}\n---\n" + head + "metadata: {name: a/b}\n---\nkind: AiAgent\nmetadata: {name: nothing}\n",
		"broken.yaml":        head + "metadata: {name: before}\n---\n" + head + "metadata: {name: broken}\nspec: {\n",
		"wrong.yaml":         head + "metadata: {name: wrong}\nspec: {colour: red, harness: {type: CODE}}\n",
		"bomb.yaml":          bomb,
		"empty.yaml":         "",
		"binary.yaml":        "\x00\x01\x02",
		"utf16.yaml":         "\xff\xfea\x00:\x00",
		"large.yaml":         head + "metadata: {name: large}\nspec: {description: d}\n" + strings.Repeat("#", v1alpha1.MaxFileBytes-len(head)-60) + "\n",
		"directive.yaml":     "%YAML 1.1\n---\n" + head + "metadata: {name: directive}\nspec: {harness: {type: CODE}}\n",
		"larger.yaml":        head + "metadata: {name: larger}\n" + strings.Repeat("#", v1alpha1.MaxFileBytes),
		"cycle.yaml":         head + "metadata: {name: cycle}\nspec: &s {a: *s}\n",
		"scalar.yaml":        "just text\n",
		"target":             head + "metadata: {name: inside}\n",
		"Taken.AiAgent.yaml": "# nothing\n",
	}
	f := folder(t, texts)
	outside := filepath.Join(t.TempDir(), "secret.yaml")
	if err := os.WriteFile(outside, []byte(head+"metadata: {name: outside}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"inside.yaml": "target", "outside.yaml": outside, "gone.yaml": "nowhere", "loop.yaml": "loop.yaml"} {
		if err := os.Symlink(to, filepath.Join(f.Path, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(f.Path, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(f.Path, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	items, _, err := f.List(t.Context(), agents, "", 100)
	var names []string
	for _, item := range items {
		names = append(names, item.Name)
	}
	if want := "anchors before bomb cycle directive elsewhere inside large twice wrong"; err != nil || strings.Join(names, " ") != want {
		t.Errorf("%q, want %q: %v", names, want, err)
	}
	patch := []byte(`{"spec":{"description":"` + strings.Repeat("d", 200) + `"}}`)
	for name, kind := range map[string]harness.Kind{
		"anchors": harness.Invalid, "twice": harness.Conflict, "inside": harness.Conflict, "outside": harness.NotFound, "broken": harness.NotFound, "wrong": harness.Invalid, "bomb": harness.Invalid,
		"large": harness.Invalid, "larger": harness.NotFound, "cycle": harness.Invalid, "../x": harness.NotFound, "A": harness.NotFound, "a/b": harness.NotFound, "nothing": harness.NotFound,
	} {
		for _, dryRun := range []bool{true, false} {
			_, err := f.Patch(t.Context(), agents, name, "", patch, dryRun)
			if harness.KindOf(err) != kind {
				t.Errorf("%s: %s, want %s: %v", name, harness.KindOf(err), kind, err)
			}
		}
	}
	for _, name := range []string{"twice", "inside"} {
		mustBe(t, f.Delete(t.Context(), agents, name, ""), harness.Conflict)
	}
	for name, kind := range map[string]harness.Kind{"twice": harness.Conflict, "inside": harness.Conflict, "outside": "", "gone": "", "pipe": "", "taken": ""} {
		_, err := f.Create(t.Context(), resource.Resource{Kind: agents, Name: name, Object: agent(name, "{}")}, true)
		if harness.KindOf(err) != kind {
			t.Errorf("create %s: %v", name, err)
		}
	}
	is(t, f, texts)
	if text, err := os.ReadFile(outside); err != nil || string(text) != head+"metadata: {name: outside}\n" {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := f.Get(t.Context(), agents, "missing"); !strings.Contains(harness.MessageOf(err), "broken.yaml: ") || strings.Contains(err.Error(), f.Path) {
		t.Errorf("%v", err)
	}
	for name, change := range map[string][2]string{"before": {"{name: before}\n", "{name: before}\nspec:\n  description: d\n"}, "directive": {"{harness", "{description: d, harness"}} {
		file := map[string]string{"before": "broken.yaml", "directive": "directive.yaml"}[name]
		if _, err := f.Patch(t.Context(), agents, name, "", []byte(`{"spec":{"description":"d"}}`), false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		texts[file] = strings.Replace(texts[file], change[0], change[1], 1)
	}
	taken, err := f.Create(t.Context(), resource.Resource{Kind: agents, Name: "taken", Object: agent("taken", "{}")}, false)
	if err != nil {
		t.Fatal(err)
	}
	texts["taken.aiagent.yaml"] = string(taken.YAML)
	is(t, f, texts)
	none := resource.Folder{Path: filepath.Join(f.Path, "none"), Limits: f.Limits}
	_, _, err = none.List(t.Context(), agents, "", 1)
	mustBe(t, err, harness.Unavailable)
	_, err = none.Create(t.Context(), resource.Resource{Kind: agents, Object: agent("a", "{}")}, false)
	mustBe(t, err, harness.Unavailable)
}

// Rights stay, and what a crash left behind goes.
func TestAWriteLeavesTheFileAsItWas(t *testing.T) {
	f := folder(t, map[string]string{"a.yaml": head + "metadata: {name: a}\n", ".tuluat-resource.tmp": "half"})
	path := filepath.Join(f.Path, "a.yaml")
	if err := os.Chmod(path, 0o606); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, filepath.Join(f.Path, "kept")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Patch(t.Context(), agents, "a", "", []byte(`{"spec":{"description":"d"}}`), false); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o606 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	is(t, f, map[string]string{"a.yaml": head + "metadata: {name: a}\nspec:\n  description: d\n", "kept": head + "metadata: {name: a}\n"})
	if err := os.Symlink(filepath.Join(f.Path, "kept"), filepath.Join(f.Path, ".tuluat-resource.tmp")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Patch(t.Context(), agents, "a", "", []byte(`{"spec":null}`), false); err != nil {
		t.Fatal(err)
	}
	is(t, f, map[string]string{"a.yaml": head + "metadata: {name: a}\n", "kept": head + "metadata: {name: a}\n"})
	if os.Getuid() != 0 {
		if err := os.Chmod(f.Path, 0o500); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(f.Path, 0o700) //nolint:errcheck // the test's own folder
		_, err = f.Patch(t.Context(), agents, "a", "", []byte(off), false)
		mustBe(t, err, harness.Unavailable)
	}
}

// An editor writes beside us without a lock. Nothing of it is lost, and what we
// read is always whole.
func TestAFileThatChangesMeanwhile(t *testing.T) {
	f := folder(t, nil)
	path := filepath.Join(f.Path, "a.yaml")
	version := func(n int) string {
		return head + "metadata:\n  name: a\n  annotations: {editor: \"" + fmt.Sprint(n) + "\"}\n" + strings.Repeat("# long\n", 1000) + "spec: {description: \"" + fmt.Sprint(n) + "\"}\n"
	}
	write := func(text string) {
		next := filepath.Join(f.Path, ".editor")
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Error(err)
		}
	}
	write(version(0))
	var ends atomic.Bool
	var editor sync.WaitGroup
	editor.Go(func() {
		for n, often := 1, time.NewTicker(20*time.Millisecond); !ends.Load(); n++ {
			write(version(n))
			if <-often.C; n%50 == 0 { // time for us, more the slower the machine is
				often.Reset(time.Duration(20+n) * time.Millisecond)
			}
		}
	})
	began := time.Now()
	reads, writes := 0, 0
	for time.Since(began) < 3*time.Second || writes == 0 && time.Since(began) < time.Minute {
		r, err := f.Get(t.Context(), agents, "a")
		if err != nil {
			t.Fatal(err)
		}
		var o struct {
			Metadata struct{ Annotations map[string]string }
			Spec     struct{ Description string }
		}
		if err := json.Unmarshal(r.Object, &o); err != nil || o.Spec.Description != o.Metadata.Annotations["editor"] {
			t.Fatalf("torn: %+v, %v", o, err)
		}
		reads++
		_, err = f.Patch(t.Context(), agents, "a", r.Version, []byte(`{"metadata":{"labels":{"x":"y"}}}`), false)
		switch harness.KindOf(err) {
		case "":
			writes++
		case harness.Stale, harness.Conflict:
		default:
			t.Fatal(err)
		}
	}
	ends.Store(true)
	editor.Wait()
	r, err := f.Patch(t.Context(), agents, "a", "", []byte(`{"metadata":{"labels":{"x":"z"}}}`), false)
	if err != nil || !strings.Contains(string(r.Object), `"x":"z"`) || writes == 0 {
		t.Errorf("%d reads, %d writes: %s, %v", reads, writes, r.Object, err)
	}
	t.Logf("%d reads, %d writes", reads, writes)
}

// Many processes write one file; each sees its own change, and none is lost.
func TestWritersInOneFile(t *testing.T) {
	var file strings.Builder
	for i := range 8 {
		fmt.Fprintf(&file, "---\n%smetadata: {name: a%d} # %d\nspec: {budget: {maxSteps: 1}}\n", head, i, i)
	}
	f := folder(t, map[string]string{"all.yaml": file.String()})
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			name := fmt.Sprintf("a%d", i)
			for n := range 10 {
				if _, err := f.Patch(t.Context(), agents, name, "", []byte(fmt.Sprintf(`{"spec":{"budget":{"maxSteps":%d}}}`, n+2)), false); err != nil {
					t.Error(err)
				}
				own := fmt.Sprintf("b%d-%d", i, n)
				if _, err := f.Create(t.Context(), resource.Resource{Kind: agents, Object: agent(own, "{}")}, false); err != nil {
					t.Error(err)
				}
				_, err := f.Create(t.Context(), resource.Resource{Kind: agents, Object: agent(fmt.Sprintf("once-%d", n), "{}")}, false)
				if kind := harness.KindOf(err); kind != "" && kind != harness.Conflict {
					t.Error(err)
				}
				if n%2 == 0 {
					if err := f.Delete(t.Context(), agents, own, ""); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	writers.Wait()
	got := files(t, f)
	if want := strings.ReplaceAll(file.String(), "maxSteps: 1", "maxSteps: 11"); got["all.yaml"] != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got["all.yaml"]))
	}
	if len(got) != 1+8*5+10 {
		t.Errorf("%d files", len(got))
	}
}

// A lock that is not let go of ends with the request's time.
func TestALockIsNotWaitedForForEver(t *testing.T) {
	f := folder(t, map[string]string{"a.yaml": head + "metadata: {name: a}\n"})
	held, err := os.Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextFor(t, 50*time.Millisecond)
	defer cancel()
	_, err = f.Patch(ctx, agents, "a", "", []byte(off), false)
	mustBe(t, err, harness.Unavailable)
	if _, err := f.Get(t.Context(), agents, "a"); err != nil {
		t.Errorf("a reader: %v", err)
	}
	held.Close()
	if _, err := f.Patch(t.Context(), agents, "a", "", []byte(`{"spec":{"description":"d"}}`), false); err != nil {
		t.Error(err)
	}
}
