package access_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
)

const (
	adminToken  = "an-admin-token-0123456789"
	viewerToken = "a-viewer-token-0123456789=="
)

func TestStaticTokens(t *testing.T) {
	s, err := access.NewStatic(harness.Secret("# who may call\n\n" + adminToken + "\r\n" + viewerToken + "  eve   viewer\n"))
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]struct {
		name            string
		mayList, mayAll bool
	}{adminToken: {"local", true, true}, viewerToken: {"eve", true, false}} {
		caller, err := s.Identify(t.Context(), token)
		if err != nil || caller.Name != want.name || !caller.Static {
			t.Fatalf("%+v, %v", caller, err)
		}
		for right, want := range map[access.Right]bool{
			{Verb: access.List, Resource: access.Sessions}:   want.mayList,
			{Verb: access.Cancel, Resource: access.Sessions}: want.mayAll,
			{Verb: access.List, Resource: access.Audits}:     want.mayAll,
			{Verb: "escalate", Resource: access.Sessions}:    false,
		} {
			if got, err := s.Allow(t.Context(), caller, right); err != nil || got != want {
				t.Errorf("%s %s: %v, %v", caller.Name, right, got, err)
			}
		}
	}
	for _, wrong := range []string{"", adminToken[1:], adminToken + "x", strings.ToUpper(adminToken), "#"} {
		if caller, err := s.Identify(t.Context(), wrong); harness.KindOf(err) != harness.Denied {
			t.Errorf("%q is %+v, %v", wrong, caller, err)
		}
	}
	// Who was known by other means has no right here.
	if ok, err := s.Allow(t.Context(), access.Caller{Name: "local"}, access.Right{Verb: access.List, Resource: access.Sessions}); ok || err != nil {
		t.Errorf("allowed %v, %v", ok, err)
	}
}

func TestStaticTokensThatAreWrong(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": " \n# nothing\n", "short": "short", "odd characters": "a token with \"quotes\"-012345", "quoted": `"` + adminToken + `"`,
		"unknown role": adminToken + " eve owner", "too much": adminToken + " eve admin please", "one name twice": adminToken + "\n" + viewerToken,
		"a role without a name": adminToken + " viewer", "a role in capitals": adminToken + " Viewer", "one token twice": adminToken + " a viewer\n" + adminToken + " b admin",
		"unprintable name": adminToken + " a\x1bb viewer", "a name that is no text": adminToken + " a\xff viewer", "a comment": adminToken + " #viewer",
	} {
		_, err := access.NewStatic(harness.Secret(text))
		if harness.KindOf(err) != harness.Invalid {
			t.Errorf("%s: %v", name, err)
			continue
		}
		noToken(t, adminToken, err.Error())
	}
}

// The roles of static tokens are the ClusterRoles that are shipped.
func TestRolesAreTheClusterRoles(t *testing.T) {
	const folder = "../../../../config/access"
	for _, role := range access.Roles() {
		text, err := os.ReadFile(filepath.Join(folder, role+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var written struct {
			Metadata struct{ Name string }
			Rules    []struct {
				APIGroups []string `yaml:"apiGroups"`
				Resources []string
				Verbs     []string
			}
		}
		if err := yaml.Unmarshal(text, &written); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, rule := range written.Rules {
			if !slices.Equal(rule.APIGroups, []string{access.Group}) {
				t.Errorf("%s has rights on %v", role, rule.APIGroups)
			}
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					want = append(want, verb+" "+resource)
				}
			}
		}
		got := access.RoleRights(role)
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(slices.Compact(want), slices.Compact(got)); diff != "" || written.Metadata.Name != "tuluat-"+role {
			t.Errorf("%s, %s (-config/access +code):\n%s", role, fmt.Sprint(written.Metadata.Name), diff)
		}
	}
}
