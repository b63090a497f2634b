package v1alpha1

import "tuluat.ai/harness/shared/harness"

// defaultGuardrailSeconds is how long a guardrail waits for the verdict of another.
const defaultGuardrailSeconds = 10

// spec is nil where nothing is judged: a block that is off is not in a revision.
func (g *Guardrails) spec() *harness.Guardrails {
	if g == nil || !or(g.Enabled, true) || len(g.Input)+len(g.ToolCall)+len(g.ToolOutput)+len(g.Output) == 0 {
		return nil
	}
	return &harness.Guardrails{Input: approvable(g.Input), ToolCall: guardrails(g.ToolCall), ToolOutput: approvable(g.ToolOutput), Output: approvable(g.Output)}
}

// approvable are guardrails of a stage at which the release before could ask no
// human: to it, those that ask are ones that block.
func approvable(list []Guardrail) []harness.Guardrail {
	all := guardrails(list)
	for i := range all {
		if all[i].Action == harness.GuardrailAsk {
			all[i].Action, all[i].Approvable = harness.GuardrailBlock, true
		}
	}
	return all
}

func guardrails(list []Guardrail) []harness.Guardrail {
	var all []harness.Guardrail
	for _, g := range list {
		spec := harness.Guardrail{
			Name: string(g.Name), Type: g.Type, Action: g.Action, Text: g.Text, Tools: g.Tools, Patterns: g.Patterns, Allow: g.Allow, MaxBytes: or(g.MaxBytes, 0), Rule: g.Rule,
			Detect: g.Detect, Prompt: g.Prompt, URL: string(g.URL), Headers: g.HeadersSecretRef.ref(),
		}
		if spec.Action == "" {
			spec.Action = harness.GuardrailBlock
		}
		if g.Model != nil {
			spec.Model = &harness.ModelSpec{Provider: g.Model.Provider, Name: g.Model.Name, MaxTokens: or(g.Model.MaxTokens, defaultMaxTokens), Temperature: g.Model.Temperature}
		}
		if spec.Asks() {
			spec.Timeout, spec.Failure = or(g.TimeoutSeconds, defaultGuardrailSeconds), g.OnFailure
			if spec.Failure == "" {
				spec.Failure = harness.GuardrailBlock
			}
		}
		all = append(all, spec)
	}
	return all
}
