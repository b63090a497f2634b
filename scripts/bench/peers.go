package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"tuluat.ai/harness/scripts/internal/checkout"
)

// installPeers installs the Node servers below dir, from the lock file, and
// returns their folder. An error says why they cannot be measured here.
func installPeers(ctx context.Context, dir string) (string, error) {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", errors.New(program + " is not installed")
		}
	}
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(root, "scripts", "bench", "peers", "*.*"))
	if err != nil {
		return "", err
	}
	folder := filepath.Join(dir, "peers")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // node_modules of somebody who tries a peer by hand
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(file)), text, 0o644); err != nil {
			return "", err
		}
	}
	say("installing the Node peers")
	cmd := exec.CommandContext(ctx, "npm", "ci", "--omit=dev", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("npm could not install the peers (%w)", err)
	}
	return folder, nil
}
