// Package deps knows what each program may link and which way packages import.
// The linter sees one import at a time; these rules see everything that ends up
// in a program, whoever brought it: an import of a heavy module three packages
// away makes every cold start pay, and nothing else would say so.
package deps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
)

const (
	prefix    = "tuluat.ai/harness/"
	functions = prefix + "functions/*" // the functions themselves, not what lies below them
	runner    = prefix + "functions/sandbox-exec/runner"
	driver    = prefix + "shared/sandbox/local"
)

// Package is what `go list` says of one package.
type Package struct {
	ImportPath string
	Name       string
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
}

// Graph holds packages by import path.
type Graph map[string]Package

// Load returns every package of the workspace in folder root and all they
// import, as builds with these tags see them. Tests' own imports are left out.
func Load(root, tags string) (Graph, error) {
	cmd := exec.Command("go", "list", "-deps", "-tags", tags, "-json=ImportPath,Name,Standard,Imports,Module", "work")
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	graph := Graph{}
	for decoder := json.NewDecoder(out); ; {
		var p Package
		if err = decoder.Decode(&p); err != nil {
			break
		}
		graph[p.ImportPath] = p
	}
	if exit := cmd.Wait(); exit != nil {
		return nil, fmt.Errorf("go list -deps work: %w: %s", exit, problems.String())
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("go list -deps work: %w", err)
	}
	return graph, nil
}

// Ours returns the import paths of our own packages, sorted.
func (g Graph) Ours() []string {
	var ours []string
	for name := range g {
		if strings.HasPrefix(name, prefix) {
			ours = append(ours, name)
		}
	}
	slices.Sort(ours)
	return ours
}

// Links returns what is linked into a program, or would be into one that
// imports this package: the package itself and all it reaches, without the
// standard library.
func (g Graph) Links(program string) []Package {
	seen := map[string]bool{program: true}
	queue := []string{program}
	var set []Package
	for len(queue) > 0 {
		p, ok := g[queue[0]]
		queue = queue[1:]
		if !ok || p.Standard {
			continue
		}
		set = append(set, p)
		for _, i := range p.Imports {
			if !seen[i] {
				seen[i] = true
				queue = append(queue, i)
			}
		}
	}
	return set
}

// Rule forbids packages, and all below them, to whatever matches On.
type Rule struct {
	On     []string // path.Match patterns; with /... at the end, also all below
	Except []string // of those, the ones it does not bind
	Never  []string // import paths; "" is everything outside the standard library
	Why    string
}

// Rules are the directions of imports. The compiler keeps internal folders
// closed; these keep the rest.
func Rules() []Rule {
	return []Rule{
		{
			On: []string{prefix + "shared/harness"}, Never: []string{""},
			Why: "the words import nothing but the standard library",
		},
		{
			On: []string{functions, runner}, Never: []string{"knative.dev/eventing", "knative.dev/pkg/injection"},
			Why: "adds 40 MB and 40 ms to every cold start; eventing's types and filters belong to scripts",
		},
		{
			On: []string{functions, runner}, Except: []string{prefix + "functions/sandbox-exec", prefix + "functions/reaper-cron", prefix + "functions/agent-status", prefix + "functions/management-api"},
			Never: []string{"k8s.io/client-go"},
			Why:   "adds 20 MB; only functions that touch Pods, agents or callers may have it",
		},
		{
			On: []string{prefix + "functions/agent-status", prefix + "functions/management-api"}, Never: []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/tools/remotecommand"},
			Why: "they speak of a few resources, by client-go's rest package, and never of Pods",
		},
		{
			On: []string{functions, runner, prefix + "scripts/*"}, Except: []string{prefix + "functions/management-api"}, Never: []string{"github.com/danielgtaylor/huma"},
			Why: "only management-api has a REST API to describe",
		},
		{
			On: []string{functions, runner, prefix + "scripts/*"}, Except: []string{prefix + "functions/agent-step", prefix + "functions/management-api"},
			Never: []string{"github.com/modelcontextprotocol/go-sdk"},
			Why:   "agent-step is an MCP client and management-api a server; nobody else speaks it",
		},
		{
			On: []string{functions, runner}, Except: []string{prefix + "functions/agent-status"}, Never: []string{"github.com/google/go-containerregistry"},
			Why: "only agent-status reads images: nodes pull those that run",
		},
		{
			On: []string{functions, runner, prefix + "scripts/*"}, Except: []string{prefix + "functions/agent-step"},
			Never: []string{"github.com/openai/openai-go", "github.com/anthropics/anthropic-sdk-go"},
			Why:   "only agent-step talks to models",
		},
		{
			On: []string{functions, runner, prefix + "scripts/*"}, Except: []string{prefix + "functions/temporal-bridge"},
			Never: []string{"go.temporal.io", "google.golang.org/grpc"},
			Why:   "only temporal-bridge talks to Temporal; gRPC alone adds 8 MB",
		},
		{
			On: []string{prefix + "scripts/tuluat"}, Never: []string{"knative.dev/eventing", "k8s.io/client-go", prefix + "shared/postgres"},
			Why: "the CLI is a small binary that speaks HTTP",
		},
		{
			On: []string{prefix + "functions/...", prefix + "shared/..."}, Never: []string{prefix + "scripts"},
			Why: "nothing imports scripts",
		},
		{
			On: []string{functions, runner}, Never: []string{driver},
			Why: "the local sandbox driver is for one machine: build tag local brings it, and no image has that tag",
		},
		{
			On: []string{prefix + "shared/..."}, Never: []string{prefix + "functions"},
			Why: "shared is what functions have in common, so it knows none of them",
		},
		{
			On:    []string{prefix + "shared/event"},
			Never: []string{"github.com/jackc/pgx", "github.com/cloudevents/sdk-go/v2/client", "github.com/cloudevents/sdk-go/v2/protocol/http"},
			Why:   "events are words and their encoding; transport is the shell's",
		},
		{
			On:    []string{prefix + "shared/function"},
			Never: []string{"github.com/jackc/pgx", prefix + "shared/postgres", "k8s.io/client-go", "github.com/aws"},
			Why:   "the process shell must start without the world",
		},
		{
			On: []string{prefix + "shared/postgres"}, Never: []string{"k8s.io/client-go", "github.com/aws", "github.com/cloudevents/sdk-go/v2/protocol/http"},
			Why: "the store knows no other edge",
		},
		{
			On: []string{prefix + "shared/sandbox"}, Never: []string{"github.com/jackc/pgx", "github.com/aws", prefix + "shared/postgres"},
			Why: "a sandbox knows no rows",
		},
		{
			On: []string{prefix + "shared/resource"}, Never: []string{"github.com/jackc/pgx", "github.com/aws", prefix + "shared/postgres", prefix + "shared/sandbox"},
			Why: "where resources are kept nobody knows of rows and sandboxes",
		},
	}
}

// Broken returns what the rules say against what program links.
func Broken(rules []Rule, g Graph, program string) []string {
	var problems []string
	for _, r := range rules {
		if !matches(r.On, program) || matches(r.Except, program) {
			continue
		}
		for _, never := range r.Never {
			for _, p := range g.Links(program)[1:] {
				if never == "" || below(p.ImportPath, never) {
					problems = append(problems, fmt.Sprintf("%s links %s: %s", strings.TrimPrefix(program, prefix), p.ImportPath, r.Why))
					break // the nearest one says enough
				}
			}
		}
	}
	return problems
}

// Unlisted returns a line for each module in program's link set that allowed
// does not name. Our own packages are judged by Rules.
func Unlisted(allowed []string, g Graph, program string) []string {
	examples := map[string]string{} // module -> the nearest package of it
	for _, p := range g.Links(program) {
		if p.Module != nil && !strings.HasPrefix(p.ImportPath, prefix) && examples[p.Module.Path] == "" {
			examples[p.Module.Path] = p.ImportPath
		}
	}
	var problems []string
	for module, example := range examples {
		if !slices.Contains(allowed, module) {
			problems = append(problems, fmt.Sprintf("%s links %s (%s), which its list does not have: weigh what that costs every cold start, then add it to Allowed",
				strings.TrimPrefix(program, prefix), module, example))
		}
	}
	slices.Sort(problems)
	return problems
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if parent, ok := strings.CutSuffix(pattern, "/..."); ok {
			return below(name, parent)
		}
		ok, err := path.Match(pattern, name)
		return err == nil && ok
	})
}

// below reports whether pkg is parent or lies below it.
func below(pkg, parent string) bool {
	return pkg == parent || strings.HasPrefix(pkg, parent+"/")
}
