package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// secrets stands for the cluster's Secrets: fixed values of this run, else the
// file NAME/KEY of a folder, which a person may fill as well.
type secrets struct {
	folder string
	fixed  map[string]string
}

func (s *secrets) read(name, key string) (string, bool) {
	if value, ok := s.fixed[name+"/"+key]; ok {
		return value, true
	}
	text, err := os.ReadFile(filepath.Join(s.folder, name, key))
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(text)), true
}

// validPart is a Secret's name or key as Kubernetes allows it; no path.
var validPart = regexp.MustCompile(`^[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$`)

// ensure makes the secret with a generated value if it is not there.
func (s *secrets) ensure(ref harness.SecretRef, generate func() string) error {
	if !validPart.MatchString(ref.Name) || !validPart.MatchString(ref.Key) {
		return nil // agent-status refuses the agent and says why
	}
	if _, ok := s.read(ref.Name, ref.Key); ok {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(s.folder, ref.Name), 0o700); err != nil {
		return err
	}
	return os.WriteFile(s.file(ref), []byte(generate()+"\n"), 0o600)
}

func (s *secrets) file(ref harness.SecretRef) string {
	return filepath.Join(s.folder, ref.Name, ref.Key)
}
