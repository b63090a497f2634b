package harness

import "log/slog"

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
