package main

import (
	"crypto/rand"

	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/harness"
)

// api is the management API of this machine: at the public entry, for whoever has
// the token of a file.
type api struct {
	function  string
	tokenFile string
}

// apiToken is the Secret that stands for people's tokens of a cluster.
var apiToken = harness.SecretRef{Name: "management-api", Key: "token"}

// openAPI makes the token if there is none. It returns nil where no Service of
// set is the management API.
func openAPI(set *manifest.Set, s *secrets) (*api, error) {
	for _, service := range set.Services {
		if service.Serves(apiPath) != "" {
			return &api{service.Function(), s.file(apiToken)}, s.ensure(apiToken, rand.Text)
		}
	}
	return nil, nil
}

// apiPath is one that only the management API serves.
const apiPath = "/api/v1/whoami"

// environment replaces the API server as who knows callers. The documents are
// open: a browser sends no token, and they are those of the repository.
func (a *api) environment(function string) map[string]string {
	if a == nil || function != a.function {
		return nil
	}
	return map[string]string{"ACCESS": "static", "MANAGEMENT_TOKEN_FILE": a.tokenFile, "OPEN_DOCS": "true"}
}

// known is what the CLI needs to find and use it at url.
func (a *api) known(url string) map[string]string {
	return map[string]string{"url": url, "tokenFile": a.tokenFile}
}
