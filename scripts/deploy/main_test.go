package main

import (
	"context"
	"strings"
	"testing"
)

// Nothing of these gets as far as a cluster.
func TestMistakesAreSaid(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no kubectl
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a flag that is none":          {[]string{"-overlays", "x"}, "flag provided but not defined"},
		"a word too many":              {[]string{"now"}, `"now" is no flag`},
		"an overlay that is not there": {[]string{"-overlay", "config/overlays/nothing"}, "kustomize"},
		"a prefix that is none":        {[]string{"-prefix", "Acme"}, `the prefix "Acme"`},
		"no kubectl":                   {[]string{"-overlay", "config/overlays/kind"}, "kubectl is not in PATH"},
		"no kubectl to remove":         {[]string{"-remove"}, "undeploy: kubectl is not in PATH"},
	} {
		if err := run(context.Background(), c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
