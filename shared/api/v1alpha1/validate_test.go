package v1alpha1_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

func read(t *testing.T, file string) v1alpha1.Document {
	t.Helper()
	documents, err := v1alpha1.Read([]byte(file))
	if err != nil || len(documents) != 1 {
		t.Fatalf("%d documents, %v", len(documents), err)
	}
	return documents[0]
}

// place reduces a list of problems to the paths complained of, in order.
func paths(problems v1alpha1.Problems) []string {
	var paths []string
	for _, p := range problems {
		paths = append(paths, p.Path)
	}
	return paths
}

// One file with everything wrong: all of it is said at once, with lines.
func TestAllProblemsAtOnce(t *testing.T) {
	d := read(t, `apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: Not_A_Name
spec:
  model: {provider: acme, maxTokens: 0, temperature: 3}
  harness:
    type: SHELL
    maxSandboxes: 99
    sandbox:
      image: UPPER
      cpu: 0.5m
      memory: 1Ti
      volumeSize: lots
      timeoutSeconds: 900
      idleSeconds: 0
      workdir: here
      egress: allowlist
      runtimeClassName: A B
      command: [sh, ""]
    channels:
      - type: PIGEON
        name: ""
        secretRef: {name: UP, key: "a b"}
        callbackURL: ftp://x
        fields: {text: "text"}
        idleTTL: 5s
        senders: {policy: everyone}
      - type: WEBHOOK
        name: ""
        secretRef: {name: UP, key: "a b"}
        callbackURL: ftp://x
        fields: {text: "text"}
        idleTTL: a day
        senders: {allow: [x]}
      - type: WEBHOOK
        name: hook
        secretRef: {}
        callbackURL: https://me:pw@example.com/
        senders: {policy: allowlist}
      - type: WEBHOOK
        name: hook
        secretRef: {name: s, key: k}
        senders: {policy: open, allow: [x]}
  budget: {maxSteps: 0, maxToolCalls: -1, maxTokens: 999999999, maxSeconds: 0, maxExecutions: 0}
`)
	problems := d.Validate(v1alpha1.DefaultLimits())
	want := []string{
		"metadata.name", "spec.model.provider", "spec.model.maxTokens", "spec.model.temperature", "spec.harness.type", "spec.harness.maxSandboxes",
		"spec.harness.sandbox.image", "spec.harness.sandbox.command[1]", "spec.harness.sandbox.cpu", "spec.harness.sandbox.memory", "spec.harness.sandbox.volumeSize",
		"spec.harness.sandbox.idleSeconds", "spec.harness.sandbox.ttlSeconds", "spec.harness.sandbox.workdir", "spec.harness.sandbox.egressAllow",
		"spec.harness.sandbox.runtimeClassName", "spec.harness.channels[0].type", "spec.harness.channels[0].senders.policy", "spec.harness.channels[0].idleTTL",
		"spec.harness.channels[1].name", "spec.harness.channels[1].secretRef.name", "spec.harness.channels[1].secretRef.key",
		"spec.harness.channels[1].callbackURL", "spec.harness.channels[1].fields.text", "spec.harness.channels[1].idleTTL",
		"spec.harness.channels[2].secretRef.name", "spec.harness.channels[2].secretRef.key", "spec.harness.channels[2].callbackURL",
		"spec.harness.channels[2].senders.allow", "spec.harness.channels[3].senders.allow", "spec.harness.channels[3].name",
		"spec.budget.maxSteps", "spec.budget.maxToolCalls", "spec.budget.maxTokens", "spec.budget.maxSeconds", "spec.budget.maxExecutions",
	}
	if diff := cmp.Diff(want, paths(problems)); diff != "" {
		t.Errorf("paths (-want +got):\n%s\n%v", diff, problems)
	}
	for _, p := range problems {
		if p.Line == 0 || p.Document != 1 || p.Fix == "" {
			t.Errorf("no line, document or fix: %+v", p)
		}
	}
	if got := problems[24]; got.What != "is not a duration" || got.Fix != "use 1m0s to 720h0m0s, like 24h" {
		t.Errorf("the fix is to be said once: %s", got)
	}
	if got := problems[2].String(); got != "document 1, line 6: spec.model.maxTokens is 0: use 1 to 128000, or leave it out for the default" {
		t.Errorf("text: %s", got)
	}
}

// A field that cannot be read is reported once, and the rest is still checked.
func TestUnreadableFieldIsReportedOnce(t *testing.T) {
	d := read(t, head+"spec:\n  harness:\n    type: BOTH\n    channels:\n      - type: WEBHOOK\n        name: h\n        secretRef: text\n        senders: {}\n")
	want := []string{"spec.harness.channels[0].secretRef", "spec.harness.channels[0].senders"}
	if diff := cmp.Diff(want, paths(d.Validate(v1alpha1.DefaultLimits()))); diff != "" {
		t.Error(diff)
	}
}

func TestOpenChannelOnAnAgentThatRunsCommands(t *testing.T) {
	const channel = "    channels:\n      - type: WEBHOOK\n        name: h\n        secretRef: {name: s, key: k}\n        senders: {policy: open}\n"
	const allowed = "  annotations: {tuluat.ai/allow-open-code: \"true\"}\n"
	tests := map[string]struct {
		file   string
		refuse bool
	}{
		"runs commands":                  {head + "spec:\n  harness:\n    type: BOTH\n" + channel, true},
		"runs commands, said twice":      {head + allowed + "spec:\n  harness:\n    type: BOTH\n" + channel, false},
		"annotation says something else": {head + "  annotations: {tuluat.ai/allow-open-code: \"yes\"}\nspec:\n  harness:\n    type: BOTH\n" + channel, true},
		"runs nothing":                   {head + "spec:\n  harness:\n    type: CHANNEL\n" + channel, false},
		"listed senders":                 {head + "spec:\n  harness:\n    type: BOTH\n" + strings.Replace(channel, "policy: open", "allow: [alice]", 1), false},
		"switched off":                   {head + "spec:\n  harness:\n    enabled: false\n    type: BOTH\n" + channel, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			problems := read(t, test.file).Validate(v1alpha1.DefaultLimits())
			want := []string(nil)
			if test.refuse {
				want = []string{"spec.harness.channels[0].senders.policy"}
			}
			if diff := cmp.Diff(want, paths(problems)); diff != "" {
				t.Errorf("%s\n%v", diff, problems)
			}
		})
	}
}

func TestChannelsNeedAType(t *testing.T) {
	got := read(t, head+"spec:\n  harness:\n    type: CODE\n    channels:\n      - {type: WEBHOOK, name: h, secretRef: {name: s, key: k}, senders: {allow: [a]}}\n").Validate(v1alpha1.DefaultLimits())
	if diff := cmp.Diff([]string{"spec.harness.channels"}, paths(got)); diff != "" {
		t.Error(diff)
	}
	got = read(t, head+"spec:\n  harness: {}\n").Validate(v1alpha1.DefaultLimits())
	if diff := cmp.Diff([]string{"spec.harness.type"}, paths(got)); diff != "" {
		t.Error(diff)
	}
}

func TestPlatformLimits(t *testing.T) {
	limits := v1alpha1.DefaultLimits()
	limits.Images, limits.CPUMillis, limits.SystemPromptBytes = []string{"registry.example/"}, 1000, 10
	file := head + "spec:\n  systemPrompt: more than ten bytes\n  harness:\n    type: CODE\n    sandbox: {image: docker.io/python, cpu: \"2\"}\n"
	want := []string{"spec.systemPrompt", "spec.harness.sandbox.image", "spec.harness.sandbox.cpu"}
	if diff := cmp.Diff(want, paths(read(t, file).Validate(limits))); diff != "" {
		t.Error(diff)
	}
}

// A name that begins with the letters of an allowed one is another's.
func TestImagesComeFromWhereThePlatformSays(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	for image, allowed := range map[string]bool{
		"ghcr.io/acme": true, "ghcr.io/acme/x:1": true, "ghcr.io/acme:1": true, "ghcr.io/acme" + digest: true, "ghcr.io/acme-evil/x": false, "ghcr.io/acmeevil": false,
		"ghcr.io/other": false, "quay.io/team/x": true, "quay.io/team-b/x": false, "quay.io/team:1": false, "x/ghcr.io/acme": false,
	} {
		limits := v1alpha1.DefaultLimits()
		limits.Images = []string{"ghcr.io/acme", "quay.io/team/"}
		problems := read(t, head+"spec:\n  harness:\n    type: CODE\n    sandbox: {image: \""+image+"\"}\n").Validate(limits)
		if (len(problems) == 0) != allowed {
			t.Errorf("%s: %v", image, problems)
		}
	}
}

func TestARuntimeClassIsOneThatThePlatformAllows(t *testing.T) {
	for _, test := range []struct {
		class string
		known []string
		want  string
	}{
		{"gvisor", nil, "is not one of the runtime classes that this platform allows: leave it out"},
		{"runc", []string{"gvisor", "kata"}, "is not one of the runtime classes that this platform allows: use gvisor, kata or leave it out"},
		{"kata", []string{"gvisor", "kata"}, ""},
		{"", []string{"gvisor"}, ""},
	} {
		limits := v1alpha1.DefaultLimits()
		limits.RuntimeClasses = test.known
		got := ""
		if problems := read(t, head+"spec:\n  harness:\n    type: CODE\n    sandbox: {runtimeClassName: \""+test.class+"\"}\n").Validate(limits); len(problems) > 0 {
			got = problems[0].What + ": " + problems[0].Fix
		}
		if got != test.want {
			t.Errorf("%q of %v: %q", test.class, test.known, got)
		}
	}
}

func TestDefaults(t *testing.T) {
	agent := read(t, head).Agent.Agent()
	want := harness.Agent{
		Name: "a", Model: harness.ModelSpec{MaxTokens: 4096}, Budget: harness.DefaultBudget(),
		Harness: harness.HarnessSpec{Sandbox: harness.DefaultSandbox(), MaxSandboxes: 1},
	}
	if diff := cmp.Diff(want, agent); diff != "" {
		t.Error(diff)
	}
	if agent.Harness.CanChat() || agent.Harness.CanExecute() {
		t.Error("an agent without a harness block must have neither")
	}
}

func TestFallbacksThatAreNone(t *testing.T) {
	for fallbacks, want := range map[string]string{
		`[{name: a}, {name: a, provider: openai}, {name: b}]`: "",
		`[{name: a}, {name: b}, {name: c}, {name: d}]`:        "spec.model.fallbacks has 4 entries: keep 3 at most",
		`[{provider: acme, name: a}]`:                         `spec.model.fallbacks[0].provider is "acme": use openai (also for compatible servers) or anthropic, or leave it out for the platform's`,
		`[{name: a}, {provider: anthropic}]`:                  "spec.model.fallbacks[1].name is missing: use the name that the provider's API takes",
		`[{name: a}, {name: b}, {name: a, images: true}]`:     "spec.model.fallbacks lists one model twice: keep one of them",
		`[{name: "` + strings.Repeat("x", 201) + `"}]`:        "spec.model.fallbacks[0].name is over 200 bytes: use the name that the provider's API takes",
	} {
		got := ""
		if problems := read(t, head+"spec:\n  model: {name: m, fallbacks: "+fallbacks+"}\n").Validate(v1alpha1.DefaultLimits()); len(problems) > 0 {
			got = problems[0].Path + " " + problems[0].What + ": " + problems[0].Fix
		}
		if got != want {
			t.Errorf("%s: %q, want %q", fallbacks, got, want)
		}
	}
}

func TestEveryFieldIsConverted(t *testing.T) {
	d := read(t, head+`spec:
  description: d
  model: {provider: anthropic, name: m, maxTokens: 10, temperature: 0, images: true, stream: true, fallbacks: [{name: f}, {provider: openai, name: m, images: true}]}
  systemPrompt: p
  harness:
    type: BOTH
    sandbox: {image: "r/i:1", command: [bash, -c], cpu: 250m, memory: 1.5Gi, timeoutSeconds: 10, ttlSeconds: 20, idleSeconds: 15, volumeSize: 10M,
      workdir: persistent, egress: none, keepBackground: true, runtimeClassName: gvisor}
    maxSandboxes: 2
    channels:
      - {type: WEBHOOK, name: h, secretRef: {name: s, key: k}, callbackURL: "https://x/y", fields: {text: $.t}, senders: {allow: [u]}, idleTTL: 90m}
  budget: {maxSteps: 1, maxToolCalls: 2, maxTokens: 3, maxSeconds: 4, maxExecutions: 5}
`)
	limits := v1alpha1.DefaultLimits()
	limits.RuntimeClasses = []string{"gvisor"}
	if problems := d.Validate(limits); len(problems) > 0 {
		t.Fatal(problems)
	}
	zero := 0.0
	want := harness.Agent{
		Name: "a", Description: "d", SystemPrompt: "p", Model: harness.ModelSpec{
			Provider: "anthropic", Name: "m", MaxTokens: 10, Temperature: &zero, Images: true, Stream: true,
			Fallbacks: []harness.ModelRef{{Name: "f"}, {Provider: "openai", Name: "m", Images: true}},
		},
		Harness: harness.HarnessSpec{
			Enabled: true, Type: harness.HarnessBoth, MaxSandboxes: 2,
			Sandbox: harness.SandboxSpec{
				Image: "r/i:1", Command: []string{"bash", "-c"}, CPUMillis: 250, MemoryBytes: 3 << 29, TimeoutSeconds: 10, TTLSeconds: 20, IdleSeconds: 15,
				VolumeBytes: 10_000_000, Workdir: "persistent", Egress: "none", KeepBackground: true, RuntimeClass: "gvisor",
			},
			Channels: []harness.ChannelSpec{{
				Type: harness.ChannelWebhook, Account: "h", Secret: harness.SecretRef{Name: "s", Key: "k"}, CallbackURL: "https://x/y",
				Fields: &harness.ChannelFields{Text: "$.t"}, Senders: harness.ChannelSenders{Policy: harness.SendersAllowlist, Allow: []string{"u"}}, IdleTTL: 90 * time.Minute,
			}},
		},
		Budget: harness.Budget{MaxSteps: 1, MaxToolCalls: 2, MaxTokens: 3, MaxSeconds: 4, MaxExecutions: 5},
	}
	if diff := cmp.Diff(want, d.Agent.Agent()); diff != "" {
		t.Error(diff)
	}
}

func TestQuantity(t *testing.T) {
	const bad = -1
	for text, want := range map[v1alpha1.Quantity]struct{ milli, bytes int64 }{
		"1": {1000, 1}, "500m": {500, bad}, "0.5": {500, bad}, ".5": {500, bad}, "1.": {1000, 1}, "2e3": {2_000_000, 2000}, "1E": {bad, 1e18}, "1E2": {100_000, 100},
		"512Mi": {512 << 20 * 1000, 512 << 20}, "1.5Gi": {3 << 29 * 1000, 3 << 29}, "1k": {1_000_000, 1000}, "1Ki": {1_024_000, 1024}, "0.1Ki": {102_400, bad},
		"9223372036854775807": {bad, 9223372036854775807}, "9223372036854775808": {bad, bad}, "8Ei": {bad, bad},
		"1u": {bad, bad}, "1000u": {1, bad}, "1000000n": {1, bad}, "0.1m": {bad, bad},
		"": {bad, bad}, "-1": {bad, bad}, "1 Gi": {bad, bad}, "1KI": {bad, bad}, "1e": {bad, bad}, "1e999": {bad, bad}, "0x10": {bad, bad}, "1_000": {bad, bad}, "Mi": {bad, bad},
	} {
		milli, err := text.Milli()
		if err != nil {
			milli = bad
		}
		bytes, err := text.Bytes()
		if err != nil {
			bytes = bad
		}
		if milli != want.milli || bytes != want.bytes {
			t.Errorf("%q is %d milli and %d bytes, want %d and %d", text, milli, bytes, want.milli, want.bytes)
		}
	}
}

// The fields of each type of channel, right and wrong.
func TestChannelsOfEveryType(t *testing.T) {
	const head = "apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata: {name: a}\nspec:\n  harness:\n    type: CHANNEL\n    channels:\n"
	d := read(t, head+`      - type: WHATSAPP
        phoneNumberId: "100000000000001"
        phoneNumber: "+1 555 000-9999"
        verifyTokenSecretRef: {name: w, key: verify}
        appSecretSecretRef: {name: w, key: app}
        accessTokenSecretRef: {name: w, key: token}
        template: {name: new_answer, language: en_US}
        groups: all
        senders: {policy: pairing, pairingCodeSecretRef: {name: w, key: code}}
      - type: TELEGRAM
        bot: "@Example_Helper_Bot"
        botTokenSecretRef: {name: t, key: token}
        webhookSecretRef: {name: t, key: secret}
        transport: poll
        senders: {policy: open}
`)
	if problems := d.Validate(v1alpha1.DefaultLimits()); len(problems) > 0 {
		t.Fatal(problems)
	}
	channels := d.Agent.Agent().Harness.Channels
	if w := channels[0]; w.Account != "100000000000001" || w.PhoneNumber != "15550009999" || w.AppSecret.Key != "app" || w.Groups != harness.GroupsAll || w.Senders.PairingCode.Key != "code" {
		t.Errorf("WhatsApp %+v", w)
	}
	if b := channels[1]; b.Account != "example_helper_bot" || b.Transport != harness.TransportPoll || b.Groups != harness.GroupsMention {
		t.Errorf("Telegram %+v", b)
	}
	platform := v1alpha1.DefaultLimits()
	platform.PhoneNumberID = "100000000000009"
	unnamed := read(t, head+"      - {type: WHATSAPP, senders: {policy: open}}\n")
	if got := paths(unnamed.Validate(v1alpha1.DefaultLimits())); len(got) != 1 || got[0] != "spec.harness.channels[0].phoneNumberId" {
		t.Errorf("a channel without a number: %q", got)
	}
	if problems := unnamed.Validate(platform); len(problems) > 0 {
		t.Errorf("where the platform has one: %v", problems)
	}
	dialled := read(t, head+"      - {type: WHATSAPP, phoneNumberId: \"15550009999\", phoneNumber: +1 555 000-9999, senders: {policy: open}}\n").Validate(v1alpha1.DefaultLimits())
	if len(dialled) != 1 || !strings.HasSuffix(dialled[0].String(), "spec.harness.channels[0].phoneNumberId is the phone number itself: use the Phone number ID of WhatsApp Manager") {
		t.Errorf("the number for its id: %v", dialled)
	}
	d = read(t, head+`      - type: WHATSAPP
        phoneNumberId: "+15550009999"
        phoneNumber: "1"
        bot: x_bot
        secretRef: {name: s, key: k}
        appSecretSecretRef: {name: UP, key: k}
        template: {name: New Answer, language: english}
        groups: some
        senders: {policy: pairing}
      - type: TELEGRAM
        bot: "a b"
        transport: pigeon
        callbackURL: https://example.com/
        senders: {policy: open, pairingCodeSecretRef: {name: a, key: b}}
      - type: TELEGRAM
        senders: {policy: open}
`)
	const c0, c1 = "spec.harness.channels[0].", "spec.harness.channels[1]."
	want := []string{
		c0 + "secretRef", c0 + "bot", c0 + "phoneNumberId", c0 + "phoneNumber", c0 + "appSecretSecretRef.name", c0 + "groups", c0 + "template.name", c0 + "template.language",
		c0 + "senders.pairingCodeSecretRef.name", c0 + "senders.pairingCodeSecretRef.key", c1 + "callbackURL", c1 + "bot", c1 + "transport", c1 + "senders.pairingCodeSecretRef",
		"spec.harness.channels[2].bot",
	}
	if diff := cmp.Diff(want, paths(d.Validate(v1alpha1.DefaultLimits()))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
