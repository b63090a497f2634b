package manifest_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"tuluat.ai/harness/scripts/internal/install"
	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/api/v1alpha1"
)

// The table of rights in config/README.md is what the manifests give, line by
// line and in both directions.
func TestTableOfRights(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "config/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "<!-- rights -->\n")
	table, _, ok := strings.Cut(after, "<!-- /rights -->")
	if !ok {
		t.Fatal("config/README.md has no table between <!-- rights --> and <!-- /rights -->")
	}
	got := strings.Split(strings.TrimSpace(table), "\n")
	if len(got) < 3 {
		t.Fatal("the table has no line")
	}
	want := rights(t)
	if diff := cmp.Diff(want, got[2:]); diff != "" {
		t.Errorf("config/README.md (-manifests +table):\n%s", diff)
	}
}

// rights writes a line of the table for every account of the kind overlay with
// temporal-bridge, which has all of them.
func rights(t *testing.T) []string {
	t.Helper()
	set, objects := renderedWith(t, "config/overlays/kind", bridge)
	workloads := map[string][]install.Object{}
	for _, o := range objects {
		fields := map[string]string{}
		flattenInto(fields, "", o.Content)
		if name := fields["/spec/template/spec/serviceAccountName"] + fields["/spec/serviceAccountName"]; name != "" {
			workloads[o.Namespace+"/"+name] = append(workloads[o.Namespace+"/"+name], o)
		}
	}
	budgets := budget(t, set)
	var lines []string
	for _, a := range set.Accounts {
		work := workloads[a.Namespace+"/"+a.Name]
		role, secrets := "none", secretKeys(work)
		for _, s := range secrets {
			switch key, ok := strings.CutPrefix(s, "database/"); {
			case ok && a.Name != "migrate":
				role = fmt.Sprintf("`tuluat_%s`, %d", strings.ReplaceAll(key, "-", "_"), budgets[key])
			case ok:
				role = fmt.Sprintf("the owner, %d", migrateConns)
			}
		}
		lines = append(lines, fmt.Sprintf("| `%s` | %s | %s | %s |", a.Name, kubernetesRights(set, a), role, secretCell(secrets)))
	}
	slices.Sort(lines)
	return lines
}

func kubernetesRights(set *manifest.Set, account *corev1.ServiceAccount) string {
	var all []string
	for _, b := range set.RoleBindings {
		if !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s.Name == account.Name && s.Namespace == account.Namespace }) {
			continue
		}
		for _, r := range set.Roles {
			if r.Name != b.RoleRef.Name || r.Namespace != b.Namespace {
				continue
			}
			for _, rule := range r.Rules {
				all = append(all, fmt.Sprintf("%s: %s", strings.Join(rule.Resources, ", "), strings.Join(rule.Verbs, ", ")))
			}
			all[len(all)-len(r.Rules)] = "in `" + r.Namespace + "` " + all[len(all)-len(r.Rules)]
		}
	}
	all = append(all, everywhere(set, account)...)
	if len(all) == 0 {
		return "nothing, no token"
	}
	return strings.Join(all, "; ")
}

// secretKeys lists SECRET/KEY of everything the workloads' containers get.
func secretKeys(work []install.Object) []string {
	found := map[string]bool{}
	var walk func(value any)
	walk = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			if ref, ok := v["secretKeyRef"].(map[string]any); ok {
				found[fmt.Sprintf("%v/%v", ref["name"], ref["key"])] = true
			}
			if volume, ok := v["secret"].(map[string]any); ok {
				items, _ := volume["items"].([]any)
				for _, item := range items {
					found[fmt.Sprintf("%v/%v", volume["secretName"], item.(map[string]any)["key"])] = true
				}
				if len(items) == 0 {
					found[fmt.Sprintf("%v/*", volume["secretName"])] = true
				}
			}
			for _, child := range v {
				walk(child)
			}
		case []any:
			for _, child := range v {
				walk(child)
			}
		}
	}
	for _, o := range work {
		walk(o.Content)
	}
	return slices.Sorted(maps.Keys(found))
}

// secretCell groups keys by their Secret.
func secretCell(keys []string) string {
	if len(keys) == 0 {
		return "none"
	}
	var cell []string
	last := ""
	for _, k := range keys {
		name, key, _ := strings.Cut(k, "/")
		if name != last {
			cell = append(cell, "`"+name+"`: "+key)
			last = name
			continue
		}
		cell[len(cell)-1] += ", " + key
	}
	return strings.Join(cell, "; ")
}

const (
	defaultConns = 4 // of a process that reads no DATABASE_MAX_CONNS and sets nothing
	migrateConns = 3 // the lock, the migrations, the logins
	pollConns    = 2 // config/overlays/telegram-poll
	serverConns  = 97
)

var literalConns = regexp.MustCompile(`MaxConns: (\d+)`)

// budget is the most connections that each function's login ever has, by
// function.
func budget(t *testing.T, set *manifest.Set) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, s := range set.Services {
		scale, err := s.Scale(manifest.MaxScale)
		if err != nil {
			t.Fatal(err)
		}
		conns := defaultConns
		text, err := os.ReadFile(filepath.Join(root, "functions", s.Function(), "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		if m := literalConns.FindSubmatch(text); m != nil {
			if conns, err = strconv.Atoi(string(m[1])); err != nil {
				t.Fatal(err)
			}
		}
		for _, v := range s.Env() {
			if v.Name == "DATABASE_MAX_CONNS" {
				if conns, err = strconv.Atoi(v.Value); err != nil {
					t.Fatal(err)
				}
			}
			if v.Name == "DATABASE_URL" && (v.ValueFrom == nil || v.ValueFrom.SecretKeyRef.Name != "database" || v.ValueFrom.SecretKeyRef.Key != s.Function()) {
				t.Errorf("Service %s does not connect as %s", s.Name, s.Function())
			}
		}
		all[s.Function()] += scale * conns
	}
	return all
}

// With every Service at its max-scale and every pool full, while the schema is
// migrated, the database still has room: 100 connections, three of them the
// superuser's. Every login has a role of its own that the migrations make.
func TestConnectionBudget(t *testing.T) {
	set := wiring(t)
	total := migrateConns + pollConns
	migrations := ""
	files, err := filepath.Glob(filepath.Join(root, "shared/postgres/schema/migrations/*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		migrations += string(text)
	}
	for function, conns := range budget(t, set) {
		total += conns
		role := strings.ReplaceAll(function, "-", "_")
		made := strings.Contains(migrations, "'"+role+"'") || strings.Contains(migrations, "CREATE ROLE tuluat_"+role+" ")
		if !made || !regexp.MustCompile(`TO [a-z_, ]*tuluat_`+role+`\b`).MatchString(migrations) {
			t.Errorf("no migration makes the role tuluat_%s and grants it something", role)
		}
	}
	if total > serverConns {
		t.Errorf("%d connections at full scale, %d are there", total, serverConns)
	}
}

// The migrate Job knows the login of every function, and of nothing else.
func TestMigrateKnowsEveryFunction(t *testing.T) {
	set, _ := renderedWith(t, base, bridge)
	var want, got []string
	for function := range budget(t, set) {
		want = append(want, function)
	}
	for _, job := range set.Jobs {
		for _, v := range job.Spec.Template.Spec.Volumes {
			for _, item := range v.Secret.Items {
				if item.Key != item.Path {
					t.Errorf("the login of %s is at %s", item.Key, item.Path)
				}
				got = append(got, item.Key)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-functions +logins:\n%s", diff)
	}
}

// publicServices are those that people and providers outside must reach.
var publicServices = []string{"management-api", "telegram-ingest", "webhook-ingest", "whatsapp-ingest"}

// Only what people outside must reach can be reached from outside.
func TestPublicServices(t *testing.T) {
	for _, overlay := range overlays {
		set, _ := rendered(t, overlay)
		var public []string
		for _, s := range set.Services {
			if s.Public() {
				public = append(public, s.Name)
			}
		}
		slices.Sort(public)
		if diff := cmp.Diff(publicServices, public); diff != "" {
			t.Errorf("%s: %s", overlay, diff)
		}
		for _, s := range set.Plain {
			if s.Spec.Type != "" && s.Spec.Type != corev1.ServiceTypeClusterIP {
				t.Errorf("%s: Service %s is a %s", overlay, s.Name, s.Spec.Type)
			}
		}
	}
}

// Nothing runs while nobody talks: short windows on everything that scales. Those
// that a conversation comes back to stay for its next step, so that they are not
// started anew for each; those that a tick or one event wakes have Knative's shortest window.
func TestServicesScaleDownSoon(t *testing.T) {
	ticked := map[string]bool{"reaper-cron": true, "agent-status": true, "dead-letter": true, "temporal-bridge": true}
	for _, s := range wiring(t).Services {
		window := "20s"
		if ticked[s.Name] {
			window = "6s"
		}
		a := s.Spec.Template.Annotations
		got := []string{a[manifest.MinScale], a["autoscaling.knative.dev/window"], a["autoscaling.knative.dev/scale-to-zero-pod-retention-period"], a["autoscaling.knative.dev/scale-down-delay"]}
		if diff := cmp.Diff([]string{"0", window, "0s", ""}, got); diff != "" {
			t.Errorf("Service %s: %s", s.Name, diff)
		}
		probes := s.Spec.Template.Spec.Containers[0]
		if probes.ReadinessProbe == nil || probes.LivenessProbe == nil {
			t.Errorf("Service %s lacks a probe", s.Name)
		}
	}
}

// The namespaces refuse what is not restricted, and sandboxes are alone in theirs.
func TestSandboxNamespace(t *testing.T) {
	set, _ := rendered(t, base)
	for _, n := range set.Namespaces {
		if n.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
			t.Errorf("Namespace %s enforces %q", n.Name, n.Labels["pod-security.kubernetes.io/enforce"])
		}
	}
	if len(set.Namespaces) != 3 || len(set.Quotas) != 1 || len(set.LimitRanges) != 1 || len(set.Policies) != 2 {
		t.Fatalf("%d namespaces, %d quotas, %d limit ranges, %d policies", len(set.Namespaces), len(set.Quotas), len(set.LimitRanges), len(set.Policies))
	}
	for _, b := range set.RoleBindings {
		for _, s := range b.Subjects {
			if s.Namespace == sandboxes || s.Kind != "ServiceAccount" {
				t.Errorf("RoleBinding %s gives %s %s rights", b.Name, s.Kind, s.Name)
			}
		}
	}
	for _, s := range set.Services {
		if s.Namespace == sandboxes {
			t.Errorf("Service %s is among the sandboxes", s.Name)
		}
	}
}

func TestSandboxLimitsAgree(t *testing.T) {
	set, _ := rendered(t, base)
	env := map[string]string{}
	for _, v := range set.Service(namespace, "agent-status").Env() {
		env[v.Name] = v.Value
	}
	var container, claim corev1.LimitRangeItem
	for _, item := range set.LimitRanges[0].Spec.Limits {
		if item.Type == corev1.LimitTypeContainer {
			container = item
		} else {
			claim = item
		}
	}
	defaults := v1alpha1.DefaultLimits()
	for name, c := range map[string]struct {
		most resource.Quantity // that an agent may ask for
		wall resource.Quantity // of the namespace
		code int64
	}{
		"MAX_SANDBOX_CPU":    {resource.MustParse(env["MAX_SANDBOX_CPU"]), container.Max[corev1.ResourceCPU], defaults.CPUMillis},
		"MAX_SANDBOX_MEMORY": {resource.MustParse(env["MAX_SANDBOX_MEMORY"]), container.Max[corev1.ResourceMemory], defaults.MemoryBytes},
		"MAX_SANDBOX_VOLUME": {resource.MustParse(env["MAX_SANDBOX_VOLUME"]), half(container.Max[corev1.ResourceEphemeralStorage]), defaults.VolumeBytes},
	} {
		if c.most.Cmp(c.wall) > 0 {
			t.Errorf("%s is %s, and the LimitRange ends at %s", name, c.most.String(), c.wall.String())
		}
		value := c.most.Value()
		if name == "MAX_SANDBOX_CPU" {
			value = c.most.MilliValue()
		}
		if value != c.code {
			t.Errorf("%s is %d, one machine's default %d", name, value, c.code)
		}
	}
	if volume := resource.MustParse(env["MAX_SANDBOX_VOLUME"]); volume.Cmp(claim.Max[corev1.ResourceStorage]) > 0 {
		t.Error("a persistent workdir of MAX_SANDBOX_VOLUME is beyond the LimitRange")
	}
	hard := set.Quotas[0].Spec.Hard
	for name, one := range map[corev1.ResourceName]resource.Quantity{
		"limits.cpu": container.Max[corev1.ResourceCPU], "limits.memory": container.Max[corev1.ResourceMemory], "limits.ephemeral-storage": container.Max[corev1.ResourceEphemeralStorage],
	} {
		if q := hard[name]; q.Cmp(one) < 0 {
			t.Errorf("the quota %s of %s has no room for one sandbox of %s", name, q.String(), one.String())
		}
	}
}

// One policy denies everything to everyone, one opens public addresses for its
// label, and no address of a cluster, a node or a cloud's metadata is public.
func TestSandboxNetwork(t *testing.T) {
	set, _ := rendered(t, base)
	var deny, open *networkingv1.NetworkPolicy
	for _, p := range set.Policies {
		if len(p.Spec.PodSelector.MatchLabels) == 0 && len(p.Spec.PodSelector.MatchExpressions) == 0 {
			deny = p
		} else {
			open = p
		}
		if p.Namespace != sandboxes {
			t.Errorf("NetworkPolicy %s is in %s", p.Name, p.Namespace)
		}
	}
	if deny == nil || len(deny.Spec.PolicyTypes) != 2 || len(deny.Spec.Ingress)+len(deny.Spec.Egress) != 0 {
		t.Fatalf("no policy denies everything: %+v", deny)
	}
	if open.Spec.PodSelector.MatchLabels["tuluat.ai/egress"] != "default" || len(open.Spec.Ingress) != 0 {
		t.Errorf("%s: %+v", open.Name, open.Spec)
	}
	reached := func(address string) bool {
		a := netip.MustParseAddr(address)
		for _, rule := range open.Spec.Egress {
			for _, peer := range rule.To {
				if peer.IPBlock == nil {
					if len(rule.Ports) != 2 || peer.PodSelector == nil || peer.NamespaceSelector == nil {
						t.Errorf("a peer that is no address: %+v", peer)
					}
					continue
				}
				if !netip.MustParsePrefix(peer.IPBlock.CIDR).Contains(a) {
					continue
				}
				if !slices.ContainsFunc(peer.IPBlock.Except, func(e string) bool { return netip.MustParsePrefix(e).Contains(a) }) {
					return true
				}
			}
		}
		return false
	}
	for _, a := range []string{"1.1.1.1", "203.0.113.10", "8.8.8.8", "2606:4700::1111"} {
		if !reached(a) {
			t.Errorf("%s is public and not reached", a)
		}
	}
	for _, a := range []string{
		"0.0.0.0", "10.96.0.1", "10.244.0.7", "127.0.0.1", "169.254.169.254", "169.254.20.10", "100.64.0.1", "100.100.100.200", "172.16.0.1", "172.31.255.255",
		"192.168.1.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "192.0.0.192", "::1", "::", "64:ff9b::a00:1", "2002:a00:1::", "fd00:ec2::254", "fe80::1", "ff02::1",
	} {
		if reached(a) {
			t.Errorf("%s is reached", a)
		}
	}
	for _, rule := range open.Spec.Egress {
		for _, peer := range rule.To {
			if peer.IPBlock != nil {
				nests(t, peer.IPBlock)
			}
		}
	}
}

// nests asks what kube-apiserver asks of a block, by the parser that it uses,
// which takes ::ffff:0:0/96 for IPv4.
func nests(t *testing.T, b *networkingv1.IPBlock) {
	t.Helper()
	_, whole, err := net.ParseCIDR(b.CIDR)
	if err != nil {
		t.Fatal(err)
	}
	outer, _ := whole.Mask.Size()
	for _, e := range b.Except {
		ip, part, err := net.ParseCIDR(e)
		if err != nil {
			t.Error(err)
			continue
		}
		if inner, _ := part.Mask.Size(); !whole.Contains(part.IP) || inner <= outer || !ip.Equal(part.IP) {
			t.Errorf("%s does not lie within %s", e, b.CIDR)
		}
	}
}

func TestSandboxImages(t *testing.T) {
	set, _ := rendered(t, base)
	var got []string
	for _, c := range set.ConfigMaps {
		if c.Name == "sandbox-images" {
			got = slices.Sorted(maps.Keys(c.Data))
		}
	}
	if diff := cmp.Diff([]string{"default", "golang", "java", "node", "python"}, got); diff != "" {
		t.Error(diff)
	}
}

// Every place where an AiAgent names a Secret is known to kustomize.
func TestNameReferencesReachEverySecretRef(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "config/components/agent-secrets/names.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		NameReference []struct {
			Kind       string
			FieldSpecs []struct{ Group, Kind, Path string } `yaml:"fieldSpecs"`
		} `yaml:"nameReference"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range c.NameReference[0].FieldSpecs {
		got = append(got, f.Path)
	}
	var want []string
	secretRefs(reflect.TypeFor[v1alpha1.Spec](), "spec", &want)
	slices.Sort(got)
	slices.Sort(want)
	if len(want) < 7 {
		t.Fatalf("only %v", want)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-types +names.yaml:\n%s", diff)
	}
}

func secretRefs(of reflect.Type, path string, found *[]string) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice:
		secretRefs(of.Elem(), path, found)
	case reflect.Map:
		secretRefs(of.Elem(), path+"/*", found)
	case reflect.Struct:
		if of == reflect.TypeFor[v1alpha1.SecretRef]() {
			*found = append(*found, path+"/name")
			return
		}
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name != "" {
				name = "/" + name
			}
			secretRefs(of.Field(i).Type, path+name, found)
		}
	}
}

// kubectl apply -k config/samples: what an agent names is what was generated for
// it, under the name that its content gives it.
func TestSamplesNameTheirSecrets(t *testing.T) {
	folder := t.TempDir()
	for _, part := range []string{"samples", "components"} {
		if err := os.CopyFS(filepath.Join(folder, part), os.DirFS(filepath.Join(root, "config", part))); err != nil {
			t.Fatal(err)
		}
	}
	samples := filepath.Join(folder, "samples")
	if err := os.RemoveAll(filepath.Join(samples, "secrets")); err != nil {
		t.Fatal(err)
	}
	if err := install.SampleSecrets(samples, t.Output()); err != nil {
		t.Fatal(err)
	}
	first := sampleSecrets(t, samples)
	if again := sampleSecrets(t, samples); !slices.Equal(first, again) {
		t.Errorf("the names changed without a change: %v, %v", first, again)
	}
	// Run again it keeps what is there; another value is another name.
	if err := install.SampleSecrets(samples, t.Output()); err != nil {
		t.Fatal(err)
	}
	if again := sampleSecrets(t, samples); !slices.Equal(first, again) {
		t.Errorf("made up again: %v, %v", first, again)
	}
	if err := os.WriteFile(filepath.Join(samples, "secrets/plain-chat-hook.env"), []byte("secret=another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := sampleSecrets(t, samples); slices.Equal(first, again) || len(again) != len(first) {
		t.Errorf("a new value has the old name: %v", again)
	}
}

// sampleSecrets checks every reference and returns the Secrets' names.
func sampleSecrets(t *testing.T, folder string) []string {
	t.Helper()
	text, err := install.Render(folder)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := install.Objects(text)
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]install.Object{}
	for _, o := range objects {
		if o.Namespace != agents {
			t.Errorf("%s is in %q", o, o.Namespace)
		}
		if o.Kind == "Secret" {
			secrets[o.Name] = o
		}
	}
	refs := 0
	for _, o := range objects {
		if o.Kind != "AiAgent" {
			continue
		}
		fields := map[string]string{}
		flattenInto(fields, "", o.Content)
		for path, name := range fields {
			of, isName := strings.CutSuffix(path, "/name")
			if !isName || !strings.HasSuffix(strings.ToLower(of), "secretref") {
				continue
			}
			refs++
			s, ok := secrets[name]
			if !ok {
				t.Errorf("%s: %s names %s, which is not generated", o, of, name)
				continue
			}
			data, _ := s.Content["data"].(map[string]any)
			labels, _ := s.Content["metadata"].(map[string]any)["labels"].(map[string]any)
			if data[fields[of+"/key"]] == nil || labels["tuluat.ai/agent-access"] != o.Name {
				t.Errorf("%s: %s: the Secret %s has the keys %v and is labelled %v", o, of, name, slices.Sorted(maps.Keys(data)), labels)
			}
		}
		if strings.Contains(fmt.Sprint(o.Content), "allow-open-code") {
			t.Errorf("%s runs commands for everyone", o)
		}
	}
	if refs < 8 {
		t.Errorf("only %d references", refs)
	}
	return slices.Sorted(maps.Keys(secrets))
}

// half is the largest volume whose sandbox is within q: /workspace and what is
// written elsewhere may have the volume's size each, beside the runner's 48 MiB.
func half(q resource.Quantity) resource.Quantity {
	return *resource.NewQuantity((q.Value()-48<<20)/2, resource.BinarySI)
}
