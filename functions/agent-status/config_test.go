package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/function/functiontest"
)

func parsed(env map[string]string) (config, error) {
	return parseConfig(func(name string) string {
		if v, set := env[name]; set {
			return v
		}
		return map[string]string{"DATABASE_URL": "postgres://h/d", "BROKER_URL": "http://b", "AGENTS_DIR": "/agents"}[name]
	})
}

func TestWhatThePlatformAllowsSandboxes(t *testing.T) {
	cfg, err := parsed(nil)
	if l := cfg.Limits; err != nil || l.AllowPrivateEgress || l.ClusterRanges != nil || l.RuntimeClasses != nil || l.Images != nil {
		t.Errorf("nothing set: %+v, %v", l, err)
	}
	cfg, err = parsed(map[string]string{
		"SANDBOX_ALLOW_PRIVATE_EGRESS": "true", "CLUSTER_RANGES": "203.0.113.7/24, 2001:db8::/32,", "SANDBOX_RUNTIME_CLASSES": "gvisor, kata", "SANDBOX_IMAGE_PREFIXES": "ghcr.io/acme,",
	})
	if err != nil {
		t.Fatal(err)
	}
	l := cfg.Limits
	var ranges []string
	for _, r := range l.ClusterRanges {
		ranges = append(ranges, r.String())
	}
	if diff := cmp.Diff([][]string{{"203.0.113.0/24", "2001:db8::/32"}, {"gvisor", "kata"}, {"ghcr.io/acme"}}, [][]string{ranges, l.RuntimeClasses, l.Images}); diff != "" || !l.AllowPrivateEgress {
		t.Errorf("%v, %s", l.AllowPrivateEgress, diff)
	}
	if !l.ClusterRanges[0].Contains(netip.MustParseAddr("203.0.113.200")) {
		t.Errorf("%v", l.ClusterRanges)
	}
}

func TestWrongLimitsAreNamed(t *testing.T) {
	_, err := parsed(map[string]string{"SANDBOX_ALLOW_PRIVATE_EGRESS": "yes", "CLUSTER_RANGES": "10.0.0.0/8,10.1.1.1", "MAX_SANDBOX_CPU": "lots"})
	functiontest.Complains(t, err, "SANDBOX_ALLOW_PRIVATE_EGRESS", "CLUSTER_RANGES", "MAX_SANDBOX_CPU")
	if !strings.Contains(err.Error(), `"10.1.1.1"`) || strings.Contains(err.Error(), `"10.0.0.0/8"`) {
		t.Errorf("which range is wrong: %v", err)
	}
}
