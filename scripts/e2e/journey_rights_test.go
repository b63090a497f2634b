//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"tuluat.ai/harness/scripts/internal/install"
)

// journeyRights asks the API server, as each ServiceAccount that was installed,
// what it may do, and compares that with what the YAML grants it. config's own
// tests compare the YAML with the table in config/README.md.
func journeyRights(t *testing.T, s *system) {
	ctx := t.Context()
	objects, err := s.objects()
	must(t, err)
	namespaces := []string{s.systems(), s.agents(), s.sandboxes(), "kube-system"}
	granted := grants(t, objects, namespaces)
	var accounts int
	for _, o := range objects {
		if o.Kind != "ServiceAccount" {
			continue
		}
		accounts++
		for _, namespace := range namespaces {
			may, err := s.rightsOf(ctx, o.Namespace, o.Name, namespace)
			must(t, err)
			want := granted[grantee{o.Namespace, o.Name, namespace}]
			if len(may) > 0 {
				t.Logf("%s/%s in %s: %s", o.Namespace, o.Name, namespace, strings.Join(may, ", "))
			}
			if !slices.Equal(may, want) {
				t.Errorf("%s/%s in %s may\n  %v\nand the YAML grants\n  %v", o.Namespace, o.Name, namespace, may, want)
			}
		}
	}
	if accounts < 8 {
		t.Errorf("only %d ServiceAccounts are installed", accounts)
	}
	s.figures.add("rights", "ServiceAccounts with exactly what they are granted", fmt.Sprint(accounts), "")
}

// grantee is an account and where it may do something.
type grantee struct{ namespace, account, in string }

// grants are the rules that Roles give to accounts, as rules spells them. What a
// ClusterRole gives holds in each of namespaces.
func grants(t *testing.T, objects []install.Object, namespaces []string) map[grantee][]string {
	t.Helper()
	roles := map[string][]rbacv1.PolicyRule{} // by namespace/name; a ClusterRole has no namespace
	for _, o := range objects {
		if o.Kind != "Role" && o.Kind != "ClusterRole" {
			continue
		}
		var role rbacv1.Role // of which a ClusterRole has all that is looked at
		decode(t, o, &role)
		roles[role.Namespace+"/"+role.Name] = role.Rules
	}
	granted := map[grantee][]string{}
	for _, o := range objects {
		switch o.Kind {
		case "ClusterRoleBinding":
			var binding rbacv1.ClusterRoleBinding
			decode(t, o, &binding)
			rules, ok := roles["/"+binding.RoleRef.Name]
			if !ok {
				t.Errorf("the binding %s names %s, which is not here", binding.Name, binding.RoleRef.Name)
			}
			for _, subject := range binding.Subjects {
				for _, namespace := range namespaces {
					to := grantee{subject.Namespace, subject.Name, namespace}
					granted[to] = append(granted[to], spelled(rules)...)
				}
			}
		case "RoleBinding":
			var binding rbacv1.RoleBinding
			decode(t, o, &binding)
			rules, ok := roles[binding.Namespace+"/"+binding.RoleRef.Name]
			if !ok || binding.RoleRef.Kind != "Role" {
				t.Errorf("the binding %s names %s %s, which is not here", binding.Name, binding.RoleRef.Kind, binding.RoleRef.Name)
			}
			for _, subject := range binding.Subjects {
				to := grantee{subject.Namespace, subject.Name, binding.Namespace}
				granted[to] = append(granted[to], spelled(rules)...)
			}
		}
	}
	for to, rules := range granted {
		slices.Sort(rules)
		granted[to] = slices.Compact(rules)
	}
	return granted
}

// spelled writes each right of rules as "resource.group names verb".
func spelled(rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, r := range rules {
		for _, resource := range r.Resources {
			for _, group := range r.APIGroups {
				for _, verb := range r.Verbs {
					all = append(all, right(resource, group, r.ResourceNames, verb))
				}
			}
		}
	}
	return all
}

func right(resource, group string, names []string, verb string) string {
	if group != "" {
		resource += "." + group
	}
	if len(names) > 0 {
		resource += " " + strings.Join(slices.Sorted(slices.Values(names)), ",")
	}
	return resource + " " + verb
}

// decode reads an object into its type of the API.
func decode(t *testing.T, o install.Object, into any) {
	t.Helper()
	text, err := json.Marshal(o.Content)
	must(t, err)
	must(t, json.Unmarshal(text, into))
}
