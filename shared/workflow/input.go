package workflow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"tuluat.ai/harness/shared/harness"
)

// Input checks the input of a run of w: a JSON object of at most MaxInputBytes
// whose members are those that w declares, if it declares any. It returns it as
// it is to be stored; problems name members by pointer, as in /service.
func Input(w harness.Workflow, text json.RawMessage) (json.RawMessage, []Problem) {
	if len(text) > MaxInputBytes {
		return nil, []Problem{{Path: "", What: fmt.Sprintf("is over %d bytes", MaxInputBytes), Fix: "keep what is large elsewhere, and say where"}}
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = json.RawMessage("{}")
	}
	values, err := object(text)
	if err != nil {
		return nil, []Problem{{Path: "", What: "is not a JSON object", Fix: `write it like {"name": "value"}`}}
	}
	var problems []Problem
	for _, in := range w.Inputs {
		value, given := values[in.Name]
		switch {
		case given && !fits(in.Type, value):
			problems = append(problems, Problem{Path: "/" + in.Name, What: "is of another type", Fix: "write a value of type " + string(in.Type)})
		case !given && in.Required:
			problems = append(problems, Problem{Path: "/" + in.Name, What: "is missing", Fix: "write a value of type " + string(in.Type)})
		}
	}
	for name := range values {
		if len(w.Inputs) > 0 && !slices.ContainsFunc(w.Inputs, func(in harness.WorkflowInput) bool { return in.Name == name }) {
			problems = append(problems, Problem{Path: "/" + short(name), What: "is no input of the workflow", Fix: "remove it"})
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) })
	if len(problems) > 0 {
		return nil, problems
	}
	clean, err := json.Marshal(values)
	if err != nil {
		return nil, []Problem{{Path: "", What: "cannot be stored", Fix: "write plain values"}}
	}
	return clean, nil
}

func fits(kind harness.InputType, value any) bool {
	switch value.(type) {
	case string:
		return kind == harness.InputString
	case int64:
		return kind == harness.InputInteger || kind == harness.InputNumber
	case float64:
		return kind == harness.InputNumber
	case bool:
		return kind == harness.InputBoolean
	case map[string]any:
		return kind == harness.InputObject
	case []any:
		return kind == harness.InputList
	}
	return false
}

// object reads a JSON object as expressions see it: whole numbers are whole.
func object(text json.RawMessage) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var values map[string]any
	if err := decoder.Decode(&values); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	if values == nil {
		return nil, errors.New("null")
	}
	clean, err := plain(values)
	if err != nil {
		return nil, err
	}
	values, _ = clean.(map[string]any)
	return values, nil
}

func plain(value any) (any, error) {
	switch value := value.(type) {
	case string:
		return harness.CleanText(value), nil
	case json.Number:
		if whole, err := strconv.ParseInt(value.String(), 10, 64); err == nil {
			return whole, nil
		}
		return value.Float64()
	case []any:
		for i, v := range value {
			clean, err := plain(v)
			if err != nil {
				return nil, err
			}
			value[i] = clean
		}
	case map[string]any:
		cleaned := make(map[string]any, len(value))
		for name, v := range value {
			clean, err := plain(v)
			if err != nil {
				return nil, err
			}
			cleaned[harness.CleanText(name)] = clean
		}
		return cleaned, nil
	}
	return value, nil
}
