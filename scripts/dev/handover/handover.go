// Package handover is what the front of `make dev` tells the platform it
// starts, in one variable of its environment.
package handover

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// Variable is the name of the environment variable.
const Variable = "TULUAT_DEV_HANDOVER"

// Handover says where everything is.
type Handover struct {
	Root     string `json:"root"`     // of the repository
	State    string `json:"state"`    // the state folder
	Agents   string `json:"agents"`   // the folder of AiAgent YAML
	Address  string `json:"address"`  // of the public entry
	Postgres string `json:"postgres"` // the superuser's connection string
	Browser  string `json:"browser"`  // the program that shows the tour once the system is ready; empty: nobody asked for it
}

// Bin is the folder of the programs that were built.
func (h Handover) Bin() string { return filepath.Join(h.State, "bin") }

// Logs is the folder of log files.
func (h Handover) Logs() string { return filepath.Join(h.State, "logs") }

// Secrets is the folder that stands for Secrets: NAME/KEY.
func (h Handover) Secrets() string { return filepath.Join(h.State, "secrets") }

// Environment is the variable with its value.
func (h Handover) Environment() (string, error) {
	text, err := json.Marshal(h)
	return Variable + "=" + string(text), err
}

// Read reads the variable and removes it from this process's environment, so
// that nothing started later has the connection string.
func Read() (Handover, error) {
	var h Handover
	text := os.Getenv(Variable)
	if text == "" {
		return h, errors.New("this program is started by `make dev`")
	}
	if err := os.Unsetenv(Variable); err != nil {
		return h, err
	}
	return h, json.Unmarshal([]byte(text), &h)
}
