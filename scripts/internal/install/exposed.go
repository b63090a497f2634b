package install

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// exposed looks for addresses of the cluster itself that the policy of sandboxes
// with egress default would let them reach: nodes or Pods with public addresses.
// What cannot be asked is not reported; the sandboxes' own gate is behind it.
func exposed(ctx context.Context, objects []Object) []string {
	blocks := openBlocks(objects)
	if len(blocks) == 0 {
		return nil
	}
	var lines []string
	for _, own := range clusterAddresses(ctx) {
		if !slices.ContainsFunc(blocks, func(b block) bool { return b.opens(own.prefix) }) {
			continue
		}
		lines = append(lines, fmt.Sprintf("sandboxes with egress default could reach %s (%s): add it to except in config/sandbox/network.yaml", own.prefix, own.of))
	}
	return lines
}

// block is one ipBlock of a policy.
type block struct {
	cidr   netip.Prefix
	except []netip.Prefix
}

// opens reports whether any address of p is reached through b.
func (b block) opens(p netip.Prefix) bool {
	if !b.cidr.Overlaps(p) {
		return false
	}
	return !slices.ContainsFunc(b.except, func(e netip.Prefix) bool { return e.Bits() <= p.Bits() && e.Contains(p.Addr()) })
}

func openBlocks(objects []Object) []block {
	var blocks []block
	for _, o := range objects {
		if !o.is("networking.k8s.io", "NetworkPolicy") || o.Name != "egress-default" {
			continue
		}
		walk(o.Content, func(m map[string]any) {
			cidr, err := netip.ParsePrefix(text(m, "cidr"))
			if err != nil {
				return
			}
			b := block{cidr: cidr}
			listed, _ := m["except"].([]any)
			for _, e := range listed {
				if s, ok := e.(string); ok {
					if p, err := netip.ParsePrefix(s); err == nil {
						b.except = append(b.except, p)
					}
				}
			}
			blocks = append(blocks, b)
		})
	}
	return blocks
}

type clusterAddress struct {
	prefix netip.Prefix
	of     string
}

// clusterAddresses are those of the nodes, of their Pods and of the API server.
func clusterAddresses(ctx context.Context) []clusterAddress {
	var all []clusterAddress
	add := func(of string, values ...string) {
		for _, v := range values {
			p, err := netip.ParsePrefix(v)
			if a, e := netip.ParseAddr(v); e == nil {
				p, err = a.Prefix(a.BitLen())
			}
			if err == nil {
				all = append(all, clusterAddress{p, of})
			}
		}
	}
	var nodes struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ PodCIDRs []string }
			Status   struct{ Addresses []struct{ Address string } }
		}
	}
	if out, err := kubectl(ctx, nil, "get", "nodes", "-o", "json"); err == nil && json.Unmarshal(out, &nodes) == nil {
		for _, n := range nodes.Items {
			add("Pods of the node "+n.Metadata.Name, n.Spec.PodCIDRs...)
			for _, a := range n.Status.Addresses {
				add("the node "+n.Metadata.Name, a.Address)
			}
		}
	}
	const server = "jsonpath={.subsets[*].addresses[*].ip}"
	if out, err := kubectl(ctx, nil, "-n", "default", "get", "endpoints", "kubernetes", "-o", server); err == nil {
		add("the API server", strings.Fields(string(out))...)
	}
	const service = "jsonpath={.spec.clusterIPs[*]}"
	if out, err := kubectl(ctx, nil, "-n", "default", "get", "service", "kubernetes", "-o", service); err == nil {
		add("the cluster's Services", strings.Fields(string(out))...)
	}
	return all
}
