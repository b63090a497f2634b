package secret

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// ReadHeaders returns the headers that ref holds for agent, none where it names
// nothing. harness.Unavailable: they cannot be read now; harness.Invalid: they cannot
// be used. The messages are for people.
func ReadHeaders(ctx context.Context, from Source, agent harness.AgentName, ref harness.SecretRef) (http.Header, error) {
	if ref == (harness.SecretRef{}) {
		return http.Header{}, nil
	}
	values, err := from.Values(ctx, agent, ref)
	if err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, "its headersSecretRef cannot be read now")
	}
	headers, err := Headers(values)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, fmt.Sprintf("its headersSecretRef (%s, key %s) cannot be used: %s", ref.Name, ref.Key, harness.MessageOf(err)))
	}
	return headers, nil
}

// Headers reads the headers of requests from the values of one key: one
// "Name: value" a line. Of several values, while they are rotated, the newest
// holds. What is wrong is said without anything of the value.
func Headers(values []harness.Secret) (http.Header, error) {
	headers := http.Header{}
	for i, value := range values {
		for line := range strings.Lines(value.Reveal()) {
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			name, text, found := strings.Cut(line, ":")
			name, text = strings.TrimSpace(name), strings.TrimSpace(text)
			switch {
			case !found && i > 0:
				return nil, harness.Errorf(harness.Invalid, "the value has a comma within a line: a comma separates a new value from the old one, so a header has none")
			case !found || !validName(name) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
				return nil, harness.Errorf(harness.Invalid, `a line is not "Name: value"`)
			case slices.Contains(ownHeaders, http.CanonicalHeaderKey(name)):
				return nil, harness.Errorf(harness.Invalid, "the header %s is set by the request itself", http.CanonicalHeaderKey(name))
			case i == 0:
				headers.Add(name, text)
			}
		}
	}
	if len(headers) == 0 {
		return nil, harness.Errorf(harness.Invalid, "the key has no value, or this agent may not have it")
	}
	return headers, nil
}

// ownHeaders are no secret's to set.
var ownHeaders = []string{
	"Connection", "Content-Length", "Content-Type", "Content-Encoding", "Accept-Encoding", "Host", "Transfer-Encoding", "Trailer", "Te", "Upgrade", "Last-Event-Id",
}

func validName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// HeaderSecrets are the values of headers that must be kept out of whatever
// leaves: each whole, and what stands behind the name of a scheme.
func HeaderSecrets(h http.Header) []harness.Secret {
	var secrets []harness.Secret
	for _, values := range h {
		for _, value := range values {
			secrets = append(secrets, harness.Secret(value))
			if _, credentials, found := strings.Cut(value, " "); found {
				secrets = append(secrets, harness.Secret(strings.TrimSpace(credentials)))
			}
		}
	}
	slices.SortFunc(secrets, func(a, b harness.Secret) int { return len(b) - len(a) }) // the whole first
	return secrets
}
