package manifest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	for text, want := range map[string][]string{
		"":                          {"1:"},
		"a: 1\n":                    {"1:a: 1\n"},
		"---\na: 1\n":               {"1:", "2:a: 1\n"},
		"a: 1\n---\nb: 2\n":         {"1:a: 1\n", "3:b: 2\n"},
		"a: 1\r\n---\r\nb: 2\r\n":   {"1:a: 1\r\n", "3:b: 2\r\n"},
		"a: 1\n---  \n# x\n---\n":   {"1:a: 1\n", "3:# x\n", "5:"},
		"a: |\n  ---\n  x\n---\nb:": {"1:a: |\n  ---\n  x\n", "5:b:"},
		"--- {a: 1}\n--- # c\nb: 2": {"1:", "1:--- {a: 1}\n", "2:--- # c\nb: 2"},
		"a: ----\n----\n":           {"1:a: ----\n----\n"},
		"\xef\xbb\xbf---\na: 1":     {"1:", "2:a: 1"},
		"a: 1\n---":                 {"1:a: 1\n", "2:---"},
	} {
		var got []string
		for _, p := range split([]byte(text)) {
			got = append(got, string(rune('0'+p.line))+":"+string(p.text))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestWhere(t *testing.T) {
	text := `# a comment
kind: Other
---
kind: AiAgent
metadata:
  name: a
  annotations:
    tuluat.ai/x: "1"
spec:
  date: 2026-01-02
  harness:
    channels:
      - type: WEBHOOK
        name: x
      - {type: WHATSAPP,
         name: y}
  shared: &s {deep: 1}
  other: *s
`
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Read([]string{file}, nil, "AiAgent", "Other2")
	if err == nil || !strings.Contains(err.Error(), `a.yaml:1: kind is "Other"`) || len(r.Documents) != 1 {
		t.Fatalf("%v %+v", err, r)
	}
	d := r.Documents[0]
	for pointer, line := range map[string]string{
		"#": "4", "#/kind": "4", "#/spec/harness/channels/0/name": "14", "#/spec/harness/channels/1/name": "16", "#/spec/harness/channels/7": "12", "#/spec/harness/none/x": "11",
		"#/metadata/annotations/tuluat.ai~1x": "8", "#/spec/other/deep": "17", "query/limit": "4", "#/spec/date/x": "10", "": "4",
	} {
		if got := d.Where(pointer); got != file+":"+line {
			t.Errorf("%s is at %s, want line %s", pointer, got, line)
		}
	}
	object, err := d.JSON()
	if err != nil || object["spec"].(map[string]any)["date"] != "2026-01-02" {
		t.Errorf("%v %v", object, err)
	}
}

func TestReadFolders(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"b.json": `{"kind":"AiAgent","metadata":{"name":"b"}}`, "a.yml": "kind: AiAgent\nmetadata: {name: a, labels: {x: y}}\n", "k.yaml": "kind: Kustomization\n---\nno: kind\n", "x.txt": "[", ".hidden": "[",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, "sub.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := Read([]string{folder, "-"}, strings.NewReader("kind: AiAgent\nmetadata: {name: c}\n"), "AiAgent")
	if err != nil || len(r.Documents) != 3 || r.Documents[0].Name != "a" || r.Documents[0].Labels["x"] != "y" || r.Documents[1].Name != "b" || r.Documents[2].File != "-" || len(r.Skipped) != 2 {
		t.Errorf("%v %+v", err, r)
	}
	if _, err := Read([]string{t.TempDir()}, nil, "AiAgent"); err == nil || !strings.Contains(err.Error(), "no file there") {
		t.Error(err)
	}
	if _, err := Read([]string{"-"}, strings.NewReader(strings.Repeat("#", maxFile+1)), "AiAgent"); err == nil || !strings.Contains(err.Error(), "16 MiB") {
		t.Error(err)
	}
}
