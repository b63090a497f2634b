// Package stdio is what a step and the runner in a sandbox say to one another about
// an MCP server that is a program: the step asks by a command, and the runner's face
// mcp answers by its output and its exit code. Only the runner writes that output, so
// what a server says cannot pass for what is said of it.
package stdio

import (
	"encoding/json"
	"strings"
)

// What a command is made of.
const (
	runner   = "/opt/tuluat/runner" // where every sandbox has it
	variable = "TULUAT_MCP"
)

// Variable is the environment variable that holds the Request, as JSON.
const Variable = variable

// Request is what a server is started for.
type Request struct {
	Command   []string          `json:"command"`
	Env       map[string]string `json:"env,omitempty"`       // added to the sandbox's own
	Tool      string            `json:"tool,omitempty"`      // to be called; empty: all are listed
	Arguments json.RawMessage   `json:"arguments,omitempty"` // of the call: one object
	Allowed   []string          `json:"allowed,omitempty"`   // tools to be listed; none: all
	TimeoutMS int64             `json:"timeoutMs"`           // of all of it
}

// Shell is the command that does r. Nothing of r becomes part of a shell's text: it
// is the value of a variable, in quotes.
func (r Request) Shell() string {
	value, err := json.Marshal(r)
	if err != nil { // plain values, and arguments that are JSON
		panic(err)
	}
	return variable + "=" + Quote(string(value)) + " exec " + runner + " mcp"
}

// Quote is text as one word of any POSIX shell.
func Quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// How the runner ends, beside 0: the call was done, or the list is there.
const (
	ExitToolFailed = 3 // the tool says that it failed; what it said is on stdout
	ExitNotRun     = 4 // the server cannot be used, and no call was sent; stdout says why, in our words
	ExitNoResult   = 5 // the call was sent, and there is no result; stdout says why, in our words
	ExitTooLarge   = 6 // the answer was too long to be read; stdout says so, in our words
	ExitRefused    = 7 // the server refused the call; what it said is on stdout
)

// Tools are what a list says, as JSON on stdout.
type Tools struct {
	Tools []Tool   `json:"tools"`
	Notes []string `json:"notes,omitempty"` // of what is left out, in our words
}

// Tool is one tool as the server describes it.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"inputSchema,omitempty"`
}
