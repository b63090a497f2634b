// Package checkout finds the repository that a command is run in.
package checkout

import (
	"errors"
	"os"
	"path/filepath"
)

// Root is the nearest folder with a go.work, from the current one upwards.
func Root() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.work")); err == nil {
			return folder, nil
		}
		if folder == filepath.Dir(folder) {
			return "", errors.New("run this inside the repository: no go.work was found above this folder")
		}
		folder = filepath.Dir(folder)
	}
}
