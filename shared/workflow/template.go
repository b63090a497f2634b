package workflow

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"tuluat.ai/harness/shared/harness"
)

// template is a text with expressions: ${CEL}. $${ stands for ${.
type template struct{ parts []part }

type part struct {
	text string      // when there is no expression
	x    *expression // of ${…}
}

// piece is a stretch of a text as it is written.
type piece struct {
	text       string // the expression, without ${ and }, or text with $${ as ${
	expression bool
}

// split takes a text apart. open is the place of a ${ that nothing closes, else
// -1. A brace in a literal or in braces of the expression's own closes nothing.
func split(text string) (pieces []piece, open int) {
	var plain strings.Builder
	flush := func() {
		if plain.Len() > 0 {
			pieces = append(pieces, piece{text: plain.String()})
			plain.Reset()
		}
	}
	for i := 0; i < len(text); {
		switch {
		case strings.HasPrefix(text[i:], "$${"):
			plain.WriteString("${")
			i += 3
		case strings.HasPrefix(text[i:], "${"):
			end := closing(text[i+2:])
			if end < 0 {
				return nil, i
			}
			flush()
			pieces = append(pieces, piece{text: text[i+2 : i+2+end], expression: true})
			i += 2 + end + 1
		default:
			plain.WriteByte(text[i])
			i++
		}
	}
	flush()
	return pieces, -1
}

// closing returns where the brace is that closes the expression at the begin of
// text, -1 when none does.
func closing(text string) int {
	depth := 0
	var quote byte
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case quote != 0 && b == '\\':
			i++
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case b == '"' || b == '\'':
			quote = b
		case b == '{':
			depth++
		case b == '}' && depth == 0:
			return i
		case b == '}':
			depth--
		}
	}
	return -1
}

// expressions compiles every expression of the workflow into p.
func (c *checker) expressions(p *Program) {
	env, err := environment(c.workflow)
	if err != nil { // of what is compiled in: found by the first test
		panic(err)
	}
	left := maxExpressions
	within := func(path, text string) bool {
		if left -= len(text); left < 0 {
			c.fail(path, fmt.Sprintf("makes all expressions together longer than %d bytes", maxExpressions), "say it shorter")
			return false
		}
		return true
	}
	for i, n := range c.workflow.Nodes {
		field, text := body(n)
		if field == "" {
			continue
		}
		t := c.template(env, at("nodes", i, field), text, n.Type == harness.NodeShell, within)
		if known := p.nodes[n.ID]; known != nil && known.text == nil {
			known.text = t
		}
		if left < 0 {
			return
		}
	}
	for i, e := range c.workflow.Edges {
		next := edge{Edge: e}
		if e.When != "" {
			path := at("edges", i, "when")
			if !within(path, e.When) {
				return
			}
			next.when = c.condition(env, path, e.When)
		}
		if from := p.nodes[e.From]; from != nil {
			from.out = append(from.out, next)
		}
	}
}

// body is the field of n that is a template.
func body(n harness.Node) (field, text string) {
	switch n.Type {
	case harness.NodeAgent:
		return "prompt", n.Prompt
	case harness.NodeShell:
		return "command", n.Command
	case harness.NodeApproval, harness.NodeReply:
		return "text", n.Text
	}
	return "", ""
}

func (c *checker) condition(env *cel.Env, path, text string) *expression {
	x, what := compile(env, text, c.types)
	switch {
	case what != "":
		c.fail(path, what, seen)
	case !x.yields(cel.BoolType):
		c.fail(path, fmt.Sprintf("is a %s and neither true nor false", x.kind), "write a condition, like nodes.build.exitCode == 0")
	}
	return x
}

// seen is what every expression may look at.
const seen = "an expression sees input, nodes.ID (or nodes[\"ID\"]), message and run"

func (c *checker) template(env *cel.Env, path, text string, shell bool, within func(path, text string) bool) *template {
	pieces, open := split(text)
	if open >= 0 {
		c.fail(path, fmt.Sprintf("has a ${ that no } closes, at byte %d", open), "close it, or write $${ for a plain ${")
		return nil
	}
	t := &template{}
	for i, p := range pieces {
		if !p.expression {
			t.parts = append(t.parts, part{text: p.text})
			continue
		}
		if !within(path, p.text) {
			return nil
		}
		x, what := compile(env, p.text, c.types)
		switch {
		case what != "" && shell && variable.MatchString(p.text):
			c.fail(path, fmt.Sprintf("has ${%s}, which %s", short(p.text), what), "write $${…} for a variable of the shell; "+seen)
		case what != "":
			c.fail(path, fmt.Sprintf("has ${%s}, which %s", short(p.text), what), seen)
		case shell && !bare(x.kind) && !quotedHere(pieces[:i]):
			c.fail(path, fmt.Sprintf("has ${%s} outside of double quotes, so the shell would split its value into words", short(p.text)), `write "${…}"`)
		}
		t.parts = append(t.parts, part{x: x})
	}
	return t
}

// variable is what looks like a variable of the shell.
var variable = regexp.MustCompile(`^[#!]?[A-Za-z0-9_@*#?$!-]+([:%#/^,+=?@-].*)?$`)

// bare reports whether a value of the type is one word, whatever it is.
func bare(kind *cel.Type) bool {
	switch kind.Kind() {
	case types.IntKind, types.UintKind, types.DoubleKind, types.BoolKind:
		return true
	}
	return false
}

func short(text string) string {
	if len(text) > 60 {
		return strings.ToValidUTF8(text[:60], "") + "…"
	}
	return text
}

// render fills the template in, with at most limit bytes.
func (t *template) render(v *values, limit int) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		if p.x == nil {
			b.WriteString(p.text)
		} else {
			text, err := v.text(p.x)
			if err != nil {
				return "", err
			}
			b.WriteString(text)
		}
		if b.Len() > limit {
			return "", fmt.Errorf("it would be over %d bytes", limit)
		}
	}
	return harness.CleanText(b.String()), nil
}

// text is what x is worth as text: texts as they are, numbers in decimal, all
// else as JSON.
func (v *values) text(x *expression) (string, error) {
	value, err := v.eval(x)
	if err != nil {
		return "", fmt.Errorf("${%s}: %w", short(x.text), err)
	}
	switch value := value.(type) {
	case types.String:
		return string(value), nil
	case types.Bytes:
		return string(value), nil
	case types.Int:
		return strconv.FormatInt(int64(value), 10), nil
	case types.Uint:
		return strconv.FormatUint(uint64(value), 10), nil
	case types.Double:
		return strconv.FormatFloat(float64(value), 'f', -1, 64), nil
	case types.Bool:
		return strconv.FormatBool(bool(value)), nil
	case types.Duration, types.Timestamp:
		if text, ok := value.ConvertToType(types.StringType).(types.String); ok {
			return string(text), nil
		}
	}
	return asJSON(x, value)
}

func asJSON(x *expression, value ref.Val) (string, error) {
	native, err := value.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return "", fmt.Errorf("${%s}: a %s is no text", short(x.text), value.Type().TypeName())
	}
	message, ok := native.(*structpb.Value)
	if !ok {
		return "", fmt.Errorf("${%s}: a %s is no text", short(x.text), value.Type().TypeName())
	}
	loose, err := protojson.Marshal(message) // with spaces that change from build to build
	if err != nil {
		return "", fmt.Errorf("${%s}: %w", short(x.text), err)
	}
	var text strings.Builder
	var any any
	if err := json.Unmarshal(loose, &any); err != nil {
		return "", fmt.Errorf("${%s}: %w", short(x.text), err)
	}
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(any); err != nil {
		return "", fmt.Errorf("${%s}: %w", short(x.text), err)
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}
