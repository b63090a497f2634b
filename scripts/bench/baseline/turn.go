package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tuluat.ai/harness/shared/harness"
)

// turn is the least that answers a message and loses none: store it, ask the
// model, store the answer, tell the callback. It is one service, without queue,
// events, sessions, limits or a second try.
func turn(pool *pgxpool.Pool) http.HandlerFunc {
	model, callback := os.Getenv("MODEL_URL"), os.Getenv("CALLBACK_URL")
	client := &http.Client{Timeout: 10 * time.Second}
	return func(w http.ResponseWriter, r *http.Request) {
		if err := func() error {
			var message struct{ MessageID, Text string }
			if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
				return err
			}
			if _, err := pool.Exec(r.Context(), `INSERT INTO bare (id, body) VALUES ($1, $2)`, harness.NewID("bare", time.Now()), []byte(message.Text)); err != nil {
				return err
			}
			question, err := json.Marshal(map[string]any{"model": "instant", "messages": []any{map[string]string{"role": "user", "content": message.Text}}})
			if err != nil {
				return err
			}
			response, err := client.Post(model, "application/json", bytes.NewReader(question))
			if err != nil {
				return err
			}
			defer response.Body.Close()
			var answer struct {
				Choices []struct{ Message struct{ Content string } }
			}
			if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
				return err
			}
			text := answer.Choices[0].Message.Content
			if _, err := pool.Exec(r.Context(), `INSERT INTO bare (id, body) VALUES ($1, $2)`, harness.NewID("bare", time.Now()), []byte(text)); err != nil {
				return err
			}
			reply, err := json.Marshal(map[string]string{"inReplyTo": message.MessageID, "text": text})
			if err != nil {
				return err
			}
			told, err := client.Post(callback, "application/json", bytes.NewReader(reply))
			if err != nil {
				return err
			}
			return told.Body.Close()
		}(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
}
