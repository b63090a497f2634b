package status_test

import (
	"context"

	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// images gives no skill anything: package image has tests of its own.
type images struct{}

func noImages() status.SkillImages { return images{} }

func (images) Files(context.Context, harness.AgentName, v1alpha1.Skill) (map[string][]byte, string, *v1alpha1.Problem) {
	return nil, "", &v1alpha1.Problem{Path: "imageRef", What: "is not there"}
}

func (images) Warnings() []string { return nil }
