package deps

import "slices"

// Allowed returns the external modules that program may link, nil for a program
// that has no list: tooling may link anything that Rules do not forbid.
func Allowed(program string) []string {
	switch program {
	case prefix + "functions/agent-step":
		return slices.Concat(shell, store, models)
	case prefix + "functions/sandbox-exec", prefix + "functions/reaper-cron":
		return slices.Concat(shell, store)
	case prefix + "functions/agent-status":
		return slices.Concat(shell, store, yaml)
	case prefix + "functions/webhook-ingest":
		return slices.Concat(shell, store, jsonPath)
	case prefix + "functions/dead-letter":
		return slices.Concat(shell, store)
	case runner:
		return []string{"golang.org/x/sys"}
	case prefix + "scripts/tuluat":
		return []string{"github.com/spf13/cobra", "github.com/spf13/pflag"}
	}
	return nil
}

// What shared/function brings: events in and out, metrics.
var shell = []string{}

// What shared/postgres brings.
var store = []string{}

// The two providers' official SDKs and what they need.
var models = []string{}

// Agents are written in YAML.
var yaml = []string{}

// A hook's JSON is mapped by RFC 9535 JSONPath.
var jsonPath = []string{}
