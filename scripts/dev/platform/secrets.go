package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"tuluat.ai/harness/shared/harness"
)

// secrets stands for the cluster's Secrets: fixed values of this run, else the
// file NAME/KEY of a folder, which a person may fill as well.
type secrets struct {
	folder string
	fixed  map[string]string

	mu    sync.Mutex
	known map[string]string // as they were last read
}

// read returns a value, and whether there is one. A file that is there and cannot be
// read now, as when too many are open, has its last value.
func (s *secrets) read(name, key string) (string, bool) {
	if value, ok := s.fixed[name+"/"+key]; ok {
		return value, true
	}
	text, err := os.ReadFile(filepath.Join(s.folder, name, key))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		delete(s.known, name+"/"+key)
	case err == nil && s.known == nil:
		s.known = map[string]string{}
		fallthrough
	case err == nil:
		s.known[name+"/"+key] = strings.TrimSpace(string(text))
	}
	value, ok := s.known[name+"/"+key]
	return value, ok
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
	file, err := os.OpenFile(s.file(ref), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // what is there is somebody's
	if err != nil {
		return err
	}
	_, err = file.WriteString(generate() + "\n")
	return errors.Join(err, file.Close())
}

func (s *secrets) file(ref harness.SecretRef) string {
	return filepath.Join(s.folder, ref.Name, ref.Key)
}
