package v1alpha1

import (
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// Agent returns a as the rest of the system knows it, with defaults filled in.
// a must have passed Validate; amounts that cannot be read become the default.
func (a AiAgent) Agent() harness.Agent {
	agent := harness.Agent{
		Name: harness.AgentName(a.Metadata.Name), Description: a.Spec.Description, SystemPrompt: a.Spec.SystemPrompt,
		Model: harness.ModelSpec{MaxTokens: defaultMaxTokens}, Harness: a.Spec.Harness.spec(), Budget: a.Spec.Budget.spec(),
	}
	if m := a.Spec.Model; m != nil {
		agent.Model = harness.ModelSpec{
			Provider: m.Provider, Name: m.Name, MaxTokens: or(m.MaxTokens, defaultMaxTokens), Temperature: m.Temperature, Images: m.Images, Stream: or(m.Stream, false),
		}
		for _, f := range m.Fallbacks {
			agent.Model.Fallbacks = append(agent.Model.Fallbacks, harness.ModelRef(f))
		}
	}
	agent.Approvals, agent.Guardrails = a.Spec.Approvals.spec(), a.Spec.Guardrails.spec()
	agent.MCPServers, agent.Peers = a.Spec.MCPServers.spec(), a.Spec.A2A.peers()
	if l := a.Spec.Logs; l != nil {
		agent.Logs = &harness.LogSpec{RetentionDays: or(l.RetentionDays, harness.DefaultRetentionDays), ArchiveDays: or(l.ArchiveDays, harness.DefaultArchiveDays)}
	}
	return agent
}

// spec is nil where nobody is asked.
func (a *Approvals) spec() *harness.ApprovalSpec {
	if a == nil || !or(a.Enabled, true) {
		return nil
	}
	spec := &harness.ApprovalSpec{Policy: a.Policy, Tools: a.Tools, Patterns: a.Patterns, Terms: a.ApprovalTerms.spec()}
	if spec.Policy == "" {
		spec.Policy = harness.ApproveAlways
	}
	return spec
}

func (t ApprovalTerms) spec() harness.ApprovalTerms {
	terms := harness.ApprovalTerms{Approvers: approvers(t.Approvers), Quorum: or(t.Quorum, 1), Timeout: defaultApprovalTimeout, OnTimeout: t.OnTimeout}
	if d, err := t.Timeout.Parse(); err == nil {
		terms.Timeout = d
	}
	if terms.OnTimeout == "" {
		terms.OnTimeout = harness.TimeoutReject
	}
	for _, r := range t.Reminders {
		if d, err := r.Parse(); err == nil {
			terms.Reminders = append(terms.Reminders, d)
		}
	}
	if e := t.Escalation; e != nil {
		if d, err := e.After.Parse(); err == nil {
			terms.EscalateAfter, terms.EscalateTo = d, approvers(e.Approvers)
		}
	}
	return terms
}

func approvers(list []Approver) []harness.Approver {
	var all []harness.Approver
	for _, a := range list {
		if digits, ok := strings.CutPrefix(a.ChannelUserID, "+"); ok && a.Channel == harness.ChannelWhatsApp {
			a.ChannelUserID = strings.Map(onlyDigits, digits) // as WhatsApp names people, however it is written
		}
		all = append(all, harness.Approver(a))
	}
	return all
}

func onlyDigits(r rune) rune {
	if r < '0' || r > '9' {
		return -1
	}
	return r
}

func (h *Harness) spec() harness.HarnessSpec {
	if h == nil {
		return harness.HarnessSpec{Sandbox: harness.DefaultSandbox(), MaxSandboxes: defaultMaxSandboxes}
	}
	spec := harness.HarnessSpec{
		Enabled: or(h.Enabled, true), Type: h.Type, Sandbox: h.Sandbox.spec(), MaxSandboxes: or(h.MaxSandboxes, defaultMaxSandboxes),
	}
	for _, c := range h.Channels {
		spec.Channels = append(spec.Channels, c.spec())
	}
	return spec
}

func (s *Sandbox) spec() harness.SandboxSpec {
	spec := harness.DefaultSandbox()
	if s == nil {
		return spec
	}
	spec.Image, spec.ImageRef, spec.KeepBackground, spec.RuntimeClass = s.Image, string(s.ImageRef), s.KeepBackground, s.RuntimeClass
	if len(s.Command) > 0 {
		spec.Command = s.Command
	}
	if n, err := s.CPU.Milli(); err == nil {
		spec.CPUMillis = n
	}
	if n, err := s.Memory.Bytes(); err == nil {
		spec.MemoryBytes = n
	}
	if n, err := s.VolumeSize.Bytes(); err == nil {
		spec.VolumeBytes = n
	}
	// A sandbox that ends sooner than the default timeouts shortens them; a
	// command longer than the default life lengthens nothing: Validate asks.
	spec.TTLSeconds = or(s.TTLSeconds, spec.TTLSeconds)
	spec.TimeoutSeconds = or(s.TimeoutSeconds, min(spec.TimeoutSeconds, spec.TTLSeconds))
	spec.IdleSeconds = or(s.IdleSeconds, min(spec.IdleSeconds, spec.TTLSeconds))
	if s.Workdir != "" {
		spec.Workdir = s.Workdir
	}
	if s.Egress != "" {
		spec.Egress = s.Egress
	}
	for _, rule := range s.EgressAllow {
		spec.EgressAllow = append(spec.EgressAllow, harness.EgressRule(rule))
	}
	return spec
}

func (c Channel) spec() harness.ChannelSpec {
	spec := harness.ChannelSpec{
		Type: c.Type, Account: c.account(), Secret: c.SecretRef.ref(), CallbackURL: string(c.CallbackURL), Fields: (*harness.ChannelFields)(c.Fields),
		Senders: harness.ChannelSenders{Policy: c.Senders.Policy, Allow: c.Senders.Allow, PairingCode: c.Senders.PairingCode.ref()}, IdleTTL: defaultIdleTTL,
		PhoneNumber: dialled(c.PhoneNumber), VerifyToken: c.VerifyToken.ref(), AppSecret: c.AppSecret.ref(), AccessToken: c.AccessToken.ref(),
		Template: (*harness.ChannelTemplate)(c.Template), BotToken: c.BotToken.ref(), WebhookSecret: c.WebhookSecret.ref(), Transport: c.Transport, Groups: c.Groups,
	}
	if spec.Senders.Policy == "" {
		spec.Senders.Policy = harness.SendersAllowlist
	}
	if d, err := c.IdleTTL.Parse(); err == nil {
		spec.IdleTTL = d
	}
	if c.Type != harness.ChannelWebhook && spec.Groups == "" {
		spec.Groups = harness.GroupsMention
	}
	return spec
}

// ref is r, or no reference where there is none.
func (r *SecretRef) ref() harness.SecretRef {
	if r == nil {
		return harness.SecretRef{}
	}
	return harness.SecretRef(*r)
}

// account is our side of the channel, as its provider names it.
func (c Channel) account() string {
	switch c.Type {
	case harness.ChannelWhatsApp:
		return c.PhoneNumberID
	case harness.ChannelTelegram:
		return strings.ToLower(strings.TrimPrefix(c.Bot, "@"))
	}
	return string(c.Name)
}

// dialled is a phone number as providers write it: digits only.
func dialled(number string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, number)
}

func (b *Budget) spec() harness.Budget {
	spec := harness.DefaultBudget()
	if b == nil {
		return spec
	}
	return harness.Budget{
		MaxSteps: or(b.MaxSteps, spec.MaxSteps), MaxToolCalls: or(b.MaxToolCalls, spec.MaxToolCalls), MaxTokens: or(b.MaxTokens, spec.MaxTokens),
		MaxSeconds: or(b.MaxSeconds, spec.MaxSeconds), MaxExecutions: or(b.MaxExecutions, spec.MaxExecutions),
		MaxCost: b.MaxCost.micros(), MaxExecutionSeconds: or(b.MaxExecutionSeconds, 0),
		PerSession: b.PerSession.spec(), PerAgentDay: b.PerAgentDay.spec(), PerUserDay: b.PerUserDay.spec(), OnOverrun: b.overrun(),
	}
}

// overrun leaves the default out, so that a budget without scopes is what it was.
func (b *Budget) overrun() harness.Overrun {
	if b.OnOverrun == harness.OverrunBlock {
		return ""
	}
	return b.OnOverrun
}

func (s *BudgetScope) spec() *harness.BudgetLimits {
	if s == nil {
		return nil
	}
	return &harness.BudgetLimits{
		MaxSteps: or(s.MaxSteps, 0), MaxToolCalls: or(s.MaxToolCalls, 0), MaxSeconds: or(s.MaxSeconds, 0), MaxTokens: int(or(s.MaxTokens, 0)),
		MaxCost: s.MaxCost.micros(), MaxExecutionSeconds: or(s.MaxExecutionSeconds, 0),
	}
}

func (m Money) micros() harness.Micros {
	amount, err := harness.ParseMicros(string(m))
	if err != nil { // it is empty, or refused by Validate
		return 0
	}
	return amount
}

func or[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}
