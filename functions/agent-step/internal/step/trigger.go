package step

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/workflow"
)

// trigger starts the workflow run that the turn's message asks for, if it is one
// that does: then the turn is over, and the model does not see it. Of several
// workflows the first by name takes the message. A trigger that cannot be read
// is of another release, and starts nothing.
func (p plan) trigger(c *postgres.Claim, turn *postgres.TurnRecord) (plan, bool) {
	for _, t := range c.Triggers {
		pattern, err := regexp.Compile(t.Pattern)
		if err != nil {
			continue
		}
		found := pattern.FindStringSubmatch(shown(*turn))
		var w harness.Workflow
		if found == nil || json.Unmarshal(t.Spec, &w) != nil {
			continue
		}
		match := map[string]string{}
		for i, name := range pattern.SubexpNames() {
			match[strconv.Itoa(i)] = found[i]
			if name != "" {
				match[name] = found[i]
			}
		}
		input, problems := workflow.Input(w, namedInput(w, pattern, match))
		if len(problems) > 0 {
			return p.end(harness.SessionIdle, fmt.Sprintf("I did not start the workflow %s: %s %s.", w.Name, strings.TrimPrefix(problems[0].Path, "/"), problems[0].What)), true
		}
		run := postgres.NewRun{
			ID: harness.NewSessionID(time.Now()), Workflow: t.Workflow, Revision: t.Revision, Agent: workflow.Agent(w), Key: "message/" + string(turn.Message), Origin: c.ID,
			Input: input, TraceParent: c.TraceParent,
			Started: harness.Started{Type: harness.TriggerChannel, Text: shown(*turn), ChannelUserID: turn.ChannelUserID, Metadata: turn.Metadata, Match: match},
		}
		p = p.end(harness.SessionIdle, fmt.Sprintf("I have started the workflow %s (%s).", w.Name, run.ID))
		p.commit.Run = &run
		return p, true
	}
	return p, false
}

// namedInput is the input that the named groups of a pattern give: as their
// types say, where the workflow declares them. A group that found nothing gives
// none.
func namedInput(w harness.Workflow, pattern *regexp.Regexp, match map[string]string) json.RawMessage {
	types := map[string]harness.InputType{}
	for _, in := range w.Inputs {
		types[in.Name] = in.Type
	}
	input := map[string]any{}
	for _, name := range pattern.SubexpNames() {
		text := match[name]
		if name == "" || text == "" && types[name] != harness.InputString {
			continue
		}
		input[name] = text
		switch types[name] {
		case harness.InputInteger, harness.InputNumber:
			if number := json.Number(text); json.Valid([]byte(text)) {
				input[name] = number
			}
		case harness.InputBoolean:
			if value, err := strconv.ParseBool(text); err == nil {
				input[name] = value
			}
		}
	}
	text, err := json.Marshal(input)
	if err != nil { // a number that is none is kept as text
		panic(err)
	}
	return text
}
