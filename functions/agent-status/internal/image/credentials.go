package image

import (
	"encoding/json"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"

	"tuluat.ai/harness/shared/harness"
)

// dockerConfigKey is the key of a Secret of type kubernetes.io/dockerconfigjson.
const dockerConfigKey = ".dockerconfigjson"

// credentials finds those for a repository, like ghcr.io/acme/skills: of several
// entries, the one that names most of it. Nothing of the value is said in errors.
func credentials(config harness.Secret, repository string) (authn.Authenticator, error) {
	var file struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if json.Unmarshal([]byte(config.Reveal()), &file) != nil {
		return nil, harness.Errorf(harness.Unavailable, "its pullSecretRef names a Secret whose %s is not the JSON of registry credentials", dockerConfigKey)
	}
	best, found := "", authn.Authenticator(nil)
	for entry, auth := range file.Auths {
		at := strings.TrimPrefix(strings.TrimPrefix(entry, "https://"), "http://")
		for _, version := range []string{"/", "/v1", "/v2"} {
			at = strings.TrimSuffix(at, version)
		}
		if at == "docker.io" {
			at = "index.docker.io"
		}
		if (repository == at || strings.HasPrefix(repository, at+"/")) && (found == nil || len(at) > len(best)) {
			best, found = at, authn.FromConfig(auth)
		}
	}
	if found == nil {
		return nil, harness.Errorf(harness.Unavailable, "its pullSecretRef names a Secret without credentials for this registry")
	}
	return found, nil
}
