// Package v1alpha1 is the resources AiAgent and AiWorkflow as people write them:
// YAML or JSON with apiVersion tuluat.ai/v1alpha1. AiAgent is an edge form of
// harness.Agent and owns the way there: Read refuses whatever it does not know,
// Validate says all that is wrong at once, Agent fills in the defaults. The
// CustomResourceDefinitions are generated from the same types by package crd;
// what they refuse, Validate refuses too.
//
// Every problem names its place (document, line, field path), what is wrong and
// how to mend it. Texts of the author are repeated in a problem only where they
// are names, never prompts.
package v1alpha1

// The identities of the resources.
const (
	APIVersion   = "tuluat.ai/v1alpha1"
	KindAgent    = "AiAgent"
	KindWorkflow = "AiWorkflow"
)

// AnnotationOpenCode set to "true" lets an agent that runs commands have a
// channel open to every sender. Without it such an agent is refused: text from
// a stranger would decide what runs.
const AnnotationOpenCode = "tuluat.ai/allow-open-code"
