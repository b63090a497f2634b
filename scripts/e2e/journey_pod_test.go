//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// journeyPod reads a sandbox back from the API server, looks what its
// ServiceAccount may do, and what can be reached from inside.
func journeyPod(t *testing.T, s *system) {
	ctx := t.Context()
	// Looked at for longer than a busy node takes.
	block := strings.Replace(sandboxBlock, "idleSeconds: 15", "idleSeconds: 120", 1)
	closed, err := s.makeHook(ctx, "probe-none", block, "")
	must(t, err)
	open, err := s.makeHook(ctx, "probe-default", strings.Replace(block, "egress: none", "egress: default", 1), "")
	must(t, err)

	// One sandbox listens, so that the other has somebody of its own kind to reach.
	const listen = `timeout 280 perl -MIO::Socket::INET -e '$s=IO::Socket::INET->new(LocalPort=>8000,Listen=>9,ReuseAddr=>1) or die; while($c=$s->accept){close $c}'`
	_, err = open.say(ctx, "run: "+listen)
	must(t, err)
	e, err := open.awaitExecution(ctx, patience, "IO::Socket", isRunning)
	must(t, err)
	listener, err := s.cluster.client.CoreV1().Pods(s.sandboxes()).Get(ctx, *e.Name, metav1.GetOptions{})
	must(t, err)

	if _, err = closed.ask(ctx, patience, "run: true first"); err != nil {
		t.Fatal(err)
	}
	e, err = closed.awaitExecution(ctx, patience, "true first", hasEnded)
	must(t, err)
	if e.State != "COMPLETED" {
		t.Fatalf("true is %s: %s", e.State, e.Reason)
	}
	pod, err := s.cluster.client.CoreV1().Pods(s.sandboxes()).Get(ctx, *e.Name, metav1.GetOptions{})
	must(t, err)
	for _, c := range podChecks(pod, closed.name) {
		if c.wrong != "" {
			t.Errorf("%s: %s", c.what, c.wrong)
			continue
		}
		t.Logf("ok  %s", c.what)
	}
	namespace, err := s.cluster.client.CoreV1().Namespaces().Get(ctx, s.sandboxes(), metav1.GetOptions{})
	must(t, err)
	if got := namespace.Labels["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("the namespace enforces Pod Security %q", got)
	}

	mayDo, err := s.rightsOf(ctx, s.sandboxes(), pod.Spec.ServiceAccountName, s.sandboxes())
	must(t, err)
	t.Logf("kubectl auth can-i --list for %s: %v", pod.Spec.ServiceAccountName, mayDo)
	if len(mayDo) > 0 {
		t.Errorf("the sandbox's ServiceAccount may do something: %v", mayDo)
	}

	s.probeFromBarePod(t, pod)
	s.probeFromInside(t, closed, "none", listener.Status.PodIP)
	s.probeFromInside(t, open.in("bob"), "default", listener.Status.PodIP)
}

type podCheck struct{ what, wrong string }

// podChecks are the fields that the design promises of every sandbox.
func podChecks(pod *corev1.Pod, agent string) []podCheck {
	var all []podCheck
	check := func(what string, ok bool, is any) {
		c := podCheck{what: what}
		if !ok {
			c.wrong = fmt.Sprintf("is %+v", is)
		}
		all = append(all, c)
	}
	yes, no := func(b *bool) bool { return b != nil && *b }, func(b *bool) bool { return b != nil && !*b }
	spec := pod.Spec
	check("label managed-by", pod.Labels["app.kubernetes.io/managed-by"] == "tuluat-harness", pod.Labels)
	check("label agent", pod.Labels["tuluat.ai/agent"] == agent, pod.Labels)
	check("label session", pod.Labels["tuluat.ai/session"] != "", pod.Labels)
	check("restartPolicy Never", spec.RestartPolicy == corev1.RestartPolicyNever, spec.RestartPolicy)
	check("activeDeadlineSeconds", spec.ActiveDeadlineSeconds != nil && *spec.ActiveDeadlineSeconds > 0 && *spec.ActiveDeadlineSeconds <= 700, spec.ActiveDeadlineSeconds)
	check("no token", no(spec.AutomountServiceAccountToken), spec.AutomountServiceAccountToken)
	check("no service links", no(spec.EnableServiceLinks), spec.EnableServiceLinks)
	check("no namespace of the node", !spec.HostNetwork && !spec.HostPID && !spec.HostIPC, spec)
	all = append(all, securityChecks(spec)...)
	for _, v := range spec.Volumes {
		kind := v.EmptyDir != nil || v.PersistentVolumeClaim != nil || v.Image != nil
		check("volume "+v.Name+" is the Pod's own", kind && v.HostPath == nil && v.Projected == nil && v.Secret == nil, v)
		if v.EmptyDir != nil {
			check("volume "+v.Name+" has a limit", v.EmptyDir.SizeLimit != nil, v)
		}
	}
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		name := container.Name + ": "
		limits, requests := container.Resources.Limits, container.Resources.Requests
		for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			limit, request := limits[r], requests[r]
			check(name+string(r)+" limited and requested alike", !limit.IsZero() && limit.Cmp(request) == 0, container.Resources)
		}
		sc := container.SecurityContext
		if sc == nil {
			check(name+"securityContext", false, nil)
			continue
		}
		check(name+"root file system read-only", yes(sc.ReadOnlyRootFilesystem), sc)
		check(name+"no privilege escalation", no(sc.AllowPrivilegeEscalation) && !yes(sc.Privileged), sc)
		check(name+"all capabilities dropped", sc.Capabilities != nil && slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) && len(sc.Capabilities.Add) == 0, sc.Capabilities)
	}
	main := spec.Containers[0]
	mounts, env := map[string]corev1.VolumeMount{}, map[string]string{}
	for _, m := range main.VolumeMounts {
		mounts[m.MountPath] = m
	}
	for _, e := range main.Env {
		env[e.Name] = e.Value
	}
	for _, path := range []string{"/workspace", "/tmp"} {
		_, there := mounts[path]
		check(path+" writable", there && !mounts[path].ReadOnly, mounts)
	}
	check("runner read-only", mounts["/opt/tuluat"].ReadOnly, mounts)
	for _, name := range []string{"HOME", "TMPDIR", "XDG_CACHE_HOME", "NPM_CONFIG_CACHE", "PIP_CACHE_DIR", "GOCACHE", "GOPATH"} {
		check(name+" below /workspace or /tmp", strings.HasPrefix(env[name], "/workspace") || strings.HasPrefix(env[name], "/tmp"), env[name])
	}
	return all
}

func securityChecks(spec corev1.PodSpec) []podCheck {
	sc := spec.SecurityContext
	if sc == nil {
		return []podCheck{{"securityContext", "is missing"}}
	}
	say := func(what string, ok bool) podCheck {
		if ok {
			return podCheck{what: what}
		}
		return podCheck{what, fmt.Sprintf("is %+v", *sc)}
	}
	return []podCheck{
		say("numeric user that is not root", sc.RunAsNonRoot != nil && *sc.RunAsNonRoot && sc.RunAsUser != nil && *sc.RunAsUser > 0),
		say("numeric group", sc.RunAsGroup != nil && *sc.RunAsGroup > 0),
		say("fsGroup", sc.FSGroup != nil && *sc.FSGroup > 0),
		say("seccomp RuntimeDefault", sc.SeccompProfile != nil && sc.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault),
	}
}

// rightsOf is what a ServiceAccount may do in a namespace beyond what everybody
// may: `kubectl auth can-i --list`, asked as that account.
func (s *system) rightsOf(ctx context.Context, namespace, account, in string) ([]string, error) {
	mine, err := s.rules(ctx, in, namespace, account)
	if err != nil {
		return nil, err
	}
	everybody, err := s.rules(ctx, in, s.world(), "somebody-without-any-role")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(mine, func(rule string) bool { return slices.Contains(everybody, rule) }), nil
}

func (s *system) rules(ctx context.Context, in, namespace, account string) ([]string, error) {
	as, err := s.cluster.as("system:serviceaccount:"+namespace+":"+account, "system:serviceaccounts", "system:serviceaccounts:"+namespace, "system:authenticated")
	if err != nil {
		return nil, err
	}
	review, err := as.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: in},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if review.Status.Incomplete {
		return nil, fmt.Errorf("the API server cannot list what %s may do: %s", account, review.Status.EvaluationError)
	}
	var rules []string
	for _, r := range review.Status.ResourceRules {
		for _, resource := range r.Resources {
			for _, group := range r.APIGroups {
				for _, verb := range r.Verbs {
					rules = append(rules, right(resource, group, r.ResourceNames, verb))
				}
			}
		}
	}
	slices.Sort(rules)
	return slices.Compact(rules), nil
}

// probe is one look from inside a sandbox, and what it must find.
type probe struct{ name, command, want string }

// probeFromInside runs commands in a sandbox, as an agent would, that try what
// must not work. Each result is printed, also where the cluster enforces nothing.
func (s *system) probeFromInside(t *testing.T, h *hook, egress, sibling string) {
	ctx := t.Context()
	reach := func(address string) string {
		host, port, err := net.SplitHostPort(address)
		must(t, err)
		return fmt.Sprintf("if timeout 4 bash -c '</dev/tcp/%s/%s'; then echo reached; else echo no; fi", host, port)
	}
	addresses := s.addresses(t)
	probes := []probe{
		{"user", "id -u | grep -qx 0 && echo root || echo not root", "not root"},
		{"token", "ls /var/run/secrets /run/secrets >/dev/null && echo there || echo none", "none"},
		{"root file system", "touch /probe && echo writable || echo read-only", "read-only"},
		{"runner", "cp /opt/tuluat/runner /tmp/r && echo readable || echo unreadable", "unreadable"},
		{"runner's folder", "touch /opt/tuluat/x && echo writable || echo read-only", "read-only"},
		{"execute in /workspace", `printf '#!/bin/sh\necho runs' >/workspace/x && chmod +x /workspace/x && /workspace/x`, "runs"},
		{"execute in /tmp", `printf '#!/bin/sh\necho runs' >/tmp/x && chmod +x /tmp/x && /tmp/x`, "runs"},
		{"capabilities", "grep CapEff /proc/self/status | cut -f2", "0000000000000000"},
		{"no new privileges", "grep NoNewPrivs /proc/self/status | cut -f2", "1"},
		{"seccomp", "grep '^Seccomp:' /proc/self/status | cut -f2", "2"},
		{"169.254.169.254:80", reach("169.254.169.254:80"), "no"},
		{"API server " + addresses.api, reach(addresses.api), "no"},
		{"API server itself " + addresses.apiItself, reach(addresses.apiItself), "no"},
		{"Postgres " + addresses.postgres, reach(addresses.postgres), "no"},
		{"Pod of another namespace " + addresses.world, reach(addresses.world), "no"},
		{"kubelet " + addresses.kubelet, reach(addresses.kubelet), "no"},
		{"another sandbox " + sibling + ":8000", reach(sibling + ":8000"), "no"},
	}
	if public := s.settings.public; public != "" {
		want := "no"
		if egress == "default" {
			want = "reached"
		}
		probes = append(probes, probe{"public address " + public, reach(public), want})
	}
	var script strings.Builder
	script.WriteString("run: exec 2>/dev/null; echo probes")
	for i, p := range probes {
		fmt.Fprintf(&script, "; echo \"%d $( %s )\"", i, p.command)
	}
	_, err := h.ask(ctx, patience, script.String())
	must(t, err)
	e, err := h.awaitExecution(ctx, patience, "echo probes", hasEnded)
	must(t, err)
	found := map[int]string{}
	for line := range strings.Lines(e.Output) {
		var n int
		number, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, err := fmt.Sscan(number, &n); err == nil {
			found[n] = rest
		}
	}
	for i, p := range probes {
		t.Logf("egress %-8s %-48s %s", egress, p.name, found[i])
		if found[i] != p.want {
			t.Errorf("egress %s, %s: %q, want %q", egress, p.name, found[i], p.want)
		}
	}
	s.figures.add("pod", "probes from inside, egress "+egress, fmt.Sprintf("%d", len(probes)), "all as meant")
}

// probeFromBarePod shows that the addresses can be reached at all: by a Pod that
// no policy selects. Without that the probes from inside would prove nothing.
func (s *system) probeFromBarePod(t *testing.T, model *corev1.Pod) {
	ctx := t.Context()
	pods := s.cluster.client.CoreV1().Pods(s.world())
	bare := likeSandbox(model, false)
	_, err := pods.Create(ctx, bare, metav1.CreateOptions{})
	must(t, err)
	now := int64(0)
	defer func() {
		_ = pods.Delete(context.WithoutCancel(ctx), bare.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	}()
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		pod, err := pods.Get(ctx, bare.Name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, fmt.Sprint(err)
	})
	if !ok {
		t.Fatalf("the bare Pod does not run: %s", state)
	}
	a := s.addresses(t)
	for _, address := range []string{a.api, a.apiItself, a.world, a.kubelet} {
		host, port, err := net.SplitHostPort(address)
		must(t, err)
		_, err = s.cluster.exec(ctx, s.world(), bare.Name, "sandbox", "timeout", "4", "bash", "-c", "</dev/tcp/"+host+"/"+port)
		t.Logf("a bare Pod reaches %s: %v", address, err == nil)
		if err != nil {
			t.Errorf("a Pod that no policy selects does not reach %s: %v", address, err)
		}
	}
}

// addresses are places that a sandbox must not reach, each with a listener.
type addresses struct{ api, apiItself, postgres, world, kubelet string }

func (s *system) addresses(t *testing.T) addresses {
	ctx := t.Context()
	core := s.cluster.client.CoreV1()
	service, err := core.Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	must(t, err)
	slices, err := s.cluster.client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	must(t, err)
	if len(slices.Items) == 0 || len(slices.Items[0].Endpoints) == 0 || len(slices.Items[0].Ports) == 0 {
		t.Fatal("the API server has no endpoint")
	}
	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	ip := func(namespace, selector string) string {
		pods, err := s.cluster.pods(ctx, namespace, selector)
		must(t, err)
		if len(pods) == 0 || pods[0].Status.PodIP == "" {
			t.Fatalf("no Pod in %s with %s", namespace, selector)
		}
		return pods[0].Status.PodIP
	}
	a := addresses{
		api:       net.JoinHostPort(service.Spec.ClusterIP, "443"),
		apiItself: net.JoinHostPort(slices.Items[0].Endpoints[0].Addresses[0], fmt.Sprint(*slices.Items[0].Ports[0].Port)),
		postgres:  net.JoinHostPort(ip(s.systems(), "app.kubernetes.io/name=postgres"), "5432"),
		world:     net.JoinHostPort(ip(s.world(), worldSelector), fmt.Sprint(portControl)),
	}
	for _, address := range nodes.Items[0].Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			a.kubelet = net.JoinHostPort(address.Address, "10250")
		}
	}
	return a
}
