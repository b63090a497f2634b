package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"

	"tuluat.ai/harness/shared/harness"
)

const (
	maxEgressRules = 32
	maxEgressPorts = 32
)

func (c *check) egress(path string, s Sandbox) {
	switch s.Egress {
	case harness.EgressAllowlist:
		if len(s.EgressAllow) == 0 {
			c.fail(path+".egressAllow", "lists nothing although egress is allowlist", "list what may be reached, like {cidr: 203.0.113.0/24, ports: [443]}, or use egress none")
		}
	case "", harness.EgressDefault, harness.EgressNone:
		if len(s.EgressAllow) > 0 {
			c.fail(path+".egressAllow", "lists addresses although egress is not allowlist", "set egress to allowlist, or remove it")
		}
	default:
		c.fail(path+".egress", fmt.Sprintf("is %q", s.Egress), "use default, none or allowlist")
	}
	c.few(path+".egressAllow", len(s.EgressAllow), maxEgressRules)
	for i, rule := range s.EgressAllow {
		at := fmt.Sprintf("%s.egressAllow[%d]", path, i)
		c.cidr(at+".cidr", rule.CIDR)
		c.few(at+".ports", len(rule.Ports), maxEgressPorts)
		for j, port := range rule.Ports[:min(len(rule.Ports), maxEgressPorts)] {
			if port < 1 || port > 65535 || slices.Contains(rule.Ports[:j], port) {
				c.fail(fmt.Sprintf("%s.ports[%d]", at, j), fmt.Sprintf("is %d", port), "use 1 to 65535, each once")
			}
		}
	}
}

func (c *check) cidr(path, text string) {
	if text == "" {
		c.fail(path, "is missing", "write it like 203.0.113.0/24, and one address like 203.0.113.7/32")
		return
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		c.fail(path, "is not a range of addresses", "write it like 203.0.113.0/24, and one address like 203.0.113.7/32")
		return
	case p != p.Masked():
		c.fail(path, "begins inside its range", "write "+p.Masked().String())
	}
	for _, never := range unroutable {
		if p.Overlaps(never) {
			c.fail(path, fmt.Sprintf("covers addresses of %s, which no sandbox may reach", never), "list only what is needed; for all public addresses use egress default")
			return
		}
	}
	if c.limits.AllowPrivateEgress {
		return
	}
	for _, private := range slices.Concat(notPublic, c.limits.ClusterRanges) {
		if p.Overlaps(private) {
			c.fail(path, fmt.Sprintf("covers addresses of %s, which are private or the cluster's", private), "list public addresses only, or ask the platform's operator to allow private ones")
			return
		}
	}
}

// unroutable lists what is refused whatever the platform allows: this host, its
// link (a cloud hands out credentials there) and many hosts at once, and what
// leads to them in disguise.
var unroutable = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4",
	"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "fe80::/10", "fec0::/10", "ff00::/8")

// notPublic lists the ranges that a platform may use inside (RFC 6890).
var notPublic = prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "2001::/23", "fc00::/7")

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}
