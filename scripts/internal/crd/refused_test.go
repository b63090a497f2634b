package crd

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func definitionOf(t *testing.T, file string) (crd apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// refused is one wrong agent or workflow: what the API server says, which is
// what kubectl prints, and the field that the reader of folders complains of.
// An empty cluster means that the API server cannot know: agent-status says it.
type refused struct{ text, cluster, field string }

// seventeen guardrails are one too many.
func seventeen() string {
	var all []string
	for i := range 17 {
		all = append(all, fmt.Sprintf("{name: g%d, type: SECRET}", i))
	}
	return strings.Join(all, ", ")
}

func spec(text string) string    { return agentHead + "spec:\n  " + text + "\n" }
func sandbox(text string) string { return spec("harness: {type: CODE, sandbox: {" + text + "}}") }
func channel(text string) string { return spec("harness: {type: CHANNEL, channels: [{" + text + "}]}") }

const (
	h         = "spec.harness."
	s         = "spec.harness.sandbox."
	c0        = "spec.harness.channels[0]."
	hook      = "type: WEBHOOK, name: h, secretRef: {name: s, key: k}"
	whatsapp  = `type: WHATSAPP, phoneNumberId: "100000000000001"`
	open_     = ", senders: {policy: open}"
	notObject = "must be of type object"
)

var badAgents = map[string]refused{
	"long name":        {strings.Replace(agentHead, "name: a", "name: "+strings.Repeat("a", 64), 1), "metadata.name is too long or has a dot: use at most 63 lower-case letters, digits and dashes", "metadata.name"},
	"name with dot":    {strings.Replace(agentHead, "name: a", "name: a.b", 1), "metadata.name is too long or has a dot", "metadata.name"},
	"name in capitals": {strings.Replace(agentHead, "name: a", "name: A", 1), "a lowercase RFC 1123 subdomain must consist of", "metadata.name"},
	"unknown field":    {sandbox("memry: 512Mi"), `unknown field "spec.harness.sandbox.memry"`, s + "memry"},
	"text for block":   {spec("harness: text"), "spec.harness: Invalid value: \"string\": spec.harness in body " + notObject, "spec.harness"},
	"provider":         {spec("model: {provider: acme}"), `spec.model.provider: Unsupported value: "acme": supported values: "openai", "anthropic"`, "spec.model.provider"},
	"fallback's name":  {spec("model: {fallbacks: [{}]}"), "spec.model.fallbacks[0].name: Required value", "spec.model.fallbacks[0].name"},
	"fallbacks":        {spec("model: {fallbacks: [{name: a}, {name: b}, {name: c}, {name: d}]}"), "spec.model.fallbacks: Too many: 4: must have at most 3 items", "spec.model.fallbacks"},
	"fallback twice":   {spec("model: {fallbacks: [{name: a}, {name: b}, {name: a}]}"), "fallbacks lists one model twice: keep one of them", "spec.model.fallbacks"},
	"no tokens":        {spec("model: {maxTokens: 0}"), "spec.model.maxTokens in body should be greater than or equal to 1", "spec.model.maxTokens"},
	"too hot":          {spec("model: {temperature: 2.5}"), "spec.model.temperature in body should be less than or equal to 2", "spec.model.temperature"},
	"long description": {spec("description: " + strings.Repeat("x", 1025)), "spec.description: Too long: may not be more than 1024", "spec.description"},
	"no steps":         {spec("budget: {maxSteps: 0}"), "spec.budget.maxSteps in body should be greater than or equal to 1", "spec.budget.maxSteps"},

	"no type":          {spec("harness: {}"), "type is missing: use CODE (runs commands), CHANNEL (is reached by channels) or BOTH", h + "type"},
	"type":             {spec("harness: {type: SHELL}"), `spec.harness.type: Unsupported value: "SHELL"`, h + "type"},
	"channels of CODE": {spec("harness: {type: CODE, channels: [{" + hook + ", senders: {allow: [a]}}]}"), "channels are given to an agent of type CODE: use type BOTH, or remove them", h + "channels"},
	"no sandboxes":     {spec("harness: {type: CODE, maxSandboxes: 0}"), "spec.harness.maxSandboxes in body should be greater than or equal to 1", h + "maxSandboxes"},

	"two images":             {sandbox("image: python:3, imageRef: python"), "spec.harness.sandbox.image: Invalid value: image is set beside imageRef: keep one of them", s + "image"},
	"image form":             {sandbox("image: UPPER"), "spec.harness.sandbox.image in body should match", s + "image"},
	"imageRef form":          {sandbox("imageRef: Python 3"), "spec.harness.sandbox.imageRef in body should match", s + "imageRef"},
	"unknown imageRef":       {sandbox("imageRef: cobol"), "", s + "imageRef"},
	"empty command":          {sandbox(`command: [sh, ""]`), "spec.harness.sandbox.command[1] in body should be at least 1 chars long", s + "command[1]"},
	"no amount":              {sandbox("memory: lots"), "spec.harness.sandbox.memory in body should match", s + "memory"},
	"negative amount":        {sandbox(`cpu: "-1"`), "spec.harness.sandbox.cpu in body should match", s + "cpu"},
	"fraction":               {sandbox("cpu: 0.5"), "spec.harness.sandbox.cpu in body must be of type integer", s + "cpu"},
	"too much cpu":           {sandbox("cpu: 5000m"), "", s + "cpu"},
	"negative TTL":           {sandbox("ttlSeconds: -5"), "spec.harness.sandbox.ttlSeconds in body should be greater than or equal to 1", s + "ttlSeconds"},
	"TTL too short":          {sandbox("ttlSeconds: 60, timeoutSeconds: 120"), "ttlSeconds is shorter than timeoutSeconds, so the sandbox would end before its command: set ttlSeconds to at least timeoutSeconds", s + "ttlSeconds"},
	"text for number":        {sandbox(`ttlSeconds: "60"`), "spec.harness.sandbox.ttlSeconds in body must be of type integer", s + "ttlSeconds"},
	"workdir":                {sandbox("workdir: here"), `spec.harness.sandbox.workdir: Unsupported value: "here"`, s + "workdir"},
	"runtime class":          {sandbox("runtimeClassName: A B"), "spec.harness.sandbox.runtimeClassName in body should match", s + "runtimeClassName"},
	"egress":                 {sandbox("egress: some"), `spec.harness.sandbox.egress: Unsupported value: "some"`, s + "egress"},
	"allowlist without list": {sandbox("egress: allowlist"), "egress is allowlist, and egressAllow lists nothing: list what may be reached, or use egress none", s + "egressAllow"},
	"list without allowlist": {sandbox("egressAllow: [{cidr: 203.0.113.0/24}]"), "egressAllow is of egress allowlist: set egress to allowlist, or remove it", s + "egressAllow"},
	"no CIDR":                {sandbox("egress: allowlist, egressAllow: [{cidr: example.com}]"), `spec.harness.sandbox.egressAllow[0].cidr: Invalid value: "example.com": is not a range of addresses: write it like 203.0.113.0/24`, s + "egressAllow[0].cidr"},
	"missing CIDR":           {sandbox("egress: allowlist, egressAllow: [{ports: [443]}]"), "spec.harness.sandbox.egressAllow[0].cidr: Required value", s + "egressAllow[0].cidr"},
	"port":                   {sandbox("egress: allowlist, egressAllow: [{cidr: 203.0.113.0/24, ports: [0]}]"), "spec.harness.sandbox.egressAllow[0].ports[0] in body should be greater than or equal to 1", s + "egressAllow[0].ports[0]"},
	"33 rules":               {sandbox("egress: allowlist, egressAllow: [" + strings.Repeat("{cidr: 203.0.113.0/24},", 33) + "]"), "spec.harness.sandbox.egressAllow: Too many: 33: must have at most 32 items", s + "egressAllow"},
	"private range":          {sandbox("egress: allowlist, egressAllow: [{cidr: 10.0.0.0/8}]"), "", s + "egressAllow[0].cidr"},
	"every address":          {sandbox("egress: allowlist, egressAllow: [{cidr: 0.0.0.0/0}]"), "", s + "egressAllow[0].cidr"},

	"no channel type":        {channel("name: h" + open_), "spec.harness.channels[0].type: Required value", c0 + "type"},
	"channel type":           {channel("type: PIGEON" + open_), `spec.harness.channels[0].type: Unsupported value: "PIGEON"`, c0 + "type"},
	"no senders":             {channel(hook), "spec.harness.channels[0].senders: Required value", c0 + "senders"},
	"empty senders":          {channel(hook + ", senders: {}"), "says nothing, so nobody could talk to the agent: list channel user ids in allow, or set policy: open", c0 + "senders"},
	"empty list":             {channel(hook + ", senders: {policy: allowlist, allow: []}"), "allow is empty, so nobody could talk to the agent", c0 + "senders.allow"},
	"open with list":         {channel(hook + ", senders: {policy: open, allow: [a]}"), "allow lists senders although the policy is open: use policy allowlist, or remove the list", c0 + "senders.allow"},
	"policy":                 {channel(hook + ", senders: {policy: everyone}"), `senders.policy: Unsupported value: "everyone"`, c0 + "senders.policy"},
	"pairing on a hook":      {channel(hook + ", senders: {policy: pairing, pairingCodeSecretRef: {name: s, key: k}}"), "senders.policy is pairing, which a webhook does not have, since its secret pairs the sender: use allowlist or open", c0 + "senders.policy"},
	"pairing without code":   {channel(whatsapp + ", senders: {policy: pairing}"), "pairingCodeSecretRef goes with policy pairing: set both, or neither", c0 + "senders.pairingCodeSecretRef.name"},
	"code without pairing":   {channel(whatsapp + ", senders: {policy: open, pairingCodeSecretRef: {name: s, key: k}}"), "pairingCodeSecretRef goes with policy pairing", c0 + "senders.pairingCodeSecretRef"},
	"hook without name":      {channel("type: WEBHOOK, secretRef: {name: s, key: k}" + open_), "a channel of type WEBHOOK needs name, the last part of its path, and secretRef, the key that signs", c0 + "name"},
	"hook without secret":    {channel("type: WEBHOOK, name: h" + open_), "a channel of type WEBHOOK needs name", c0 + "secretRef.name"},
	"bot without name":       {channel("type: TELEGRAM" + open_), "a channel of type TELEGRAM needs bot: the bot's username, as BotFather shows it", c0 + "bot"},
	"hook on WhatsApp":       {channel(whatsapp + ", callbackURL: https://example.com" + open_), "name, secretRef, callbackURL and fields are of type WEBHOOK: remove them, or change type", c0 + "callbackURL"},
	"bot on a hook":          {channel(hook + ", bot: a_bot" + open_), "bot, botTokenSecretRef, webhookSecretRef and transport are of type TELEGRAM: remove them, or change type", c0 + "bot"},
	"number on Telegram":     {channel(`type: TELEGRAM, bot: a_bot, phoneNumber: "+15550009999"` + open_), "phoneNumberId, phoneNumber, verifyTokenSecretRef, appSecretSecretRef, accessTokenSecretRef and template are of type WHATSAPP: remove them, or change type", c0 + "phoneNumber"},
	"groups on a hook":       {channel(hook + ", groups: all" + open_), "groups is of types WHATSAPP and TELEGRAM: remove it, or change type", c0 + "groups"},
	"groups":                 {channel(whatsapp + ", groups: some" + open_), `groups: Unsupported value: "some"`, c0 + "groups"},
	"transport":              {channel("type: TELEGRAM, bot: a_bot, transport: pigeon" + open_), `transport: Unsupported value: "pigeon"`, c0 + "transport"},
	"phone number id":        {channel(`type: WHATSAPP, phoneNumberId: "+15550009999"` + open_), "phoneNumberId in body should match", c0 + "phoneNumberId"},
	"bot":                    {channel("type: TELEGRAM, bot: a b" + open_), "bot in body should match", c0 + "bot"},
	"template":               {channel(whatsapp + ", template: {name: New Answer, language: en}" + open_), "template.name in body should match", c0 + "template.name"},
	"template language":      {channel(whatsapp + ", template: {name: n}" + open_), "template.language: Required value", c0 + "template.language"},
	"empty reference":        {channel(whatsapp + ", appSecretSecretRef: {}" + open_), "appSecretSecretRef.name: Required value", c0 + "appSecretSecretRef.name"},
	"reference":              {channel("type: WEBHOOK, name: h, secretRef: {name: UP, key: k}" + open_), "secretRef.name in body should match", c0 + "secretRef.name"},
	"reference's key":        {channel("type: WEBHOOK, name: h, secretRef: {name: s, key: a b}" + open_), "secretRef.key in body should match", c0 + "secretRef.key"},
	"callback":               {channel(hook + ", callbackURL: ftp://x" + open_), "callbackURL in body should match", c0 + "callbackURL"},
	"callback with user":     {channel(hook + `, callbackURL: "https://me:pw@example.com/"` + open_), "callbackURL in body should match", c0 + "callbackURL"},
	"callback with fragment": {channel(hook + `, callbackURL: "https://example.com/#"` + open_), "callbackURL in body should match", c0 + "callbackURL"},
	"no JSONPath":            {channel(hook + ", fields: {text: text}" + open_), "", c0 + "fields.text"},
	"idle time":              {channel(hook + ", idleTTL: a day" + open_), "idleTTL in body should match", c0 + "idleTTL"},
	"idle time of Go":        {channel(hook + ", idleTTL: +24h" + open_), "idleTTL in body should match", c0 + "idleTTL"},
	"idle time as number":    {channel(hook + ", idleTTL: 60" + open_), "idleTTL in body must be of type string", c0 + "idleTTL"},

	"skill without text":        {spec("skills: {enabled: false, items: [{name: s}]}"), "a skill needs text, configMapRef, folder or imageRef: write one of them", "spec.skills.items[0]"},
	"skill with both":           {spec("skills: {enabled: false, items: [{name: s, text: t, configMapRef: {name: m, key: k}}]}"), "a skill needs text, configMapRef, folder or imageRef", "spec.skills.items[0]"},
	"skill with two places":     {spec("skills: {items: [{name: s, folder: f, configMapRef: {name: m}}]}"), "a skill needs text, configMapRef, folder or imageRef", "spec.skills.items[0]"},
	"skill's folder":            {spec("skills: {items: [{name: s, folder: a/../b}]}"), "folder in body should match", "spec.skills.items[0].folder"},
	"skill twice":               {spec("skills: {enabled: false, items: [{name: s, text: t}, {name: s, text: u}]}"), `spec.skills.items[1]: Duplicate value: {"name":"s"}`, "spec.skills.items[1].name"},
	"skill's ConfigMap":         {spec("skills: {enabled: false, items: [{name: s, configMapRef: {name: M, key: k}}]}"), "configMapRef.name in body should match", "spec.skills.items[0].configMapRef.name"},
	"guardrail type":            {spec("guardrails: {enabled: false, input: [{name: g, type: MAGIC}]}"), `type: Unsupported value: "MAGIC"`, "spec.guardrails.input[0].type"},
	"guardrail without pattern": {spec("guardrails: {enabled: false, input: [{name: g, type: PATTERN}]}"), "patterns and allow go with type PATTERN: list at least one there, and none elsewhere", "spec.guardrails.input[0].patterns"},
	"guardrail's expression":    {spec(`guardrails: {enabled: false, input: [{name: g, type: PATTERN, patterns: ["("]}]}`), "", "spec.guardrails.input[0].patterns[0]"},
	"guardrail without length":  {spec("guardrails: {enabled: false, output: [{name: g, type: LENGTH}]}"), "maxBytes goes with type LENGTH", "spec.guardrails.output[0].maxBytes"},
	"guardrail without prompt":  {spec("guardrails: {enabled: false, toolCall: [{name: g, type: MODEL}]}"), "prompt goes with type MODEL", "spec.guardrails.toolCall[0].prompt"},
	"guardrail without URL":     {spec("guardrails: {enabled: false, output: [{name: g, type: HTTP}]}"), "url goes with type HTTP", "spec.guardrails.output[0].url"},
	"guardrail's model":         {spec("guardrails: {enabled: false, input: [{name: g, type: LENGTH, maxBytes: 1, model: {}}]}"), "model is of type MODEL: remove it, or change type", "spec.guardrails.input[0].model"},
	"guardrail's headers":       {spec("guardrails: {enabled: false, input: [{name: g, type: LENGTH, maxBytes: 1, headersSecretRef: {name: s, key: k}}]}"), "headersSecretRef is of type HTTP: remove it, or change type", "spec.guardrails.input[0].headersSecretRef"},
	"guardrail's action":        {spec("guardrails: {enabled: false, input: [{name: g, type: LENGTH, maxBytes: 1, action: redact}]}"), "action is redact, which only patterns and types SECRET and PII can do: use block, warn or ask", "spec.guardrails.input[0].action"},
	"guardrail's tools":         {spec("guardrails: {enabled: false, input: [{name: g, type: LENGTH, maxBytes: 1, tools: [x]}]}"), "tools are of guardrails on toolCall and toolOutput: remove them from input and output", "spec.guardrails.input[0].tools"},
	"guardrail with two lists":  {spec("guardrails: {input: [{name: g, type: PATTERN, patterns: [a], allow: [b]}]}"), "patterns and allow are both set: keep one of them, and make two guardrails of it", "spec.guardrails.input[0].allow"},
	"guardrail's allowed list":  {spec("guardrails: {input: [{name: g, type: LENGTH, maxBytes: 1, allow: [b]}]}"), "patterns and allow go with type PATTERN", "spec.guardrails.input[0].allow"},
	"guardrail redacts allowed": {spec("guardrails: {input: [{name: g, type: PATTERN, allow: [b], action: redact}]}"), "action is redact, which only patterns and types SECRET and PII can do", "spec.guardrails.input[0].action"},
	"guardrail's large pattern": {spec(`guardrails: {input: [{name: g, type: PATTERN, patterns: ['(\w{1,30}){1,30}(\w{1,30}){1,30}(\w{1,30}){1,30}']}]}`), "", "spec.guardrails.input[0].patterns[0]"},
	"guardrail without rule":    {spec("guardrails: {input: [{name: g, type: CEL}]}"), "rule goes with type CEL: set both, or neither", "spec.guardrails.input[0].rule"},
	"guardrail's rule":          {spec("guardrails: {input: [{name: g, type: CEL, rule: 'text.size('}]}"), "", "spec.guardrails.input[0].rule"},
	"guardrail's rule is text":  {spec("guardrails: {input: [{name: g, type: CEL, rule: 'text'}]}"), "", "spec.guardrails.input[0].rule"},
	"guardrail's detector":      {spec("guardrails: {input: [{name: g, type: PII, detect: [SHOE_SIZE]}]}"), `detect[0]: Unsupported value: "SHOE_SIZE"`, "spec.guardrails.input[0].detect[0]"},
	"another type's detector":   {spec("guardrails: {input: [{name: g, type: PII, detect: [JWT]}]}"), "detect names a detector that type PII does not have", "spec.guardrails.input[0].detect[0]"},
	"a secret's detector":       {spec("guardrails: {input: [{name: g, type: SECRET, detect: [EMAIL]}]}"), "detect names a detector that type SECRET does not have", "spec.guardrails.input[0].detect[0]"},
	"detect of another type":    {spec("guardrails: {input: [{name: g, type: LENGTH, maxBytes: 1, detect: [JWT]}]}"), "detect is of types SECRET and PII: remove it, or change type", "spec.guardrails.input[0].detect"},
	"guardrail's time":          {spec("guardrails: {input: [{name: g, type: LENGTH, maxBytes: 1, timeoutSeconds: 5}]}"), "timeoutSeconds and onFailure are of types MODEL and HTTP: remove them, or change type", "spec.guardrails.input[0].timeoutSeconds"},
	"guardrail's failure":       {spec("guardrails: {input: [{name: g, type: SECRET, onFailure: warn}]}"), "timeoutSeconds and onFailure are of types MODEL and HTTP: remove them, or change type", "spec.guardrails.input[0].onFailure"},
	"guardrail that is slow":    {spec("guardrails: {input: [{name: g, type: MODEL, prompt: p, timeoutSeconds: 31}]}"), "should be less than or equal to 30", "spec.guardrails.input[0].timeoutSeconds"},
	"17 guardrails":             {spec("guardrails: {input: [" + seventeen() + "]}"), "Too many: 17: must have at most 16 items", "spec.guardrails.input"},
	"server without URL":        {spec("mcpServers: {enabled: false, servers: [{name: m}]}"), "a server needs url or command: write one of them", "spec.mcpServers.servers[0]"},
	"server with both":          {spec("harness: {type: CODE}\n  mcpServers: {servers: [{name: m, url: \"https://example.com\", command: [x]}]}"), "a server needs url or command: write one of them", "spec.mcpServers.servers[0].url"},
	"program without sandbox":   {spec("mcpServers: {servers: [{name: m, command: [x]}]}"), "a server with a command runs in a sandbox, which this agent does not have", "spec.mcpServers.servers[0].command"},
	"program in no sandbox":     {spec("harness: {type: CHANNEL}\n  mcpServers: {enabled: false, servers: [{name: m, command: [x]}]}"), "a server with a command runs in a sandbox, which this agent does not have", "spec.mcpServers.servers[0].command"},
	"program with headers":      {spec("harness: {type: CODE}\n  mcpServers: {servers: [{name: m, command: [x], headersSecretRef: {name: s, key: k}}]}"), "headersSecretRef is of a server with a url: remove it", "spec.mcpServers.servers[0].headersSecretRef"},
	"program without words":     {spec("harness: {type: CODE}\n  mcpServers: {servers: [{name: m, command: [x, \"\"]}]}"), "command[1] in body should be at least 1 chars long", "spec.mcpServers.servers[0].command[1]"},
	"program's variable":        {spec("harness: {type: CODE}\n  mcpServers: {servers: [{name: m, command: [x], env: [{name: A-B, value: v}]}]}"), "env[0].name in body should match", "spec.mcpServers.servers[0].env[0].name"},
	"program's variable twice":  {spec("harness: {type: CODE}\n  mcpServers: {servers: [{name: m, command: [x], env: [{name: A}, {name: A}]}]}"), `env[1]: Duplicate value: {"name":"A"}`, "spec.mcpServers.servers[0].env[1].name"},
	"server with variables":     {spec("mcpServers: {servers: [{name: m, url: \"https://example.com\", env: [{name: A, value: v}]}]}"), "env is of a server with a command: remove it", "spec.mcpServers.servers[0].env"},
	"skill's image":             {spec("skills: {items: [{name: s, imageRef: {image: UPPER}}]}"), "imageRef.image in body should match", "spec.skills.items[0].imageRef.image"},
	"skill without its image":   {spec("skills: {items: [{name: s, imageRef: {path: /a}}]}"), "imageRef.image: Required value", "spec.skills.items[0].imageRef.image"},
	"skill's image's path":      {spec("skills: {items: [{name: s, imageRef: {image: r/i, path: /a/../b}}]}"), "imageRef.path in body should match", "spec.skills.items[0].imageRef.path"},
	"skill's image's secret":    {spec("skills: {items: [{name: s, imageRef: {image: r/i, pullSecretRef: {name: S}}}]}"), "pullSecretRef.name in body should match", "spec.skills.items[0].imageRef.pullSecretRef.name"},
	"server's name":             {spec("mcpServers: {enabled: false, servers: [{name: M M, url: \"https://example.com\"}]}"), "spec.mcpServers.servers[0].name in body should match", "spec.mcpServers.servers[0].name"},
	"server's policy":           {spec("mcpServers: {servers: [{name: m, url: \"https://example.com\", approvals: maybe}]}"), `approvals: Unsupported value: "maybe"`, "spec.mcpServers.servers[0].approvals"},
	"server's tool twice":       {spec("mcpServers: {servers: [{name: m, url: \"https://example.com\", alwaysAsk: [x], neverAsk: [x]}]}"), "", "spec.mcpServers.servers[0].neverAsk[0]"},
	"server's time":             {spec("mcpServers: {servers: [{name: m, url: \"https://example.com\", timeoutSeconds: 3600}]}"), "timeoutSeconds in body should be less than or equal to 180", "spec.mcpServers.servers[0].timeoutSeconds"},
	"peer twice":                {spec("a2a: {enabled: false, peers: [{name: p, url: \"https://a\"}, {name: p, url: \"https://b\"}]}"), "spec.a2a.peers[1]: Duplicate value", "spec.a2a.peers[1].name"},
	"peer's policy":             {spec("a2a: {peers: [{name: p, url: \"https://example.com\", approvals: maybe}]}"), `approvals: Unsupported value: "maybe"`, "spec.a2a.peers[0].approvals"},
	"peer's time":               {spec("a2a: {peers: [{name: p, url: \"https://example.com\", timeoutSeconds: 3600}]}"), "timeoutSeconds in body should be less than or equal to 180", "spec.a2a.peers[0].timeoutSeconds"},
	"peer's URL":                {spec("a2a: {enabled: false, peers: [{name: p, url: example.com}]}"), "spec.a2a.peers[0].url in body should match", "spec.a2a.peers[0].url"},
	"approval policy":           {spec("approvals: {enabled: false, policy: sometimes}"), `spec.approvals.policy: Unsupported value: "sometimes"`, "spec.approvals.policy"},
	"byTool without tools":      {spec("approvals: {enabled: false, policy: byTool}"), "tools goes with policy byTool: list at least one there, and none elsewhere", "spec.approvals.tools"},
	"patterns without pattern":  {spec("approvals: {enabled: false, patterns: [rm]}"), "patterns goes with policy pattern: list at least one there, and none elsewhere", "spec.approvals.patterns"},
	"two in one approver":       {spec("approvals: {enabled: false, approvers: [{user: u, group: g}]}"), "an approver is a user, a group or a channelUserId of a channel: write one of them", "spec.approvals.approvers[0]"},
	"half an approver":          {spec("approvals: {enabled: false, approvers: [{channel: WHATSAPP}]}"), "channel and channelUserId go together: set both, or neither", "spec.approvals.approvers[0]"},
	"quorum of none":            {spec("approvals: {enabled: false, quorum: 0}"), "spec.approvals.quorum in body should be greater than or equal to 1", "spec.approvals.quorum"},
	"quorum of too many":        {spec("approvals: {enabled: false, approvers: [{user: u}], quorum: 2}"), "", "spec.approvals.quorum"},
	"timeout":                   {spec("approvals: {enabled: false, timeout: soon}"), "spec.approvals.timeout in body should match", "spec.approvals.timeout"},
	"late reminder":             {spec("approvals: {enabled: false, timeout: 1h, reminders: [2h]}"), "", "spec.approvals.reminders[0]"},
	"on timeout":                {spec("approvals: {enabled: false, onTimeout: panic}"), `spec.approvals.onTimeout: Unsupported value: "panic"`, "spec.approvals.onTimeout"},
}

func workflow(nodes, edges string) string {
	return "apiVersion: tuluat.ai/v1alpha1\nkind: AiWorkflow\nmetadata: {name: w}\nspec:\n  nodes: [" + nodes + "]\n  edges: [" + edges + "]\n"
}

const end = "{id: e, type: END}"

var badWorkflows = map[string]refused{
	"no nodes":          {"apiVersion: tuluat.ai/v1alpha1\nkind: AiWorkflow\nmetadata: {name: w}\nspec: {}\n", "spec.nodes: Required value", "spec.nodes"},
	"no END":            {workflow("{id: r, type: REPLY, text: t}", ""), "spec.nodes: Invalid value: has no node of type END, so a run could never end: add one", "spec.nodes"},
	"id twice":          {workflow(end+", "+end, ""), `spec.nodes[1]: Duplicate value: {"id":"e"}`, "spec.nodes[1].id"},
	"node type":         {workflow(end+", {id: x, type: MAGIC}", ""), `spec.nodes[1].type: Unsupported value: "MAGIC"`, "spec.nodes[1].type"},
	"no agent":          {workflow("{id: x, type: AGENT, prompt: p}, "+end, "{from: x, to: e}"), "agent goes with types AGENT, whom it asks, and SHELL, in whose sandbox it runs: set it there, and nowhere else", "spec.nodes[0].agent"},
	"agent's name":      {workflow("{id: x, type: AGENT, agent: A B, prompt: p}, "+end, "{from: x, to: e}"), "spec.nodes[0].agent in body should match", "spec.nodes[0].agent"},
	"no prompt":         {workflow("{id: x, type: AGENT, agent: a}, "+end, "{from: x, to: e}"), "prompt goes with type AGENT: set both, or neither", "spec.nodes[0].prompt"},
	"no command":        {workflow("{id: x, type: SHELL, agent: a}, "+end, "{from: x, to: e}"), "command goes with type SHELL: set both, or neither", "spec.nodes[0].command"},
	"timeout of END":    {workflow("{id: e, type: END, timeoutSeconds: 1}", ""), "timeoutSeconds is of every type but END: remove it, or change type", "spec.nodes[0].timeoutSeconds"},
	"retries of reply":  {workflow("{id: x, type: REPLY, text: t, retries: {max: 1}}, "+end, "{from: x, to: e}"), "retries are of types AGENT and SHELL: remove them, or change type", "spec.nodes[0].retries"},
	"retries":           {workflow("{id: x, type: AGENT, agent: a, prompt: t, retries: {max: 11}}, "+end, "{from: x, to: e}"), "spec.nodes[0].retries.max in body should be less than or equal to 10", "spec.nodes[0].retries.max"},
	"join":              {workflow("{id: x, type: REPLY, text: t, join: some}, "+end, "{from: x, to: e}"), `spec.nodes[0].join: Unsupported value: "some"`, "spec.nodes[0].join"},
	"an expression":     {workflow("{id: x, type: AGENT, agent: a, prompt: '${nodes.y.text}'}, "+end, "{from: x, to: e}"), "", "spec.nodes[0].prompt"},
	"a condition":       {workflow("{id: x, type: AGENT, agent: a, prompt: t}, "+end, "{from: x, to: e, when: 'nodes.x.text'}"), "", "spec.edges[0].when"},
	"visits":            {strings.Replace(workflow(end, ""), "spec:\n", "spec:\n  maxVisits: 1001\n", 1), "spec.maxVisits in body should be less than or equal to 1000", "spec.maxVisits"},
	"trigger":           {strings.Replace(workflow(end, ""), "spec:\n", "spec:\n  triggers: [{type: CHANNEL, pattern: x}]\n", 1), "agent goes with type CHANNEL, to whom the message is: set both, or neither", "spec.triggers[0].agent"},
	"schedule":          {strings.Replace(workflow(end, ""), "spec:\n", "spec:\n  triggers: [{type: SCHEDULE, schedule: '0 0 31 2 *'}]\n", 1), "", "spec.triggers[0].schedule"},
	"input":             {strings.Replace(workflow(end, ""), "spec:\n", "spec:\n  inputs: [{name: a-b, type: string}]\n", 1), "spec.inputs[0].name in body should match", "spec.inputs[0].name"},
	"no question":       {workflow("{id: x, type: APPROVAL}, "+end, "{from: x, to: e}"), "text goes with types APPROVAL, which asks it, and REPLY, which sends it: set it there, and nowhere else", "spec.nodes[0].text"},
	"approval of END":   {workflow("{id: e, type: END, approval: {}}", ""), "approval is of type APPROVAL: remove it, or change type", "spec.nodes[0].approval"},
	"state of reply":    {workflow("{id: x, type: REPLY, text: t, state: FAILED}, "+end, "{from: x, to: e}"), "state is of type END: remove it, or change type", "spec.nodes[0].state"},
	"edge from nowhere": {workflow(end, "{from: x, to: e}"), "spec.edges: Invalid value: an edge names no node: use the ids of nodes in from and to", "spec.edges[0].from"},
	"edge without end":  {workflow(end, "{from: e}"), "spec.edges[0].to: Required value", "spec.edges[0].to"},
	"edge out of END":   {workflow(end+", {id: x, type: REPLY, text: t}", "{from: e, to: x}, {from: x, to: e}"), "an edge leaves a node of type END, which ends the run: remove it", "spec.edges[0].from"},
	"unknown start":     {strings.Replace(workflow(end, ""), "spec:\n", "spec:\n  start: x\n", 1), "spec.start: Invalid value: start names no node: use the id of one", "spec.start"},
	"no way in":         {workflow(end+", {id: x, type: REPLY, text: t}", "{from: x, to: e}"), "", "spec.nodes[1]"},
	"no way out":        {workflow("{id: x, type: REPLY, text: t}, {id: z, type: REPLY, text: t}, "+end, "{from: x, to: z}, {from: x, to: e}"), "", "spec.nodes[1]"},
	"quorum":            {workflow("{id: x, type: APPROVAL, text: t, approval: {quorum: 2}}, "+end, "{from: x, to: e}"), "", "spec.nodes[0].approval.quorum"},
}

func TestBadAgentsAndWorkflowsAreRefusedByBoth(t *testing.T) {
	for file, table := range map[string]map[string]refused{agentsFile: badAgents, flowsFile: badWorkflows} {
		crd := open(t, file)
		for name, bad := range table {
			t.Run(name, func(t *testing.T) {
				_, refused := crd.admit(t, bad.text)
				switch {
				case bad.cluster == "" && len(refused) > 0:
					t.Errorf("the API server refuses it: %q", refused)
				case bad.cluster != "" && !slices.ContainsFunc(refused, func(r string) bool { return strings.Contains(r, bad.cluster) }):
					t.Errorf("the API server says %q, want %q", refused, bad.cluster)
				}
				_, problems := strict(t, bad.text)
				var fields []string
				for _, p := range problems {
					fields = append(fields, p.Path)
				}
				if !slices.Contains(fields, bad.field) {
					t.Errorf("the reader complains of %q, want %s:\n%v", fields, bad.field, problems)
				}
			})
		}
	}
}

// rightWorkflow has everything that a workflow can have.
var rightWorkflow = strings.Replace(workflow(`{id: ask, type: AGENT, agent: a, prompt: "${input.text}"}, {id: build, type: SHELL, agent: a, command: make, timeoutSeconds: 60, retries: {max: 2, backoffSeconds: 5}, join: all},
    {id: may, type: APPROVAL, text: "Ship it?", approval: {approvers: [{group: ops}], quorum: 2, timeout: 2h, reminders: [30m, 1h], onTimeout: reject}},
    {id: tell, type: REPLY, text: done}, {id: done, type: END}, {id: broken, type: END, state: FAILED}`,
	`{from: ask, to: build}, {from: build, to: may, when: nodes.build.exitCode == 0}, {from: build, to: broken, when: nodes.build.exitCode != 0},
    {from: may, to: tell}, {from: tell, to: done}, {from: may, to: ask}`), "spec:\n", "spec:\n  description: d\n  start: ask\n  maxVisits: 50\n  inputs: [{name: text, type: string, description: d}]\n"+
	"  triggers: [{type: CHANNEL, agent: a, pattern: '^/go (?P<text>.*)'}, {type: SCHEDULE, schedule: 0 7 * * 1-5, timeZone: Europe/Berlin}]\n", 1)

func TestARightWorkflow(t *testing.T) {
	_, refused := open(t, flowsFile).admit(t, rightWorkflow)
	_, problems := strict(t, rightWorkflow)
	if len(refused) > 0 || len(problems) > 0 {
		t.Errorf("%q\n%v", refused, problems)
	}
}
