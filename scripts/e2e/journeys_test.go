//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestJourneys runs them in an order in which none disturbs the next: what only
// talks and looks first, what breaks things last.
func TestJourneys(t *testing.T) {
	for _, j := range []struct {
		name string
		run  func(*testing.T, *system)
	}{
		{"chat", journeyChat},
		{"idle", journeyIdle},
		{"workflow", journeyWorkflow},
		{"stream", journeyStream},
		{"pod", journeyPod},
		{"rights", journeyRights},
		{"access", journeyAccess},
		{"bad", journeyBad},
		{"secrets", journeySecrets},
		{"timings", journeyTimings},
		{"images", journeyImages},
		{"faults", journeyFaults},
		{"rest", journeyRest},
		{"suites", journeySuites},
	} {
		t.Run(j.name, func(t *testing.T) {
			began := time.Now()
			t.Cleanup(func() { // after those parts that run beside each other
				under.figures.add(j.name, "whole journey", short(time.Since(began)), "")
			})
			j.run(t, under)
		})
	}
}

// journeyRest: nothing is left, in the cluster and in the rows, after two sweeps.
func journeyRest(t *testing.T, s *system) {
	ctx := t.Context()
	before, err := s.sweeps(ctx)
	must(t, err)
	began := time.Now()
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		n, err := s.sweeps(ctx)
		if err != nil {
			return false, err.Error()
		}
		left, err := s.unfinished(ctx)
		if err != nil {
			return false, err.Error()
		}
		return n >= before+2 && left == "", fmt.Sprintf("%d sweeps; %s", n-before, left)
	})
	if !ok {
		t.Errorf("not at rest: %s", state)
	}
	pods, err := s.cluster.pods(ctx, s.sandboxes(), "")
	must(t, err)
	if len(pods) > 0 {
		t.Errorf("%d Pods are left in %s: %s", len(pods), s.sandboxes(), podNames(pods))
	}
	for _, what := range []string{"persistentvolumeclaims", "networkpolicies"} {
		out, err := s.cluster.kubectl(ctx, "", "-n", s.sandboxes(), "get", what, "-o", "name")
		must(t, err)
		for name := range strings.FieldsSeq(out) {
			if !strings.HasSuffix(name, "/deny-all") && !strings.HasSuffix(name, "/egress-default") {
				t.Errorf("%s is left", name)
			}
		}
	}
	var dead int
	must(t, s.rows.QueryRow(ctx, "SELECT count(*) FROM dead_letters WHERE state = 'OPEN'").Scan(&dead))
	s.figures.add("rest", "Pods and live rows left", fmt.Sprintf("%d and %s", len(pods), orNone(state)), "0")
	s.figures.add("rest", "time to rest", short(time.Since(began)), "")
	s.figures.add("rest", "dead letters open", fmt.Sprint(dead), "")
}

func orNone(text string) string {
	if _, left, _ := strings.Cut(text, "; "); left != "" {
		return left
	}
	return "0"
}

func podNames(pods []corev1.Pod) string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name+" "+string(p.Status.Phase))
	}
	return strings.Join(names, ", ")
}
