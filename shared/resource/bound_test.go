package resource_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource"
	"tuluat.ai/harness/shared/resource/resourcetest"
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

// In an emergency a block is switched off whatever else is wrong.
func TestSwitchingOffMindsNoOldProblem(t *testing.T) {
	cluster, server := newCluster(t)
	resourcetest.SwitchingOff(t, cluster, func(name, spec string) { server.Put("aiagents", name, spec) })
	f := folder(t, nil)
	resourcetest.SwitchingOff(t, f, func(name, spec string) {
		if err := os.WriteFile(filepath.Join(f.Path, name+".yaml"), []byte(head+"metadata: {name: "+name+"}\nspec: "+spec+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
}

// Nor whatever is wrong with a file: the rest of it stays as it is.
func TestSwitchingOffInAWrongFile(t *testing.T) {
	off := []byte(`{"spec":{"harness":{"enabled":false}}}`)
	const text = head + "metadata: {name: a}\nspec:\n  future: 1 # wrong\n  future: 2\n  harness:\n    type: CODE\n    sandbox: {imageRef: gone}\n"
	f := folder(t, nil)
	path := filepath.Join(f.Path, "a.yaml")
	// Of more problems than are told nobody knows which are new.
	for _, more := range []string{"", strings.Repeat("    x: 1\n", v1alpha1.MaxProblems+10)} {
		if err := os.WriteFile(path, []byte(text+more), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := f.Patch(t.Context(), agents, "a", "", off, false); err != nil || !strings.Contains(string(r.Object), `"enabled":false`) {
			t.Errorf("%s, %v", r.Object, err)
		}
		is, err := os.ReadFile(path)
		if err != nil || strings.Replace(string(is), "    enabled: false\n", "", 1) != text+more {
			t.Errorf("%v\n%.500s", err, is)
		}
	}
}
