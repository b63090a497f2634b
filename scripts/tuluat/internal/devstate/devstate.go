// Package devstate finds the running system and the secret to sign with.
package devstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// State is where a system listens and how to reach its agents.
type State struct {
	URL      string               `json:"url"`
	Webhooks map[string]Webhook   `json:"webhooks"` // by agent
	Channels map[string][]Channel `json:"channels"` // by agent
	Fakes    Services             `json:"fakes"`    // where fakes stand for messengers, and people can be played
	APIs     Services             `json:"apis"`     // where the functions call; empty: the fakes, else the messengers themselves
	API      *API                 `json:"api"`      // the management API; nil: it is not run
	file     string
}

// API is where the management API is.
type API struct {
	URL       string `json:"url"`
	TokenFile string `json:"tokenFile"` // absolute, or from the state's folder
}

// Webhook is the hook of one agent.
type Webhook struct {
	Hook       string `json:"account"`
	SecretFile string `json:"secretFile"`
}

const (
	folder   = ".tuluat"
	fileName = "dev.json"
)

// ErrNone says that no system is known here.
var ErrNone = &harness.Error{Kind: harness.NotFound, Message: "no running system is known here: start one with `make dev`, or set TULUAT_URL and TULUAT_WEBHOOK_SECRET"}

// Find returns the state of TULUAT_HOME, else of the nearest .tuluat in dir or
// above it, else what TULUAT_URL and TULUAT_WEBHOOK_SECRET say.
func Find(getenv func(string) string, dir string) (*State, error) {
	if home := getenv("TULUAT_HOME"); home != "" {
		state, err := read(filepath.Join(home, fileName))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, harness.Wrap(harness.NotFound, err, "TULUAT_HOME holds no "+fileName+": is `make dev` running with the same TULUAT_HOME?")
		}
		return state, err
	}
	for at := dir; ; at = filepath.Dir(at) {
		state, err := read(filepath.Join(at, folder, fileName))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return state, err
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	state := &State{URL: getenv("TULUAT_URL")}
	if state.URL == "" {
		return nil, ErrNone
	}
	return state, nil
}

func read(file string) (*State, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	state := &State{file: file}
	if err := json.Unmarshal(text, state); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return state, nil
}

// File is where the state was read; empty: in the environment.
func (s *State) File() string { return s.file }

// Management returns where the management API is, without its path, and the
// file with the token for it; empty: it is not run.
func (s *State) Management() (url, tokenFile string) {
	if s.API == nil || s.API.URL == "" {
		return "", ""
	}
	tokenFile = s.API.TokenFile
	if tokenFile != "" && !filepath.IsAbs(tokenFile) {
		tokenFile = filepath.Join(filepath.Dir(s.file), tokenFile)
	}
	return strings.TrimSuffix(strings.TrimSuffix(s.API.URL, "/"), "/api/v1"), tokenFile
}

// Agents lists the agents that can be reached, sorted.
func (s *State) Agents() []string { return slices.Sorted(maps.Keys(s.Webhooks)) }

// Hooks lists the hooks of these agents, sorted.
func (s *State) Hooks() []string {
	var hooks []string
	for _, w := range s.Webhooks {
		hooks = append(hooks, w.Hook)
	}
	slices.Sort(hooks)
	return hooks
}

// Hook returns the name and the secret of agent's hook, or of the hook called
// name if that is not empty. An agent nobody knows is harness.NotFound.
func (s *State) Hook(agent, name string, getenv func(string) string) (string, harness.Secret, error) {
	webhook, known := s.Webhooks[agent]
	if name != "" {
		webhook, known = Webhook{Hook: name}, true
		for _, w := range s.Webhooks {
			if w.Hook == name {
				webhook = w
			}
		}
	}
	if !known && s.file == "" {
		webhook, known = Webhook{Hook: agent}, true // from the environment: a hook is called like its agent
	}
	if !known {
		return "", "", harness.Errorf(harness.NotFound, "there is no agent %q here that can be talked to; known: %s", agent, list(s.Agents()))
	}
	if webhook.SecretFile == "" {
		secret := harness.Secret(getenv("TULUAT_WEBHOOK_SECRET"))
		if secret == "" {
			return "", "", harness.Errorf(harness.Invalid, "the secret of hook %q is not known: set TULUAT_WEBHOOK_SECRET", webhook.Hook)
		}
		return webhook.Hook, first(secret), nil
	}
	file := webhook.SecretFile
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(s.file), file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("the secret of hook %q: %w", webhook.Hook, err)
	}
	return webhook.Hook, first(harness.Secret(text)), nil
}

// first is the secret that signs: while it is rotated a file holds several.
func first(s harness.Secret) harness.Secret {
	text, _, _ := strings.Cut(s.Reveal(), ",")
	return harness.Secret(strings.TrimSpace(text))
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
