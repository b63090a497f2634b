package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tuluat.ai/harness/shared/harness"
)

// turns is the least that answers a message and loses none: store it, ask the
// model, store the answer, tell the callback. It is one service, without queue,
// events, sessions, limits or a second try.
type turns struct {
	pool            *pgxpool.Pool
	client          http.Client
	model, callback string
}

func newTurns(pool *pgxpool.Pool) *turns {
	return &turns{pool: pool, client: http.Client{Timeout: 10 * time.Second}, model: os.Getenv("MODEL_URL"), callback: os.Getenv("CALLBACK_URL")}
}

func (t *turns) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := t.answer(r); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

func (t *turns) answer(r *http.Request) error {
	var message struct{ MessageID, Text string }
	if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
		return err
	}
	if err := t.store(r.Context(), message.Text); err != nil {
		return err
	}
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	question := map[string]any{"model": "instant", "messages": []any{map[string]string{"role": "user", "content": message.Text}}}
	if err := t.post(r.Context(), t.model, question, &answer); err != nil {
		return err
	}
	if len(answer.Choices) == 0 {
		return errors.New("the model gives no answer")
	}
	text := answer.Choices[0].Message.Content
	if err := t.store(r.Context(), text); err != nil {
		return err
	}
	return t.post(r.Context(), t.callback, map[string]string{"inReplyTo": message.MessageID, "text": text}, nil)
}

func (t *turns) store(ctx context.Context, text string) error {
	_, err := t.pool.Exec(ctx, `INSERT INTO bare (id, body) VALUES ($1, $2)`, harness.NewID("bare", time.Now()), []byte(text))
	return err
}

func (t *turns) post(ctx context.Context, url string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := t.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(out)
}
