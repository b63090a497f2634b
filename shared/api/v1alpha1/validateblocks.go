package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

const (
	maxText            = 64 << 10
	minApprovalTimeout = time.Minute
	maxApprovalTimeout = 30 * 24 * time.Hour
)

// blocks checks the blocks before the harness. What they say is checked even
// where they are switched off.
func (c *check) blocks(s Spec) {
	if b := s.Skills; b != nil {
		c.skills("spec.skills.items", b.Items)
	}
	if b := s.Guardrails; b != nil {
		c.guardrails("spec.guardrails.input", b.Input, harness.StageInput)
		c.guardrails("spec.guardrails.toolCall", b.ToolCall, harness.StageToolCall)
		c.guardrails("spec.guardrails.toolOutput", b.ToolOutput, harness.StageToolOutput)
		c.guardrails("spec.guardrails.output", b.Output, harness.StageOutput)
	}
	if b := s.MCPServers; b != nil {
		c.few("spec.mcpServers.servers", len(b.Servers), 32)
		seen := names{}
		for i, server := range b.Servers {
			path := fmt.Sprintf("spec.mcpServers.servers[%d]", i)
			c.once(path+".name", server.Name, "of the server", seen)
			if len(server.Command) > 0 || server.URL == "" {
				c.program(path, server, s.Harness)
			} else {
				c.endpoint(path, server.URL, server.HeadersSecretRef)
				if len(server.Env) > 0 {
					c.fail(path+".env", "is of a server with a command", "remove it")
				}
			}
			c.texts(path+".allowedTools", server.AllowedTools, 256, 128, theirNames)
			c.toolApprovals(path, server)
			c.between(path+".timeoutSeconds", server.TimeoutSeconds, 1, int(harness.MaxRemoteTimeout.Seconds()))
		}
	}
	if b := s.A2A; b != nil {
		c.few("spec.a2a.peers", len(b.Peers), 32)
		seen := names{}
		for i, peer := range b.Peers {
			path := fmt.Sprintf("spec.a2a.peers[%d]", i)
			c.once(path+".name", peer.Name, "of the peer", seen)
			c.endpoint(path, peer.URL, peer.HeadersSecretRef)
			c.length(path+".description", peer.Description, 1024, "say it shorter")
			c.remotePolicy(path+".approvals", peer.Approvals)
			c.between(path+".timeoutSeconds", peer.TimeoutSeconds, 1, int(harness.MaxRemoteTimeout.Seconds()))
		}
	}
}

const theirNames = "use the names that the server gives its tools"

// toolApprovals checks that each tool of a server has one policy, and only tools
// that the agent has.
func (c *check) toolApprovals(path string, s MCPServer) {
	c.remotePolicy(path+".approvals", s.Approvals)
	c.texts(path+".alwaysAsk", s.AlwaysAsk, 256, 128, theirNames)
	c.texts(path+".neverAsk", s.NeverAsk, 256, 128, theirNames)
	for i, tool := range s.NeverAsk {
		if slices.Contains(s.AlwaysAsk, tool) {
			c.fail(fmt.Sprintf("%s.neverAsk[%d]", path, i), fmt.Sprintf("is %q, as an entry of alwaysAsk", tool), "keep it in one of them")
		}
	}
	for _, list := range []struct {
		name  string
		tools []string
	}{{"alwaysAsk", s.AlwaysAsk}, {"neverAsk", s.NeverAsk}} {
		for i, tool := range list.tools {
			if len(s.AllowedTools) > 0 && !slices.Contains(s.AllowedTools, tool) {
				c.fail(fmt.Sprintf("%s.%s[%d]", path, list.name, i), fmt.Sprintf("is %q, which allowedTools does not list", tool), "add it there, or remove it here")
			}
		}
	}
}

func (c *check) remotePolicy(path string, p harness.RemotePolicy) {
	switch p {
	case "", harness.RemoteAsAgent, harness.RemoteAlways, harness.RemoteNever:
	default:
		c.fail(path, fmt.Sprintf("is %q", p), "use asAgent, always or never")
	}
}

// names are those of one list so far.
type names map[Name]bool

// once checks a name that no other entry of its list has.
func (c *check) once(path string, name Name, of string, seen names) {
	c.name(path, name, of)
	if seen[name] && name != "" {
		c.fail(path, fmt.Sprintf("is %q, as in an earlier entry", name), "name each once")
	}
	seen[name] = true
}

func (c *check) endpoint(path string, text URL, headers *SecretRef) {
	if text == "" {
		c.fail(path+".url", "is missing", "write it like https://example.com/path")
	} else {
		c.url(path+".url", text, "https://example.com/path")
	}
	c.optionalRef(path+".headersSecretRef", headers)
}

func (c *check) skills(path string, skills []Skill) {
	c.few(path, len(skills), 64)
	seen := names{}
	for i, s := range skills {
		at := fmt.Sprintf("%s[%d]", path, i)
		c.once(at+".name", s.Name, "of the skill", seen)
		c.length(at+".description", s.Description, 1024, "say only when to use it")
		c.length(at+".text", s.Text, maxText, "split the skill, or keep its text in a ConfigMap")
		sources := 0
		for _, written := range []bool{s.Text != "", s.ConfigMapRef != nil, s.Folder != "", s.ImageRef != nil} {
			if written {
				sources++
			}
		}
		if sources != 1 {
			c.fail(at, "needs text, configMapRef, folder or imageRef", "write one of them")
		}
		if ref := s.ConfigMapRef; ref != nil {
			key := ref.Key
			if key == "" { // all of them
				key = harness.SkillManifest
			}
			c.key(at+".configMapRef", harness.SecretRef{Name: ref.Name, Key: key}, "ConfigMap")
		}
		if s.Folder != "" && (len(s.Folder) > 253 || !folderName.MatchString(s.Folder)) {
			c.fail(at+".folder", fmt.Sprintf("is %q", s.Folder), "name a folder below that of the agents, like skills/csv, without names that begin with a dot")
		}
		if s.ImageRef != nil {
			c.skillImage(at+".imageRef", *s.ImageRef)
		}
	}
}

func (c *check) skillImage(path string, ref SkillImageRef) {
	if ref.Image == "" {
		c.fail(path+".image", "is missing", "write it like registry/name:tag")
	} else {
		c.image(path+".image", ref.Image)
	}
	if ref.Path != "" && ref.Path != "/" && (len(ref.Path) > 253 || !strings.HasPrefix(ref.Path, "/") || !folderName.MatchString(ref.Path[1:])) {
		c.fail(path+".path", fmt.Sprintf("is %q", ref.Path), "name a folder of the image, like /skills/csv, without names that begin with a dot")
	}
	if s := ref.PullSecretRef; s != nil && (len(s.Name) > 253 || !dnsName.MatchString(s.Name)) {
		c.fail(path+".pullSecretRef.name", fmt.Sprintf("is %q", s.Name), "name a Secret of type kubernetes.io/dockerconfigjson")
	}
}

func (c *check) patterns(path string, patterns []string) {
	const maxPatterns, maxPattern = 64, 1000
	c.texts(path, patterns, maxPatterns, maxPattern, "write a regular expression")
	for i, p := range patterns {
		if len(p) > maxPattern || i == maxPatterns {
			break // they have their problem, and are not worth their time
		}
		if _, err := regexp.Compile(p); err != nil {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "is not a regular expression (RE2)", "mend it; RE2 has no look-around and no back references")
		}
	}
}

func (c *check) approvals(path string, a Approvals, channels []Channel) {
	switch a.Policy {
	case "", harness.ApproveAlways, harness.ApproveNever, harness.ApproveByTool, harness.ApprovePattern:
	default:
		c.fail(path+".policy", fmt.Sprintf("is %q", a.Policy), "use always, never, byTool or pattern")
	}
	for _, f := range []struct {
		name string
		n    int
		of   harness.ApprovalPolicy
	}{{"tools", len(a.Tools), harness.ApproveByTool}, {"patterns", len(a.Patterns), harness.ApprovePattern}} {
		switch {
		case f.n > 0 && a.Policy != f.of:
			c.fail(path+"."+f.name, fmt.Sprintf("are of policy %s", f.of), "remove them, or change policy")
		case f.n == 0 && a.Policy == f.of:
			c.fail(path+"."+f.name, fmt.Sprintf("are missing, which policy %s goes by", f.of), "list at least one, or change policy")
		}
	}
	c.texts(path+".tools", a.Tools, 64, 128, "use the names of tools")
	c.patterns(path+".patterns", a.Patterns)
	c.terms(path, a.ApprovalTerms)
	escalated := []Approver{}
	if a.Escalation != nil {
		escalated = a.Escalation.Approvers
	}
	if or(a.Enabled, true) { // of a block that is switched off nobody is asked
		c.reached(path+".approvers", a.Approvers, channels)
		c.reached(path+".escalation.approvers", escalated, channels)
	}
}

// reached refuses approvers that no channel of the agent reaches: they would
// never be asked.
func (c *check) reached(path string, approvers []Approver, channels []Channel) {
	for i, a := range approvers {
		if a.Channel != "" && !slices.ContainsFunc(channels, func(ch Channel) bool { return ch.Type == a.Channel }) {
			c.fail(fmt.Sprintf("%s[%d].channel", path, i), fmt.Sprintf("is %s, of which the agent has no channel", a.Channel), "add one to spec.harness.channels, or name another approver")
		}
	}
}

func (c *check) terms(path string, t ApprovalTerms) {
	c.few(path+".approvers", len(t.Approvers), 32)
	distinct := map[harness.Approver]bool{}
	for _, a := range approvers(t.Approvers) {
		distinct[a] = true
	}
	people := max(1, len(distinct)) // without approvers, whoever wrote the message
	for i, a := range t.Approvers {
		c.approver(fmt.Sprintf("%s.approvers[%d]", path, i), a)
		if a.Group != "" {
			people = 32 // nobody knows how many a group has
		}
	}
	c.between(path+".quorum", t.Quorum, 1, people)
	c.duration(path+".timeout", t.Timeout, minApprovalTimeout, maxApprovalTimeout, "1h")
	timeout, err := t.Timeout.Parse()
	if err != nil {
		timeout = defaultApprovalTimeout
		if t.Timeout != "" {
			timeout = maxApprovalTimeout // it is wrong already
		}
	}
	c.few(path+".reminders", len(t.Reminders), 10)
	for i, r := range t.Reminders {
		at := fmt.Sprintf("%s.reminders[%d]", path, i)
		if r == "" {
			c.fail(at, "is empty", "write it like 15m")
		}
		c.duration(at, r, minApprovalTimeout, timeout, "15m")
	}
	switch t.OnTimeout {
	case "", harness.TimeoutReject, harness.TimeoutProceed, harness.TimeoutWait:
	default:
		c.fail(path+".onTimeout", fmt.Sprintf("is %q", t.OnTimeout), "use reject, proceed or wait")
	}
	if e := t.Escalation; e != nil {
		if e.After == "" {
			c.fail(path+".escalation.after", "is missing", "write it like 30m")
		}
		c.duration(path+".escalation.after", e.After, minApprovalTimeout, timeout, "30m")
		if len(e.Approvers) == 0 {
			c.fail(path+".escalation.approvers", "is missing", "name who is asked as well")
		}
		c.few(path+".escalation.approvers", len(e.Approvers), 32)
		for i, a := range e.Approvers {
			c.approver(fmt.Sprintf("%s.escalation.approvers[%d]", path, i), a)
		}
	}
}

func (c *check) approver(path string, a Approver) {
	kinds := 0
	for _, set := range []bool{a.User != "", a.Group != "", a.Channel != "" || a.ChannelUserID != ""} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		c.fail(path, "is not one approver", "write user, or group, or channel with channelUserId")
	case (a.Channel != "") != (a.ChannelUserID != ""):
		c.fail(path, "has only one of channel and channelUserId", "set both")
	}
	if a.Channel != "" && !(Channel{Type: a.Channel}).typed() {
		c.fail(path+".channel", fmt.Sprintf("is %q", a.Channel), channelTypes)
	}
	c.length(path+".user", a.User, 256, "use the name that Kubernetes has for the user")
	c.length(path+".group", a.Group, 256, "use the name that Kubernetes has for the group")
	c.length(path+".channelUserId", a.ChannelUserID, 256, "use the id that the channel gives the person")
}
