package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
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
	set, err := manifest.Read(filepath.Join(root, "config/functions"), filepath.Join(root, "eventing"), filepath.Join(root, bridge))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// unheard lists the types that no Trigger needs: they feed streams, or their
// listener is not built yet.
var unheard = []event.Type{event.MessageStatus, event.ApprovalRequested}

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
		if s.Public() && !slices.Contains(publicServices, s.Name) {
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
		read, required := variables(t, filepath.Join(folder, "config.go"))
		set := map[string]bool{}
		for _, v := range s.Env() {
			set[v.Name] = true
			if !read[v.Name] {
				t.Errorf("Service %s sets %s, which %s/config.go does not read", s.Name, v.Name, folder)
			}
		}
		for name := range required {
			if set[name] || strings.HasPrefix(name, "SANDBOX_LOCAL_") || name == "AGENTS_DIR" || (s.Name == "webhook-ingest-events" && name == "BROKER_URL") {
				continue // of one machine only; of the public side only
			}
			t.Errorf("Service %s does not set %s, which %s/config.go requires", s.Name, name, folder)
		}
	}
}

// readers are the shared functions that read a part of the environment.
var readers = map[string]string{
	"driver.Read": "shared/sandbox/driver/driver.go", "driver.ReadStart": "shared/sandbox/driver/driver.go",
	"source.Read": "shared/secret/source/source.go", "archive.Read": "shared/archive/archive.go",
	"limits.Read": "shared/api/limits/limits.go",
}

// variables finds the names that a parseConfig asks for: the first argument of
// every call that is a string in capitals, there and in the readers it calls.
func variables(t *testing.T, file string) (read, required map[string]bool) {
	t.Helper()
	read, required = map[string]bool{}, map[string]bool{}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	collect(t, parsed, "", read, required)
	return read, required
}

// collect adds the variables that node asks for. name is the reader's whose body
// is looked at.
func collect(t *testing.T, node ast.Node, name string, read, required map[string]bool) {
	t.Helper()
	ast.Inspect(node, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		selector, isMethod := call.Fun.(*ast.SelectorExpr)
		called, isFunction := call.Fun.(*ast.Ident)
		reader := ""
		if isMethod {
			if of, ok := selector.X.(*ast.Ident); ok {
				reader = of.Name + "." + selector.Sel.Name
			}
		} else if isFunction && name != "" { // of the reader's own package
			reader = strings.Split(name, ".")[0] + "." + called.Name
		}
		if file, ok := readers[reader]; ok && reader != name {
			collect(t, function(t, file, strings.Split(reader, ".")[1]), reader, read, required)
		}
		argument := call.Args[0]
		if of, ok := argument.(*ast.Ident); ok && of.Name == "c" && isFunction && len(call.Args) > 1 {
			argument = call.Args[1] // a function of config.go that reads one for its caller
		}
		literal, ok := argument.(*ast.BasicLit)
		if !ok || !isMethod && !(isFunction && (called.Name == "getenv" || argument != call.Args[0])) || literal.Kind != token.STRING {
			return true
		}
		variable, err := strconv.Unquote(literal.Value)
		if err != nil || variable == "" || variable != strings.ToUpper(variable) {
			return true
		}
		read[variable] = true
		if isMethod && selector.Sel.Name == "Required" {
			required[variable] = true
		}
		return true
	})
}

func function(t *testing.T, file, name string) *ast.FuncDecl {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name && f.Recv == nil {
			return f
		}
	}
	t.Fatalf("%s has no function %s", file, name)
	return nil
}

// The sweep's way around a deaf broker is the Triggers once more.
func TestDirectSinksAreTheTriggers(t *testing.T) {
	set, _ := renderedWith(t, base, bridge)
	want := map[string][]string{}
	for _, trigger := range set.Triggers {
		if trigger.Annotations["tuluat.ai/best-effort"] == "true" {
			continue // nothing is repeated
		}
		s := target(t, set, trigger.Name, trigger.Spec.Subscriber)
		heard := trigger.Spec.Filter.Attributes["type"]
		if channel := trigger.Spec.Filter.Attributes["tuluatchannel"]; channel != "" {
			heard += "/" + channel
		}
		want[heard] = append(want[heard], "http://"+s.Host()+trigger.Spec.Subscriber.URI.Path)
	}
	got := map[string][]string{}
	for _, v := range set.Service(namespace, "reaper-cron").Env() {
		if v.Name != "DIRECT_SINKS" && v.Name != "MORE_SINKS" {
			continue
		}
		for _, entry := range strings.Split(v.Value, ",") {
			name, sink, _ := strings.Cut(strings.TrimSpace(entry), "=")
			got[name] = append(got[name], sink)
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
		sandboxes + " sandbox-exec pods":                     {"create", "delete", "get", "list", "watch"},
		sandboxes + " sandbox-exec pods/exec":                {"create", "get"},
		sandboxes + " sandbox-exec events":                   {"list"},
		sandboxes + " sandbox-exec persistentvolumeclaims":   {"create", "get"},
		sandboxes + " sandbox-exec networkpolicies":          {"create"},
		sandboxes + " reaper-cron pods":                      {"delete", "get", "list", "watch"},
		sandboxes + " reaper-cron persistentvolumeclaims":    {"delete", "list"},
		sandboxes + " reaper-cron networkpolicies":           {"delete", "list"},
		agents + " agent-source aiagents":                    {"get", "list", "watch"},
		agents + " agent-source aiworkflows":                 {"get", "list", "watch"},
		agents + " agent-status aiagents":                    {"get", "list"},
		agents + " agent-status aiagents/status":             {"patch"},
		agents + " agent-status aiworkflows":                 {"get", "list"},
		agents + " agent-status configmaps":                  {"get"},
		agents + " agent-status secrets":                     {"list"}, // that pull images of skills
		agents + " agent-status aiworkflows/status":          {"patch"},
		agents + " management-api aiagents":                  {"create", "delete", "get", "list", "patch", "update"},
		agents + " management-api aiworkflows":               {"create", "delete", "get", "list", "patch", "update"},
		agents + " management-api localsubjectaccessreviews": {"create"},
		agents + " agent-step secrets":                       {"list"},
		agents + " webhook-ingest secrets":                   {"list"},
		agents + " whatsapp-ingest secrets":                  {"list"},
		agents + " telegram-ingest secrets":                  {"list"},
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
	for _, s := range set.Services {
		spec := s.Spec.Template.Spec
		bound := slices.ContainsFunc(set.RoleBindings, func(b *rbacv1.RoleBinding) bool { return b.RoleRef.Name == spec.ServiceAccountName })
		if mounted := spec.AutomountServiceAccountToken == nil; mounted != bound { // Knative knows only nil and false
			t.Errorf("Service %s: its Pods have a token: %v, its account has rights: %v", s.Name, mounted, bound)
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
