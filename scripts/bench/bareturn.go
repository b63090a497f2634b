package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/localpg"
)

// bareTurns is the barest service that answers messages, see baseline.
type bareTurns struct {
	server          *server
	model, receiver *httptest.Server
	told            chan time.Time
	sent            int
}

func startBareTurns(ctx context.Context, bin string, pg *localpg.Server) (*bareTurns, error) {
	if err := freshDatabase(ctx, pg, "bench_bare_turn"); err != nil {
		return nil, err
	}
	dsn := pg.DSN("bench_bare_turn")
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `CREATE TABLE bare (id text PRIMARY KEY, body bytea NOT NULL)`); err != nil {
		return nil, err
	}
	b := &bareTurns{model: httptest.NewServer(instant), told: make(chan time.Time, 1)}
	b.receiver = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b.told <- time.Now()
		w.WriteHeader(http.StatusNoContent)
	}))
	b.server, err = startServer(ctx, []string{filepath.Join(bin, "baseline")}, []string{"DATABASE_URL=" + dsn, "MODEL_URL=" + b.model.URL, "CALLBACK_URL=" + b.receiver.URL})
	if err != nil {
		b.model.Close()
		b.receiver.Close()
		return nil, err
	}
	return b, nil
}

func (b *bareTurns) stop() {
	b.server.stop()
	b.model.Close()
	b.receiver.Close()
}

// turn sends one message and returns how long its answer took.
func (b *bareTurns) turn(ctx context.Context) (time.Duration, error) {
	b.sent++
	body, err := json.Marshal(map[string]string{"messageId": fmt.Sprint("b-", b.sent), "text": "hello"})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	request, err := http.NewRequest(http.MethodPost, b.server.url+"/turn", strings.NewReader(string(body)))
	if err != nil {
		return 0, err
	}
	if err := send(ctx, http.DefaultClient, request, http.StatusOK); err != nil {
		return 0, err
	}
	return (<-b.told).Sub(began), nil
}
