package model

import (
	"fmt"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// noText stands for a person's message without text: both providers refuse an
// empty one, and a history that holds it would be refused for ever.
const noText = "(no text)"

// paired returns turns in the one form both wires are built from: every
// assistant's turn with calls is followed by exactly one tool's turn, which
// holds exactly one result per call in the order of the calls; no turn is
// blank. What cannot be brought to that form is an error, because a provider
// refuses it now and at every later try.
func paired(turns []Turn) ([]Turn, error) {
	var out []Turn
	for i := 0; i < len(turns); i++ {
		turn := turns[i]
		switch turn.Role {
		case RoleUser:
			if strings.TrimSpace(turn.Text) == "" {
				turn.Text = noText
			}
			out = append(out, Turn{Role: RoleUser, Text: turn.Text, Images: turn.Images})
		case RoleAssistant:
			if len(turn.Calls) == 0 {
				if strings.TrimSpace(turn.Text) != "" {
					out = append(out, Turn{Role: RoleAssistant, Text: turn.Text, Carry: turn.Carry})
				}
				continue
			}
			var results []Result
			for i+1 < len(turns) && turns[i+1].Role == RoleTool {
				i++
				results = append(results, turns[i].Results...)
			}
			ordered, err := match(turn.Calls, results)
			if err != nil {
				return nil, err
			}
			out = append(out, turn, Turn{Role: RoleTool, Results: ordered})
		case RoleTool:
			return nil, unpaired("a tool's turn without calls before it")
		default:
			return nil, unpaired(fmt.Sprintf("a turn with the role %q", turn.Role))
		}
	}
	switch {
	case len(out) == 0:
		return nil, unpaired("no turns")
	case out[0].Role != RoleUser:
		return nil, unpaired("a first turn that is not a user's")
	case out[len(out)-1].Role == RoleAssistant:
		return nil, unpaired("a last turn that is the model's own")
	}
	return out, nil
}

// match returns results in the order of calls.
func match(calls []Call, results []Result) ([]Result, error) {
	byID := make(map[string]Result, len(results))
	for _, result := range results {
		if _, twice := byID[result.CallID]; twice {
			return nil, unpaired(fmt.Sprintf("two results for the call %q", result.CallID))
		}
		byID[result.CallID] = result
	}
	ordered := make([]Result, 0, len(calls))
	for _, call := range calls {
		if !usableID(call.ID) {
			return nil, unpaired(fmt.Sprintf("a call with the id %q", call.ID))
		}
		result, ok := byID[call.ID]
		if !ok {
			return nil, unpaired(fmt.Sprintf("no result, or two calls, for the id %q", call.ID))
		}
		delete(byID, call.ID)
		ordered = append(ordered, result)
	}
	for id := range byID {
		return nil, unpaired(fmt.Sprintf("a result for %q, which is no call", id))
	}
	return ordered, nil
}

func unpaired(what string) error {
	return &Error{
		Kind: harness.Invalid, Reason: ReasonHistory,
		Message: "the conversation's history is not well formed", Err: fmt.Errorf("the history holds %s", what),
	}
}
