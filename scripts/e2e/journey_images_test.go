//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tuluat.ai/harness/scripts/internal/imagesize"
)

const megabyte = 1_000_000

// withCluster are the functions that hold client-go.
var withCluster = []string{"sandbox-exec", "reaper-cron"}

// journeyImages: how large images are, as they are pulled, and how much memory a
// function takes that has woken up and has nothing to do.
func journeyImages(t *testing.T, s *system) {
	ctx := t.Context()
	images, err := s.images(ctx)
	must(t, err)
	for _, image := range images {
		lines, err := imagesize.Check(ctx, []imagesize.Image{image})
		if err != nil {
			t.Error(err)
		}
		for _, line := range lines {
			s.figures.add("images", image.Name+", compressed", strings.TrimSpace(strings.TrimPrefix(line, image.Name)), "")
		}
	}
	for _, service := range s.services(t) {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			s.measureIdle(t, service)
		})
	}
}

// images are those of the functions as they run, and the runner's, with their
// limits.
func (s *system) images(ctx context.Context) ([]imagesize.Image, error) {
	text, err := s.cluster.kubectl(ctx, "", "-n", s.systems(), "get", "services.serving.knative.dev", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
				Template struct {
					Spec struct{ Containers []corev1.Container }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	var all []imagesize.Image
	for _, item := range list.Items {
		container := item.Spec.Template.Spec.Containers[0]
		for _, e := range container.Env {
			if e.Name == "SANDBOX_RUNNER_IMAGE" && e.Value != "" {
				all = append(all, imagesize.Image{Name: "runner", Ref: e.Value, Limit: imagesize.Runner})
			}
		}
		if !strings.HasSuffix(item.Metadata.Name, "-events") { // the other Service of the same image
			limit := imagesize.Function
			if slices.Contains(withCluster, item.Metadata.Name) {
				limit = imagesize.FunctionWithClient
			}
			all = append(all, imagesize.Image{Name: item.Metadata.Name, Ref: container.Image, Limit: limit})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no Knative Service in %s", s.systems())
	}
	return all, nil
}

func (s *system) services(t *testing.T) []string {
	out, err := s.cluster.kubectl(t.Context(), "", "-n", s.systems(), "get", "services.serving.knative.dev", "-o", "jsonpath={.items[*].metadata.name}")
	must(t, err)
	return strings.Fields(out)
}

// measureIdle wakes a function and keeps it awake until the kubelet has looked at
// its memory.
func (s *system) measureIdle(t *testing.T, service string) {
	ctx := t.Context()
	took, err := s.touch(ctx, service)
	must(t, err)
	var working uint64
	state, ok := eventually(ctx, 90*time.Second, func(ctx context.Context) (bool, string) {
		if _, err := s.touch(ctx, service); err != nil {
			return false, err.Error()
		}
		pods, err := s.cluster.pods(ctx, s.systems(), "serving.knative.dev/service="+service)
		if err != nil {
			return false, err.Error()
		}
		for _, pod := range pods {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				working, err = s.cluster.workingSet(ctx, &pod, "user-container")
				return err == nil && working > 0, fmt.Sprint(err)
			}
		}
		pause(ctx, time.Second)
		return false, "no Pod runs"
	})
	if !ok {
		t.Fatalf("the memory of %s: %s", service, state)
	}
	s.figures.add("images", service+", idle memory", fmt.Sprintf("%.1f MB", float64(working)/megabyte), "40 MB")
	s.figures.add("images", service+", request from zero", short(took), "")
	if working > 40*megabyte {
		t.Errorf("%s holds %.1f MB while idle", service, float64(working)/megabyte)
	}
}

// workingSet is the memory of a container as the kubelet counts it against its
// limit; 0 when it has not looked yet.
func (c *cluster) workingSet(ctx context.Context, pod *corev1.Pod, container string) (uint64, error) {
	text, err := c.client.CoreV1().RESTClient().Get().Resource("nodes").Name(pod.Spec.NodeName).SubResource("proxy").Suffix("stats", "summary").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	var summary struct {
		Pods []struct {
			PodRef     struct{ UID string }
			Containers []struct {
				Name   string
				Memory struct{ WorkingSetBytes uint64 }
			}
		}
	}
	if err := json.Unmarshal(text, &summary); err != nil {
		return 0, err
	}
	for _, p := range summary.Pods {
		for _, found := range p.Containers {
			if p.PodRef.UID == string(pod.UID) && found.Name == container {
				return found.Memory.WorkingSetBytes, nil
			}
		}
	}
	return 0, nil
}
