package guardrail

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"

	"tuluat.ai/harness/shared/harness"
)

// What an expression may be, and what it may cost on a text of MaxText.
const (
	MaxRule    = 4096 // bytes
	maxDepth   = 50
	maxPattern = 1000 // bytes of a pattern in it
	maxCost    = 1_000_000
)

// Step is what an expression sees.
type Step struct {
	Stage     harness.GuardrailStage
	Tool      string         // of TOOL_CALL and TOOL_OUTPUT; else empty
	Arguments map[string]any // of the call; else empty
	Text      string         // the message, the command or arguments, the result, the answer
	Agent     harness.AgentName
	Channel   harness.Channel
	Person    string // as their channel names them
}

// environment is what expressions may say.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.ParserRecursionLimit(maxDepth), cel.ParserExpressionSizeLimit(MaxRule),
		cel.Variable("stage", cel.StringType), cel.Variable("tool", cel.StringType), cel.Variable("arguments", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("text", cel.StringType), cel.Variable("agent", cel.StringType), cel.Variable("channel", cel.StringType), cel.Variable("person", cel.StringType),
	)
})

// Rule is one CEL expression over a step, checked.
type Rule struct{ program cel.Program }

// CompileRule reads the expression of a guardrail. what says in words what is
// wrong with it.
func CompileRule(text string) (r *Rule, what string) {
	if len(text) > MaxRule {
		return nil, fmt.Sprintf("is over %d bytes", MaxRule)
	}
	env, err := environment()
	if err != nil {
		return nil, "cannot be checked: " + err.Error()
	}
	checked, issues := env.Compile(text)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		message, _, _ := strings.Cut(first.Message, " (in container")
		return nil, fmt.Sprintf("is not CEL that fits: %s (column %d)", strings.TrimSpace(message), first.Location.Column()+1)
	}
	if !checked.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Sprintf("is a %s and neither true nor false", checked.OutputType())
	}
	if what := writtenPatterns(checked.NativeRep().Expr()); what != "" {
		return nil, what
	}
	program, err := env.Program(checked, cel.CostLimit(maxCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, "is not CEL that fits: " + err.Error()
	}
	return &Rule{program}, ""
}

// writtenPatterns keeps what is judged from being compiled as a pattern, which
// may cost far more than CEL counts.
func writtenPatterns(e ast.Expr) (what string) {
	ast.PostOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != "matches" || what != "" {
			return
		}
		args := e.AsCall().Args()
		pattern := args[len(args)-1]
		if pattern.Kind() != ast.LiteralKind {
			what = "has a pattern that is no literal text"
			return
		}
		text, ok := pattern.AsLiteral().Value().(string)
		if !ok || len(text) > maxPattern {
			what = fmt.Sprintf("has a pattern of over %d bytes", maxPattern)
			return
		}
		_, _, what = CompilePatterns([]string{text})
		if what != "" {
			what = "has a pattern that " + what
		}
	}))
	return what
}

// Hits returns what the expression is worth. An error says that it has no worth
// here: it cost too much, or asks for an argument that there is not. It may quote
// what was judged.
func (r *Rule) Hits(s Step) (bool, error) {
	if s.Arguments == nil {
		s.Arguments = map[string]any{}
	}
	value, _, err := r.program.Eval(map[string]any{
		"stage": string(s.Stage), "tool": s.Tool, "arguments": s.Arguments, "text": s.Text, "agent": string(s.Agent), "channel": string(s.Channel), "person": s.Person,
	})
	if err != nil {
		return false, err
	}
	hit, ok := value.Value().(bool)
	if !ok {
		return false, errors.New("it is neither true nor false")
	}
	return hit, nil
}
