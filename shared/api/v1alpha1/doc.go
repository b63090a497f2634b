// Package v1alpha1 is the AiAgent resource as people write it: YAML or JSON
// with apiVersion tuluat.ai/v1alpha1. It is an edge form of harness.Agent and
// owns the way there: Read refuses whatever it does not know, Validate says all
// that is wrong at once, Agent fills in the defaults.
//
// Every problem names its place (document, line, field path), what is wrong and
// how to mend it. Texts of the author are repeated in a problem only where they
// are names, never prompts.
package v1alpha1

// The identity of the resource.
const (
	APIVersion = "tuluat.ai/v1alpha1"
	KindAgent  = "AiAgent"
)

// AnnotationOpenCode set to "true" lets an agent that runs commands have a
// channel open to every sender. Without it such an agent is refused: text from
// a stranger would decide what runs.
const AnnotationOpenCode = "tuluat.ai/allow-open-code"
