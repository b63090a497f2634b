package v1alpha1

import "tuluat.ai/harness/shared/harness"

// spec is nil where the block is off or absent: then nothing of it is left.
func (b *MCPServers) spec() []harness.MCPServer {
	if b == nil || !or(b.Enabled, true) {
		return nil
	}
	var servers []harness.MCPServer
	for _, s := range b.Servers {
		servers = append(servers, harness.MCPServer{
			Name: string(s.Name), URL: string(s.URL), Command: s.Command, Env: variables(s.Env), Headers: s.HeadersSecretRef.ref(), AllowedTools: s.AllowedTools,
			Approvals: remotePolicy(s.Approvals), AlwaysAsk: s.AlwaysAsk, NeverAsk: s.NeverAsk, TimeoutSeconds: or(s.TimeoutSeconds, 0),
		})
	}
	return servers
}

func variables(all []EnvVar) []harness.EnvVar {
	var env []harness.EnvVar
	for _, v := range all {
		env = append(env, harness.EnvVar(v))
	}
	return env
}

// peers are none where the block is off or absent.
func (b *A2A) peers() []harness.Peer {
	if b == nil || !or(b.Enabled, true) {
		return nil
	}
	var peers []harness.Peer
	for _, p := range b.Peers {
		peers = append(peers, harness.Peer{
			Name: string(p.Name), URL: string(p.URL), Description: p.Description, Headers: p.HeadersSecretRef.ref(),
			Approvals: remotePolicy(p.Approvals), TimeoutSeconds: or(p.TimeoutSeconds, 0),
		})
	}
	return peers
}

// remotePolicy leaves the default out.
func remotePolicy(p harness.RemotePolicy) harness.RemotePolicy {
	if p == harness.RemoteAsAgent {
		return ""
	}
	return p
}
