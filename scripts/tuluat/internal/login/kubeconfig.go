package login

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"tuluat.ai/harness/shared/harness"
)

// kubeconfig is what of a kubeconfig tells who one is.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			User string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Users []struct {
		Name string   `yaml:"name"`
		User kubeUser `yaml:"user"`
	} `yaml:"users"`

	folder string
}

type kubeUser struct {
	Token     string `yaml:"token"`
	TokenFile string `yaml:"tokenFile"`
	Exec      any    `yaml:"exec"`
}

// kubeToken returns the token of the current context's user. Files are merged as
// kubectl does: the first that says something wins.
func kubeToken(getenv func(string) string) (harness.Secret, error) {
	files := filepath.SplitList(getenv("KUBECONFIG"))
	if len(files) == 0 {
		files = []string{filepath.Join(getenv("HOME"), ".kube", "config")}
	}
	var all []kubeconfig
	for _, name := range files {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) || name == "" {
			continue
		}
		if err != nil {
			return "", err
		}
		k := kubeconfig{folder: filepath.Dir(name)}
		if err := yaml.Unmarshal(text, &k); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, k)
	}
	current := ""
	for _, k := range all {
		if current == "" {
			current = k.Current
		}
	}
	name, ok := "", false
	for _, k := range all {
		for _, c := range k.Contexts {
			if c.Name == current && !ok {
				name, ok = c.Context.User, true
			}
		}
	}
	for _, k := range all {
		for _, u := range k.Users {
			if u.Name == name && ok {
				return u.User.secret(k.folder, name)
			}
		}
	}
	return "", harness.Errorf(harness.Invalid, "the kubeconfig has no current context with a user")
}

func (u kubeUser) secret(folder, name string) (harness.Secret, error) {
	switch {
	case u.TokenFile != "":
		file := u.TokenFile
		if !filepath.IsAbs(file) {
			file = filepath.Join(folder, file)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("the token of user %s of the kubeconfig: %w", name, err)
		}
		return clean(string(text))
	case u.Token != "":
		return clean(u.Token)
	case u.Exec != nil:
		return "", harness.Errorf(harness.Invalid, "user %s of the kubeconfig gets its token from a program, which is not run here: pass that program's token, as in `tuluat login URL --token-file -`", name)
	}
	return "", harness.Errorf(harness.Invalid, "user %s of the kubeconfig has no token, and client certificates are not taken here: use `kubectl create token NAME -n NAMESPACE | tuluat login URL --token-file -`", name)
}
