//go:build e2e

package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// accessPatience is how long a right that was taken away may be remembered, and
// the API server's own memory of it.
const accessPatience = 60 * time.Second

// nobodysRole is the caller without any.
const nobodysRole = "nobody"

// journeyAccess calls every operation of the management API as a ServiceAccount of
// each role, one without a role, and nobody, and compares what is let in with the
// table in config/README.md, which config's own tests compare with the YAML and
// the API's document.
func journeyAccess(t *testing.T, s *system) {
	ctx := t.Context()
	table := documentedAccess(t, s.home)
	callers := append(slices.Clone(table.roles), nobodysRole)
	tokens := map[string]string{}
	for _, role := range callers {
		tokens[role] = s.caller(ctx, t, role)
	}
	got := map[string]map[string]bool{} // by operation and caller
	asked := 0
	for _, o := range table.operations {
		got[o.what] = map[string]bool{}
		for _, role := range callers {
			status, answer := s.call(ctx, t, o.what, tokens[role])
			asked++
			got[o.what][role] = status != http.StatusForbidden
			if status == http.StatusUnauthorized || status == http.StatusTooManyRequests || status >= 500 {
				t.Errorf("%s as %s: %d %s", o.what, role, status, answer)
			}
			if status == http.StatusForbidden && !strings.Contains(answer, o.right+".tuluat.ai") {
				t.Errorf("%s as %s: the problem does not name the right %s: %s", o.what, role, o.right, answer)
			}
		}
		for name, token := range map[string]string{"without a token": "", "with a bad token": "bad-" + tokens[nobodysRole]} {
			status, answer := s.call(ctx, t, o.what, token)
			asked++
			if status != http.StatusUnauthorized {
				t.Errorf("%s %s: %d %s", o.what, name, status, answer)
			}
		}
	}
	differences := 0
	for _, o := range table.operations {
		for _, role := range callers {
			if want := o.right == "none" || o.may[role]; got[o.what][role] != want {
				differences++
				t.Errorf("%s as %s: let in %v, documented %v", o.what, role, got[o.what][role], want)
			}
		}
	}
	t.Log(matrix(table.operations, callers, got))
	s.figures.add("access", "operations by role that differ from the documented ones", fmt.Sprintf("%d of %d", differences, len(table.operations)*len(callers)), "0")
	s.figures.add("access", "requests tried", fmt.Sprint(asked), "")
	s.rightsEnd(t, tokens)
}

// rightsEnd: a role that is taken away and a caller who is removed are both soon
// out.
func (s *system) rightsEnd(t *testing.T, tokens map[string]string) {
	ctx := t.Context()
	rbac, core := s.cluster.client.RbacV1().RoleBindings(s.agents()), s.cluster.client.CoreV1().ServiceAccounts(s.agents())
	began := time.Now()
	must(t, rbac.Delete(ctx, callerName("operator"), metav1.DeleteOptions{}))
	must(t, core.Delete(ctx, callerName("viewer"), metav1.DeleteOptions{}))
	for role, want := range map[string]int{"operator": http.StatusForbidden, "viewer": http.StatusUnauthorized} {
		state, ok := eventually(ctx, accessPatience, func(ctx context.Context) (bool, string) {
			status, _ := s.call(ctx, t, "GET /api/v1/sessions", tokens[role])
			return status == want, fmt.Sprint(status)
		})
		if !ok {
			t.Errorf("%s is answered %s, want %d", role, state, want)
		}
	}
	s.figures.add("access", "a role taken away and a caller removed are out", short(time.Since(began)), short(accessPatience))
}

func callerName(role string) string { return "e2e-access-" + role }

// caller makes a ServiceAccount with a role and returns a token of it. Both go
// when the test ends.
func (s *system) caller(ctx context.Context, t *testing.T, role string) string {
	t.Helper()
	meta := metav1.ObjectMeta{Name: callerName(role), Namespace: s.agents()}
	accounts, bindings := s.cluster.client.CoreV1().ServiceAccounts(s.agents()), s.cluster.client.RbacV1().RoleBindings(s.agents())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		for _, err := range []error{bindings.Delete(ctx, meta.Name, metav1.DeleteOptions{}), accounts.Delete(ctx, meta.Name, metav1.DeleteOptions{})} {
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	must(t, err)
	if role != nobodysRole {
		_, err = bindings.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: meta.Name, Namespace: meta.Namespace}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "tuluat-" + role},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	seconds := int64(3600)
	request, err := accounts.CreateToken(ctx, meta.Name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	must(t, err)
	return request.Status.Token
}

// call makes the request of an operation on what does not exist, with a body that
// no operation takes: whoever is let in changes nothing.
func (s *system) call(ctx context.Context, t *testing.T, operation, token string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	method, path, _ := strings.Cut(operation, " ")
	id := "none_0"
	if strings.Contains(path, "/deadletters/") {
		id = "999999999"
	}
	path = strings.NewReplacer("{name}", "e2e-access-none", "{id}", id).Replace(path)
	header := http.Header{"If-Match": {"*"}, "Idempotency-Key": {"e2e-access"}}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	var body []byte
	if slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, method) {
		header.Set("Content-Type", "application/json")
		body = []byte(`{"noOperationHasThis": true}`)
	}
	status, answer, err := s.ingress.send(ctx, "management-api", method, path, header, body)
	if err != nil && ctx.Err() == nil {
		t.Errorf("%s: %v", operation, err)
	}
	return status, string(answer)
}

// accessTable is what config/README.md says of operations and roles.
type accessTable struct {
	roles      []string
	operations []accessLine
}

type accessLine struct {
	what, right string
	may         map[string]bool // by role
}

func documentedAccess(t *testing.T, home string) accessTable {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(home, "config", "README.md"))
	must(t, err)
	_, after, _ := strings.Cut(string(text), "<!-- operations -->\n")
	written, _, _ := strings.Cut(after, "<!-- /operations -->")
	var table accessTable
	for i, line := range strings.Split(strings.TrimSpace(written), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		switch {
		case i == 0:
			table.roles = cells[2:]
		case i > 1 && len(cells) == 2+len(table.roles):
			l := accessLine{cells[0], cells[1], map[string]bool{}}
			for n, role := range table.roles {
				l.may[role] = cells[2+n] == "yes"
			}
			table.operations = append(table.operations, l)
		}
	}
	if len(table.roles) != 4 || len(table.operations) < 30 {
		t.Fatalf("config/README.md documents %d operations of the roles %v", len(table.operations), table.roles)
	}
	return table
}

// matrix is what was let in, as a table.
func matrix(operations []accessLine, callers []string, got map[string]map[string]bool) string {
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "\noperation\t"+strings.Join(callers, "\t"))
	for _, o := range operations {
		line := o.what
		for _, role := range callers {
			line += "\t" + map[bool]string{true: "yes", false: "-"}[got[o.what][role]]
		}
		fmt.Fprintln(table, line)
	}
	_ = table.Flush() // to memory
	return text.String()
}
