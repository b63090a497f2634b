package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3bolt"
	bolt "go.etcd.io/bbolt"
)

// The development store hands out what was put into it, while more is put: bytes
// of a bolt page are good only within their transaction. It fails by ending the
// process (SIGBUS) or with another object's bytes.
func TestTheObjectStoreSurvivesFilesOfSeveralPeopleAtOnce(t *testing.T) {
	db, err := bolt.Open(filepath.Join(t.TempDir(), "s3.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	backend := s3bolt.New(db)
	if err := backend.CreateBucket("b"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(oneWriter(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()))
	defer server.Close()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			data := make([]byte, 8<<20)
			_, _ = rand.Read(data)
			for round := range 4 {
				url := fmt.Sprintf("%s/b/k%d-%d", server.URL, i, round)
				put, _ := http.NewRequest(http.MethodPut, url, bytes.NewReader(data))
				if r, err := http.DefaultClient.Do(put); err != nil || r.Body.Close() != nil {
					t.Errorf("put: %v", err)
					return
				}
				for range 4 {
					r, err := http.Get(url)
					if err != nil {
						t.Errorf("get: %v", err)
						return
					}
					got, _ := io.ReadAll(r.Body)
					r.Body.Close()
					if sha256.Sum256(got) != sha256.Sum256(data) {
						t.Errorf("%s: other bytes than were put (%d)", url, len(got))
					}
				}
			}
		})
	}
	all.Wait()
}
