package harness

import (
	"encoding/json"
	"strings"
)

// ShellCommand reads the arguments of executeShell: exactly one object with a
// non-empty string "command". Nothing is repaired: harness.Invalid says in words
// what is wrong.
func ShellCommand(arguments []byte) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &fields); err != nil || fields == nil {
		return "", Errorf(Invalid, "the arguments are not a JSON object.")
	}
	var command string
	if err := json.Unmarshal(fields["command"], &command); err != nil || strings.TrimSpace(command) == "" {
		return "", Errorf(Invalid, `the arguments need a non-empty string "command".`)
	}
	for name := range fields {
		if name != "command" {
			return "", Errorf(Invalid, `the arguments have an unknown field %q; there is only "command".`, name)
		}
	}
	if strings.ContainsRune(command, 0) {
		return "", Errorf(Invalid, "the command holds a NUL character.")
	}
	return command, nil
}
