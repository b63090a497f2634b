package main

import (
	"strings"
	"testing"
)

// The program speaks as the part of tuluat that it is, and what it does not
// know is a usage error.
func TestUsage(t *testing.T) {
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"channels --help": {0, "tuluat conformance channels [flags]"},
		"--help":          {0, "tuluat conformance [command]"},
		"agents":          {2, `unknown command "agents" for "tuluat conformance"`},
		"channels --loud": {2, "See tuluat conformance channels --help."},
		"channels -o xml": {2, "table or json"},
		"completion bash": {2, `unknown command "completion"`},
		"channels --target http://127.0.0.1:1 --cases /nowhere": {1, "tuluat: "},
	} {
		var out, errOut strings.Builder
		if code := run(t.Context(), strings.Fields(args), &out, &errOut); code != want.code || !strings.Contains(out.String()+errOut.String(), want.text) {
			t.Errorf("%s: code %d\n%s%s", args, code, out.String(), errOut.String())
		}
	}
}
