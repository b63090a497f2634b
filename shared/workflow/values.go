package workflow

import "tuluat.ai/harness/shared/harness"

// values are what expressions see now.
func (a *advance) values() *values {
	a.vars["run"] = map[string]any{"id": string(a.run.ID), "workflow": string(a.Workflow.Name), "visits": int64(len(a.visits))}
	return &values{left: a.left, vars: a.vars}
}

func (a *advance) input() map[string]any {
	input, err := object(a.run.Input)
	if err != nil {
		input = map[string]any{}
	}
	for _, in := range a.Workflow.Inputs {
		if whole, ok := input[in.Name].(int64); ok && in.Type == harness.InputNumber {
			input[in.Name] = float64(whole)
		}
	}
	return input
}

func (a *advance) message() map[string]any {
	metadata, err := object(a.run.Started.Metadata)
	if err != nil {
		metadata = map[string]any{}
	}
	match := map[string]any{}
	for name, text := range a.run.Started.Match {
		match[name] = text
	}
	return map[string]any{"text": a.run.Started.Text, "channelUserId": a.run.Started.ChannelUserID, "metadata": metadata, "match": match}
}

func clip(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason] + "…"
	}
	return harness.CleanText(reason)
}
