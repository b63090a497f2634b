package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Validate returns everything that is wrong with the document, what Read found
// and what the rules of its kind say, with the line of the field where it is known.
func (d Document) Validate(limits Limits) Problems {
	var broken Problems
	switch d.Kind {
	case KindAgent:
		broken = d.Agent.Validate(limits)
	case KindWorkflow:
		broken = d.Workflow.Validate(limits)
	}
	problems := slices.Clone(d.Problems)
	for _, p := range broken {
		p.Document, p.Line = d.Number, d.line(p.Path)
		if !slices.ContainsFunc(d.Problems, func(known Problem) bool { return below(p.Path, known.Path) }) {
			problems.Add(p) // what could not be read has its problem already
		}
	}
	return problems
}

// below reports whether path is the field at root or inside it.
func below(path, root string) bool {
	rest, ok := strings.CutPrefix(path, root)
	return ok && root != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// line returns the line of the field at path or of what should hold it.
func (d Document) line(path string) int {
	for {
		if line, ok := d.lines[path]; ok {
			return line
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return d.lines[""]
		}
		path = path[:cut]
	}
}

// Validate returns everything that is wrong with a under the platform's limits.
func (a AiAgent) Validate(limits Limits) Problems {
	c := &check{limits: limits}
	if a.APIVersion != APIVersion {
		c.fail("apiVersion", "is not known", "write "+APIVersion)
	}
	if a.Kind != KindAgent {
		c.fail("kind", "is not known", "write "+KindAgent)
	}
	c.name("metadata.name", Name(a.Metadata.Name), "of the agent")
	c.length("spec.description", a.Spec.Description, 1024, "say it shorter; instructions belong in spec.systemPrompt")
	if len(a.Spec.SystemPrompt) > limits.SystemPromptBytes {
		c.fail("spec.systemPrompt", fmt.Sprintf("is over the platform's %d bytes", limits.SystemPromptBytes), "shorten it")
	}
	if m := a.Spec.Model; m != nil {
		c.model("spec.model", &m.Model)
		c.fallbacks(*m)
	}
	c.blocks(a.Spec)
	c.harness(a)
	if a.Spec.Approvals != nil {
		var channels []Channel
		if a.Spec.Harness != nil {
			channels = a.Spec.Harness.Channels
		}
		c.approvals("spec.approvals", *a.Spec.Approvals, channels)
	}
	c.budget(a.Spec.Budget)
	if l := a.Spec.Logs; l != nil {
		c.between("spec.logs.retentionDays", l.RetentionDays, 1, 3650)
		c.between("spec.logs.archiveDays", l.ArchiveDays, 1, 36500)
	}
	return c.problems
}

type check struct {
	limits   Limits
	problems Problems
}

func (c *check) fail(path, what, fix string) {
	c.problems.Add(Problem{Path: path, What: what, Fix: fix})
}

var (
	dnsLabel   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)
	keyName    = regexp.MustCompile(`^[-._a-zA-Z0-9]{1,253}$`)
	folderName = regexp.MustCompile(`^[-_a-zA-Z0-9][-._a-zA-Z0-9]*(/[-_a-zA-Z0-9][-._a-zA-Z0-9]*)*$`)
	image      = regexp.MustCompile(`^[a-z0-9][-a-zA-Z0-9._/:]{0,400}(@sha256:[a-f0-9]{64})?$`)
)

func (c *check) name(path string, name Name, of string) {
	switch {
	case name == "":
		c.fail(path, "is missing", "give the name "+of)
	case !dnsLabel.MatchString(string(name)):
		c.fail(path, fmt.Sprintf("is %q", name), "use at most 63 lower-case letters, digits and dashes, beginning and ending with a letter or digit")
	}
}

// length checks an optional text, in bytes.
func (c *check) length(path, text string, most int, fix string) {
	if len(text) > most {
		c.fail(path, fmt.Sprintf("is over %d bytes", most), fix)
	}
}

// few checks how many entries a list has.
func (c *check) few(path string, n, most int) {
	if n > most {
		c.fail(path, fmt.Sprintf("has %d entries", n), fmt.Sprintf("list at most %d", most))
	}
}

// texts checks a list of texts, none of them empty.
func (c *check) texts(path string, list []string, most, mostBytes int, fix string) {
	c.few(path, len(list), most)
	for i, text := range list[:min(len(list), most)] {
		if text == "" || len(text) > mostBytes {
			c.fail(fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("is empty or over %d bytes", mostBytes), fix)
		}
	}
}

// duration checks an optional span of time.
func (c *check) duration(path string, d Duration, least, most time.Duration, like string) {
	if d == "" {
		return
	}
	fix := fmt.Sprintf("use %s to %s, like %s", least, most, like)
	switch parsed, err := d.Parse(); {
	case err != nil:
		c.fail(path, err.Error(), fix)
	case parsed < least || parsed > most:
		c.fail(path, fmt.Sprintf("is %s", d), fix)
	}
}

// between checks an optional number.
func (c *check) between(path string, value *int, least, most int) {
	if value != nil && (*value < least || *value > most) {
		c.fail(path, fmt.Sprintf("is %d", *value), fmt.Sprintf("use %d to %d, or leave it out for the default", least, most))
	}
}

func (c *check) model(path string, m *Model) {
	if m == nil {
		return
	}
	c.provider(path, m.Provider)
	c.length(path+".name", m.Name, 200, "use the name that the provider's API takes")
	c.between(path+".maxTokens", m.MaxTokens, 1, c.limits.MaxTokens)
	if t := m.Temperature; t != nil && !(*t >= 0 && *t <= 2) { // NaN is refused too
		c.fail(path+".temperature", fmt.Sprintf("is %v", *t), "use 0 to 2, or leave it out for the model's own")
	}
}

func (c *check) provider(path string, p harness.Provider) {
	if p != "" && p != harness.ProviderOpenAI && p != harness.ProviderAnthropic {
		c.fail(path+".provider", fmt.Sprintf("is %q", p), "use openai (also for compatible servers) or anthropic, or leave it out for the platform's")
	}
}

// maxFallbacks is how many models may stand behind the first.
const maxFallbacks = 3

func (c *check) fallbacks(m AgentModel) {
	const path = "spec.model.fallbacks"
	if len(m.Fallbacks) > maxFallbacks {
		c.fail(path, fmt.Sprintf("has %d entries", len(m.Fallbacks)), fmt.Sprintf("keep %d at most", maxFallbacks))
	}
	seen := map[FallbackModel]bool{}
	for i, f := range m.Fallbacks {
		at := fmt.Sprintf("%s[%d]", path, i)
		c.provider(at, f.Provider)
		if f.Name == "" {
			c.fail(at+".name", "is missing", "use the name that the provider's API takes")
		}
		c.length(at+".name", f.Name, 200, "use the name that the provider's API takes")
		if f.Images = false; seen[f] {
			c.fail(path, "lists one model twice", "keep one of them")
		}
		seen[f] = true
	}
}

func (c *check) harness(a AiAgent) {
	h := a.Spec.Harness
	if h == nil {
		return
	}
	spec := h.spec()
	switch h.Type {
	case harness.HarnessCode, harness.HarnessChannel, harness.HarnessBoth:
	case "":
		if spec.Enabled {
			c.fail("spec.harness.type", "is missing", "use CODE (runs commands), CHANNEL (is reached by channels) or BOTH")
		}
	default:
		c.fail("spec.harness.type", fmt.Sprintf("is %q", h.Type), "use CODE (runs commands), CHANNEL (is reached by channels) or BOTH")
	}
	c.between("spec.harness.maxSandboxes", h.MaxSandboxes, 1, c.limits.Sandboxes)
	if h.Sandbox != nil {
		c.sandbox("spec.harness.sandbox", *h.Sandbox)
	}
	if len(h.Channels) > 0 && h.Type == harness.HarnessCode {
		c.fail("spec.harness.channels", "are given to an agent of type CODE", "use type BOTH, or remove them")
	}
	if len(h.Channels) > c.limits.Channels {
		c.fail("spec.harness.channels", fmt.Sprintf("are %d", len(h.Channels)), fmt.Sprintf("use at most %d", c.limits.Channels))
	}
	seen := map[string]bool{}
	for i, channel := range h.Channels {
		path := fmt.Sprintf("spec.harness.channels[%d]", i)
		c.channel(path, channel)
		if key := string(channel.Type) + "/" + channel.account(); seen[key] && channel.typed() && channel.account() != "" {
			c.fail(path+"."+channel.accountField(), fmt.Sprintf("is %q, as in an earlier channel of this agent", channel.account()), "name each account once")
		} else {
			seen[key] = true
		}
		if spec.CanExecute() {
			c.openCode(path, channel, a.Metadata.Annotations[AnnotationOpenCode])
		}
	}
}

// openCode refuses strangers on an agent that runs commands: their words would
// decide what runs in its sandbox, so whoever opens it must say so twice.
func (c *check) openCode(path string, channel Channel, annotation string) {
	if channel.Senders.Policy == harness.SendersOpen && annotation != "true" {
		c.fail(path+".senders.policy", "is open, and this agent runs commands: anyone who can reach the hook could have commands run in its sandbox",
			`use policy allowlist and list the senders; only where every sender is trusted keep it open and set the annotation `+AnnotationOpenCode+`: "true"`)
	}
}

func (c *check) sandbox(path string, s Sandbox) {
	imageRefs := c.limits.ImageRefs
	if imageRefs == nil {
		imageRefs = DefaultImageRefs()
	}
	switch {
	case s.Image != "" && s.ImageRef != "":
		c.fail(path+".image", "is set beside imageRef", "keep one of them")
	case s.ImageRef != "" && !slices.Contains(imageRefs, string(s.ImageRef)):
		c.fail(path+".imageRef", fmt.Sprintf("is %q", s.ImageRef), "use one of "+strings.Join(imageRefs, ", ")+", or image with a full reference")
	case s.Image != "":
		c.image(path+".image", s.Image)
	}
	c.texts(path+".command", s.Command, 20, 1024, "write it like [sh, -c]")
	c.amount(path+".cpu", s.CPU, Quantity.Milli, minCPUMillis, c.limits.CPUMillis, "10m", cores(c.limits.CPUMillis))
	c.amount(path+".memory", s.Memory, Quantity.Bytes, minMemoryBytes, c.limits.MemoryBytes, "16Mi", mebibytes(c.limits.MemoryBytes))
	c.amount(path+".volumeSize", s.VolumeSize, Quantity.Bytes, minVolumeBytes, c.limits.VolumeBytes, "1Mi", mebibytes(c.limits.VolumeBytes))
	c.between(path+".timeoutSeconds", s.TimeoutSeconds, 1, c.limits.TimeoutSeconds)
	c.between(path+".ttlSeconds", s.TTLSeconds, 1, c.limits.TTLSeconds)
	c.between(path+".idleSeconds", s.IdleSeconds, 1, c.limits.TTLSeconds)
	if spec := s.spec(); spec.TimeoutSeconds > spec.TTLSeconds {
		c.fail(path+".ttlSeconds", fmt.Sprintf("is %d, shorter than timeoutSeconds %d: the sandbox would end before its command", spec.TTLSeconds, spec.TimeoutSeconds),
			"set ttlSeconds to at least timeoutSeconds")
	}
	if s.Workdir != "" && s.Workdir != "emptyDir" && s.Workdir != "persistent" {
		c.fail(path+".workdir", fmt.Sprintf("is %q", s.Workdir), "use emptyDir or persistent")
	}
	c.egress(path, s)
	c.runtimeClass(path+".runtimeClassName", s.RuntimeClass)
}

func (c *check) image(path, ref string) {
	switch {
	case !image.MatchString(ref):
		c.fail(path, "is not an image reference", "write it like registry/name:tag")
	case len(c.limits.Images) > 0 && !slices.ContainsFunc(c.limits.Images, func(from string) bool { return isFrom(ref, from) }):
		c.fail(path, "is not from a registry that this platform allows", "use an image below "+strings.Join(c.limits.Images, " or "))
	}
}

// isFrom reports whether an image is the one called from, or below it: a name that
// merely begins with the same letters is somebody else's.
func isFrom(image, from string) bool {
	rest, ok := strings.CutPrefix(image, from)
	return ok && (rest == "" || strings.HasSuffix(from, "/") || strings.ContainsRune("/:@", rune(rest[0])))
}

func (c *check) runtimeClass(path, class string) {
	switch {
	case class == "" || slices.Contains(c.limits.RuntimeClasses, class):
	case !dnsName.MatchString(class):
		c.fail(path, "is not the name of a RuntimeClass", "use lower-case letters, digits, dashes and dots")
	case len(c.limits.RuntimeClasses) == 0:
		c.fail(path, "is not one of the runtime classes that this platform allows", "leave it out")
	default:
		c.fail(path, "is not one of the runtime classes that this platform allows", "use "+strings.Join(c.limits.RuntimeClasses, ", ")+" or leave it out")
	}
}

func (c *check) amount(path string, q Quantity, read func(Quantity) (int64, error), least, most int64, leastText, mostText string) {
	if q == "" {
		return
	}
	n, err := read(q)
	switch {
	case err != nil:
		c.fail(path, err.Error(), fmt.Sprintf("use %s to %s", leastText, mostText))
	case n < least || n > most:
		c.fail(path, fmt.Sprintf("is %s", q), fmt.Sprintf("use %s to %s", leastText, mostText))
	}
}

func cores(milli int64) string { return fmt.Sprintf("%dm", milli) }

func mebibytes(n int64) string { return fmt.Sprintf("%dMi", n>>20) }

func (c *check) budget(b *Budget) {
	if b == nil {
		return
	}
	most := c.limits.Budget
	c.between("spec.budget.maxSteps", b.MaxSteps, 1, most.MaxSteps)
	c.between("spec.budget.maxToolCalls", b.MaxToolCalls, 1, most.MaxToolCalls)
	c.between("spec.budget.maxTokens", b.MaxTokens, 1, most.MaxTokens)
	c.between("spec.budget.maxSeconds", b.MaxSeconds, 1, most.MaxSeconds)
	c.between("spec.budget.maxExecutions", b.MaxExecutions, 1, most.MaxExecutions)
	c.money("spec.budget.maxCost", b.MaxCost)
	c.between("spec.budget.maxExecutionSeconds", b.MaxExecutionSeconds, 1, 30*24*3600)
	if o := b.OnOverrun; o != "" && o != harness.OverrunBlock && o != harness.OverrunAsk {
		c.fail("spec.budget.onOverrun", fmt.Sprintf("is %q", o), "use block or ask")
	}
	c.budgetScope("spec.budget.perSession", b.PerSession)
	c.budgetScope("spec.budget.perAgentDay", b.PerAgentDay)
	c.budgetScope("spec.budget.perUserDay", b.PerUserDay)
}

// The most of a scope keeps sums far from the end of their numbers.
const (
	maxOfScope       = 1_000_000_000
	maxTokensOfScope = 1_000_000_000_000
)

func (c *check) budgetScope(path string, s *BudgetScope) {
	if s == nil {
		return
	}
	c.between(path+".maxSteps", s.MaxSteps, 1, maxOfScope)
	c.between(path+".maxToolCalls", s.MaxToolCalls, 1, maxOfScope)
	c.between(path+".maxSeconds", s.MaxSeconds, 1, maxOfScope)
	c.between(path+".maxExecutionSeconds", s.MaxExecutionSeconds, 1, maxOfScope)
	if n := s.MaxTokens; n != nil && (*n < 1 || *n > maxTokensOfScope) {
		c.fail(path+".maxTokens", fmt.Sprintf("is %d", *n), fmt.Sprintf("use 1 to %d, or leave it out", maxTokensOfScope))
	}
	c.money(path+".maxCost", s.MaxCost)
}

func (c *check) money(path string, m Money) {
	if m == "" {
		return
	}
	if amount, err := harness.ParseMicros(string(m)); err != nil || amount == 0 {
		c.fail(path, fmt.Sprintf("is %q", m), `use a decimal in quotes like "2.50", over 0 and with at most six places`)
	}
}
