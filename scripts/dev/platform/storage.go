package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
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
	backend := s3bolt.New(db)
	there, err := backend.BucketExists(bucket)
	if err == nil && !there {
		err = backend.CreateBucket(bucket)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	server := oneWriter(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	served, err := serveLoopback(server, log)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	log.Info("S3 is served", "url", served.url)
	return &storage{db: db, served: served}, nil
}

// oneWriter lets requests that read go on together, and those that write go
// alone: what the backend reads is in the file's memory map, and good only until
// the next write moves that.
func oneWriter(next http.Handler) http.Handler {
	var mu sync.RWMutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			mu.RLock()
			defer mu.RUnlock()
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxObject)) // a slow sender holds nobody up
		if err != nil {
			http.Error(w, "the object is too long or broke off", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		defer mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// maxObject is the longest object that this store takes, in bytes.
const maxObject = 128 << 20

// bucket is where files and archives go.
const bucket = "tuluat"

// environment tells the functions that keep files where the store is. It checks
// no credentials, and listens on this machine only.
func (s *storage) environment(function string) map[string]string {
	switch function {
	case "whatsapp-ingest", "telegram-ingest", "sandbox-exec", "reaper-cron", "management-api":
		return map[string]string{"S3_ENDPOINT": s.served.url, "S3_BUCKET": bucket, "AWS_ACCESS_KEY_ID": "dev", "AWS_SECRET_ACCESS_KEY": "dev"}
	}
	return nil
}

func (s *storage) close() error { return errors.Join(s.served.close(), s.db.Close()) }
