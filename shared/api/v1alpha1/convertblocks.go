package v1alpha1

import "tuluat.ai/harness/shared/harness"

// spec is nil where the block is off or absent: then nothing of it is left.
func (b *MCPServers) spec() []harness.MCPServer {
	if b == nil || !or(b.Enabled, true) {
		return nil
	}
	var servers []harness.MCPServer
	for _, s := range b.Servers {
		spec := harness.MCPServer{
			Name: string(s.Name), URL: string(s.URL), Headers: s.HeadersSecretRef.ref(), AllowedTools: s.AllowedTools,
			Approvals: s.Approvals, AlwaysAsk: s.AlwaysAsk, NeverAsk: s.NeverAsk, TimeoutSeconds: or(s.TimeoutSeconds, 0),
		}
		if spec.Approvals == harness.RemoteAsAgent { // the default
			spec.Approvals = ""
		}
		servers = append(servers, spec)
	}
	return servers
}
