// Package secret hands out the values of secrets that agents refer to. A value
// is kept elsewhere, a Kubernetes Secret or the environment, and never becomes a
// row, a log line or part of an error.
package secret

import (
	"context"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// Source hands out values.
type Source interface {
	// Values returns the values of the key that ref names, the newest first:
	// several while it is rotated, none if the key is not there or the agent may
	// not have it. harness.Unavailable: the source does not answer.
	Values(ctx context.Context, agent harness.AgentName, ref harness.SecretRef) ([]harness.Secret, error)
	// Check says whether Values has something for the agent, and if not what is to
	// be mended, as it is now: nothing that was remembered. harness.Unavailable:
	// the source does not answer, and nothing is known.
	Check(ctx context.Context, agent harness.AgentName, ref harness.SecretRef) (harness.SecretCheck, error)
}

// Texts hands out whole values, of secrets that are no list of a new and an old
// one.
type Texts interface {
	// Text returns the value of the key that ref names, empty if the key is not
	// there or the agent may not have it. harness.Unavailable: the source does not
	// answer.
	Text(ctx context.Context, agent harness.AgentName, ref harness.SecretRef) (harness.Secret, error)
}

// Split reads the text of a secret: while it is rotated it holds the new and the
// old value, separated by a comma.
func Split(text string) []harness.Secret {
	var values []harness.Secret
	for value := range strings.SplitSeq(text, ",") {
		if value = strings.TrimSpace(value); value != "" {
			values = append(values, harness.Secret(value))
		}
	}
	return values
}

// Environment is the environment as a Source: ref is the variable NAME_KEY.
// Every agent of the process may have every variable, so it suits one machine,
// or an install whose agents have one author.
type Environment func(name string) string

// Values implements Source.
func (e Environment) Values(_ context.Context, _ harness.AgentName, ref harness.SecretRef) ([]harness.Secret, error) {
	return Split(e(ref.Variable())), nil
}

// Text implements Texts.
func (e Environment) Text(_ context.Context, _ harness.AgentName, ref harness.SecretRef) (harness.Secret, error) {
	return harness.Secret(e(ref.Variable())), nil
}

// Check implements Source.
func (e Environment) Check(_ context.Context, agent harness.AgentName, ref harness.SecretRef) (harness.SecretCheck, error) {
	c := harness.SecretCheck{Agent: agent, Ref: ref, State: harness.SecretAvailable}
	if len(Split(e(ref.Variable()))) == 0 {
		c.State, c.Reason = harness.SecretNotFound, "the environment variable "+ref.Variable()+" is not set: set it for the function that reads it"
	}
	return c, nil
}
