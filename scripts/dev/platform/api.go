package main

import (
	"crypto/rand"
	"errors"
	"os"

	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/harness"
)

// api is the management API of this machine: at the public entry, for whoever has
// the token of a file.
type api struct {
	function  string
	tokenFile string
	entryFile string // a code that signs a browser in once, and the token
	code      string
}

var (
	// apiToken is the Secret that stands for people's tokens of a cluster.
	apiToken = harness.SecretRef{Name: "management-api", Key: "token"}
	// consoleKey is what the console seals cookies with.
	consoleKey = harness.SecretRef{Name: "console", Key: "key"}
	// consoleEntry is the file of the code that opens the console once.
	consoleEntry = harness.SecretRef{Name: "console", Key: "entry"}
)

// openAPI makes the token and the console's key if there are none, and a code for
// this run. It returns nil where no Service of set is the management API.
func openAPI(set *manifest.Set, s *secrets) (*api, error) {
	for _, service := range set.Services {
		if service.Serves(apiPath) == "" {
			continue
		}
		a := &api{function: service.Function(), tokenFile: s.file(apiToken), entryFile: s.file(consoleEntry), code: rand.Text()}
		if err := errors.Join(s.ensure(apiToken, rand.Text), s.ensure(consoleKey, rand.Text)); err != nil {
			return nil, err
		}
		return a, a.admit(s)
	}
	return nil, nil
}

// admit writes the code that the console takes once in place of the token, which then
// need not be copied by hand. Only this terminal shows it, and only who may read the
// token's file may read this one.
func (a *api) admit(s *secrets) error {
	token, _ := s.read(apiToken.Name, apiToken.Key)
	file := a.entryFile + ".new"
	if err := os.WriteFile(file, []byte(a.code+"\n"+token+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(file, a.entryFile)
}

// console is the address that opens the console of url, once.
func (a *api) console(url string) string { return url + "/console/enter?code=" + a.code }

// apiPath is one that only the management API serves.
const apiPath = "/api/v1/whoami"

// environment replaces the API server as who knows callers. The documents are
// open: a browser sends no token, and they are those of the repository.
func (a *api) environment(function string) map[string]string {
	if a == nil || function != a.function {
		return nil
	}
	return map[string]string{"ACCESS": "static", "MANAGEMENT_TOKEN_FILE": a.tokenFile, "OPEN_DOCS": "true", "CONSOLE_ENTRY_FILE": a.entryFile}
}

// known is what the CLI needs to find and use it at url.
func (a *api) known(url string) map[string]string {
	return map[string]string{"url": url, "tokenFile": a.tokenFile}
}
