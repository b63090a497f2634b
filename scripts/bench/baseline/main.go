// Command baseline is the barest handler that the ingest functions are measured
// against: HMAC, one INSERT of the body, 202 or 200. It parses nothing. At /turn it
// is the barest service that answers.
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
	http.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("POST /", handler(pool, http.StatusAccepted, os.Getenv("HOOK_SECRET"), "v1=", "X-Tuluat-Signature", func(r *http.Request) string {
		return r.Header.Get("X-Tuluat-Timestamp") + "."
	}))
	http.HandleFunc("POST /whatsapp", handler(pool, http.StatusOK, os.Getenv("WHATSAPP_APP_SECRET"), "sha256=", "X-Hub-Signature-256", func(*http.Request) string {
		return ""
	}))
	http.Handle("POST /turn", newTurns(pool))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}

// handler checks the signature over before(r) and the body, stores the body and
// answers status.
func handler(pool *pgxpool.Pool, status int, secret, scheme, header string, before func(*http.Request) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(before(r)))
		mac.Write(body)
		if !hmac.Equal([]byte(scheme+hex.EncodeToString(mac.Sum(nil))), []byte(r.Header.Get(header))) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if _, err := pool.Exec(r.Context(), `INSERT INTO bare (id, body) VALUES ($1, $2)`, harness.NewID("bare", time.Now()), body); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(status)
	}
}
