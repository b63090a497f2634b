package resource_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource"
)

// cpu is the time that this process has computed: the machine may be busy.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Whatever is sent, it is refused in little time and in few words, by every store.
func TestHostileBodies(t *testing.T) {
	fill := func(each func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < 1<<20-1000; i++ {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(each(i))
		}
		return b.String()
	}
	long := strings.Repeat("\U0001F642", 50_000)
	deep := func(n int, open, within, shut string) string {
		return strings.Repeat(open, n) + within + strings.Repeat(shut, n)
	}
	cluster, _ := newCluster(t)
	for where, store := range map[string]resource.Store{"folder": folder(t, nil), "cluster": cluster} {
		for name, body := range map[string]string{
			"duplicates below a long key": string(agent("a", `{"`+long+`": {`+strings.Repeat(`"a": 1, `, 1000)+`"a": 1}}`)),
			"duplicates":                  string(agent("a", `{`+fill(func(int) string { return `"a":1` })+`}`)),
			"unknown fields":              string(agent("a", `{`+fill(func(i int) string { return fmt.Sprintf(`"x%d":1`, i) })+`}`)),
			"long unknown fields":         string(agent("a", `{`+fill(func(i int) string { return fmt.Sprintf(`"%d%s":1`, i, long[:2000]) })+`}`)),
			"deep lists":                  string(agent("a", deep(9000, "[", "", "]"))),
			"deep objects":                string(agent("a", deep(9000, `{"a":`, `"`+strings.Repeat("b", 900_000)+`"`, "}"))),
			"very deep objects":           deep(150_000, `{"a":`, "1", "}"),
			"a long name":                 string(agent(long, `{}`)),
			"a long kind":                 `{"apiVersion":"tuluat.ai/v1alpha1","kind":"` + long + `","metadata":{"name":"a"}}`,
			"nothing but zeros":           string(agent("a", `{"harness":{"channels":[`+fill(func(int) string { return `0` })+`]}}`)),
		} {
			t.Run(where+", "+name, func(t *testing.T) {
				began := cpu(t)
				_, err := store.Create(t.Context(), resource.Resource{Kind: agents, Object: []byte(body)}, true)
				took := cpu(t) - began
				t.Logf("%d bytes: %d bytes of problems in %s", len(body), len(err.Error()), took)
				if mustBe(t, err, harness.Invalid); len(err.Error()) > 100_000 || took > 10*time.Second {
					t.Errorf("%d bytes in %s: %.300s", len(err.Error()), took, err)
				}
			})
		}
	}
}

// A file that is wrong in many ways is told of in few words, too.
func TestHostileFiles(t *testing.T) {
	for name, spec := range map[string]string{
		"duplicates":      "  ? " + strings.Repeat("a", 900) + "\n  : " + strings.Repeat("x: 1\n", 0) + "1\n" + strings.Repeat("  a: 1\n", 100_000),
		"an alias":        "  description: *" + strings.Repeat("a", 200_000) + "\n",
		"long keys":       strings.Repeat("  "+strings.Repeat("k", 900)+": 1\n", 1000),
		"a key of a list": "  [" + strings.Repeat("a, ", 100_000) + "]: 1\n",
	} {
		f := folder(t, nil)
		if err := os.WriteFile(filepath.Join(f.Path, "a.yaml"), []byte(head+"metadata: {name: a}\nspec:\n"+spec), 0o600); err != nil {
			t.Fatal(err)
		}
		began := cpu(t)
		_, err := f.Patch(t.Context(), agents, "a", "", []byte(`{"spec":{"description":"d"}}`), false)
		if took := cpu(t) - began; err == nil || len(err.Error()) > 100_000 || took > 10*time.Second {
			t.Errorf("%s: %.300v in %s", name, err, took)
		}
	}
}

// In an emergency a block is switched off whatever else is wrong with the text.
func TestSwitchingOffMindsNoOldProblem(t *testing.T) {
	off, on := []byte(`{"spec":{"harness":{"enabled":false}}}`), []byte(`{"spec":{"harness":{"enabled":true}}}`)
	cluster, server := newCluster(t)
	server.Put("aiagents", "a", `{"future": 1, "harness": {"type": "CODE", "sandbox": {"imageRef": "gone"}}}`)
	const text = head + "metadata: {name: a}\nspec:\n  future: 1 # wrong\n  future: 2\n  harness:\n    type: CODE\n    sandbox: {imageRef: gone}\n"
	f := folder(t, nil)
	path := filepath.Join(f.Path, "a.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, store := range map[string]resource.Store{"folder": f, "cluster": cluster} {
		for _, patch := range [][]byte{
			on, []byte(`{"spec":{"harness":{"enabled":false,"maxSandboxes":1}}}`), []byte(`{"spec":{"harness":{"enabled":false},"description":"d"}}`),
			[]byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"harness":{"enabled":false}}}`), []byte(`{"spec":{}}`), []byte(`{}`),
		} {
			if _, err := store.Patch(t.Context(), agents, "a", "", patch, false); !slices.Contains(problems(err), "spec.future") {
				t.Errorf("%s, %s: %v", name, patch, err)
			}
		}
		if _, err := store.Patch(t.Context(), agents, "a", "", []byte(`{"spec":{"other":{"enabled":false}}}`), false); !slices.Equal(problems(err), []string{"spec.other"}) {
			t.Errorf("%s, what is new: %v", name, err)
		}
		r, err := store.Patch(t.Context(), agents, "a", "", off, false)
		if err != nil || !strings.Contains(spec(t, r), `"enabled":false`) {
			t.Errorf("%s: %v, %s", name, err, r.Object)
		}
	}
	is, err := os.ReadFile(path)
	if err != nil || strings.Replace(string(is), "    enabled: false\n", "", 1) != text {
		t.Errorf("%v\n%s", err, is)
	}
	// Of more than are told nobody knows which are new.
	if err := os.WriteFile(path, []byte(text+strings.Repeat("    x: 1\n", v1alpha1.MaxProblems+10)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Patch(t.Context(), agents, "a", "", off, false); err != nil {
		t.Error(err)
	}
}
