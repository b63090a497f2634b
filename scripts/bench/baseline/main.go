// Command baseline is the barest handler that webhook-ingest is measured
// against: HMAC over timestamp and body, one INSERT, 202.
package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tuluat.ai/harness/shared/harness"
)

func main() {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal("DATABASE_URL is not a connection string")
	}
	config.MaxConns = 4 // as many as webhook-ingest has
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	secret := []byte(os.Getenv("HOOK_SECRET"))
	http.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(r.Header.Get("X-Tuluat-Timestamp") + "."))
		mac.Write(body)
		if !hmac.Equal([]byte("v1="+hex.EncodeToString(mac.Sum(nil))), []byte(r.Header.Get("X-Tuluat-Signature"))) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if _, err := pool.Exec(r.Context(), `INSERT INTO bare (id, body) VALUES ($1, $2)`, harness.NewID("bare", time.Now()), body); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
