package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/guardrail"
	"tuluat.ai/harness/shared/harness"
)

const guardrailTypes = "use PATTERN, LENGTH, CEL, SECRET, PII, MODEL or HTTP"

func (c *check) guardrails(path string, list []Guardrail, stage harness.GuardrailStage) {
	const most = 16
	c.few(path, len(list), most)
	seen := names{}
	for i, g := range list[:min(len(list), most)] { // what is too much is not compiled
		at := fmt.Sprintf("%s[%d]", path, i)
		c.once(at+".name", g.Name, "of the guardrail", seen)
		switch g.Type {
		case harness.GuardrailPattern, harness.GuardrailLength, harness.GuardrailCEL, harness.GuardrailSecret, harness.GuardrailPII, harness.GuardrailModel, harness.GuardrailHTTP:
			c.guardrail(at, g)
		case "":
			c.fail(at+".type", "is missing", guardrailTypes)
		default: // then it is not known whose fields the others are
			c.fail(at+".type", fmt.Sprintf("is %q", g.Type), guardrailTypes)
		}
		c.guardrailAction(at, g)
		if g.OnFailure != "" && g.OnFailure != harness.GuardrailBlock && g.OnFailure != harness.GuardrailWarn {
			c.fail(at+".onFailure", fmt.Sprintf("is %q", g.OnFailure), "use block or warn")
		}
		if len(g.Tools) > 0 && stage != harness.StageToolCall && stage != harness.StageToolOutput {
			c.fail(at+".tools", "are of guardrails on toolCall and toolOutput", "remove them")
		}
		c.texts(at+".tools", g.Tools, 64, 128, "use the names of tools")
		c.length(at+".text", g.Text, 1024, "say it shorter")
		c.between(at+".timeoutSeconds", g.TimeoutSeconds, 1, 30)
	}
}

func (c *check) guardrailAction(path string, g Guardrail) {
	switch g.Action {
	case "", harness.GuardrailBlock, harness.GuardrailWarn, harness.GuardrailAsk:
	case harness.GuardrailRedact:
		finds := g.Type == harness.GuardrailPattern || g.Type == harness.GuardrailSecret || g.Type == harness.GuardrailPII
		if !finds || len(g.Allow) > 0 {
			c.fail(path+".action", "is redact, which only patterns and types SECRET and PII can do", "use block, warn or ask")
		}
	default:
		c.fail(path+".action", fmt.Sprintf("is %q", g.Action), "use block, redact, warn or ask")
	}
}

// guardrail checks the fields that each type has of its own.
func (c *check) guardrail(path string, g Guardrail) {
	for _, f := range []struct {
		name   string
		set    bool
		of     []harness.GuardrailType
		needed bool
	}{
		{"patterns", len(g.Patterns) > 0, []harness.GuardrailType{harness.GuardrailPattern}, len(g.Allow) == 0},
		{"allow", len(g.Allow) > 0, []harness.GuardrailType{harness.GuardrailPattern}, false},
		{"maxBytes", g.MaxBytes != nil, []harness.GuardrailType{harness.GuardrailLength}, true},
		{"rule", g.Rule != "", []harness.GuardrailType{harness.GuardrailCEL}, true},
		{"detect", len(g.Detect) > 0, []harness.GuardrailType{harness.GuardrailSecret, harness.GuardrailPII}, false},
		{"prompt", g.Prompt != "", []harness.GuardrailType{harness.GuardrailModel}, true},
		{"model", g.Model != nil, []harness.GuardrailType{harness.GuardrailModel}, false},
		{"url", g.URL != "", []harness.GuardrailType{harness.GuardrailHTTP}, true},
		{"headersSecretRef", g.HeadersSecretRef != nil, []harness.GuardrailType{harness.GuardrailHTTP}, false},
		{"timeoutSeconds", g.TimeoutSeconds != nil, []harness.GuardrailType{harness.GuardrailModel, harness.GuardrailHTTP}, false},
		{"onFailure", g.OnFailure != "", []harness.GuardrailType{harness.GuardrailModel, harness.GuardrailHTTP}, false},
	} {
		switch own := slices.Contains(f.of, g.Type); {
		case f.set && !own:
			c.fail(path+"."+f.name, fmt.Sprintf("is of type %s", typeNames(f.of)), "remove it, or change type")
		case f.needed && !f.set && own:
			c.fail(path+"."+f.name, fmt.Sprintf("is missing, which type %s judges by", g.Type), "add it, or change type")
		}
	}
	if len(g.Patterns) > 0 && len(g.Allow) > 0 {
		c.fail(path+".allow", "is set beside patterns", "keep one of them, and make two guardrails of it")
	}
	c.guardrailPatterns(path+".patterns", g.Patterns)
	c.guardrailPatterns(path+".allow", g.Allow)
	c.between(path+".maxBytes", g.MaxBytes, 1, 1<<30)
	if g.Rule != "" {
		if _, what := guardrail.CompileRule(g.Rule); what != "" {
			c.fail(path+".rule", what, "write CEL that is true or false, like text.contains('secret')")
		}
	}
	c.few(path+".detect", len(g.Detect), 32)
	known := guardrail.Detectors(g.Type)
	for i, name := range g.Detect[:min(len(g.Detect), 32)] {
		if len(known) > 0 && !slices.Contains(known, name) {
			c.fail(fmt.Sprintf("%s.detect[%d]", path, i), fmt.Sprintf("is %q, which type %s does not have", name, g.Type), "use "+strings.Join(known, ", "))
		}
	}
	c.length(path+".prompt", g.Prompt, maxText, "shorten it")
	c.model(path+".model", g.Model)
	if g.Model != nil && or(g.Model.Stream, false) {
		c.fail(path+".model.stream", "is true, and nobody sees a verdict grow", "remove it")
	}
	if g.URL != "" {
		c.url(path+".url", g.URL, "https://example.com/path")
	}
	c.optionalRef(path+".headersSecretRef", g.HeadersSecretRef)
}

func typeNames(types []harness.GuardrailType) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = string(t)
	}
	return strings.Join(names, " or ")
}

// guardrailPatterns checks patterns that also have a size: they run on every text.
func (c *check) guardrailPatterns(path string, list []string) {
	before := len(c.problems)
	c.patterns(path, list)
	if len(c.problems) > before {
		return
	}
	if _, at, what := guardrail.CompilePatterns(list); what != "" {
		c.fail(fmt.Sprintf("%s[%d]", path, at), what, "repeat less, or make two guardrails of it")
	}
}
