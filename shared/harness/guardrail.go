package harness

import "slices"

// GuardrailStage is where in a step a guardrail judges.
type GuardrailStage string

// The stages.
const (
	StageInput      GuardrailStage = "INPUT"       // a person's message, before the model sees it
	StageToolCall   GuardrailStage = "TOOL_CALL"   // a call's arguments, before it runs or a human is asked
	StageToolOutput GuardrailStage = "TOOL_OUTPUT" // what a call gave, before the model sees it
	StageOutput     GuardrailStage = "OUTPUT"      // an answer, before it is sent
)

// GuardrailType is how a guardrail judges.
type GuardrailType string

// The types of guardrails.
const (
	GuardrailPattern GuardrailType = "PATTERN" // hits what a regular expression finds, or what none of a list finds
	GuardrailLength  GuardrailType = "LENGTH"  // hits what is too long
	GuardrailCEL     GuardrailType = "CEL"     // hits where an expression over the step holds
	GuardrailSecret  GuardrailType = "SECRET"  // hits what looks like a credential
	GuardrailPII     GuardrailType = "PII"     // hits what identifies a person
	GuardrailModel   GuardrailType = "MODEL"   // a model judges
	GuardrailHTTP    GuardrailType = "HTTP"    // a service judges
)

// GuardrailAction is what a hit leads to.
type GuardrailAction string

// The actions of guardrails.
const (
	GuardrailBlock  GuardrailAction = "block"  // it goes no further
	GuardrailRedact GuardrailAction = "redact" // what was found is blacked out
	GuardrailAsk    GuardrailAction = "ask"    // a human is asked whether it goes on
	GuardrailWarn   GuardrailAction = "warn"   // it is only noted
)

// GuardrailVerdict is what a guardrail came to.
type GuardrailVerdict string

// The verdicts.
const (
	GuardrailPassed GuardrailVerdict = "PASSED"
	GuardrailHit    GuardrailVerdict = "HIT"
	GuardrailFailed GuardrailVerdict = "FAILED" // it could not judge: its onFailure holds
)

// Guardrails is the guardrails block of an agent. Those of one stage run in
// their order; the first that blocks ends it.
type Guardrails struct {
	Input      []Guardrail `json:"input,omitempty"`
	ToolCall   []Guardrail `json:"toolCall,omitempty"`
	ToolOutput []Guardrail `json:"toolOutput,omitempty"`
	Output     []Guardrail `json:"output,omitempty"`
}

// Of returns the guardrails of a stage; none where there is no block.
func (g *Guardrails) Of(s GuardrailStage) []Guardrail {
	if g == nil {
		return nil
	}
	switch s {
	case StageInput:
		return g.Input
	case StageToolCall:
		return g.ToolCall
	case StageToolOutput:
		return g.ToolOutput
	case StageOutput:
		return g.Output
	}
	return nil
}

// Guardrail is one check. Each type has fields of its own.
type Guardrail struct {
	Name       string          `json:"name"`
	Type       GuardrailType   `json:"type"`
	Action     GuardrailAction `json:"action"`
	Approvable bool            `json:"approvable,omitempty"` // of action block: it asks, as action ask does
	Text       string          `json:"text,omitempty"`       // told where it blocks; empty: a fixed text
	Tools      []string        `json:"tools,omitempty"`      // whose calls and results it judges; none: all

	Patterns []string        `json:"patterns,omitempty"`        // PATTERN: RE2; one that finds something is a hit
	Allow    []string        `json:"allow,omitempty"`           // PATTERN: RE2; a hit where none finds something
	MaxBytes int             `json:"maxBytes,omitempty"`        // LENGTH
	Rule     string          `json:"rule,omitempty"`            // CEL: true is a hit
	Detect   []string        `json:"detect,omitempty"`          // SECRET and PII: which detectors; none: all of the type
	Prompt   string          `json:"prompt,omitempty"`          // MODEL
	Model    *ModelSpec      `json:"model,omitempty"`           // MODEL; nil: the agent's
	URL      string          `json:"url,omitempty"`             // HTTP
	Headers  SecretRef       `json:"headersSecretRef,omitzero"` // HTTP: lines of "Name: value"
	Timeout  int             `json:"timeoutSeconds,omitempty"`  // MODEL and HTTP
	Failure  GuardrailAction `json:"onFailure,omitempty"`       // MODEL and HTTP: block or warn
}

// Judges reports whether the guardrail is about calls of a tool. Texts of no tool
// are judged by all guardrails of their stage.
func (g Guardrail) Judges(tool string) bool {
	return tool == "" || len(g.Tools) == 0 || slices.Contains(g.Tools, tool)
}

// Asks reports whether somebody else than this process is asked for the verdict.
func (g Guardrail) Asks() bool { return g.Type == GuardrailModel || g.Type == GuardrailHTTP }
