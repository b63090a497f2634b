package conformance

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/harness"
)

// receive sends the case's requests and reads what came of them.
func (w *World) receive(ctx context.Context, c *Case, o *Observed) error {
	bodies, err := c.bodies()
	if err != nil {
		return err
	}
	o.Answers = make([]Answer, len(bodies))
	together := len(bodies) - c.Request.ConcurrentLast
	for i := range together {
		if o.Answers[i], err = w.post(ctx, c, bodies[i]); err != nil {
			return err
		}
	}
	var posting sync.WaitGroup
	failures := make([]error, len(bodies))
	begin := make(chan struct{})
	for i := together; i < len(bodies); i++ {
		posting.Go(func() {
			<-begin
			o.Answers[i], failures[i] = w.post(ctx, c, bodies[i])
		})
	}
	close(begin)
	posting.Wait()
	return errors.Join(failures...)
}

// post sends one request of a case.
func (w *World) post(ctx context.Context, c *Case, body []byte) (Answer, error) {
	r, err := w.request(ctx, c, body)
	if err != nil {
		return Answer{}, err
	}
	begin := time.Now()
	response, err := w.client.Do(r)
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", c.Name, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return Answer{}, err
	}
	return Answer{
		Status: response.StatusCode, Body: string(text), ContentType: response.Header.Get("Content-Type"),
		NoSniff: response.Header.Get("X-Content-Type-Options") == "nosniff", Took: time.Since(begin) / max(w.options.slack, 1),
	}, nil
}

var paths = map[string]string{
	kindWhatsApp: "/api/v1/channels/whatsapp/webhook",
	kindTelegram: "/api/v1/channels/telegram/webhook/" + botName,
	kindWebhook:  "/api/v1/channels/webhook/" + hookName,
}

func (w *World) request(ctx context.Context, c *Case, body []byte) (*http.Request, error) {
	address := w.public[c.Kind()] + paths[c.Kind()]
	method := c.Request.Method
	if method == "" {
		method = http.MethodPost
	}
	if c.Request.QueryFromBody {
		var query map[string]string
		if err := json.Unmarshal(body, &query); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		values := url.Values{}
		for key, value := range query {
			values.Set(key, value)
		}
		address, body = address+"?"+values.Encode(), nil
	}
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.Request.Sign == "" {
		sign(r.Header, c.Kind(), body, time.Now())
	}
	for name, value := range c.Request.Headers {
		r.Header.Set(name, value)
	}
	return r, nil
}

// sign adds what proves a request of a kind.
func sign(h http.Header, kind string, body []byte, now time.Time) {
	switch kind {
	case kindWhatsApp:
		h.Set("X-Hub-Signature-256", "sha256="+mac(appSecret, body))
	case kindTelegram:
		h.Set("X-Telegram-Bot-Api-Secret-Token", botSecret)
	case kindWebhook:
		timestamp := strconv.FormatInt(now.Unix(), 10)
		h.Set("X-Tuluat-Timestamp", timestamp)
		h.Set("X-Tuluat-Signature", "v1="+mac(hookSecret, append([]byte(timestamp+"."), body...)))
	}
}

func mac(secret string, text []byte) string {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write(text)
	return hex.EncodeToString(m.Sum(nil))
}

// pollTime is how long a poller may take to ask again after an answer.
const pollTime = 30 * time.Second

// poll lets the bot be asked for by getUpdates, answers the case's body once and
// waits for the request behind it.
func (w *World) poll(ctx context.Context, c *Case, o *Observed) (err error) {
	w.transport = harness.TransportPoll
	defer func() {
		w.transport = harness.TransportWebhook
		err = errors.Join(err, w.routes(ctx))
	}()
	if err := w.routes(ctx); err != nil {
		return err
	}
	asked := w.provider.answerUpdates(max(c.Request.Status, http.StatusOK), c.Body)
	if w.options.Target == "" {
		p, err := w.start(ctx, "telegram-ingest", "poll")
		if err != nil {
			return err
		}
		defer p.stop()
	}
	select {
	case <-asked:
	case <-time.After(pollTime):
		o.Faults = append(o.Faults, fmt.Sprintf("no getUpdates with an offset came within %s of the answer", pollTime))
	case <-ctx.Done():
		return ctx.Err()
	}
	o.NextOffset = w.provider.nextOffset()
	return nil
}

// observe reads what is stored and what was announced.
func (w *World) observe(ctx context.Context, o *Observed) error {
	rows, err := w.store.Pool().Query(ctx, `SELECT m.session_id, s.channel, m.channel_user_id, m.provider_id, m.text, m.metadata
		FROM messages m JOIN sessions s USING (session_id) WHERE m.direction = 'INBOUND' ORDER BY s.created_at, m.session_id, m.seq`)
	if err != nil {
		return err
	}
	o.Messages, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Stored, error) {
		var m Stored
		var metadata []byte
		if err := row.Scan(&m.Session, &m.Channel, &m.ChannelUserID, &m.ProviderID, &m.Text, &metadata); err != nil {
			return m, err
		}
		v, err := decode(metadata)
		m.Metadata, _ = v.(map[string]any)
		return m, err
	})
	if err != nil {
		return err
	}
	if w.recorder != nil {
		o.Wakes = w.recorder.take()
	}
	return w.records(ctx, o)
}

// records reads what is visible outside of the agent, each row as one object.
func (w *World) records(ctx context.Context, o *Observed) error {
	rows, err := w.store.Pool().Query(ctx, `
		SELECT to_jsonb(n) FROM notices n
		UNION ALL SELECT to_jsonb(r) FROM replies r
		UNION ALL SELECT to_jsonb(k) || COALESCE(to_jsonb(c), '{}') FROM chat_aliases k LEFT JOIN chats c USING (channel, account, chat)`)
	if err != nil {
		return err
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return err
	}
	for _, text := range texts {
		v, err := decode(text)
		if err != nil {
			return err
		}
		record := map[string]string{}
		flatten("", v, record)
		o.Records = append(o.Records, record)
	}
	return nil
}

// flatten puts every scalar of v into record, by its path.
func flatten(path string, v any, record map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			flatten(path+"."+key, inner, record)
		}
	case []any:
		for i, inner := range v {
			flatten(path+"."+strconv.Itoa(i), inner, record)
		}
	default:
		record[path] = scalar(v)
	}
}
