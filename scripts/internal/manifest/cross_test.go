package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/event"
)

const (
	root      = "../../.."
	namespace = "tuluat-system"
	sandboxes = "tuluat-sandbox"
	agents    = "tuluat-agents"
)

func wiring(t *testing.T) *manifest.Set {
	t.Helper()
	set, err := manifest.Read(filepath.Join(root, "config/functions"), filepath.Join(root, "eventing"))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// unheard lists the types that no Trigger needs: they feed streams, or their
// listener is not built yet.
var unheard = []event.Type{event.MessageStatus, event.SessionChanged, event.SandboxChanged, event.ApprovalRequested}

func TestTriggersAndEventTypesAgree(t *testing.T) {
	heard := map[event.Type]bool{}
	for _, trigger := range wiring(t).Triggers {
		filter := trigger.Spec.Filter
		if filter == nil || len(trigger.Spec.Filters) > 0 {
			t.Errorf("Trigger %s: exact attributes are the only filter whose misses are known", trigger.Name)
			continue
		}
		for attribute := range filter.Attributes {
			if attribute != "type" && attribute != "tuluatchannel" {
				t.Errorf("Trigger %s filters by %s, which no event has", trigger.Name, attribute)
			}
		}
		heard[event.Type(filter.Attributes["type"])] = true
	}
	for _, quiet := range unheard {
		if heard[quiet] {
			t.Errorf("%s has a Trigger: take it off the list of unheard types", quiet)
		}
		heard[quiet] = true
	}
	if diff := cmp.Diff(sorted(event.Types()), sorted(slices.Collect(maps.Keys(heard)))); diff != "" {
		t.Errorf("event types and Triggers (-types +triggers):\n%s", diff)
	}
}

func TestTriggersSetTheirDelivery(t *testing.T) {
	set := wiring(t)
	for _, trigger := range set.Triggers {
		if trigger.Namespace != namespace || set.Broker(trigger.Namespace, trigger.Spec.Broker) == nil {
			t.Errorf("Trigger %s: there is no Broker %s/%s", trigger.Name, trigger.Namespace, trigger.Spec.Broker)
		}
		subscriber := target(t, set, "Trigger "+trigger.Name, trigger.Spec.Subscriber)
		d := trigger.Spec.Delivery
		if d == nil || d.Retry == nil || d.BackoffPolicy == nil || d.BackoffDelay == nil || d.Timeout == nil || d.DeadLetterSink == nil {
			t.Errorf("Trigger %s: retry, backoffPolicy, backoffDelay, timeout and deadLetterSink are needed; with one of the first three missing retries do not wait", trigger.Name)
			continue
		}
		if sink := target(t, set, "Trigger "+trigger.Name, *d.DeadLetterSink); sink != nil && sink.Name != "dead-letter" {
			t.Errorf("Trigger %s: its dead letters go to %s", trigger.Name, sink.Name)
		}
		timeout, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(*d.Timeout, "PT"), "S"))
		if err != nil {
			t.Errorf("Trigger %s: write the timeout %s as PT<seconds>S", trigger.Name, *d.Timeout)
		}
		// A cold start is waited for inside the timeout.
		if subscriber != nil && timeout < int(subscriber.Timeout().Seconds())+20 {
			t.Errorf("Trigger %s gives up after %d s, before %s (%s) has answered", trigger.Name, timeout, subscriber.Name, subscriber.Timeout())
		}
	}
}

func TestSourcesNameServices(t *testing.T) {
	set := wiring(t)
	for _, p := range set.Pings {
		target(t, set, "PingSource "+p.Name, p.Spec.Sink)
	}
	for _, s := range set.ResourceSources {
		target(t, set, "ApiServerSource "+s.Name, s.Spec.Sink)
		if !hasAccount(set, s.Namespace, s.Spec.ServiceAccountName) {
			t.Errorf("ApiServerSource %s: there is no ServiceAccount %s", s.Name, s.Spec.ServiceAccountName)
		}
	}
}

func TestServicesNameRealThings(t *testing.T) {
	set := wiring(t)
	mains := mainPackages(t)
	for _, s := range set.Services {
		if !slices.Contains(mains, s.ImportPath()) {
			t.Errorf("Service %s: %s is not a main package of go.work", s.Name, s.ImportPath())
		}
		if !hasAccount(set, s.Namespace, s.Spec.Template.Spec.ServiceAccountName) {
			t.Errorf("Service %s: there is no ServiceAccount %s", s.Name, s.Spec.Template.Spec.ServiceAccountName)
		}
		if s.Public() && !slices.Contains([]string{"telegram-ingest", "webhook-ingest", "whatsapp-ingest"}, s.Name) {
			t.Errorf("Service %s can be reached from outside", s.Name)
		}
	}
	// Every function is deployed.
	for _, main := range mains {
		if rest, ok := strings.CutPrefix(main, "tuluat.ai/harness/functions/"); ok && !strings.Contains(rest, "/") {
			if !slices.ContainsFunc(set.Services, func(s *manifest.Service) bool { return s.ImportPath() == main }) {
				t.Errorf("no Service runs %s", main)
			}
		}
	}
}

// Every variable a Service sets is read by its function, and every one that the
// function requires of every side is set.
func TestServicesSetWhatTheirFunctionsRead(t *testing.T) {
	for _, s := range wiring(t).Services {
		folder := filepath.Join(root, "functions", s.Function())
		read, required := variables(t, filepath.Join(folder, "config.go"), filepath.Join(root, "shared/sandbox/driver/driver.go"), filepath.Join(root, "shared/secret/source/source.go"), filepath.Join(root, "shared/archive/archive.go"))
		set := map[string]bool{}
		for _, v := range s.Env() {
			set[v.Name] = true
			if !read[v.Name] {
				t.Errorf("Service %s sets %s, which %s/config.go does not read", s.Name, v.Name, folder)
			}
		}
		for name := range required {
			if set[name] || strings.HasPrefix(name, "SANDBOX_LOCAL_") || (s.Name == "webhook-ingest-events" && name == "BROKER_URL") {
				continue // of the local driver only; of the public side only
			}
			t.Errorf("Service %s does not set %s, which %s/config.go requires", s.Name, name, folder)
		}
	}
}

// variables finds the names that a parseConfig asks for: the first argument of
// every call that is a string in capitals.
func variables(t *testing.T, files ...string) (read, required map[string]bool) {
	t.Helper()
	read, required = map[string]bool{}, map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			literal, ok := call.Args[0].(*ast.BasicLit)
			selector, isMethod := call.Fun.(*ast.SelectorExpr)
			getenv, isFunction := call.Fun.(*ast.Ident)
			if !ok || !isMethod && !(isFunction && getenv.Name == "getenv") || literal.Kind != token.STRING {
				return true
			}
			name, err := strconv.Unquote(literal.Value)
			if err != nil || name == "" || name != strings.ToUpper(name) {
				return true
			}
			read[name] = true
			if isMethod && selector.Sel.Name == "Required" {
				required[name] = true
			}
			return true
		})
	}
	return read, required
}

// The sweep's way around a deaf broker is the Triggers once more.
func TestDirectSinksAreTheTriggers(t *testing.T) {
	set := wiring(t)
	want := map[string]string{}
	for _, trigger := range set.Triggers {
		if trigger.Annotations["tuluat.ai/best-effort"] == "true" {
			continue // nothing is repeated
		}
		s := target(t, set, trigger.Name, trigger.Spec.Subscriber)
		heard := trigger.Spec.Filter.Attributes["type"]
		if channel := trigger.Spec.Filter.Attributes["tuluatchannel"]; channel != "" {
			heard += "/" + channel
		}
		want[heard] = "http://" + s.Host() + trigger.Spec.Subscriber.URI.Path
	}
	got := map[string]string{}
	for _, v := range set.Service(namespace, "reaper-cron").Env() {
		if v.Name != "DIRECT_SINKS" {
			continue
		}
		for _, entry := range strings.Split(v.Value, ",") {
			name, sink, _ := strings.Cut(strings.TrimSpace(entry), "=")
			got[name] = sink
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-triggers +DIRECT_SINKS:\n%s", diff)
	}
}

// Only sandbox-exec may create Pods, and nobody outside the sandboxes' namespace.
func TestRolesGiveTheLeast(t *testing.T) {
	set := wiring(t)
	verbs := map[string][]string{}
	for _, role := range set.Roles {
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				key := role.Namespace + " " + role.Name + " " + resource
				verbs[key] = append(verbs[key], rule.Verbs...)
			}
		}
	}
	want := map[string][]string{
		sandboxes + " sandbox-exec pods":      {"create", "delete", "get", "list", "watch"},
		sandboxes + " sandbox-exec pods/exec": {"create", "get"},
		sandboxes + " reaper-cron pods":       {"delete", "get", "list"},
		namespace + " agent-status aiagents":  {"get", "list", "watch"},
		agents + " webhook-ingest secrets":    {"list"},
		agents + " whatsapp-ingest secrets":   {"list"},
		agents + " telegram-ingest secrets":   {"list"},
	}
	if diff := cmp.Diff(want, verbs); diff != "" {
		t.Errorf("-want +roles:\n%s", diff)
	}
	for _, binding := range set.RoleBindings {
		for _, subject := range binding.Subjects {
			if subject.Kind != "ServiceAccount" || subject.Name != binding.RoleRef.Name || !hasAccount(set, subject.Namespace, subject.Name) {
				t.Errorf("RoleBinding %s binds %s %s", binding.Name, subject.Kind, subject.Name)
			}
		}
	}
}

// With every Service at its max-scale and every pool full the database still
// has room: 100 connections, three of them the superuser's.
func TestConnectionBudget(t *testing.T) {
	const perProcess, budget = 4, 97
	total := 0
	for _, s := range wiring(t).Services {
		scale, err := s.Scale(manifest.MaxScale)
		if err != nil {
			t.Fatal(err)
		}
		conns := perProcess
		for _, v := range s.Env() {
			if v.Name == "DATABASE_MAX_CONNS" {
				if conns, err = strconv.Atoi(v.Value); err != nil {
					t.Fatal(err)
				}
			}
		}
		total += scale * conns
	}
	if total > budget {
		t.Errorf("%d connections at full scale, %d are there", total, budget)
	}
}

func TestKustomizationsListEveryFile(t *testing.T) {
	for folder, below := range map[string]string{"config": "functions", "eventing": ""} {
		text, err := os.ReadFile(filepath.Join(root, folder, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var k struct{ Resources []string }
		if err := yaml.Unmarshal(text, &k); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(root, folder, below, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name := filepath.Join(below, filepath.Base(file))
			if name != "kustomization.yaml" && !slices.Contains(k.Resources, name) {
				t.Errorf("%s/kustomization.yaml does not list %s", folder, name)
			}
		}
		for _, name := range k.Resources {
			if _, err := os.Stat(filepath.Join(root, folder, name)); err != nil {
				t.Errorf("%s/kustomization.yaml: %v", folder, err)
			}
		}
	}
}

func target(t *testing.T, set *manifest.Set, who string, d duckv1.Destination) *manifest.Service {
	t.Helper()
	s, path, err := set.Target(d)
	if err != nil {
		t.Errorf("%s: %v", who, err)
		return nil
	}
	if path != "/events" {
		t.Errorf("%s posts to %s; functions take events at /events", who, path)
	}
	return s
}

func hasAccount(set *manifest.Set, namespace, name string) bool {
	for _, a := range set.Accounts {
		if a.Namespace == namespace && a.Name == name {
			return true
		}
	}
	return false
}

func mainPackages(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("go", "work", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderrOf(err))
	}
	var work struct{ Use []struct{ DiskPath string } }
	if err := json.Unmarshal(out, &work); err != nil {
		t.Fatal(err)
	}
	args := []string{"list", "-f", "{{if eq .Name \"main\"}}{{.ImportPath}}{{end}}"}
	for _, use := range work.Use {
		if strings.HasPrefix(use.DiskPath, "./functions/") {
			args = append(args, use.DiskPath+"/...")
		}
	}
	cmd = exec.Command("go", args...)
	cmd.Dir = root
	if out, err = cmd.Output(); err != nil {
		t.Fatalf("%v\n%s", err, stderrOf(err))
	}
	return strings.Fields(string(out))
}

func stderrOf(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(exit.Stderr)
	}
	return fmt.Sprint(err)
}

func sorted(types []event.Type) []event.Type {
	slices.Sort(types)
	return types
}
