package kubernetes

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// never are addresses that no list may open: those of the node itself and of a
// cloud's metadata.
var never = [...]netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("fd00:ec2::254/128"),
}

// rules checks a list of destinations and returns it as a policy has it.
func rules(spec harness.SandboxSpec) ([]networkingv1.NetworkPolicyEgressRule, error) {
	if egress(spec) != harness.EgressAllowlist {
		return nil, nil
	}
	bad := func(format string, args ...any) error {
		return sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, "the sandbox's list of destinations: "+fmt.Sprintf(format, args...), nil)
	}
	all := []networkingv1.NetworkPolicyEgressRule{dns()}
	for _, r := range spec.EgressAllow {
		prefix, err := netip.ParsePrefix(r.CIDR)
		if err != nil {
			return nil, bad("%q is no CIDR: write it as in 203.0.113.0/24", r.CIDR)
		}
		block := &networkingv1.IPBlock{CIDR: prefix.Masked().String()}
		for _, n := range never {
			switch {
			case !n.Overlaps(prefix):
			case n.Bits() <= prefix.Bits():
				return nil, bad("%s is never open", r.CIDR)
			default:
				block.Except = append(block.Except, n.String())
			}
		}
		rule := networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{{IPBlock: block}}}
		for _, port := range r.Ports {
			if port < 1 || port > 65535 {
				return nil, bad("%d is no port", port)
			}
			rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(int32(port)))})
		}
		all = append(all, rule)
	}
	return all, nil
}

// dns opens the cluster's own name servers.
func dns() networkingv1.NetworkPolicyEgressRule {
	port := new(intstr.FromInt32(53))
	return networkingv1.NetworkPolicyEgressRule{
		To: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
		}},
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolUDP), Port: port}, {Protocol: new(corev1.ProtocolTCP), Port: port}},
	}
}

// policy opens what the list says for one Pod alone, and goes with it.
func (d *Driver) policy(sb sandbox.Sandbox, pod *corev1.Pod, open []networkingv1.NetworkPolicyEgressRule) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{
			Name: sb.Name, Namespace: d.Namespace, Labels: labels(sb),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelSandbox: labelValue(string(sb.ID))}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress:      open,
		},
	}
}

// open makes the policy of a list. Until it is there the Pod is under the
// namespace's own, which denies everything.
func (d *Driver) open(ctx context.Context, sb sandbox.Sandbox, pod *corev1.Pod) error {
	open, err := rules(sb.Spec)
	if err != nil || open == nil {
		return err
	}
	_, err = d.policies.Create(ctx, d.policy(sb, pod, open), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return createFailure(ctx, err, "networkpolicies", d.Namespace)
	}
	return nil
}
