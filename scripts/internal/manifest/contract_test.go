//go:build system

package manifest_test

import (
	"crypto/rand"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/event"
)

// The events a function says it hears are those it is sent, in both directions.
func TestContracts(t *testing.T) {
	set := wiring(t)
	sent := map[string]map[string]bool{}
	send := func(d duckv1.Destination, types ...string) {
		if s := target(t, set, "contract", d); s != nil {
			if sent[s.Name] == nil {
				sent[s.Name] = map[string]bool{}
			}
			for _, name := range types {
				sent[s.Name][name] = true
			}
		}
	}
	all := []string{string(event.Ping), string(event.ResourceAdd), string(event.ResourceUpdate), string(event.ResourceDelete)}
	for _, name := range event.Types() {
		all = append(all, string(name))
	}
	for _, trigger := range set.Triggers {
		send(trigger.Spec.Subscriber, trigger.Spec.Filter.Attributes["type"])
		send(*trigger.Spec.Delivery.DeadLetterSink, all...)
	}
	for _, p := range set.Pings {
		send(p.Spec.Sink, string(event.Ping))
	}
	for _, s := range set.ResourceSources {
		send(s.Spec.Sink, string(event.ResourceAdd), string(event.ResourceUpdate), string(event.ResourceDelete))
	}
	bin := t.TempDir()
	build := exec.Command("go", "build", "-tags", "local", "-o", bin+"/")
	for _, s := range set.Services {
		build.Args = append(build.Args, s.ImportPath())
	}
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, s := range set.Services {
		want := slices.Sorted(maps.Keys(sent[s.Name]))
		got := contract(t, filepath.Join(bin, s.Function()), s)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("Service %s (-is sent +hears):\n%s", s.Name, diff)
		}
	}
}

func contract(t *testing.T, program string, s *manifest.Service) []string {
	t.Helper()
	cmd := exec.Command(program, "-contract")
	for _, v := range s.Env() {
		value := v.Value
		if v.ValueFrom != nil {
			value = "postgres://x/" + v.Name
			if v.ValueFrom.SecretKeyRef.Optional && v.Name != "OPENAI_API_KEY" {
				continue // the function's defaults, and a model to reach
			}
		}
		cmd.Env = append(cmd.Env, v.Name+"="+value)
	}
	// Where the YAML names what only a cluster has, this machine has its own.
	runner := filepath.Join(t.TempDir(), "runner")
	if err := os.WriteFile(runner, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"), "SECRETS=environment", "AGENTS_SOURCE=folder", "AGENTS_DIR="+t.TempDir(), "ACCESS=static", "MANAGEMENT_TOKEN="+rand.Text(), "SANDBOX_DRIVER=local", "SANDBOX_LOCAL_DIR="+t.TempDir(), "SANDBOX_LOCAL_RUNNER="+runner)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s -contract: %v\n%s", s.Name, err, stderrOf(err))
	}
	types := strings.Fields(string(out))
	slices.Sort(types)
	return types
}
