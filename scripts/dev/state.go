package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// state is the folder of everything that is kept, locked by the one process
// that runs on it.
type state struct {
	dir  string
	lock *os.File
}

// openState makes the folder if needed and locks it; the kernel gives the lock
// back however the process ends.
func openState(dir string) (*state, error) {
	for _, sub := range []string{"", "logs", "bin", "secrets"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another dev runs on %s: stop it, or set TULUAT_HOME to another folder", dir), lock.Close())
	}
	return &state{dir: dir, lock: lock}, nil
}

func (s *state) close() { _ = s.lock.Close() }

func (s *state) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// sandboxDir is where local sandboxes live: short, because sockets have short
// paths, and passable for the uid they run as, which the state folder is not.
func (s *state) sandboxDir() string {
	sum := sha256.Sum256([]byte(s.dir))
	return filepath.Join(os.TempDir(), "tuluat-"+hex.EncodeToString(sum[:4]))
}

// secretFile is the file of one key of a Secret.
func (s *state) secretFile(name, key string) string { return s.path("secrets", name, key) }

// secret returns the key of a Secret, as a mounted Secret would hold it.
func (s *state) secret(name, key string) (string, bool) {
	value, err := os.ReadFile(s.secretFile(name, key))
	return string(value), err == nil
}

// setSecret writes the key of a Secret; an empty value removes it.
func (s *state) setSecret(name, key, value string) error {
	file := s.secretFile(name, key)
	if value == "" {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(value), 0o600)
}

// ensureSecret generates the key of a Secret once.
func (s *state) ensureSecret(name, key string) error {
	if _, ok := s.secret(name, key); ok {
		return nil
	}
	return s.setSecret(name, key, rand.Text())
}

// handle tells the CLI where the system is and how to sign.
type handle struct {
	URL       string             `json:"url"`
	AgentsDir string             `json:"agentsDir"`
	Webhooks  map[string]webhook `json:"webhooks"` // by agent
}

type webhook struct {
	Hook       string `json:"hook"`
	SecretFile string `json:"secretFile"`
}

func (s *state) writeHandle(h handle) error {
	text, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return err
	}
	temporary := s.path("dev.json.new")
	if err := os.WriteFile(temporary, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, s.path("dev.json"))
}
