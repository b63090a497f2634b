package harness

import (
	"log/slog"
	"strings"
)

// Secret is a value that does not print itself: formatting, JSON and logging
// show a fixed mark. Reveal it only where it is used.
type Secret string

const secretMark = "[secret]"

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }

// String returns a fixed mark.
func (s Secret) String() string { return secretMark }

// GoString returns a fixed mark.
func (s Secret) GoString() string { return secretMark }

// MarshalText returns a fixed mark, so that no encoder writes the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(secretMark), nil }

// LogValue returns a fixed mark.
func (s Secret) LogValue() slog.Value { return slog.StringValue(secretMark) }

// minSecret is the shortest value Redact looks for: shorter ones would blot out
// ordinary text.
const minSecret = 8

// Redact returns text with every whole occurrence of a known secret's value
// replaced by the fixed mark: the last guard on what leaves a function.
func Redact(text string, secrets []Secret) string {
	for _, s := range secrets {
		if len(s) >= minSecret {
			text = strings.ReplaceAll(text, string(s), secretMark)
		}
	}
	return text
}
