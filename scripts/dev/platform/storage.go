package main

import (
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3bolt"
	bolt "go.etcd.io/bbolt"
)

// storage is a light S3 server that keeps its objects in one file.
type storage struct {
	db     *bolt.DB
	served *loopback
}

func openStorage(state string, log *slog.Logger) (*storage, error) {
	db, err := bolt.Open(filepath.Join(state, "s3.db"), 0o600, &bolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	server := gofakes3.New(s3bolt.New(db), gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	served, err := serveLoopback(server, log)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	log.Info("S3 is served", "url", served.url)
	return &storage{db: db, served: served}, nil
}

func (s *storage) close() error { return errors.Join(s.served.close(), s.db.Close()) }
