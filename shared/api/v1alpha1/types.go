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

// Spec is what an agent is. A block that is there is enabled unless it says
// enabled: false.
//
// +kubebuilder:validation:XValidation:rule="!has(self.mcpServers) || !has(self.mcpServers.servers) || self.mcpServers.servers.all(s, !has(s.command) || size(s.command) == 0) || has(self.harness) && has(self.harness.type) && self.harness.type in ['CODE', 'BOTH']",message="a server with a command runs in a sandbox, which this agent does not have: add harness of type CODE or BOTH"
type Spec struct {
	// What the agent is for, in a sentence. Peers and people choose by it.
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
	// Which model thinks. Without it, the platform's.
	Model *AgentModel `json:"model,omitempty"`
	// The instructions that the model gets before every conversation.
	// +kubebuilder:validation:MaxLength=262144
	SystemPrompt string `json:"systemPrompt,omitempty"`
	// Texts that the model may look up when it needs them.
	Skills *Skills `json:"skills,omitempty"`
	// Checks of what comes in, of what the agent is about to do and of what goes out.
	Guardrails *Guardrails `json:"guardrails,omitempty"`
	// Servers of the Model Context Protocol whose tools the agent has.
	MCPServers *MCPServers `json:"mcpServers,omitempty"`
	// Other agents that this one may ask, by the Agent2Agent protocol.
	A2A *A2A `json:"a2a,omitempty"`
	// What the agent can do and how it is reached. Without it, it runs no commands and has no channels.
	Harness *Harness `json:"harness,omitempty"`
	// When a human is asked before a tool runs.
	Approvals *Approvals `json:"approvals,omitempty"`
	// The limits of one turn: everything that is done to answer one message.
	Budget *Budget `json:"budget,omitempty"`
	// How long what the agent did can be read.
	Logs *Logs `json:"logs,omitempty"`
}

// Logs says how long log entries and the output of commands are kept. Where the
// install has no bucket, they stay in Postgres.
type Logs struct {
	// The days for which they stay in Postgres, where they are found at once. Then they are in the archive.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3650
	// +kubebuilder:default=30
	RetentionDays *int `json:"retentionDays,omitempty"`
	// The days for which the archive keeps them after that.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=36500
	// +kubebuilder:default=365
	ArchiveDays *int `json:"archiveDays,omitempty"`
}

// Model says which model thinks.
type Model struct {
	// The wire that the model speaks: openai, also for Ollama, vLLM and gateways that are compatible, or anthropic. Without it, the platform's.
	// +kubebuilder:validation:Enum=openai;anthropic
	Provider harness.Provider `json:"provider,omitempty"`
	// The name that the provider's API takes. Without it, the platform's.
	// +kubebuilder:validation:MaxLength=200
	Name string `json:"name,omitempty"`
	// The most tokens of one answer.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	// +kubebuilder:default=4096
	MaxTokens *int `json:"maxTokens,omitempty"`
	// How freely the model chooses its words, from 0 to 2. Without it, the model's own.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2
	Temperature *float64 `json:"temperature,omitempty"`
	// Whether people see an answer grow while the model writes it, where their channel can show that: Telegram, the console and the CLI. Without it, they see it when it is written. Agents with output guardrails show nothing before.
	Stream *bool `json:"stream,omitempty"`
}

// AgentModel says which models think for an agent.
//
// +kubebuilder:validation:XValidation:rule="!has(self.fallbacks) || self.fallbacks.all(f, self.fallbacks.exists_one(o, o.name == f.name && has(o.provider) == has(f.provider) && (!has(f.provider) || o.provider == f.provider)))",message="fallbacks lists one model twice: keep one of them",fieldPath=".fallbacks"
type AgentModel struct {
	Model `json:",inline"`
	// Models that are asked when the one before fails: at once where it refuses, after the second attempt where it has a problem. What else the model says holds for them too.
	// +kubebuilder:validation:MaxItems=3
	Fallbacks []FallbackModel `json:"fallbacks,omitempty"`
	// True where the model takes images: it is shown those that come with messages. Without it, it is told of them in words.
	Images bool `json:"images,omitempty"`
}

// FallbackModel is a model that is asked when the one before it fails.
type FallbackModel struct {
	// The wire that it speaks. Without it, the platform's.
	// +kubebuilder:validation:Enum=openai;anthropic
	Provider harness.Provider `json:"provider,omitempty"`
	// The name that the provider's API takes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	Name string `json:"name"`
	// True where it takes images.
	Images bool `json:"images,omitempty"`
}

// Harness is what the agent can do and how it is reached.
//
// +kubebuilder:validation:XValidation:rule="(has(self.enabled) && !self.enabled) || has(self.type)",message="type is missing: use CODE (runs commands), CHANNEL (is reached by channels) or BOTH"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'CODE' || !has(self.channels) || size(self.channels) == 0",message="channels are given to an agent of type CODE: use type BOTH, or remove them"
type Harness struct {
	// False switches the block off without losing what it says.
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// CODE: runs commands in a sandbox. CHANNEL: is reached by channels. BOTH: both.
	// +kubebuilder:validation:Enum=CODE;CHANNEL;BOTH
	Type harness.HarnessType `json:"type,omitempty"`
	// Where the agent's commands run.
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	// The most sandboxes at once, over all of the agent's sessions. At the cap, commands wait in order.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=1
	MaxSandboxes *int `json:"maxSandboxes,omitempty"`
	// The ways to reach the agent.
	// +kubebuilder:validation:MaxItems=100
	Channels []Channel `json:"channels,omitempty"`
}

// Sandbox is where the agent's commands run. Without an image it is the
// platform's default one. What is left out takes the platform's default, and the
// platform's limits hold for all of it.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.image) && has(self.imageRef))",message="image is set beside imageRef: keep one of them",fieldPath=".image"
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || self.egress != 'allowlist' || (has(self.egressAllow) && size(self.egressAllow) > 0)",message="egress is allowlist, and egressAllow lists nothing: list what may be reached, or use egress none"
// +kubebuilder:validation:XValidation:rule="!has(self.egressAllow) || size(self.egressAllow) == 0 || (has(self.egress) && self.egress == 'allowlist')",message="egressAllow is of egress allowlist: set egress to allowlist, or remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.ttlSeconds) || !has(self.timeoutSeconds) || self.ttlSeconds >= self.timeoutSeconds",message="ttlSeconds is shorter than timeoutSeconds, so the sandbox would end before its command: set ttlSeconds to at least timeoutSeconds"
type Sandbox struct {
	// A full image reference. It must run as a user that is not root and have a shell.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[a-z0-9][-a-zA-Z0-9._/:]{0,400}(@sha256:[a-f0-9]{64})?$`
	Image string `json:"image,omitempty"`
	// The name of one of the platform's images: java, python, node or golang, and what its operator added.
	ImageRef Name `json:"imageRef,omitempty"`
	// How the text of a command is run: the text is added as the last argument. Without it, sh -c.
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Command []string `json:"command,omitempty"`
	// Processor time, in cores: 1, or 500m for half of one.
	CPU Quantity `json:"cpu,omitempty"`
	// Memory, as in 512Mi. A command that takes more is ended.
	Memory Quantity `json:"memory,omitempty"`
	// The longest one command may run.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TimeoutSeconds *int `json:"timeoutSeconds,omitempty"`
	// The longest the sandbox lives, from its start. Then its files are gone.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TTLSeconds *int `json:"ttlSeconds,omitempty"`
	// How long the sandbox stays without a command.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	IdleSeconds *int `json:"idleSeconds,omitempty"`
	// The size of the working folder, as in 256Mi.
	VolumeSize Quantity `json:"volumeSize,omitempty"`
	// What the working folder is kept on. emptyDir: it goes with the sandbox. persistent: a volume that stays as long as the session.
	// +kubebuilder:validation:Enum=emptyDir;persistent
	// +kubebuilder:default=emptyDir
	Workdir string `json:"workdir,omitempty"`
	// What commands may reach. default: public addresses only. none: nothing, not even DNS. allowlist: what egressAllow lists.
	// +kubebuilder:validation:Enum=default;none;allowlist
	// +kubebuilder:default=default
	Egress harness.Egress `json:"egress,omitempty"`
	// Of egress allowlist: the addresses that may be reached.
	// +kubebuilder:validation:MaxItems=32
	EgressAllow []EgressRule `json:"egressAllow,omitempty"`
	// True lets what a command leaves running live on after it.
	KeepBackground bool `json:"keepBackground,omitempty"`
	// The RuntimeClass of the Pod, where the platform has one with stronger isolation.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`
	RuntimeClass string `json:"runtimeClassName,omitempty"`
}

// EgressRule is one range of addresses that a sandbox may reach.
type EgressRule struct {
	// The range, as in 203.0.113.0/24 or 2001:db8::/32. Private and cluster ranges only where the platform allows them.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="is not a range of addresses: write it like 203.0.113.0/24"
	CIDR string `json:"cidr"`
	// The ports of TCP there. Without them, every port.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	Ports []int `json:"ports,omitempty"`
}

// Budget limits one turn by its own fields, of which absent ones take the platform's
// defaults, and what is spent over many turns by its scopes.
type Budget struct {
	// Answers of the model.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +kubebuilder:default=40
	MaxSteps *int `json:"maxSteps,omitempty"`
	// Calls that the model asks for.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +kubebuilder:default=30
	MaxToolCalls *int `json:"maxToolCalls,omitempty"`
	// Tokens, in and out.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000000000
	// +kubebuilder:default=500000
	MaxTokens *int `json:"maxTokens,omitempty"`
	// Seconds from the message to its answer.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	// +kubebuilder:default=3600
	MaxSeconds *int `json:"maxSeconds,omitempty"`
	// Commands in a sandbox.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +kubebuilder:default=30
	MaxExecutions *int `json:"maxExecutions,omitempty"`
	// Money, in the currency of the platform's prices, like 2.50; without it there is no such limit.
	MaxCost Money `json:"maxCost,omitempty"`
	// Seconds in which a command runs; without it there is no such limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	MaxExecutionSeconds *int `json:"maxExecutionSeconds,omitempty"`
	// What one session may spend.
	PerSession *BudgetScope `json:"perSession,omitempty"`
	// What all sessions of the agent may spend on one day, by UTC.
	PerAgentDay *BudgetScope `json:"perAgentDay,omitempty"`
	// What one person on a channel may spend with the agent on one day, by UTC.
	PerUserDay *BudgetScope `json:"perUserDay,omitempty"`
	// What happens when a limit leaves no room: block ends the turn, and says so; ask asks a human, as the block approvals says, to grant the same amount once more, and the turn waits.
	// +kubebuilder:validation:Enum=block;ask
	// +kubebuilder:default=block
	OnOverrun harness.Overrun `json:"onOverrun,omitempty"`
}

// BudgetScope limits what is spent over many turns. What is left out is unlimited.
type BudgetScope struct {
	// Answers of the model.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	MaxSteps *int `json:"maxSteps,omitempty"`
	// Calls that the model asks for.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	MaxToolCalls *int `json:"maxToolCalls,omitempty"`
	// Seconds in which the model answers or a command runs.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	MaxSeconds *int `json:"maxSeconds,omitempty"`
	// Tokens, in and out.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	MaxTokens *int64 `json:"maxTokens,omitempty"`
	// Money, in the currency of the platform's prices, like 2.50.
	MaxCost Money `json:"maxCost,omitempty"`
	// Seconds in which a command runs. A command needs room for its time limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	MaxExecutionSeconds *int `json:"maxExecutionSeconds,omitempty"`
}

// Money is an amount in the currency of the platform's prices, as a decimal.
// +kubebuilder:validation:MaxLength=17
// +kubebuilder:validation:Pattern=`^[0-9]{1,10}(\.[0-9]{1,6})?$`
type Money string

// SecretRef names a key of a Secret.
type SecretRef struct {
	// The Secret, in the agents' namespace. It must be labelled for the agent: tuluat.ai/agent-access.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`
	Name string `json:"name"`
	// The key in it.
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]{1,253}$`
	Key string `json:"key"`
}

// Name is a name that fits a label and a part of a path.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
type Name string

// URL is an absolute http or https URL without user, password and fragment.
//
// +kubebuilder:validation:MaxLength=2048
// +kubebuilder:validation:Pattern=`^(?i:https?)://[^/?#@]+([/?][^#]*)?$`
type URL string
