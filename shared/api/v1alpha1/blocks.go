package v1alpha1

import "tuluat.ai/harness/shared/harness"

// Skills are instructions, with files or without, that the model knows by name
// and description and loads when it needs them, by the tool loadSkill.
type Skills struct {
	// False switches the block off without losing what it says.
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// The skills, each with a name of its own.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Items []Skill `json:"items,omitempty"`
}

// Skill is a text SKILL.md and, where it is not written here, further files, which
// are put into the sandbox at /workspace/skills/NAME when the skill is loaded.
// SKILL.md may begin with YAML front matter that has name and description.
//
// +kubebuilder:validation:XValidation:rule="(has(self.text) ? 1 : 0) + (has(self.configMapRef) ? 1 : 0) + (has(self.folder) ? 1 : 0) + (has(self.imageRef) ? 1 : 0) == 1",message="a skill needs text, configMapRef, folder or imageRef: write one of them"
type Skill struct {
	// What the model asks for it by.
	Name Name `json:"name"`
	// When to use it: all the model sees before it asks. Without it, what the front matter of SKILL.md says.
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
	// SKILL.md itself.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Text string `json:"text,omitempty"`
	// Of agents in a cluster: the ConfigMap that has it.
	ConfigMapRef *ConfigMapRef `json:"configMapRef,omitempty"`
	// Of agents kept as files: the folder that has it, below the folder of the agents, as in skills/csv. Names that begin with a dot are left out.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-_a-zA-Z0-9][-._a-zA-Z0-9]*(/[-_a-zA-Z0-9][-._a-zA-Z0-9]*)*$`
	Folder string `json:"folder,omitempty"`
	// The OCI image that has it.
	ImageRef *SkillImageRef `json:"imageRef,omitempty"`
}

// SkillImageRef names a folder of an OCI image. Its plain files are the skill's,
// names that begin with a dot left out; one that has links there is refused. A tag is looked at
// again every minute; while its registry does not answer, what it gave last stays in use.
type SkillImageRef struct {
	// The image, as in registry/skills/csv:1 or with @sha256: and a digest. Of an index, what is for linux and the processor that the functions run on.
	// Its registry may not resolve to a private address, unless the platform allows it.
	// +kubebuilder:validation:Pattern=`^[a-z0-9][-a-zA-Z0-9._/:]{0,400}(@sha256:[a-f0-9]{64})?$`
	Image string `json:"image"`
	// The folder in the image that has SKILL.md, as in /skills/csv. Without it, the whole image.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(/|(/[-_a-zA-Z0-9][-._a-zA-Z0-9]*)+)$`
	Path string `json:"path,omitempty"`
	// The Secret with the credentials for the registry.
	PullSecretRef *PullSecretRef `json:"pullSecretRef,omitempty"`
}

// PullSecretRef names a Secret of type kubernetes.io/dockerconfigjson in the
// agents' namespace that is labelled for the agent.
type PullSecretRef struct {
	// The Secret.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`
	Name string `json:"name"`
}

// ConfigMapRef names a ConfigMap in the agents' namespace, or a key of it.
type ConfigMapRef struct {
	// The ConfigMap.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`
	Name string `json:"name"`
	// The key in it that holds SKILL.md. Without it, each key is a file, SKILL.md one of them; __ in a key stands for the slash of a folder.
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]{1,253}$`
	Key string `json:"key,omitempty"`
}

// Guardrails check what comes in, what the agent is about to do, what that gave
// and what goes out. Those of one list run in its order; the first that blocks
// ends it.
//
// +kubebuilder:validation:XValidation:rule="(!has(self.input) || self.input.all(g, !has(g.tools) || size(g.tools) == 0)) && (!has(self.output) || self.output.all(g, !has(g.tools) || size(g.tools) == 0))",message="tools are of guardrails on toolCall and toolOutput: remove them from input and output"
type Guardrails struct {
	// False switches the block off without losing what it says.
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// On what people write, before the model sees it.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Input []Guardrail `json:"input,omitempty"`
	// On the arguments of a call that the model asks for, before it runs.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ToolCall []Guardrail `json:"toolCall,omitempty"`
	// On what a call gave, before the model sees it.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ToolOutput []Guardrail `json:"toolOutput,omitempty"`
	// On what the agent answers, before it is sent.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Output []Guardrail `json:"output,omitempty"`
}

// Guardrail is one check. Each type has fields of its own.
//
// +kubebuilder:validation:XValidation:rule="(self.type == 'PATTERN') == (has(self.patterns) && size(self.patterns) > 0 || has(self.allow) && size(self.allow) > 0)",message="patterns and allow go with type PATTERN: list at least one there, and none elsewhere"
// +kubebuilder:validation:XValidation:rule="!(has(self.patterns) && size(self.patterns) > 0 && has(self.allow) && size(self.allow) > 0)",message="patterns and allow are both set: keep one of them, and make two guardrails of it"
// +kubebuilder:validation:XValidation:rule="(self.type == 'LENGTH') == has(self.maxBytes)",message="maxBytes goes with type LENGTH: set both, or neither"
// +kubebuilder:validation:XValidation:rule="(self.type == 'CEL') == has(self.rule)",message="rule goes with type CEL: set both, or neither"
// +kubebuilder:validation:XValidation:rule="!has(self.detect) || size(self.detect) == 0 || self.type == 'SECRET' || self.type == 'PII'",message="detect is of types SECRET and PII: remove it, or change type"
// +kubebuilder:validation:XValidation:rule="!has(self.detect) || self.type != 'SECRET' || self.detect.all(d, d in ['PRIVATE_KEY', 'AWS_KEY', 'GOOGLE_KEY', 'GITHUB_TOKEN', 'GITLAB_TOKEN', 'SLACK_TOKEN', 'STRIPE_KEY', 'OPENAI_KEY', 'ANTHROPIC_KEY', 'TELEGRAM_TOKEN', 'JWT', 'URL_PASSWORD', 'ASSIGNED'])",message="detect names a detector that type SECRET does not have"
// +kubebuilder:validation:XValidation:rule="!has(self.detect) || self.type != 'PII' || self.detect.all(d, d in ['EMAIL', 'PHONE', 'CARD', 'IBAN', 'US_SSN', 'TR_ID', 'IP_ADDRESS'])",message="detect names a detector that type PII does not have"
// +kubebuilder:validation:XValidation:rule="(self.type == 'MODEL') == has(self.prompt)",message="prompt goes with type MODEL: set both, or neither"
// +kubebuilder:validation:XValidation:rule="self.type == 'MODEL' || !has(self.model)",message="model is of type MODEL: remove it, or change type"
// +kubebuilder:validation:XValidation:rule="(self.type == 'HTTP') == has(self.url)",message="url goes with type HTTP: set both, or neither"
// +kubebuilder:validation:XValidation:rule="self.type == 'HTTP' || !has(self.headersSecretRef)",message="headersSecretRef is of type HTTP: remove it, or change type"
// +kubebuilder:validation:XValidation:rule="self.type == 'MODEL' || self.type == 'HTTP' || !has(self.timeoutSeconds) && !has(self.onFailure)",message="timeoutSeconds and onFailure are of types MODEL and HTTP: remove them, or change type"
// +kubebuilder:validation:XValidation:rule="!has(self.action) || self.action != 'redact' || self.type in ['PATTERN', 'SECRET', 'PII'] && !(has(self.allow) && size(self.allow) > 0)",message="action is redact, which only patterns and types SECRET and PII can do: use block, warn or ask"
type Guardrail struct {
	// Its name in logs and counts.
	Name Name `json:"name"`
	// How it judges. PATTERN: hits what a regular expression finds, or what none of a list finds. LENGTH: hits what is too long. CEL: hits where an expression holds.
	// SECRET: hits what looks like a credential. PII: hits what identifies a person. MODEL: a model judges. HTTP: a service judges.
	// +kubebuilder:validation:Enum=PATTERN;LENGTH;CEL;SECRET;PII;MODEL;HTTP
	Type harness.GuardrailType `json:"type"`
	// What a hit leads to. block: it goes no further, and the person, or the model where a call is blocked, is told. redact: what was found is blacked out. warn: it is only noted.
	// ask: a human is asked whether the message, the call, the result or the reply goes on, as the block approvals says; until then it waits.
	// +kubebuilder:validation:Enum=block;redact;warn;ask
	// +kubebuilder:default=block
	Action harness.GuardrailAction `json:"action,omitempty"`
	// What the person, or the model where a call or its result is blocked, is told. Without it, a fixed text.
	// +kubebuilder:validation:MaxLength=1024
	Text string `json:"text,omitempty"`
	// Of toolCall and toolOutput: the tools whose calls it checks. Without it, all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	Tools []string `json:"tools,omitempty"`

	// PATTERN: regular expressions in RE2 syntax; one that finds something is a hit.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1000
	Patterns []string `json:"patterns,omitempty"`
	// PATTERN: regular expressions in RE2 syntax; it is a hit when none of them finds something. Begin with ^ and end with $ to allow whole texts only.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1000
	Allow []string `json:"allow,omitempty"`
	// LENGTH: the most bytes that are no hit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1073741824
	MaxBytes *int `json:"maxBytes,omitempty"`
	// CEL: an expression that is true for a hit. It sees stage (INPUT, TOOL_CALL, TOOL_OUTPUT or OUTPUT), tool, arguments (of a call), text, agent, channel and person.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Rule string `json:"rule,omitempty"`
	// SECRET and PII: which detectors look. Without it, all of the type. SECRET: PRIVATE_KEY, AWS_KEY, GOOGLE_KEY, GITHUB_TOKEN, GITLAB_TOKEN, SLACK_TOKEN, STRIPE_KEY, OPENAI_KEY,
	// ANTHROPIC_KEY, TELEGRAM_TOKEN, JWT, URL_PASSWORD, ASSIGNED (a random value given to a name such as token). PII: EMAIL, PHONE, CARD, IBAN, US_SSN, TR_ID, IP_ADDRESS.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Enum=PRIVATE_KEY;AWS_KEY;GOOGLE_KEY;GITHUB_TOKEN;GITLAB_TOKEN;SLACK_TOKEN;STRIPE_KEY;OPENAI_KEY;ANTHROPIC_KEY;TELEGRAM_TOKEN;JWT;URL_PASSWORD;ASSIGNED;EMAIL;PHONE;CARD;IBAN;US_SSN;TR_ID;IP_ADDRESS
	Detect []string `json:"detect,omitempty"`
	// MODEL: what the model is to judge, as instructions.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Prompt string `json:"prompt,omitempty"`
	// MODEL: which model judges. Without it, the agent's.
	Model *Model `json:"model,omitempty"`
	// HTTP: where the text is POSTed. It may not resolve to a private address, unless the platform allows it.
	URL URL `json:"url,omitempty"`
	// HTTP: a key that holds the request's headers, one "Name: value" a line.
	HeadersSecretRef *SecretRef `json:"headersSecretRef,omitempty"`
	// MODEL and HTTP: the longest it may take; 10 without it.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=30
	TimeoutSeconds *int `json:"timeoutSeconds,omitempty"`
	// MODEL and HTTP: what holds when there is no verdict. block: as if it were a hit; the default. warn: it goes on and is noted.
	// +kubebuilder:validation:Enum=block;warn
	OnFailure harness.GuardrailAction `json:"onFailure,omitempty"`
}

// MCPServers are servers of the Model Context Protocol whose tools the agent has.
type MCPServers struct {
	// False switches the block off without losing what it says.
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// The servers, each with a name of its own.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Servers []MCPServer `json:"servers,omitempty"`
}

// MCPServer is one server, reached by streamable HTTP, or a program that speaks the
// protocol on its standard input and output.
//
// +kubebuilder:validation:XValidation:rule="has(self.url) != (has(self.command) && size(self.command) > 0)",message="a server needs url or command: write one of them"
// +kubebuilder:validation:XValidation:rule="has(self.url) || !has(self.headersSecretRef)",message="headersSecretRef is of a server with a url: remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.url) || !has(self.env) || size(self.env) == 0",message="env is of a server with a command: remove it"
type MCPServer struct {
	// What its tools' names begin with.
	Name Name `json:"name"`
	// The server's endpoint. It may not resolve to a private address, unless the platform allows it.
	URL URL `json:"url,omitempty"`
	// The program and its arguments, as in [npx, -y, some-server]. It runs in the sandbox of the session, so it needs harness.type CODE or BOTH, and what it needs must be in the sandbox's image or within its network.
	// It is started for its list of tools and for each call, and ended with all it has started: it keeps nothing from one call to the next but files below /workspace.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Command []string `json:"command,omitempty"`
	// Variables of the program's environment. They are shown to people and are no place for secrets.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Env []EnvVar `json:"env,omitempty"`
	// A key that holds the requests' headers, one "Name: value" a line.
	HeadersSecretRef *SecretRef `json:"headersSecretRef,omitempty"`
	// The server's tools that the agent may call. Without it, all of them.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	AllowedTools []string `json:"allowedTools,omitempty"`
	// Whether a human is asked before a tool is called. asAgent: as the block approvals says; the default. always: before each call, also without that block. never: not before any.
	// +kubebuilder:validation:Enum=asAgent;always;never
	// +kubebuilder:default=asAgent
	Approvals harness.RemotePolicy `json:"approvals,omitempty"`
	// Tools before whose calls a human is always asked, whatever approvals says.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	AlwaysAsk []string `json:"alwaysAsk,omitempty"`
	// Tools before whose calls nobody is asked, whatever approvals says.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	NeverAsk []string `json:"neverAsk,omitempty"`
	// The longest one call may take. Without it, 60.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=180
	TimeoutSeconds *int `json:"timeoutSeconds,omitempty"`
}

// EnvVar is a variable of an environment.
type EnvVar struct {
	// Its name.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`
	// Its value.
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`
}

// A2A is the Agent2Agent protocol: other agents that this one may ask, and, while
// the block is on, this one for others, at /a2a/NAME of the management API.
type A2A struct {
	// False switches the block off without losing what it says.
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// The agents, each with a name of its own.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Peers []Peer `json:"peers,omitempty"`
}

// Peer is one agent that can be asked.
type Peer struct {
	// What the model knows it by.
	Name Name `json:"name"`
	// Where its agent card is: /.well-known/agent-card.json below it, or itself where it ends with .json. What the card says must be on the same host. It may not resolve to a private address, unless the platform allows it.
	URL URL `json:"url"`
	// What to ask it. Without it, what its card says.
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
	// A key that holds the requests' headers, one "Name: value" a line.
	HeadersSecretRef *SecretRef `json:"headersSecretRef,omitempty"`
	// Whether a human is asked before the peer is. asAgent: as the block approvals says; the default. always: before each call, also without that block. never: not before any.
	// +kubebuilder:validation:Enum=asAgent;always;never
	// +kubebuilder:default=asAgent
	Approvals harness.RemotePolicy `json:"approvals,omitempty"`
	// The longest one call waits for an answer; what comes later the model can ask for. Without it, 60.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=180
	TimeoutSeconds *int `json:"timeoutSeconds,omitempty"`
}

// Approvals say when a human is asked before a tool runs.
//
// +kubebuilder:validation:XValidation:rule="(has(self.policy) && self.policy == 'byTool') == (has(self.tools) && size(self.tools) > 0)",message="tools goes with policy byTool: list at least one there, and none elsewhere"
// +kubebuilder:validation:XValidation:rule="(has(self.policy) && self.policy == 'pattern') == (has(self.patterns) && size(self.patterns) > 0)",message="patterns goes with policy pattern: list at least one there, and none elsewhere"
type Approvals struct {
	// False switches the block off without losing what it says.
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// Which calls a human is asked about. always: every call; the default. never: none. byTool: those of the tools listed. pattern: those whose arguments a pattern finds something in.
	// +kubebuilder:validation:Enum=always;never;byTool;pattern
	// +kubebuilder:default=always
	Policy harness.ApprovalPolicy `json:"policy,omitempty"`
	// Of policy byTool: the tools.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	Tools []string `json:"tools,omitempty"`
	// Of policy pattern: regular expressions in RE2 syntax over the call's arguments.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1000
	Patterns []string `json:"patterns,omitempty"`

	ApprovalTerms `json:",inline"`
}

// ApprovalTerms say who decides an approval, and until when.
type ApprovalTerms struct {
	// Who may decide, and is told. Without it, whoever wrote the message.
	// +kubebuilder:validation:MaxItems=32
	Approvers []Approver `json:"approvers,omitempty"`
	// How many must approve. One who rejects is enough to reject.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	// +kubebuilder:default=1
	Quorum *int `json:"quorum,omitempty"`
	// How long the question waits for an answer.
	// +kubebuilder:default="1h"
	Timeout Duration `json:"timeout,omitempty"`
	// When approvers are reminded, as times after the question.
	// +kubebuilder:validation:MaxItems=10
	Reminders []Duration `json:"reminders,omitempty"`
	// What holds when nobody has answered in time. reject: the call does not run; the default. proceed: it runs. wait: the question stays open.
	// +kubebuilder:validation:Enum=reject;proceed;wait
	// +kubebuilder:default=reject
	OnTimeout harness.TimeoutAction `json:"onTimeout,omitempty"`
	// Who is asked as well when the first approvers have not answered.
	Escalation *Escalation `json:"escalation,omitempty"`
}

// Escalation asks further approvers after a while.
type Escalation struct {
	// How long after the question, as in 30m. It is shorter than timeout.
	After Duration `json:"after"`
	// Who may decide from then on, and is told.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Approvers []Approver `json:"approvers"`
}

// Approver is somebody who may decide: a user or a group of the API, or a
// person on one of the agent's channels.
//
// +kubebuilder:validation:XValidation:rule="(has(self.user) ? 1 : 0) + (has(self.group) ? 1 : 0) + (has(self.channel) ? 1 : 0) == 1",message="an approver is a user, a group or a channelUserId of a channel: write one of them"
// +kubebuilder:validation:XValidation:rule="has(self.channel) == has(self.channelUserId)",message="channel and channelUserId go together: set both, or neither"
type Approver struct {
	// A user of the API, as Kubernetes names it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	User string `json:"user,omitempty"`
	// A group of the API, as Kubernetes names it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Group string `json:"group,omitempty"`
	// The channel on which the person is asked.
	// +kubebuilder:validation:Enum=WHATSAPP;TELEGRAM;WEBHOOK
	Channel harness.Channel `json:"channel,omitempty"`
	// The person there: a phone number, Telegram's user id, a hook's channelUserId.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ChannelUserID string `json:"channelUserId,omitempty"`
}
