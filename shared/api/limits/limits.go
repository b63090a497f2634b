// Package limits reads what a platform allows its agents from the environment of
// a function. Every function that validates agents reads the same variables, so
// that none takes what another refuses.
package limits

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/function"
)

// Read returns the most an agent may ask for.
func Read(c *function.Config) v1alpha1.Limits {
	l := v1alpha1.DefaultLimits()
	l.PhoneNumberID = c.Text("WHATSAPP_PHONE_NUMBER_ID", "")
	l.CPUMillis = amount(c, "MAX_SANDBOX_CPU", l.CPUMillis, v1alpha1.Quantity.Milli)
	l.MemoryBytes = amount(c, "MAX_SANDBOX_MEMORY", l.MemoryBytes, v1alpha1.Quantity.Bytes)
	l.VolumeBytes = amount(c, "MAX_SANDBOX_VOLUME", l.VolumeBytes, v1alpha1.Quantity.Bytes)
	l.TTLSeconds = int(c.Duration("MAX_SANDBOX_TTL", time.Duration(l.TTLSeconds)*time.Second) / time.Second)
	l.TimeoutSeconds = min(l.TimeoutSeconds, l.TTLSeconds)
	l.Sandboxes = c.Int("MAX_SANDBOXES", l.Sandboxes, 1)
	l.Images = list(c, "SANDBOX_IMAGE_PREFIXES")
	l.RuntimeClasses = list(c, "SANDBOX_RUNTIME_CLASSES")
	l.AllowPrivateEgress = c.OneOf("SANDBOX_ALLOW_PRIVATE_EGRESS", "false", "false", "true") == "true"
	for _, text := range list(c, "CLUSTER_RANGES") {
		ranged, err := netip.ParsePrefix(text)
		if err != nil {
			c.Problem("CLUSTER_RANGES", fmt.Sprintf("has %q: ranges such as 10.96.0.0/12,fd00::/8 are needed", text))
			continue
		}
		l.ClusterRanges = append(l.ClusterRanges, ranged.Masked())
	}
	return l
}

// list reads what commas part.
func list(c *function.Config, name string) []string {
	var items []string
	for item := range strings.SplitSeq(c.Text(name, ""), ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// amount reads a quantity as Kubernetes writes it.
func amount(c *function.Config, name string, otherwise int64, read func(v1alpha1.Quantity) (int64, error)) int64 {
	text := c.Text(name, "")
	if text == "" {
		return otherwise
	}
	n, err := read(v1alpha1.Quantity(text))
	if err != nil || n <= 0 {
		c.Problem(name, fmt.Sprintf("is %q: an amount such as 500m, 4 or 8Gi is needed", text))
		return otherwise
	}
	return n
}
