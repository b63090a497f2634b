package person

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"
)

// Load reads what Save kept in file. Without one, or without a name, value is
// left alone.
func Load(file string, value any) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, value)
}

// Save keeps value in file, as a whole or not at all. Without a name it does nothing.
func Save(file string, value any) error {
	if file == "" {
		return nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

const saveEvery = 2 * time.Second

// Keep calls save every now and then while version changes, until ctx ends: what
// a process that is killed has not saved is little.
func Keep(ctx context.Context, log *slog.Logger, version func() int64, save func() error) {
	ticker := time.NewTicker(saveEvery)
	defer ticker.Stop()
	for saved := version(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := version()
		if now == saved {
			continue
		}
		if err := save(); err != nil {
			log.Error("the state of a fake cannot be kept", "err", err)
			continue
		}
		saved = now
	}
}
