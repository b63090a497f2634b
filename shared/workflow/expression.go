package workflow

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"tuluat.ai/harness/shared/harness"
)

// The object types that expressions see. They are declared for the checker; at
// run time the values are plain maps.
const (
	typeInput   = "workflow.Input"
	typeOutput  = "workflow.Output"
	typeMessage = "workflow.Message"
	typeRun     = "workflow.Run"
)

// celTypes are the types of inputs.
var celTypes = map[harness.InputType]*cel.Type{
	harness.InputString: cel.StringType, harness.InputInteger: cel.IntType, harness.InputNumber: cel.DoubleType,
	harness.InputBoolean: cel.BoolType, harness.InputObject: cel.MapType(cel.StringType, cel.DynType), harness.InputList: cel.ListType(cel.DynType),
}

// outputs are the members of the output of each type of node. A member has one
// type whatever node it is of, so that nodes["a"] has a type too.
var outputs = map[harness.NodeType][]string{
	harness.NodeAgent:    {"state", "text", "reason"},
	harness.NodeShell:    {"state", "exitCode", "stdout", "stderr", "reason"},
	harness.NodeApproval: {"state", "decidedBy", "reason"},
	harness.NodeReply:    {"state"},
	harness.NodeEnd:      {"state"},
}

var structs = map[string]map[string]*cel.Type{
	typeOutput: {
		"state": cel.StringType, "text": cel.StringType, "reason": cel.StringType, "exitCode": cel.IntType,
		"stdout": cel.StringType, "stderr": cel.StringType, "decidedBy": cel.StringType,
	},
	typeMessage: {
		"text": cel.StringType, "channelUserId": cel.StringType, "metadata": cel.MapType(cel.StringType, cel.DynType),
		"match": cel.MapType(cel.StringType, cel.StringType),
	},
	typeRun: {"id": cel.StringType, "workflow": cel.StringType, "visits": cel.IntType},
}

// provider adds our object types to CEL's own.
type provider struct {
	*types.Registry
	structs map[string]map[string]*cel.Type
}

func (p provider) FindStructType(name string) (*types.Type, bool) {
	if _, ok := p.structs[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return p.Registry.FindStructType(name)
}

func (p provider) FindStructFieldNames(name string) ([]string, bool) {
	if _, ok := p.structs[name]; ok {
		return nil, true
	}
	return p.Registry.FindStructFieldNames(name)
}

func (p provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	fields, ok := p.structs[name]
	if !ok {
		return p.Registry.FindStructFieldType(name, field)
	}
	fieldType, ok := fields[field]
	if !ok {
		return nil, false
	}
	return &types.FieldType{
		Type:  fieldType,
		IsSet: func(target any) bool { _, ok := member(target, field); return ok },
		GetFrom: func(target any) (any, error) {
			value, ok := member(target, field)
			if !ok {
				return nil, fmt.Errorf("there is no %s", field)
			}
			return value, nil
		},
	}, true
}

func member(target any, field string) (any, bool) {
	if v, ok := target.(ref.Val); ok {
		target = v.Value()
	}
	m, ok := target.(map[string]any)
	if !ok {
		return nil, false
	}
	value, ok := m[field]
	return value, ok
}

// environment is what the expressions of a workflow may say.
func environment(w harness.Workflow) (*cel.Env, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	p := provider{Registry: registry, structs: map[string]map[string]*cel.Type{}}
	for name, fields := range structs {
		p.structs[name] = fields
	}
	input := cel.MapType(cel.StringType, cel.DynType)
	if len(w.Inputs) > 0 {
		input = cel.ObjectType(typeInput)
		p.structs[typeInput] = map[string]*cel.Type{}
		for _, in := range w.Inputs {
			p.structs[typeInput][in.Name] = celTypes[in.Type]
		}
	}
	return cel.NewEnv(
		cel.CustomTypeProvider(p), cel.ParserRecursionLimit(maxExpressionDepth), cel.ParserExpressionSizeLimit(maxExpression),
		cel.Variable("input", input), cel.Variable("nodes", cel.MapType(cel.StringType, cel.ObjectType(typeOutput))),
		cel.Variable("message", cel.ObjectType(typeMessage)), cel.Variable("run", cel.ObjectType(typeRun)),
	)
}

// expression is one CEL expression, checked.
type expression struct {
	text    string
	kind    *cel.Type
	program cel.Program
}

// compile checks the text of an expression. what is for people, in words.
func compile(env *cel.Env, text string, nodes map[string]harness.NodeType) (x *expression, what string) {
	if len(text) > maxExpression {
		return nil, fmt.Sprintf("is over %d bytes", maxExpression)
	}
	checked, issues := env.Compile(text)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		message, _, _ := strings.Cut(first.Message, " (in container")
		return nil, fmt.Sprintf("is not CEL that fits: %s (column %d)", strings.TrimSpace(message), first.Location.Column()+1)
	}
	if what := refused(checked.NativeRep().Expr(), nodes); what != "" {
		return nil, what
	}
	program, err := env.Program(checked, cel.CostLimit(costOfOne), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, "is not CEL that fits: " + err.Error()
	}
	return &expression{text: text, kind: checked.OutputType(), program: program}, ""
}

// refused says what CEL's own checker lets through and we do not: a node that
// there is not, an output that a node has not, a pattern that is no literal.
func refused(e ast.Expr, nodes map[string]harness.NodeType) (what string) {
	visit := func(e ast.Expr) {
		if what != "" {
			return
		}
		id, named := nodeOf(e)
		switch kind, known := nodes[id]; {
		case named && !known:
			what = fmt.Sprintf("looks at the node %q, which is no node", id)
			return
		case named && kind == harness.NodeEnd:
			what = fmt.Sprintf("looks at the node %q, which is of type END and ends the run", id)
			return
		}
		switch e.Kind() {
		case ast.SelectKind:
			if id, named = nodeOf(e.AsSelect().Operand()); named {
				what = noOutput(e.AsSelect().FieldName(), id, nodes[id])
			}
		case ast.CallKind:
			what = literalPattern(e.AsCall())
		}
	}
	ast.PostOrderVisit(e, ast.NewExprVisitor(visit))
	return what
}

func noOutput(field, id string, kind harness.NodeType) string {
	for _, f := range outputs[kind] {
		if f == field {
			return ""
		}
	}
	return fmt.Sprintf("looks at %s of the node %q, and one of type %s has %s", field, id, kind, strings.Join(outputs[kind], ", "))
}

// nodeOf returns the id in nodes.id or nodes["id"].
func nodeOf(e ast.Expr) (id string, ok bool) {
	of := func(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "nodes" }
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().FieldName(), of(e.AsSelect().Operand())
	case ast.CallKind:
		if call := e.AsCall(); call.FunctionName() == "_[_]" && of(call.Args()[0]) && call.Args()[1].Kind() == ast.LiteralKind {
			id, ok = call.Args()[1].AsLiteral().Value().(string)
			return id, ok
		}
	}
	return "", false
}

// literalPattern keeps what somebody wrote in a chat from being compiled as a
// pattern: that may cost far more than CEL counts.
func literalPattern(call ast.CallExpr) string {
	if call.FunctionName() != "matches" {
		return ""
	}
	args := call.Args()
	pattern := args[len(args)-1]
	if pattern.Kind() != ast.LiteralKind {
		return "has a pattern that is no literal text"
	}
	if text, ok := pattern.AsLiteral().Value().(string); ok && len(text) > maxPattern {
		return fmt.Sprintf("has a pattern of over %d bytes", maxPattern)
	}
	return ""
}

// yields reports whether the expression is a kind or may be one.
func (x *expression) yields(kind *cel.Type) bool {
	return x.kind.IsExactType(kind) || x.kind.Kind() == types.DynKind
}

// values are what expressions see, and what they may still cost.
type values struct {
	vars map[string]any
	left uint64
}

var errCost = errors.New("the expressions of this step cost too much together")

// eval returns what x is worth.
func (v *values) eval(x *expression) (ref.Val, error) {
	if v.left == 0 {
		return nil, errCost
	}
	value, details, err := x.program.Eval(v.vars)
	cost := uint64(costOfOne)
	if details != nil && details.ActualCost() != nil && err == nil {
		cost = *details.ActualCost()
	}
	v.left -= min(v.left, cost+1)
	if err != nil {
		return nil, err
	}
	return value, nil
}

// holds returns what a condition is worth.
func (v *values) holds(x *expression) (bool, error) {
	value, err := v.eval(x)
	if err != nil {
		return false, err
	}
	held, ok := value.Value().(bool)
	if !ok {
		return false, fmt.Errorf("it is a %s and neither true nor false", value.Type().TypeName())
	}
	return held, nil
}
