package install

import (
	"context"
	"regexp"
	"strings"
	"testing"
)

const withConsole = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: management-api, namespace: tuluat-system}
spec: {template: {spec: {containers: [{env: [
  {name: CONSOLE_KEY, valueFrom: {secretKeyRef: {name: console, key: key, optional: true}}},
  {name: OIDC_ISSUER, valueFrom: {secretKeyRef: {name: console, key: oidc-issuer, optional: true}}}]}]}}}
`

// The console's key is made up once, beside what a person has put there, and never
// replaced; nothing of it is an argument.
func TestConsoleKeyIsMadeOnce(t *testing.T) {
	quiet := func(string, ...any) {}
	objects, err := Objects([]byte(withConsole))
	if err != nil {
		t.Fatal(err)
	}
	key := regexp.MustCompile(`"key":"([A-Z2-7]{26})"`)
	p := play(t, nil)
	if err := ensureConsole(context.Background(), objects, quiet); err != nil {
		t.Fatal(err)
	}
	made := key.FindStringSubmatch(p.written())
	if calls := strings.Join(p.calls(), "\n"); made == nil || strings.Contains(calls, made[1]) || strings.Count(calls, "create -f -") != 1 {
		t.Errorf("made %s by\n%s", p.written(), calls)
	}
	p = play(t, map[string]string{"get secret console": "oidc-issuer\n"})
	if err := ensureConsole(context.Background(), objects, quiet); err != nil {
		t.Fatal(err)
	}
	if calls := strings.Join(p.calls(), "\n"); !key.MatchString(p.written()) || !strings.Contains(calls, "patch secret console") || strings.Contains(calls, "create") {
		t.Errorf("added %s by\n%s", p.written(), calls)
	}
	p = play(t, map[string]string{"get secret console": "key\n"})
	if err := ensureConsole(context.Background(), objects, quiet); err != nil || p.written() != "" {
		t.Errorf("%v, wrote %s", err, p.written())
	}
	p = play(t, nil)
	if err := ensureConsole(context.Background(), inClusterObjects(t), quiet); err != nil || len(p.calls()) > 0 {
		t.Errorf("without a console: %v, asked %v", err, p.calls())
	}
}
