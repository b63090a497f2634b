package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// channels keeps the secrets of every channel of the agents folder.
type channels struct {
	folder  string
	secrets *secrets

	mu  sync.Mutex
	now found
}

// found is what the folder says.
type found struct {
	webhooks map[string]webhook             // by agent
	others   map[string][]channel           // by agent
	refs     map[string][]harness.SecretRef // by function
}

// webhook tells the CLI how to reach an agent.
type webhook struct {
	Hook       string `json:"account"`
	SecretFile string `json:"secretFile"`
}

// channel tells the CLI the same of a messenger.
type channel struct {
	Type        harness.Channel   `json:"type"`
	Account     string            `json:"account"`
	Transport   harness.Transport `json:"transport,omitempty"`
	SecretFiles map[string]string `json:"secretFiles,omitempty"`
	spec        harness.ChannelSpec
}

// scan reads the folder, makes the secrets that are missing and reports whether
// an agent or one of its channels came, went or changed. Files that cannot be
// read are agent-status's to complain about.
func (c *channels) scan() (changed bool, err error) {
	var files []string
	for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
		matches, err := filepath.Glob(filepath.Join(c.folder, pattern))
		if err != nil {
			return false, err
		}
		files = append(files, matches...)
	}
	next := found{webhooks: map[string]webhook{}, others: map[string][]channel{}, refs: map[string][]harness.SecretRef{}}
	var problems []error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil { // it is there: what was known of it stays so
			return false, err
		}
		documents, _ := v1alpha1.Read(text)
		for _, d := range documents {
			agent := d.Agent.Agent()
			for _, spec := range agent.Harness.Channels {
				problems = append(problems, c.add(&next, d.Agent.Metadata.Name, spec))
			}
			next.refs["agent-step"] = append(next.refs["agent-step"], agent.ServerSecrets()...) // somebody else's: nothing is made up
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = !reflect.DeepEqual(c.now, next)
	c.now = next
	return changed, errors.Join(problems...)
}

// add notes a channel and makes its secrets.
func (c *channels) add(f *found, agent string, spec harness.ChannelSpec) error {
	var problems []error
	files := map[string]string{}
	ensure := func(function, role string, ref harness.SecretRef, generate func() string) {
		if ref == (harness.SecretRef{}) {
			return
		}
		f.refs[function] = append(f.refs[function], ref)
		files[role] = c.secrets.file(ref)
		problems = append(problems, c.secrets.ensure(ref, generate))
	}
	switch spec.Type {
	case harness.ChannelWebhook:
		if ensure("webhook-ingest", "SIGNING", spec.Secret, rand.Text); spec.Secret.Name != "" {
			f.webhooks[agent] = webhook{Hook: spec.Account, SecretFile: files["SIGNING"]}
		}
		return errors.Join(problems...)
	case harness.ChannelWhatsApp:
		ensure("whatsapp-ingest", "VERIFY_TOKEN", spec.VerifyToken, rand.Text)
		ensure("whatsapp-ingest", "APP_SECRET", spec.AppSecret, rand.Text)
		ensure("whatsapp-ingest", "ACCESS_TOKEN", spec.AccessToken, rand.Text)
		ensure("whatsapp-ingest", "PAIRING_CODE", spec.Senders.PairingCode, pairingCode)
	case harness.ChannelTelegram:
		ensure("telegram-ingest", "BOT_TOKEN", spec.BotToken, func() string { return botToken(spec.Account) })
		ensure("telegram-ingest", "WEBHOOK_SECRET", spec.WebhookSecret, rand.Text)
		ensure("telegram-ingest", "PAIRING_CODE", spec.Senders.PairingCode, pairingCode)
	default:
		return nil
	}
	if spec.Account != "" {
		f.others[agent] = append(f.others[agent], channel{Type: spec.Type, Account: spec.Account, Transport: spec.Transport, SecretFiles: files, spec: spec})
	}
	return errors.Join(problems...)
}

// pairingCode is short enough to be typed on a phone.
func pairingCode() string { return rand.Text()[:10] }

// botToken looks like Telegram's: the bot's id, a colon and a secret.
func botToken(bot string) string {
	sum := sha256.Sum256([]byte(bot))
	return fmt.Sprintf("%d:AA%s", 7_000_000_000+int64(binary.BigEndian.Uint32(sum[:4])%900_000_000), rand.Text())
}

// environment is the secrets of a function's channels, or of the servers of
// agents, under the names that the function looks for: NAME_KEY in capitals.
func (c *channels) environment(function string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	env := map[string]string{}
	for _, ref := range c.now.refs[function] {
		if value, ok := c.secrets.read(ref.Name, ref.Key); ok {
			env[ref.Variable()] = value
		}
	}
	return env
}

// all returns how each agent is reached.
func (c *channels) all() found {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// watch calls renew when a channel has come, gone or changed.
func (c *channels) watch(ctx context.Context, log *slog.Logger, renew func()) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			changed, err := c.scan()
			if err != nil {
				log.Error("a channel's secret could not be made", "err", fmt.Errorf("agents folder: %w", err))
			}
			if changed {
				renew()
			}
		}
	}
}
