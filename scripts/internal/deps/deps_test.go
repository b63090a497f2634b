package deps

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var workspace = sync.OnceValues(func() (Graph, error) { return Load(root(), "") })

func load(t *testing.T) Graph {
	t.Helper()
	g, err := workspace()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// root is the folder of go.work, three above this package.
func root() string { return filepath.Join("..", "..", "..") }

func TestNoPackageLinksWhatTheRulesForbid(t *testing.T) {
	g := load(t)
	for _, name := range g.Ours() {
		for _, problem := range Broken(Rules(), g, name) {
			t.Error(problem)
		}
	}
}

func TestEveryRuleBindsSomething(t *testing.T) {
	g := load(t)
	for _, r := range Rules() {
		bound := 0
		for _, name := range g.Ours() {
			if matches(r.On, name) {
				bound++
			}
		}
		if bound == 0 {
			t.Errorf("no package matches %v: a rule that binds nothing guards nothing", r.On)
		}
	}
}

func TestProgramsLinkOnlyListedModules(t *testing.T) {
	g := load(t)
	for _, name := range g.Ours() {
		if g[name].Name != "main" {
			continue
		}
		allowed := Allowed(name)
		if allowed == nil {
			if strings.HasPrefix(name, prefix+"functions/") {
				t.Errorf("%s has no list in Allowed: give it one", name)
			}
			continue
		}
		for _, problem := range Unlisted(allowed, g, name) {
			t.Error(problem)
		}
	}
}

// The rule that keeps the local driver out of images would hold just as well if
// the driver were never built at all, so the other half is tested too.
func TestTheLocalDriverComesWithItsTagOnly(t *testing.T) {
	tagged, err := Load(root(), "local")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{prefix + "functions/sandbox-exec", prefix + "functions/reaper-cron"} {
		for _, c := range []struct {
			tags string
			g    Graph
			want bool
		}{{"", load(t), false}, {"local", tagged, true}} {
			got := false
			for _, p := range c.g.Links(name) {
				got = got || p.ImportPath == driver
			}
			if got != c.want {
				t.Errorf("built with tags %q, %s links the local driver: %v, want %v", c.tags, name, got, c.want)
			}
		}
	}
}

// fixture is a graph whose first package imports the second, and so on.
func fixture(chain ...string) Graph {
	g := Graph{"fmt": {ImportPath: "fmt", Standard: true}}
	for i, name := range chain {
		p := Package{ImportPath: name, Imports: []string{"fmt"}, Module: &struct{ Path string }{name}}
		if i+1 < len(chain) {
			p.Imports = append(p.Imports, chain[i+1])
		}
		g[name] = p
	}
	return g
}

func TestEveryRuleFindsItsBreach(t *testing.T) {
	const between = "example.com/between" // rules see through packages in between
	step, reaper := prefix+"functions/agent-step", prefix+"functions/reaper-cron"
	tuluat, harness := prefix+"scripts/tuluat", prefix+"shared/harness"
	eventing, kube, pgx := "knative.dev/eventing/pkg/eventfilter", "k8s.io/client-go/kubernetes", "github.com/jackc/pgx/v5/pgxpool"
	breaches := [][]string{
		{harness, "golang.org/x/text/unicode/norm"},
		{step, between, eventing},
		{runner, eventing},
		{reaper, between, "knative.dev/pkg/injection/sharedmain"},
		{step, between, kube},
		{prefix + "functions/agent-status", between, kube},
		{prefix + "functions/management-api", prefix + "shared/resource", kube},
		{prefix + "functions/management-api", prefix + "shared/sandbox/kubernetes", "k8s.io/client-go/tools/remotecommand"},
		{tuluat, "github.com/danielgtaylor/huma/v2"},
		{reaper, prefix + "shared/sandbox", "github.com/openai/openai-go/v3"},
		{prefix + "scripts/dev", "github.com/anthropics/anthropic-sdk-go/v2"},
		{tuluat, prefix + "scripts/internal/manifest", eventing},
		{tuluat, between, kube},
		{tuluat, prefix + "shared/postgres"},
		{reaper, prefix + "scripts/internal/fake"},
		{prefix + "functions/agent-step/internal/model", prefix + "scripts/internal/fake"},
		{reaper, "github.com/modelcontextprotocol/go-sdk/mcp"},
		{reaper, "github.com/google/go-containerregistry/pkg/v1/remote"},
		{reaper, driver},
		{reaper, "go.temporal.io/sdk/client"},
		{prefix + "shared/sandbox", prefix + "functions/sandbox-exec/runner/internal/wire"},
		{prefix + "shared/event", pgx},
		{prefix + "shared/event", between, "github.com/cloudevents/sdk-go/v2/protocol/http"},
		{prefix + "shared/function", prefix + "shared/postgres"},
		{prefix + "shared/function", between, "github.com/aws/aws-sdk-go-v2/service/s3"},
		{prefix + "shared/postgres", kube},
		{prefix + "shared/sandbox", pgx},
		{prefix + "shared/resource", prefix + "shared/postgres"},
	}
	var found []string
	for _, chain := range breaches {
		g, last := fixture(chain...), chain[len(chain)-1]
		problems := Broken(Rules(), g, chain[0])
		if len(problems) == 0 || !strings.Contains(strings.Join(problems, "\n"), " links "+last) {
			t.Errorf("%s is not found: %q", strings.Join(chain, " -> "), problems)
		}
		found = append(found, problems...)
	}
	for _, r := range Rules() {
		if !slices.ContainsFunc(found, func(problem string) bool { return strings.HasSuffix(problem, r.Why) }) {
			t.Errorf("no fixture breaks the rule %q", r.Why)
		}
	}
	for _, chain := range [][]string{{step, "github.com/openai/openai-go/v3"}, {prefix + "scripts/dev", eventing}, {harness}, {prefix + "shared/event", "github.com/jackc/pgxlike"}} {
		if problems := Broken(Rules(), fixture(chain...), chain[0]); len(problems) > 0 {
			t.Errorf("%v is allowed, but: %q", chain, problems)
		}
	}
}

func TestUnlistedNamesTheModuleAndAPackageOfIt(t *testing.T) {
	reaper := prefix + "functions/reaper-cron"
	got := Unlisted([]string{"example.com/a"}, fixture(reaper, "example.com/a", "example.com/b"), reaper)
	want := []string{"functions/reaper-cron links example.com/b (example.com/b), which its list does not have: weigh what that costs every cold start, then add it to Allowed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// The reader is tried on a workspace of its own, so that what `go list` says is
// really what the rules see.
func TestLoadReadsAWorkspace(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.work":                   "go 1.26.0\n\nuse (\n\t./functions/a\n\t./shared\n)\n",
		"functions/a/go.mod":        "module tuluat.ai/harness/functions/a\n\ngo 1.26.0\n",
		"functions/a/main.go":       "package main\n\nfunc main() {}\n",
		"functions/a/local.go":      "//go:build local\n\npackage main\n\nimport _ \"tuluat.ai/harness/shared/sandbox/local\"\n",
		"functions/a/main_test.go":  "package main\n\nimport _ \"tuluat.ai/harness/shared/tested\"\n",
		"shared/go.mod":             "module tuluat.ai/harness/shared\n\ngo 1.26.0\n",
		"shared/sandbox/local/l.go": "package local\n\nimport _ \"fmt\"\n",
		"shared/tested/t.go":        "package tested\n",
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for tags, want := range map[string][]string{
		"":      {prefix + "functions/a"},
		"local": {prefix + "functions/a", driver},
	} {
		g, err := Load(dir, tags)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range g.Links(prefix + "functions/a") {
			got = append(got, p.ImportPath)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("links with tags %q (-want +got):\n%s", tags, diff)
		}
		if problems := Broken(Rules(), g, prefix+"functions/a"); (len(problems) > 0) != (tags == "local") {
			t.Errorf("with tags %q: %q", tags, problems)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "shared", "go.mod"), []byte("modul\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, ""); err == nil || !strings.Contains(err.Error(), "go.mod") {
		t.Errorf("error of a broken workspace is %v, want one that names go.mod", err)
	}
}
