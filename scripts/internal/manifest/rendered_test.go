package manifest_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	eventingv1 "knative.dev/eventing/pkg/apis/eventing/v1"
	"knative.dev/eventing/pkg/apis/feature"
	sourcesv1 "knative.dev/eventing/pkg/apis/sources/v1"
	"knative.dev/pkg/apis"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	kyaml "sigs.k8s.io/yaml"

	"tuluat.ai/harness/scripts/internal/install"
	"tuluat.ai/harness/scripts/internal/manifest"
)

const (
	base   = "config/base"
	bridge = "config/components/temporal-bridge" // of overlays that list it
)

var overlays = []string{"config/overlays/kind", "config/overlays/ephemeral", "config/overlays/production", "config/overlays/telegram-poll"}

// rendered is what kustomize makes of a folder, read as strictly as its sources.
func rendered(t *testing.T, folder string) (*manifest.Set, []install.Object) {
	t.Helper()
	text, err := install.Render(filepath.Join(root, folder))
	if err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Parse(folder, text)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := install.Objects(text)
	if err != nil {
		t.Fatal(err)
	}
	return set, objects
}

// renderedWith is what kustomize makes of a folder and a component.
func renderedWith(t *testing.T, folder, component string) (*manifest.Set, []install.Object) {
	t.Helper()
	own := t.TempDir()
	up, err := filepath.Rel(own, mustAbs(t, root))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("kind: Kustomization\nresources: [%[1]s/%[2]s]\ncomponents: [%[1]s/%[3]s]\n", up, folder, component)
	if err := os.WriteFile(filepath.Join(own, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := install.Render(own)
	if err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Parse(component, out)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := install.Objects(out)
	if err != nil {
		t.Fatal(err)
	}
	return set, objects
}

// What the overlays add to the base, and the only values they change.
var (
	additions = map[string][]string{
		"config/overlays/kind":          {"PersistentVolumeClaim postgres", "Service postgres", "ServiceAccount postgres", "StatefulSet postgres", "NetworkPolicy postgres", "ConfigMap postgres-*"},
		"config/overlays/ephemeral":     {"Service postgres", "ServiceAccount postgres", "StatefulSet postgres", "NetworkPolicy postgres", "ConfigMap postgres-*"},
		"config/overlays/telegram-poll": {"Deployment telegram-poll"},
	}
	changes = map[string][]string{
		"config/overlays/production": {`^Broker default: /metadata/annotations`, `^Broker default: /spec/config`, `^Service [a-z-]+: .*/env/BROKER_URL/value$`},
	}
	hashed = regexp.MustCompile(`-[a-z0-9]{10}$`)
)

// Overlays add what they are for and change numbers: no name, variable, trigger,
// role or account is theirs to change.
func TestOverlaysDifferOnlyAsAllowed(t *testing.T) {
	_, objects := rendered(t, base)
	want := flatten(objects)
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			_, objects := rendered(t, overlay)
			got := flatten(objects)
			for _, o := range objects {
				name := o.Kind + " " + o.Name
				if _, inBase := want[name]; !inBase && slices.Contains(additions[overlay], hashed.ReplaceAllString(name, "-*")) {
					delete(got, name)
				}
			}
			for name, fields := range want {
				if _, ok := got[name]; !ok {
					t.Errorf("%s is missing", name)
				}
				for path, value := range fields {
					if other, ok := got[name][path]; !ok || other != value {
						allow(t, overlay, name+": "+path, value, other)
					}
				}
			}
			for name, fields := range got {
				if _, ok := want[name]; !ok {
					t.Errorf("%s is new", name)
					continue
				}
				for path, value := range fields {
					if _, ok := want[name][path]; !ok {
						allow(t, overlay, name+": "+path, "", value)
					}
				}
			}
		})
	}
}

func allow(t *testing.T, overlay, at, before, after string) {
	t.Helper()
	for _, pattern := range changes[overlay] {
		if regexp.MustCompile(pattern).MatchString(at) {
			return
		}
	}
	t.Errorf("%s is %q, in the base %q", at, after, before)
}

// flatten writes every value of every object by its path; items of a list are
// named by their name where they have one.
func flatten(objects []install.Object) map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, o := range objects {
		fields := map[string]string{}
		flattenInto(fields, "", o.Content)
		all[o.Kind+" "+o.Name] = fields
	}
	return all
}

func flattenInto(fields map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			flattenInto(fields, path+"/"+key, child)
		}
	case []any:
		for i, child := range v {
			name := fmt.Sprint(i)
			if m, ok := child.(map[string]any); ok && m["name"] != nil {
				name = fmt.Sprint(m["name"])
			}
			flattenInto(fields, path+"/"+name, child)
		}
	default:
		fields[path] = fmt.Sprint(v)
	}
}

// The components that overlays leave out do what they say.
func TestWarmIngestKeepsThreeServices(t *testing.T) {
	set, _ := renderedWith(t, base, "config/components/warm-ingest")
	var warm []string
	for _, s := range set.Services {
		if n, err := s.Scale(manifest.MinScale); err != nil || n > 0 {
			warm = append(warm, fmt.Sprint(s.Name, " ", n))
		}
	}
	slices.Sort(warm)
	if diff := cmp.Diff([]string{"telegram-ingest 1", "webhook-ingest 1", "whatsapp-ingest 1"}, warm); diff != "" {
		t.Error(diff)
	}
}

// temporal-bridge adds itself and three values to what is there; also on the
// production overlay, which says where each Service publishes.
func TestTemporalBridgeAddsOnlyItself(t *testing.T) {
	for _, folder := range []string{base, "config/overlays/production"} {
		_, objects := rendered(t, folder)
		before := flatten(objects)
		_, objects = renderedWith(t, folder, bridge)
		var added []string
		for name, fields := range flatten(objects) {
			if before[name] == nil {
				added = append(added, name)
				continue
			}
			for path, value := range fields {
				if was, ok := before[name][path]; !ok {
					added = append(added, name+path+" "+value)
				} else if was != value {
					t.Errorf("%s: %s%s becomes %q", folder, name, path, value)
				}
			}
		}
		slices.Sort(added)
		if diff := cmp.Diff([]string{
			"Job migrate/spec/template/spec/volumes/logins/secret/items/9/key temporal-bridge",
			"Job migrate/spec/template/spec/volumes/logins/secret/items/9/path temporal-bridge",
			"Service management-api/spec/template/spec/containers/0/env/TEMPORAL_BRIDGE/name TEMPORAL_BRIDGE",
			"Service management-api/spec/template/spec/containers/0/env/TEMPORAL_BRIDGE/value true",
			"Service reaper-cron/spec/template/spec/containers/0/env/MORE_SINKS/name MORE_SINKS",
			"Service reaper-cron/spec/template/spec/containers/0/env/MORE_SINKS/value ai.tuluat.approval.decided.v1=http://temporal-bridge.tuluat-system.svc.cluster.local/events",
			"Service temporal-bridge", "ServiceAccount temporal-bridge", "Trigger temporal-bridge-approval-decided",
		}, added); diff != "" {
			t.Errorf("%s: -want +added:\n%s", folder, diff)
		}
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// Every file is read by some kustomization: one that is not would be believed in.
func TestEveryFileIsListed(t *testing.T) {
	listed := map[string]bool{}
	var folders []string
	err := filepath.WalkDir(filepath.Join(root, "config"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.EqualFold(strings.TrimSuffix(d.Name(), ".yaml"), "kustomization") {
			folders = append(folders, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	folders = append(folders, filepath.Join(root, "eventing", "kustomization.yaml"))
	for _, file := range folders {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var k struct {
			Resources, Components, Configurations []string
			ConfigMapGenerator                    []struct{ Files []string } `yaml:"configMapGenerator"`
		}
		if err := yaml.Unmarshal(text, &k); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all := slices.Concat(k.Resources, k.Components, k.Configurations)
		for _, g := range k.ConfigMapGenerator {
			for _, file := range g.Files {
				_, path, named := strings.Cut(file, "=") // KEY=FILE
				if !named {
					path = file
				}
				all = append(all, path)
			}
		}
		for _, name := range all {
			path := filepath.Join(filepath.Dir(file), name)
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			listed[path] = true
		}
	}
	for _, folder := range []string{"config/access", "config/base", "config/crd", "config/functions", "config/sandbox", "config/samples", "config/components/postgres", bridge, "eventing"} {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(files), err)
		}
		for _, file := range files {
			if filepath.Base(file) != "kustomization.yaml" && !listed[file] {
				t.Errorf("no kustomization lists %s", file)
			}
		}
	}
}

// Knative's own webhooks, in this process: what they would refuse, and what they
// would silently change of what is meant.
func TestKnativeTakesEveryManifest(t *testing.T) {
	for _, folder := range overlays {
		_, objects := rendered(t, folder)
		counts := map[string]int{}
		for _, o := range objects {
			into := knativeObject(o)
			if into == nil {
				continue
			}
			counts[o.Kind]++
			text, err := kyaml.Marshal(o.Content)
			if err != nil {
				t.Fatal(err)
			}
			if err := kyaml.UnmarshalStrict(text, into); err != nil {
				t.Errorf("%s: %s: %v", folder, o, err)
				continue
			}
			ctx := asWebhook(t)
			into.SetDefaults(ctx)
			if errs := into.Validate(ctx); errs != nil {
				t.Errorf("%s: %s: %v", folder, o, errs)
			}
		}
		if counts["Service"] < 11 || counts["Trigger"] < 15 || counts["Broker"] != 1 || counts["PingSource"] != 2 || counts["ApiServerSource"] != 1 {
			t.Errorf("%s: checked only %v", folder, counts)
		}
	}
}

type knativeResource interface {
	SetDefaults(context.Context)
	Validate(context.Context) *apis.FieldError
}

func knativeObject(o install.Object) knativeResource {
	switch o.APIVersion + " " + o.Kind {
	case "serving.knative.dev/v1 Service":
		return &servingv1.Service{}
	case "eventing.knative.dev/v1 Broker":
		return &eventingv1.Broker{}
	case "eventing.knative.dev/v1 Trigger":
		return &eventingv1.Trigger{}
	case "sources.knative.dev/v1 PingSource":
		return &sourcesv1.PingSource{}
	case "sources.knative.dev/v1 ApiServerSource":
		return &sourcesv1.ApiServerSource{}
	}
	return nil
}

// asWebhook is the context of an object's creation on a cluster that nobody has
// configured.
func asWebhook(t *testing.T) context.Context {
	t.Helper()
	flags, err := feature.NewFlagsConfigFromMap(map[string]string{})
	if err != nil {
		t.Fatal(err)
	}
	return feature.ToContext(apis.WithinCreate(t.Context()), flags)
}

// A mistake that our own types let through is found by theirs.
func TestKnativeRefuses(t *testing.T) {
	_, objects := rendered(t, base)
	for name, c := range map[string]struct{ from, to string }{
		"too short a window":    {"autoscaling.knative.dev/window: 6s", "autoscaling.knative.dev/window: 5s"},
		"a retention no time":   {"retention-period: 0s", "retention-period: soon"},
		"min above max":         {`min-scale: "0"`, `min-scale: "99"`},
		"a feature that is off": {"enableServiceLinks: false", "enableServiceLinks: false\n      hostNetwork: true"},
	} {
		for _, o := range objects {
			if o.Kind != "Service" || knativeObject(o) == nil {
				continue
			}
			text, err := kyaml.Marshal(o.Content)
			if err != nil {
				t.Fatal(err)
			}
			changed := bytes.Replace(text, []byte(c.from), []byte(c.to), 1)
			if bytes.Equal(text, changed) {
				t.Fatalf("%s: %q is not in %s", name, c.from, o)
			}
			s := &servingv1.Service{}
			if err := kyaml.Unmarshal(changed, s); err != nil {
				t.Fatal(err)
			}
			ctx := asWebhook(t)
			s.SetDefaults(ctx)
			if s.Validate(ctx) == nil {
				t.Errorf("%s: %s was accepted", name, o)
			}
			break
		}
	}
}

// No file holds a secret: workloads name keys of Secrets, and a variable whose
// name says that it is one has no value.
func TestSecretsAreNeverLiteral(t *testing.T) {
	secretive := regexp.MustCompile(`(?i)(secret|token|password|_key|database_url)`)
	harmless := map[string]bool{"SECRETS": true, "SECRETS_NAMESPACE": true}
	checked := 0
	for _, folder := range overlays {
		_, objects := rendered(t, folder)
		for _, o := range objects {
			if o.Kind == "Secret" {
				t.Errorf("%s holds %s", folder, o)
			}
			fields := map[string]string{}
			flattenInto(fields, "", o.Content)
			for path, value := range fields {
				parts := strings.Split(path, "/")
				if i := slices.Index(parts, "env"); i > 0 && i+2 < len(parts) && parts[i+2] == "value" && secretive.MatchString(parts[i+1]) && !harmless[parts[i+1]] {
					t.Errorf("%s: %s: %s has a value", folder, o, path)
				}
				if regexp.MustCompile(`://[^/@\s]+:[^/@\s]+@`).MatchString(value) {
					t.Errorf("%s: %s: %s holds a URL with a password", folder, o, path)
				}
				checked++
			}
		}
	}
	if checked < 1000 {
		t.Errorf("only %d values were looked at", checked)
	}
}

// Another prefix leaves nothing behind and touches nothing else.
func TestRenameReachesEverything(t *testing.T) {
	for _, folder := range overlays {
		text, err := install.Render(filepath.Join(root, folder))
		if err != nil {
			t.Fatal(err)
		}
		other, err := install.Rename(text, "acme-")
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(other, []byte("tuluat-system")); i >= 0 {
			t.Errorf("%s: %s", folder, other[max(0, i-40):i+40])
		}
		set, err := manifest.Parse(folder, other)
		if err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, s := range set.Services {
			used[s.Namespace] = true
		}
		for _, r := range set.Roles {
			used[r.Namespace] = true
		}
		if diff := cmp.Diff([]string{"acme-agents", "acme-sandbox", "acme-system"}, slices.Sorted(maps.Keys(used))); diff != "" {
			t.Errorf("%s: %s", folder, diff)
		}
		back := bytes.ReplaceAll(other, []byte("acme-"), []byte("tuluat-"))
		if !bytes.Equal(back, text) {
			t.Errorf("%s: something else was renamed too", folder)
		}
	}
}
