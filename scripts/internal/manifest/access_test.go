package manifest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/scripts/internal/manifest"
)

// group is the API group of what callers have rights on.
const group = "tuluat.ai"

// everywhere are the rights of an account that hold in no namespace and all.
func everywhere(set *manifest.Set, account *corev1.ServiceAccount) []string {
	var all []string
	for _, b := range set.ClusterBindings {
		if !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s.Name == account.Name && s.Namespace == account.Namespace }) {
			continue
		}
		for _, r := range set.ClusterRoles {
			if r.Name != b.RoleRef.Name {
				continue
			}
			for i, rule := range r.Rules {
				text := fmt.Sprintf("%s: %s", strings.Join(rule.Resources, ", "), strings.Join(rule.Verbs, ", "))
				if i == 0 {
					text = "everywhere " + text
				}
				all = append(all, text)
			}
		}
	}
	return all
}

// Nothing of ours holds everywhere but that management-api may ask whose token it
// has, and callers' roles are bound by people, never by us.
func TestClusterRightsAreTheLeast(t *testing.T) {
	for _, overlay := range overlays {
		set, _ := rendered(t, overlay)
		got := map[string][]string{}
		for _, b := range set.ClusterBindings {
			for _, s := range b.Subjects {
				if s.Kind != "ServiceAccount" || !hasAccount(set, s.Namespace, s.Name) {
					t.Errorf("%s binds %s %s", b.Name, s.Kind, s.Name)
					continue
				}
				got[s.Name] = append(got[s.Name], everywhere(set, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}})...)
			}
		}
		if diff := cmp.Diff(map[string][]string{"management-api": {"everywhere tokenreviews: create"}}, got); diff != "" {
			t.Errorf("%s: -want +bound:\n%s", overlay, diff)
		}
		for _, b := range set.RoleBindings {
			if b.RoleRef.Kind != "Role" {
				t.Errorf("%s: %s binds %s %s", overlay, b.Name, b.RoleRef.Kind, b.RoleRef.Name)
			}
		}
	}
}

// operation is one of the API, as its document says.
type operation struct{ what, right string }

// operations are those of the document that is committed, in its order: by path,
// then as HTTP's methods usually come.
func operations(t *testing.T) []operation {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "functions/management-api/openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	var all []operation
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		for _, method := range []string{"get", "post", "put", "patch", "delete"} {
			raw, ok := document.Paths[path][method]
			if !ok {
				continue
			}
			var o struct {
				Right string `json:"x-tuluat-right"`
			}
			if err := json.Unmarshal(raw, &o); err != nil {
				t.Fatal(err)
			}
			all = append(all, operation{strings.ToUpper(method) + " " + path, strings.TrimSuffix(o.Right, "."+group)})
		}
	}
	return all
}

// callerRoles are the rights of each role for callers, as "verb resource".
func callerRoles(t *testing.T) map[string][]string {
	t.Helper()
	set, _ := rendered(t, base)
	roles := map[string][]string{}
	for _, r := range set.ClusterRoles {
		if r.Labels["app.kubernetes.io/component"] != "access" {
			continue
		}
		name := strings.TrimPrefix(r.Name, "tuluat-")
		for _, rule := range r.Rules {
			if !slices.Equal(rule.APIGroups, []string{group}) || len(rule.ResourceNames)+len(rule.NonResourceURLs) > 0 {
				t.Errorf("%s has a rule on %v", r.Name, rule)
			}
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					roles[name] = append(roles[name], verb+" "+resource)
				}
			}
		}
	}
	return roles
}

// roleOrder is that of the table's columns.
var roleOrder = []string{"viewer", "operator", "approver", "admin"}

// The table of operations in config/README.md is what the document and the roles
// say, line by line and in both directions.
func TestTableOfOperations(t *testing.T) {
	roles := callerRoles(t)
	var want []string
	for _, o := range operations(t) {
		right := "none"
		if o.right != "" {
			right = o.right
		}
		line := fmt.Sprintf("| `%s` | %s |", o.what, right)
		for _, role := range roleOrder {
			if o.right == "" || slices.Contains(roles[role], o.right) {
				line += " yes |"
			} else {
				line += " - |"
			}
		}
		want = append(want, line)
	}
	if len(want) < 30 {
		t.Fatalf("only %d operations", len(want))
	}
	text, err := os.ReadFile(filepath.Join(root, "config/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "<!-- operations -->\n")
	table, _, ok := strings.Cut(after, "<!-- /operations -->")
	got := strings.Split(strings.TrimSpace(table), "\n")
	if !ok || len(got) < 3 {
		t.Fatal("config/README.md has no table between <!-- operations --> and <!-- /operations -->")
	}
	if header := "| Operation | Right | " + strings.Join(roleOrder, " | ") + " |"; got[0] != header {
		t.Errorf("the header is %s, want %s", got[0], header)
	}
	if diff := cmp.Diff(want, got[2:]); diff != "" {
		t.Errorf("config/README.md (-document and roles +table):\n%s", diff)
	}
}

// Every right that a role has is one that an operation asks for, or one that
// kubectl needs of agents and workflows; and admin has every one.
func TestRolesHaveNoIdleRights(t *testing.T) {
	asked := map[string]bool{}
	for _, o := range operations(t) {
		if o.right != "" {
			asked[o.right] = true
		}
	}
	roles := callerRoles(t)
	if diff := cmp.Diff(slices.Sorted(slices.Values(roleOrder)), slices.Sorted(maps.Keys(roles))); diff != "" {
		t.Error(diff)
	}
	for role, rights := range roles {
		for _, right := range rights {
			_, resource, _ := strings.Cut(right, " ")
			if kubectl := resource == "aiagents" || resource == "aiworkflows"; !kubectl && !asked[right] {
				t.Errorf("%s may %s, which nothing asks for", role, right)
			}
		}
	}
	for right := range asked {
		if !slices.Contains(roles["admin"], right) {
			t.Errorf("admin may not %s", right)
		}
	}
}

// What the API lets an agent ask for is what agent-status accepts afterwards.
func TestAPIAndAgentStatusHaveTheSameLimits(t *testing.T) {
	set := wiring(t)
	env := func(service string) map[string]string {
		all := map[string]string{}
		for _, v := range set.Service(namespace, service).Env() {
			if strings.HasPrefix(v.Name, "MAX_SANDBOX") || strings.HasPrefix(v.Name, "SANDBOX_") || slices.Contains([]string{"CLUSTER_RANGES", "AGENTS_NAMESPACE", "WHATSAPP_PHONE_NUMBER_ID"}, v.Name) {
				all[v.Name] = v.Value
				if v.ValueFrom != nil {
					all[v.Name] = v.ValueFrom.SecretKeyRef.Name + "/" + v.ValueFrom.SecretKeyRef.Key
				}
			}
		}
		return all
	}
	want := env("agent-status")
	if diff := cmp.Diff(want, env("management-api")); diff != "" || len(want) < 8 {
		t.Errorf("-agent-status +management-api (%d variables):\n%s", len(want), diff)
	}
}
