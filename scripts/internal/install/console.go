package install

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
)

// The Secret of the console: its key, and who else people may sign in with.
const (
	consoleSecret = "console"
	consoleKey    = "key"
)

// ensureConsole makes up the key that the console seals cookies with: once, for each
// namespace whose workloads name it. What is there stays: another key would sign
// everybody out.
func ensureConsole(ctx context.Context, objects []Object, say func(string, ...any)) error {
	var namespaces []string
	for _, o := range objects {
		walk(o.Content, func(m map[string]any) {
			ref, ok := m["secretKeyRef"].(map[string]any)
			if ok && text(ref, "name") == consoleSecret && text(ref, "key") == consoleKey && !slices.Contains(namespaces, o.Namespace) {
				namespaces = append(namespaces, o.Namespace)
			}
		})
	}
	for _, namespace := range namespaces {
		have, err := keysOf(ctx, namespace, consoleSecret)
		if err != nil {
			return err
		}
		if slices.Contains(have, consoleKey) {
			continue
		}
		say("made up the key of the console: Secret %s", consoleSecret)
		fresh := map[string]string{consoleKey: rand.Text()}
		if len(have) == 0 {
			if err := createSecret(ctx, namespace, consoleSecret, fresh); err != nil {
				return err
			}
			continue
		}
		patch, err := json.Marshal(map[string]any{"stringData": fresh})
		if err != nil {
			return err
		}
		if _, err := kubectl(ctx, patch, "-n", namespace, "patch", "secret", consoleSecret, "--type=merge", "--patch-file=/dev/stdin"); err != nil {
			return err
		}
	}
	return nil
}
