// Package skill gives agents one tool, loadSkill, by which a model reads the
// instructions of a skill that it knows by name and description.
//
// Instructions are the operator's own text, as the system prompt is: they are not
// marked as data, not judged as what a tool returns, and not cut. That the model
// has loaded a skill is a row of its session; whoever runs a command of the session
// puts the skill's files into the sandbox first.
package skill

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/model"
	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Store is what the package needs of *postgres.Store.
type Store interface {
	LoadSkill(ctx context.Context, claim *postgres.Claim, skill harness.Skill) (postgres.LoadedSkill, error)
}

// Skills are the skills of agents. It implements step.Tools.
type Skills struct{ Store Store }

var _ step.Tools = Skills{}

// limit is how long one load may take: it asks nobody but the store.
const limit = 20 * time.Second

// tool is what calls of the block name. It says nothing of the skill: a call is of
// what the agent has under the name when it is made.
var tool = harness.RemoteTool{Block: harness.BlockSkills, Server: harness.BlockSkills, Tool: harness.ToolLoadSkill}

// Block implements step.Tools.
func (Skills) Block() string { return harness.BlockSkills }

// Resolve implements step.Tools.
func (Skills) Resolve(a *harness.Agent, r harness.RemoteTool) (harness.RemoteTool, time.Duration, bool) {
	return tool, limit, len(a.Skills) > 0 && r.Tool == tool.Tool
}

// Offer implements step.Tools.
func (Skills) Offer(_ context.Context, c *postgres.Claim) (step.Offer, error) {
	skills := c.Agent.Skills
	if len(skills) == 0 {
		return step.Offer{}, nil
	}
	// The list is with the parameter: some models' APIs take no long description
	// of a tool itself.
	var list strings.Builder
	list.WriteString("One of these skills:")
	for _, s := range skills {
		fmt.Fprintf(&list, "\n%s: %s", s.Name, s.Description)
	}
	return step.Offer{Tools: []step.Offered{{
		Tool: model.Tool{
			Name: harness.ToolLoadSkill,
			Description: "Loads a skill: instructions of your operator for one kind of task, and the files that go with them. " +
				"Load the skill whose description fits the task before you begin, and do what it says.",
			Parameters: map[string]any{
				"type":                 "object",
				"properties":           map[string]any{"name": map[string]any{"type": "string", "enum": names(skills), "description": list.String()}},
				"required":             []string{"name"},
				"additionalProperties": false,
			},
		},
		Remote: tool, Policy: harness.RemoteAsAgent, Ours: true,
	}}}, nil
}

// Call implements step.Tools.
func (s Skills) Call(ctx context.Context, c *postgres.Claim, call step.RemoteCall) step.Outcome {
	var arguments struct{ Name string }
	if err := json.Unmarshal(call.Arguments, &arguments); err != nil || arguments.Name == "" {
		return failed(`Not run: the arguments need a text name, as in {"name": "` + c.Agent.Skills[0].Name + `"}.`)
	}
	at := slices.IndexFunc(c.Agent.Skills, func(s harness.Skill) bool { return s.Name == arguments.Name })
	if at < 0 {
		return failed(fmt.Sprintf("Not run: there is no skill %q. There are: %s.", clip(arguments.Name), strings.Join(names(c.Agent.Skills), ", ")))
	}
	skill := c.Agent.Skills[at]
	loaded, err := s.Store.LoadSkill(ctx, c, skill)
	if harness.KindOf(err) == harness.NotFound { // of a database that was put together by hand
		return failed(fmt.Sprintf("The skill %s cannot be loaded: what it holds is not stored.", skill.Name))
	}
	if err != nil {
		return failed(fmt.Sprintf("The skill %s cannot be loaded now: %s.", skill.Name, harness.MessageOf(err)))
	}
	return step.Outcome{State: harness.ToolCallDone, Note: text(c.Agent, skill.Name, loaded)}
}

func failed(note string) step.Outcome {
	return step.Outcome{State: harness.ToolCallFailed, Note: note}
}

func names(skills []harness.Skill) []string {
	all := make([]string, len(skills))
	for i, s := range skills {
		all[i] = s.Name
	}
	return all
}

// clip is the beginning of what a model made up.
func clip(name string) string {
	if runes := []rune(name); len(runes) > 64 {
		return string(runes[:63]) + "…"
	}
	return name
}

// text is what a model is told of a skill: its instructions, and where its files
// will be when the next command runs.
func text(a *harness.Agent, name string, loaded postgres.LoadedSkill) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Instructions of the skill %s, from your operator:\n\n%s", name, loaded.Instructions)
	if len(loaded.Files) == 0 || !a.Harness.CanExecute() {
		return b.String()
	}
	folder := "/workspace/" + harness.SkillFolder(name)
	fmt.Fprintf(&b, "\n\nThe skill's files are in %s when your next command runs (start a script by its interpreter, as in sh FILE):", folder)
	for _, file := range loaded.Files {
		fmt.Fprintf(&b, "\n%s/%s", folder, file)
	}
	return b.String()
}
