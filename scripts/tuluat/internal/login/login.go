// Package login knows which management API commands speak to, and as whom.
package login

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"tuluat.ai/harness/scripts/tuluat/internal/devstate"
	"tuluat.ai/harness/shared/harness"
)

// Login is one API and how to be somebody there. At most one of the token's
// sources is set.
type Login struct {
	URL        string `json:"url"`
	Token      string `json:"token,omitempty"`
	TokenFile  string `json:"tokenFile,omitempty"`  // absolute; read for every request, since it may be renewed
	Kubeconfig bool   `json:"kubeconfig,omitempty"` // the token of the kubeconfig's user
	CAFile     string `json:"caFile,omitempty"`     // absolute; certificates to trust beside the system's
	PlainHTTP  bool   `json:"plainHTTP,omitempty"`  // the token may go unencrypted over a network

	Source string `json:"-"` // where this is from, for people

	getenv func(string) string
}

// ErrNone says that nobody has logged in and nothing runs here.
var ErrNone = &harness.Error{Kind: harness.NotFound, Message: "no system is known to manage: run `tuluat login URL`, or set TULUAT_URL and TULUAT_TOKEN, or start one with `make dev`"}

// Find returns the API of TULUAT_HOME, else of TULUAT_URL, else the one that was
// logged in to, else the one that runs in dir or above it.
func Find(getenv func(string) string, dir string) (*Login, error) {
	if getenv("TULUAT_HOME") != "" {
		return running(getenv, dir)
	}
	stored, err := Load(getenv)
	if err != nil {
		return nil, err
	}
	if url := strings.TrimSuffix(getenv("TULUAT_URL"), "/"); url != "" {
		return fromEnvironment(getenv, url, stored), nil
	}
	if stored != nil {
		return stored, nil
	}
	return running(getenv, dir)
}

// fromEnvironment is the API of TULUAT_URL. A stored token is used only where it
// was stored for.
func fromEnvironment(getenv func(string) string, url string, stored *Login) *Login {
	l := &Login{URL: url, Source: "TULUAT_URL", CAFile: getenv("TULUAT_CA_FILE"), getenv: getenv}
	switch {
	case getenv("TULUAT_TOKEN") != "":
		l.Token = getenv("TULUAT_TOKEN")
	case getenv("TULUAT_TOKEN_FILE") != "":
		l.TokenFile = getenv("TULUAT_TOKEN_FILE")
	case stored != nil && stored.URL == url:
		return stored
	case getenv("KUBECONFIG") != "":
		l.Kubeconfig = true
	}
	return l
}

// running is the API of a system that runs on this machine.
func running(getenv func(string) string, dir string) (*Login, error) {
	state, err := devstate.Find(getenv, dir)
	if errors.Is(err, devstate.ErrNone) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	url, file := state.Management()
	if url == "" {
		return nil, harness.Errorf(harness.NotFound, "the system that runs here has no management API: is `make dev` of this checkout running?")
	}
	return &Login{URL: url, TokenFile: file, Source: state.File(), getenv: getenv}, nil
}

// New returns l with the environment that its token may come from.
func New(l Login, getenv func(string) string) *Login {
	l.getenv = getenv
	return &l
}

// Secret reads the token; empty: there is none.
func (l *Login) Secret() (harness.Secret, error) {
	switch {
	case l.Token != "":
		return clean(l.Token)
	case l.TokenFile != "":
		text, err := os.ReadFile(l.TokenFile)
		if err != nil {
			return "", fmt.Errorf("the token: %w", err)
		}
		return clean(string(text))
	case l.Kubeconfig:
		return kubeToken(l.getenv)
	}
	return "", nil
}

// clean refuses what no header can hold.
func clean(text string) (harness.Secret, error) {
	text = strings.TrimSpace(text)
	for _, r := range text {
		if r <= ' ' || r > '~' {
			return "", harness.Errorf(harness.Invalid, "the token holds spaces or characters that no token has")
		}
	}
	return harness.Secret(text), nil
}

// file is where logins are kept.
func file(getenv func(string) string) (string, error) {
	if named := getenv("TULUAT_CONFIG"); named != "" {
		return named, nil
	}
	base := getenv("XDG_CONFIG_HOME")
	if home := getenv("HOME"); base == "" && home != "" {
		base = filepath.Join(home, ".config")
		if runtime.GOOS == "darwin" {
			base = filepath.Join(home, "Library", "Application Support")
		}
	}
	if base == "" {
		base = getenv("APPDATA")
	}
	if base == "" {
		return "", harness.Errorf(harness.Invalid, "there is no folder to keep a login in: set TULUAT_CONFIG or HOME")
	}
	return filepath.Join(base, "tuluat", "config.json"), nil
}

// Load returns the stored login, nil if there is none.
func Load(getenv func(string) string) (*Login, error) {
	name, err := file(getenv)
	if err != nil {
		return nil, nil // a place without a home has no login
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	l := &Login{Source: name, getenv: getenv}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

// Save keeps l in a file that only this user can read, and returns its name. The
// file is there whole or not at all.
func Save(getenv func(string) string, l *Login) (string, error) {
	name, err := file(getenv)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return "", err
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	if err := e.Encode(l); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".config-*") // 0600
	if err != nil {
		return "", err
	}
	_, err = f.Write(text.Bytes())
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return name, nil
}

// Remove forgets the stored login and returns the one that it was, nil if there
// was none.
func Remove(getenv func(string) string) (*Login, error) {
	l, err := Load(getenv)
	if l == nil || err != nil {
		return nil, err
	}
	return l, os.Remove(l.Source)
}
