package harness

import (
	"strings"
	"time"
)

// HarnessType says what of the harness an agent has.
type HarnessType string

// The harness types: CODE gives executeShell, CHANNEL gives channels.
const (
	HarnessCode    HarnessType = "CODE"
	HarnessChannel HarnessType = "CHANNEL"
	HarnessBoth    HarnessType = "BOTH"
)

// AgentPhase is how an agent stands.
type AgentPhase string

// The phases of an Agent.
const (
	AgentReady    AgentPhase = "READY"    // its newest revision is valid and in use
	AgentDegraded AgentPhase = "DEGRADED" // of a resource's status only: READY, and a condition is False
	AgentInvalid  AgentPhase = "INVALID"  // its newest text was refused; an older revision may be in use
	AgentDeleted  AgentPhase = "DELETED"  // its resource is gone
)

// Provider is a model provider's wire.
type Provider string

// The providers. OpenAI's wire is also that of Ollama, vLLM and most gateways.
const (
	ProviderOpenAI    Provider = "openai"
	ProviderAnthropic Provider = "anthropic"
)

// Agent is what an AiAgent resource says, validated and with its defaults
// filled in. A revision of it is what steps read; revisions never change.
type Agent struct {
	Name         AgentName   `json:"name"`
	Description  string      `json:"description,omitempty"`
	Model        ModelSpec   `json:"model"`
	SystemPrompt string      `json:"systemPrompt,omitempty"`
	Harness      HarnessSpec `json:"harness"`
	Budget       Budget      `json:"budget"`

	Approvals  *ApprovalSpec `json:"approvals,omitempty"`  // nil: nobody is asked
	Guardrails *Guardrails   `json:"guardrails,omitempty"` // nil: nothing is judged

	MCPServers []MCPServer `json:"mcpServers,omitempty"`
	Peers      []Peer      `json:"peers,omitempty"`
	Skills     []Skill     `json:"skills,omitempty"`

	Logs *LogSpec `json:"logs,omitempty"` // nil: the defaults
}

// ModelSpec says which model thinks. An empty provider or name means the
// platform's default.
type ModelSpec struct {
	Provider    Provider `json:"provider,omitempty"`
	Name        string   `json:"name,omitempty"`
	MaxTokens   int      `json:"maxTokens"` // of one answer
	Temperature *float64 `json:"temperature,omitempty"`
	Stream      bool     `json:"stream,omitempty"` // people see answers grow, where they can be shown

	Fallbacks []ModelRef `json:"fallbacks,omitempty"` // asked in this order when it fails
	Images    bool       `json:"images,omitempty"`    // it takes images
}

// HarnessSpec is the harness block of an agent.
type HarnessSpec struct {
	Enabled      bool          `json:"enabled"`
	Type         HarnessType   `json:"type"`
	Sandbox      SandboxSpec   `json:"sandbox"`
	MaxSandboxes int           `json:"maxSandboxes"` // at once, over all sessions
	Channels     []ChannelSpec `json:"channels,omitempty"`
}

// CanExecute reports whether the agent has executeShell.
func (h HarnessSpec) CanExecute() bool {
	return h.Enabled && (h.Type == HarnessCode || h.Type == HarnessBoth)
}

// CanChat reports whether the agent has channels.
func (h HarnessSpec) CanChat() bool {
	return h.Enabled && (h.Type == HarnessChannel || h.Type == HarnessBoth)
}

// ChannelSpec is one way to reach an agent.
type ChannelSpec struct {
	Type        Channel        `json:"type"`
	Account     string         `json:"account"`               // our side: the hook's name, the phone number's id, the bot's username
	Secret      SecretRef      `json:"secretRef"`             // of a webhook: signs what comes in and what goes out
	CallbackURL string         `json:"callbackURL,omitempty"` // of a webhook: where replies are POSTed; empty: they are read back
	Fields      *ChannelFields `json:"fields,omitempty"`
	Senders     ChannelSenders `json:"senders"`
	IdleTTL     time.Duration  `json:"idleTTL"` // nanoseconds; a conversation idle longer ends

	Groups GroupPolicy `json:"groups,omitempty"` // WhatsApp and Telegram

	PhoneNumber string           `json:"phoneNumber,omitempty"`         // WhatsApp: as people dial it
	VerifyToken SecretRef        `json:"verifyTokenSecretRef,omitzero"` // WhatsApp: of the handshake
	AppSecret   SecretRef        `json:"appSecretSecretRef,omitzero"`   // WhatsApp: signs what comes in
	AccessToken SecretRef        `json:"accessTokenSecretRef,omitzero"` // WhatsApp: sends
	Template    *ChannelTemplate `json:"template,omitempty"`            // WhatsApp: after 24 hours of silence

	BotToken      SecretRef `json:"botTokenSecretRef,omitzero"` // Telegram: sends, and names the bot
	WebhookSecret SecretRef `json:"webhookSecretRef,omitzero"`  // Telegram: proves what comes in
	Transport     Transport `json:"transport,omitempty"`        // Telegram; empty: webhook
}

// ChannelFields maps a hook's JSON to a Message by RFC 9535 JSONPath. Empty
// fields take the default names.
type ChannelFields struct {
	MessageID     string `json:"messageId,omitempty"`
	ChannelUserID string `json:"channelUserId,omitempty"`
	Chat          string `json:"chat,omitempty"`
	Text          string `json:"text,omitempty"`
	Metadata      string `json:"metadata,omitempty"`
}

// SenderPolicy says who may talk to an agent on a channel.
type SenderPolicy string

// The sender policies.
const (
	SendersOpen      SenderPolicy = "open"      // anyone
	SendersAllowlist SenderPolicy = "allowlist" // those listed
	SendersPairing   SenderPolicy = "pairing"   // those listed, and those who have sent the pairing code
)

// ChannelSenders is the sender policy of a channel.
type ChannelSenders struct {
	Policy SenderPolicy `json:"policy"`
	Allow  []string     `json:"allow,omitempty"` // channel user ids

	PairingCode SecretRef `json:"pairingCodeSecretRef,omitzero"` // policy pairing: the message that pairs its sender
}

// SecretRef names a value kept elsewhere: a key of a Kubernetes Secret, or an
// environment variable.
type SecretRef struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// Variable is the environment variable that holds the value: NAME_KEY in upper
// case, PYTHON_CODER_HOOK_SECRET for key secret of python-coder-hook.
func (r SecretRef) Variable() string {
	return strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(r.Name + "_" + r.Key))
}
