package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
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
func (s *secrets) ensure(ref harness.SecretRef) error {
	if !validPart.MatchString(ref.Name) || !validPart.MatchString(ref.Key) {
		return nil // agent-status refuses the agent and says why
	}
	if _, ok := s.read(ref.Name, ref.Key); ok {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(s.folder, ref.Name), 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.folder, ref.Name, ref.Key), []byte(rand.Text()+"\n"), 0o600)
}

// hooks keeps a secret for every webhook channel of the agents folder.
type hooks struct {
	folder  string
	secrets *secrets

	mu      sync.Mutex
	refs    map[harness.SecretRef]bool
	byAgent map[string]webhook
}

// webhook tells the CLI how to reach an agent.
type webhook struct {
	Hook       string `json:"account"`
	SecretFile string `json:"secretFile"`
}

// scan reads the folder, makes the secrets that are missing and reports
// whether there is a new one, or an agent came or went. Files that cannot be
// read are agent-status's to complain about.
func (h *hooks) scan() (changed bool, err error) {
	var files []string
	for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
		found, err := filepath.Glob(filepath.Join(h.folder, pattern))
		if err != nil {
			return false, err
		}
		files = append(files, found...)
	}
	refs, byAgent := map[harness.SecretRef]bool{}, map[string]webhook{}
	var problems []error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		documents, _ := v1alpha1.Read(text)
		for _, d := range documents {
			for _, channel := range d.Agent.Spec.Harness.Channels {
				if channel.Type == harness.ChannelWebhook && channel.SecretRef.Name != "" {
					refs[channel.SecretRef] = true
					byAgent[d.Agent.Metadata.Name] = webhook{Hook: channel.Name, SecretFile: filepath.Join(h.secrets.folder, channel.SecretRef.Name, channel.SecretRef.Key)}
					problems = append(problems, h.secrets.ensure(channel.SecretRef))
				}
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for ref := range refs {
		changed = changed || !h.refs[ref]
	}
	changed = changed || !maps.Equal(h.byAgent, byAgent)
	h.refs, h.byAgent = refs, byAgent
	return changed, errors.Join(problems...)
}

// environment is every hook's secret under the name its function looks for:
// NAME_KEY in capitals.
func (h *hooks) environment() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	env := map[string]string{}
	for ref := range h.refs {
		if value, ok := h.secrets.read(ref.Name, ref.Key); ok {
			env[ref.Variable()] = value
		}
	}
	return env
}

// agents returns how each agent is reached.
func (h *hooks) agents() map[string]webhook {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.byAgent)
}

// watch calls renew when an agent with a new hook has appeared, or one has gone.
func (h *hooks) watch(ctx context.Context, log *slog.Logger, renew func()) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			changed, err := h.scan()
			if err != nil {
				log.Error("a hook's secret could not be made", "err", fmt.Errorf("agents folder: %w", err))
			}
			if changed {
				renew()
			}
		}
	}
}
