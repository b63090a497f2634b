package manifest_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tuluat.ai/harness/scripts/internal/manifest"
)

// With the component of figures one pod of management-api is kept, every pod says
// where it is scraped, on a port that no Service has, and nothing else changes.
func TestMonitoring(t *testing.T) {
	const component = "config/components/monitoring"
	for _, folder := range append([]string{base}, overlays...) {
		before, plain := rendered(t, folder)
		set, objects := renderedWith(t, folder, component)
		for _, s := range set.Services {
			least, err := s.Scale(manifest.MinScale)
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{true: 1}[s.Name == "management-api"]; least != want {
				t.Errorf("%s: %s keeps %d pods, want %d", folder, s.Name, least, want)
			}
		}
		if len(set.Services) != len(before.Services) {
			t.Errorf("%s: %d Services, without the component %d", folder, len(set.Services), len(before.Services))
		}
		was, is := flatten(plain), flatten(objects)
		for name, fields := range is {
			switch name {
			case "ConfigMap tuluat-prometheus", "ConfigMap tuluat-dashboards":
				continue
			}
			if was[name] == nil {
				t.Errorf("%s: %s is new", folder, name)
				continue
			}
			for path, value := range fields {
				if was[name][path] == value {
					continue
				}
				annotation, ok := strings.CutPrefix(path, "/spec/template/metadata/annotations/")
				if scaled := name == "Service management-api" && annotation == "autoscaling.knative.dev/min-scale"; !ok || !scaled && !strings.HasPrefix(annotation, "prometheus.io/") {
					t.Errorf("%s: %s%s is %q, without the component %q", folder, name, path, value, was[name][path])
				}
			}
			if fields["/spec/template/spec/containers/0/image"] != "" && strings.HasPrefix(fields["/apiVersion"], "serving.knative.dev/") {
				const at = "/spec/template/metadata/annotations/prometheus.io/"
				if got := fields[at+"scrape"] + " " + fields[at+"port"] + " " + fields[at+"path"]; got != "true 9464 /metrics" {
					t.Errorf("%s: %s is scraped at %q", folder, name, got)
				}
			}
		}
		for _, o := range objects {
			if o.Name != "tuluat-dashboards" && o.Name != "tuluat-prometheus" {
				continue
			}
			data, _ := o.Content["data"].(map[string]any)
			for file, text := range data {
				if strings.HasSuffix(file, ".json") && !json.Valid([]byte(fmt.Sprint(text))) {
					t.Errorf("%s: %s is no JSON", o.Name, file)
				}
			}
			want := map[string][]string{"tuluat-dashboards": {"functions.json", "overview.json"}, "tuluat-prometheus": {"prometheus.yaml", "rules.yaml"}}[o.Name]
			var got []string
			for file := range data {
				got = append(got, file)
			}
			if slices.Sort(got); !slices.Equal(got, want) || o.Namespace != "tuluat-system" {
				t.Errorf("%s in %s has %v", o.Name, o.Namespace, got)
			}
		}
	}
}
