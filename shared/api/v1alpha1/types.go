package v1alpha1

import "tuluat.ai/harness/shared/harness"

// AiAgent is one agent.
type AiAgent struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       Spec     `json:"spec"`
}

// Metadata is the part of a Kubernetes object's metadata that a person writes.
type Metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace,omitempty"` // an install has one namespace for its agents; a folder ignores it
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Spec is what an agent is.
type Spec struct {
	Description  string   `json:"description,omitempty"`
	Model        *Model   `json:"model,omitempty"` // nil: the platform's model
	SystemPrompt string   `json:"systemPrompt,omitempty"`
	Harness      *Harness `json:"harness,omitempty"` // nil: no commands, no channels
	Budget       *Budget  `json:"budget,omitempty"`
}

// Model says which model thinks.
type Model struct {
	Provider    harness.Provider `json:"provider,omitempty"`
	Name        string           `json:"name,omitempty"`
	MaxTokens   *int             `json:"maxTokens,omitempty"`
	Temperature *float64         `json:"temperature,omitempty"`
}

// Harness is what the agent can do and how it is reached. A block that is there
// is enabled unless it says otherwise.
type Harness struct {
	Enabled      *bool               `json:"enabled,omitempty"`
	Type         harness.HarnessType `json:"type,omitempty"`
	Sandbox      *Sandbox            `json:"sandbox,omitempty"`
	MaxSandboxes *int                `json:"maxSandboxes,omitempty"`
	Channels     []Channel           `json:"channels,omitempty"`
}

// Sandbox is where the agent's commands run.
type Sandbox struct {
	Image          string         `json:"image,omitempty"`
	ImageRef       string         `json:"imageRef,omitempty"`
	Command        []string       `json:"command,omitempty"`
	CPU            Quantity       `json:"cpu,omitempty"`
	Memory         Quantity       `json:"memory,omitempty"`
	TimeoutSeconds *int           `json:"timeoutSeconds,omitempty"`
	TTLSeconds     *int           `json:"ttlSeconds,omitempty"`
	IdleSeconds    *int           `json:"idleSeconds,omitempty"`
	VolumeSize     Quantity       `json:"volumeSize,omitempty"`
	Workdir        string         `json:"workdir,omitempty"`
	Egress         harness.Egress `json:"egress,omitempty"`
	KeepBackground bool           `json:"keepBackground,omitempty"`
	RuntimeClass   string         `json:"runtimeClassName,omitempty"`
}

// Channel is one way to reach the agent. Each type has fields of its own.
type Channel struct {
	Type    harness.Channel        `json:"type"`
	Senders harness.ChannelSenders `json:"senders"`
	IdleTTL Duration               `json:"idleTTL,omitempty"`
	Groups  harness.GroupPolicy    `json:"groups,omitempty"` // WHATSAPP, TELEGRAM

	// WEBHOOK
	Name        string                 `json:"name,omitempty"` // of the hook: the last part of its path
	SecretRef   harness.SecretRef      `json:"secretRef,omitzero"`
	CallbackURL string                 `json:"callbackURL,omitempty"`
	Fields      *harness.ChannelFields `json:"fields,omitempty"`

	// WHATSAPP
	PhoneNumberID string                   `json:"phoneNumberId,omitempty"` // the provider's id of the number
	PhoneNumber   string                   `json:"phoneNumber,omitempty"`   // as people dial it
	VerifyToken   harness.SecretRef        `json:"verifyTokenSecretRef,omitzero"`
	AppSecret     harness.SecretRef        `json:"appSecretSecretRef,omitzero"`
	AccessToken   harness.SecretRef        `json:"accessTokenSecretRef,omitzero"`
	Template      *harness.ChannelTemplate `json:"template,omitempty"`

	// TELEGRAM
	Bot           string            `json:"bot,omitempty"` // the bot's username
	BotToken      harness.SecretRef `json:"botTokenSecretRef,omitzero"`
	WebhookSecret harness.SecretRef `json:"webhookSecretRef,omitzero"`
	Transport     harness.Transport `json:"transport,omitempty"`
}

// Budget limits one turn. Absent fields take the platform's defaults.
type Budget struct {
	MaxSteps      *int `json:"maxSteps,omitempty"`
	MaxToolCalls  *int `json:"maxToolCalls,omitempty"`
	MaxTokens     *int `json:"maxTokens,omitempty"`
	MaxSeconds    *int `json:"maxSeconds,omitempty"`
	MaxExecutions *int `json:"maxExecutions,omitempty"`
}
