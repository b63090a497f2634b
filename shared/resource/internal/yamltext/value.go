// Package yamltext changes single values of YAML documents and leaves every
// other byte as it is: comments, order, quotes, line ends.
//
// The parser tells where values are; what was changed is parsed again and
// compared with what it should say, so that a text whose shape is not understood
// is refused and never spoilt.
package yamltext

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// ErrShape says that a text is of a shape that cannot be read, or changed in place.
var ErrShape = errors.New("yamltext: a shape that is not understood")

// maxValues bounds what the aliases of a document can make of it.
const maxValues = 1 << 18

// Value returns what a text of one document says, as encoding/json would: maps,
// slices, strings, booleans, json.Numbers and nil. Fields that are null are left
// out, and of fields that are written twice the first counts, as for the reader
// of package v1alpha1. Dates are strings.
func Value(doc []byte) (map[string]any, error) {
	root, err := parse(doc)
	if err != nil {
		return nil, err
	}
	left := maxValues
	value, ok := valueOf(root, &left).(map[string]any)
	if !ok || left < 0 {
		return nil, ErrShape
	}
	return value, nil
}

// parse returns the root of a text of one document.
func parse(doc []byte) (*yaml.Node, error) {
	var file yaml.Node
	if err := yaml.Unmarshal(doc, &file); err != nil {
		return nil, errors.Join(ErrShape, err)
	}
	if len(file.Content) != 1 || file.Content[0].Kind != yaml.MappingNode {
		return nil, ErrShape
	}
	return file.Content[0], nil
}

func valueOf(n *yaml.Node, left *int) any {
	if *left--; *left < 0 {
		return nil
	}
	switch n.Kind {
	case yaml.AliasNode:
		return valueOf(n.Alias, left)
	case yaml.MappingNode:
		object := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if _, twice := object[n.Content[i].Value]; twice {
				continue
			}
			if value := valueOf(n.Content[i+1], left); value != nil {
				object[n.Content[i].Value] = value
			}
		}
		return object
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			list[i] = valueOf(item, left)
		}
		return list
	}
	return scalar(n)
}

func scalar(n *yaml.Node) any {
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		var value bool
		if n.Decode(&value) == nil {
			return value
		}
	case "!!int", "!!float":
		var value any
		if n.Decode(&value) == nil {
			if number, ok := numberOf(value); ok {
				return number
			}
		}
	}
	return n.Value
}

func numberOf(value any) (json.Number, bool) {
	switch v := value.(type) {
	case int:
		return json.Number(strconv.Itoa(v)), true
	case int64:
		return json.Number(strconv.FormatInt(v, 10)), true
	case uint64:
		return json.Number(strconv.FormatUint(v, 10)), true
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			text, err := json.Marshal(v)
			return json.Number(text), err == nil
		}
	}
	return "", false
}

// Equal reports whether two values say the same.
func Equal(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && maps.EqualFunc(x, y, Equal)
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, Equal)
	case json.Number:
		y, ok := b.(json.Number)
		return ok && (x == y || sameNumber(x, y))
	}
	return a == b
}

func sameNumber(a, b json.Number) bool {
	x, err := a.Float64()
	y, err2 := b.Float64()
	i, notInt := a.Int64()
	j, notInt2 := b.Int64()
	if notInt == nil && notInt2 == nil {
		return i == j
	}
	return err == nil && err2 == nil && x == y
}

// Change is one field that is to be otherwise.
type Change struct {
	Path  []string // of the field
	Value any      // that it gets; nil: it is removed
}

// Diff returns what makes from what to says. Lists that differ are one change.
func Diff(from, to map[string]any) []Change {
	var changes []Change
	for _, key := range slices.Sorted(maps.Keys(from)) {
		if _, stays := to[key]; !stays {
			changes = append(changes, Change{Path: []string{key}})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(to)) {
		was, is := from[key], to[key]
		before, object := was.(map[string]any)
		after, objects := is.(map[string]any)
		switch {
		case object && objects:
			for _, c := range Diff(before, after) {
				changes = append(changes, Change{Path: append([]string{key}, c.Path...), Value: c.Value})
			}
		case !Equal(was, is):
			changes = append(changes, Change{Path: []string{key}, Value: is})
		}
	}
	return changes
}

// Merge returns target with an RFC 7386 merge patch applied. Neither is changed.
func Merge(target, patch any) any {
	fields, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	merged := map[string]any{}
	if object, ok := target.(map[string]any); ok {
		maps.Copy(merged, object)
	}
	for key, value := range fields {
		if value == nil {
			delete(merged, key)
		} else {
			merged[key] = Merge(merged[key], value)
		}
	}
	return merged
}

// with returns object with one field set, or removed where value is nil. object
// is not changed.
func with(object map[string]any, path []string, value any) map[string]any {
	changed := map[string]any{}
	maps.Copy(changed, object)
	switch child, _ := object[path[0]].(map[string]any); {
	case len(path) > 1:
		changed[path[0]] = with(child, path[1:], value)
	case value == nil:
		delete(changed, path[0])
	default:
		changed[path[0]] = value
	}
	return changed
}
