// Package guard judges what comes to an agent and what it does, by the guardrails
// of its revision.
//
// Those of one stage run in their order, each on what the one before has left: a
// text that was redacted is judged on as it is then. The first that blocks ends
// it. PATTERN, LENGTH, CEL, SECRET and PII are pure; MODEL and HTTP ask somebody,
// once, within their time limit. Whatever keeps a guardrail from judging is a
// verdict too, FAILED, which counts as a hit unless its onFailure says warn.
//
// No verdict quotes what was judged: rows, logs and timelines are read by people
// who may not see it.
package guard

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/shared/dial"
	"tuluat.ai/harness/shared/guardrail"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

// Model is what a guardrail of type MODEL needs of *model.Client.
type Model interface {
	Complete(ctx context.Context, r model.Request) (model.Response, error)
}

// Options are everything a Guard depends on.
type Options struct {
	Model        Model
	Secrets      secret.Source    // of headers
	AllowPrivate bool             // of HTTP: addresses that are not public may be asked, too
	Known        []harness.Secret // told to no model and no service
}

// Guard judges. It is safe for concurrent use and makes no connection before the
// first text that a service is asked about.
type Guard struct {
	Options
	http *http.Client
}

// connectTime bounds a connection to a service.
const connectTime = 5 * time.Second

// New returns a Guard.
func New(o Options) *Guard {
	return &Guard{Options: o, http: &http.Client{
		Transport:     dial.Transport(connectTime, o.AllowPrivate),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close ends idle connections.
func (g *Guard) Close() { g.http.CloseIdleConnections() }

// Subject is what is judged.
type Subject struct {
	Stage     harness.GuardrailStage
	Agent     *harness.Agent
	Session   harness.SessionID
	Channel   harness.Channel
	Person    string          // as their channel names them
	Tool      string          // of TOOL_CALL and TOOL_OUTPUT
	Arguments json.RawMessage // of TOOL_CALL: one JSON object
	Text      string          // of every other stage
	FileNames []string        // of INPUT: of the files that came with it
	Until     time.Time       // nobody is waited for any longer; zero: each guardrail's own time
}

// Verdict is what one guardrail came to. Action is what that led to; of one that
// passed, what a hit would have led to.
type Verdict struct {
	Guardrail string
	Type      harness.GuardrailType
	Action    harness.GuardrailAction
	Verdict   harness.GuardrailVerdict
	Reason    string // why, unless it passed; quotes nothing
}

// Ruling is what the guardrails of a stage came to together.
type Ruling struct {
	Verdicts  []Verdict
	BlockedBy string // the guardrail that blocked; empty: none did
	Told      string // its text; may be empty
	AskedBy   []string
	Redacted  bool            // what follows is not what it was
	Text      string          // as it goes on
	Arguments json.RawMessage // the same, of TOOL_CALL
	HideFiles bool            // the files of INPUT do not go on: a name cannot be blacked out where a path needs it
	Asked     []Asked         // models that were asked
}

// Asked is what a question to a model has cost.
type Asked struct {
	Model  harness.ModelSpec
	Tokens harness.Tokens
	Reason model.Reason // why it gave no answer; empty: it gave one
	Took   time.Duration
}

// Judge returns what the guardrails of s.Stage say. An error means that ctx ended
// before they had: nothing is known.
func (g *Guard) Judge(ctx context.Context, s Subject) (Ruling, error) {
	r := Ruling{Text: s.Text, Arguments: s.Arguments}
	for _, rail := range s.Agent.Guardrails.Of(s.Stage) {
		if !rail.Judges(s.Tool) {
			continue
		}
		if s.Text, s.Arguments = r.Text, r.Arguments; r.HideFiles {
			s.FileNames = nil
		}
		found := g.judge(ctx, rail, newView(s), &r)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		r.add(rail, found)
		if r.BlockedBy != "" {
			break
		}
	}
	return r, nil
}

// finding is what a guardrail has found.
type finding struct {
	verdict harness.GuardrailVerdict
	reason  string
	redact  func() (after Subject, ok bool) // of a hit that knows its place
}

var passed = finding{verdict: harness.GuardrailPassed}

func hit(format string, args ...any) finding {
	return finding{verdict: harness.GuardrailHit, reason: fmt.Sprintf(format, args...)}
}

func failed(format string, args ...any) finding {
	return finding{verdict: harness.GuardrailFailed, reason: fmt.Sprintf(format, args...)}
}

func (g *Guard) judge(ctx context.Context, rail harness.Guardrail, v view, r *Ruling) finding {
	if rail.Type == harness.GuardrailLength {
		if n := v.size(); n > rail.MaxBytes {
			return hit("it has %d bytes, over %d", n, rail.MaxBytes)
		}
		return passed
	}
	if v.size() > guardrail.MaxText {
		return failed("it has %d bytes, and more than %d are not judged", v.size(), guardrail.MaxText)
	}
	switch rail.Type {
	case harness.GuardrailPattern:
		return byPattern(rail, v)
	case harness.GuardrailCEL:
		return byRule(rail, v)
	case harness.GuardrailSecret, harness.GuardrailPII:
		return byDetectors(rail, v)
	case harness.GuardrailModel:
		return g.byModel(ctx, rail, v, r)
	case harness.GuardrailHTTP:
		return g.byService(ctx, rail, v)
	}
	return failed("this release knows no type %s", rail.Type)
}

// add notes what rail found and does what it says.
func (r *Ruling) add(rail harness.Guardrail, f finding) {
	v := Verdict{Guardrail: rail.Name, Type: rail.Type, Action: cmp.Or(rail.Action, harness.GuardrailBlock), Verdict: f.verdict, Reason: f.reason}
	if rail.Approvable && v.Action == harness.GuardrailBlock {
		v.Action = harness.GuardrailAsk
	}
	if f.verdict == harness.GuardrailFailed && rail.Failure == harness.GuardrailWarn {
		v.Action = harness.GuardrailWarn
	}
	if f.verdict != harness.GuardrailPassed {
		switch v.Action {
		case harness.GuardrailRedact:
			if f.redact != nil {
				if after, ok := f.redact(); ok {
					r.Redacted, r.Text, r.Arguments = true, after.Text, after.Arguments
					r.HideFiles = r.HideFiles || after.FileNames == nil
					break
				}
			}
			v.Action = harness.GuardrailBlock // what cannot be blacked out does not go on
			r.BlockedBy, r.Told = rail.Name, rail.Text
		case harness.GuardrailBlock:
			r.BlockedBy, r.Told = rail.Name, rail.Text
		case harness.GuardrailAsk:
			r.AskedBy = append(r.AskedBy, rail.Name)
		}
	}
	r.Verdicts = append(r.Verdicts, v)
}

func byPattern(rail harness.Guardrail, v view) finding {
	patterns, _, what := guardrail.CompilePatterns(slices.Concat(rail.Patterns, rail.Allow))
	if what != "" {
		return failed("a pattern %s", what)
	}
	if len(rail.Allow) > 0 {
		if patterns.Match(v.text) {
			return passed
		}
		return hit("none of the allowed patterns finds something")
	}
	if !patterns.Match(v.texts...) {
		return passed
	}
	f := hit("a pattern finds something")
	f.redact = func() (Subject, bool) { return v.without(patterns.Find) }
	return f
}

func byRule(rail harness.Guardrail, v view) finding {
	rule, what := guardrail.CompileRule(rail.Rule)
	if what != "" {
		return failed("the rule %s", what)
	}
	holds, err := rule.Hits(guardrail.Step{
		Stage: v.Stage, Tool: v.Tool, Arguments: v.arguments, Text: v.text, Agent: v.Agent.Name, Channel: v.Channel, Person: v.Person,
	})
	switch {
	case err != nil: // which may quote what was judged
		return failed("the rule is neither true nor false here: it costs too much, or asks for an argument that there is not")
	case holds:
		return hit("the rule holds")
	}
	return passed
}

func byDetectors(rail harness.Guardrail, v view) finding {
	var names []string
	for _, text := range v.texts {
		for _, found := range guardrail.Detect(text, rail.Type, rail.Detect) {
			if !slices.Contains(names, found.Detector) {
				names = append(names, found.Detector)
			}
		}
	}
	if len(names) == 0 {
		return passed
	}
	f := hit("it holds %s", strings.Join(names, ", "))
	f.redact = func() (Subject, bool) {
		return v.without(func(text string) []guardrail.Span {
			var spans []guardrail.Span
			for _, found := range guardrail.Detect(text, rail.Type, rail.Detect) {
				spans = append(spans, found.Span)
			}
			return spans
		})
	}
	return f
}

// WithoutSecrets is text with what looks like a credential blacked out.
func WithoutSecrets(text string) string {
	var spans []guardrail.Span
	for _, found := range guardrail.Detect(text, harness.GuardrailSecret, nil) {
		spans = append(spans, found.Span)
	}
	return guardrail.Redact(text, spans)
}
