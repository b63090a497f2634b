package secret

import (
	"context"
	"net/http"
	"net/textproto"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// Headers returns the headers of requests that ref holds for the agent, one
// "Name: value" a line; none for the zero ref. harness.Invalid: there is no value,
// or it is no headers; what it is, is not said. harness.Unavailable: the source
// does not answer.
func Headers(ctx context.Context, source Source, agent harness.AgentName, ref harness.SecretRef) (http.Header, error) {
	headers := http.Header{}
	if ref == (harness.SecretRef{}) {
		return headers, nil
	}
	values, err := source.Values(ctx, agent, ref)
	if err != nil {
		return nil, err
	}
	// A comma parts values that are rotated; in headers it is part of one.
	var text []string
	for _, value := range values {
		text = append(text, string(value))
	}
	for line := range strings.Lines(strings.Join(text, ", ")) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !fieldName(name) || !fieldValue(value) {
			return nil, harness.Errorf(harness.Invalid, "the key %s of Secret %s is not headers: write one \"Name: value\" a line", ref.Key, ref.Name)
		}
		headers.Add(textproto.CanonicalMIMEHeaderKey(name), value)
	}
	if len(headers) == 0 {
		return nil, harness.Errorf(harness.Invalid, "the key %s of Secret %s has no value: set it, and label the Secret for the agent", ref.Key, ref.Name)
	}
	return headers, nil
}

// fieldName is a token of RFC 9110.
func fieldName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

func fieldValue(value string) bool {
	return value != "" && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
