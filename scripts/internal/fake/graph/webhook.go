package graph

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// update is one thing to be told: a message, a status, or any value of another field.
type update struct {
	number  string
	chat    string
	message map[string]any
	status  map[string]any
	who     []Person // contacts
	field   string   // empty: messages
	value   map[string]any
}

// retryFor is how long a webhook is tried again, see the facts of the vendor.
const (
	retryFor   = 7 * 24 * time.Hour
	firstRetry = 2 * time.Second
	lastRetry  = time.Hour
)

// tell delivers updates. The channel is closed when each was tried once.
func (s *Server) tell(updates ...update) <-chan struct{} {
	tried := make(chan struct{})
	if len(updates) == 0 {
		close(tried)
		return tried
	}
	if s.options.BatchWindow <= 0 {
		s.jobs.Go(func(ctx context.Context) { s.deliver(ctx, updates, tried) })
		return tried
	}
	s.mu.Lock()
	first := len(s.pending) == 0
	s.pending = append(s.pending, updates...)
	s.waiting = append(s.waiting, tried)
	s.mu.Unlock()
	if first {
		s.jobs.Go(func(ctx context.Context) {
			s.clock.Sleep(ctx, s.options.BatchWindow)
			s.mu.Lock()
			batch, waiting := s.pending, s.waiting
			s.pending, s.waiting = nil, nil
			s.mu.Unlock()
			all := make(chan struct{})
			s.deliver(ctx, batch, all)
			for _, w := range waiting {
				close(w)
			}
		})
	}
	return tried
}

// deliver tells updates, at most maxBatch a POST, and starts what has to be
// tried again. tried is closed at its end.
func (s *Server) deliver(ctx context.Context, updates []update, tried chan struct{}) {
	defer close(tried)
	type hook struct{ url, secret string }
	byHook := map[hook][]update{}
	var hooks []hook
	s.mu.Lock()
	for _, u := range updates {
		n := s.numbers[u.number]
		h := hook{n.WebhookURL, n.AppSecret}
		if h.url == "" {
			s.counts.Add("webhooksUntold")
			continue
		}
		if byHook[h] == nil {
			hooks = append(hooks, h)
		}
		byHook[h] = append(byHook[h], u)
	}
	s.mu.Unlock()
	for _, h := range hooks {
		for batch := range slices.Chunk(byHook[h], maxBatch) {
			s.tellBatch(ctx, h.url, h.secret, batch)
		}
	}
}

func (s *Server) tellBatch(ctx context.Context, to, secret string, batch []update) {
	body := Escape(s.envelope(batch))
	fault, _ := s.faults.Take("webhook", batch[0].chat)
	s.mu.Lock()
	held := s.reorder
	s.reorder = nil
	s.mu.Unlock()
	switch fault.Do {
	case "drop":
		s.counts.Add("webhooksDropped")
		return
	case "delay":
		if !s.clock.Sleep(ctx, time.Duration(fault.Delay)) {
			return
		}
	case "reorder":
		next := make(chan struct{})
		s.mu.Lock()
		s.reorder = next
		s.mu.Unlock()
		s.jobs.Go(func(ctx context.Context) {
			select {
			case <-next:
				s.attempts(ctx, to, secret, body, batch)
			case <-ctx.Done():
			}
		})
		return
	case "double":
		second := make(chan struct{})
		s.jobs.Go(func(ctx context.Context) {
			defer close(second)
			s.post(ctx, to, secret, body)
		})
		defer func() { <-second }()
	}
	s.attempts(ctx, to, secret, body, batch)
	if held != nil {
		close(held)
	}
}

// attempts tries once, and leaves what failed to a job.
func (s *Server) attempts(ctx context.Context, to, secret string, body []byte, batch []update) {
	if s.post(ctx, to, secret, body) {
		s.told(batch)
		return
	}
	s.jobs.Go(func(ctx context.Context) {
		began := s.clock.Now()
		for pause := time.Duration(0); ; pause = min(max(2*pause, firstRetry), lastRetry) {
			if !s.clock.Sleep(ctx, pause) {
				return
			}
			if s.clock.Now().Sub(began) > retryFor {
				s.counts.Add("webhooksLost")
				return
			}
			s.counts.Add("webhookRetries")
			if s.post(ctx, to, secret, body) {
				s.told(batch)
				return
			}
		}
	})
}

func (s *Server) told(batch []update) {
	s.counts.Add("webhooksTold")
	for _, u := range batch {
		if id, ok := u.message["id"].(string); ok {
			s.lines.Tick(u.number, u.chat, id, person.Delivered, "")
		}
	}
}

// post makes one try and reports whether it was answered 200.
func (s *Server) post(ctx context.Context, to, secret string, body []byte) bool {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return false
	}
	s.counts.Add("webhookPosts")
	status, err := s.raw(ctx, to, body, http.Header{"X-Hub-Signature-256": {Sign(secret, body)}})
	if err != nil {
		s.options.Log.Warn("a whatsapp webhook is not answered", "err", err)
		return false
	}
	if status != http.StatusOK {
		s.options.Log.Warn("a whatsapp webhook is refused", "status", status)
	}
	return status == http.StatusOK
}

func (s *Server) raw(ctx context.Context, to string, body []byte, header http.Header) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "facebookexternalua")
	response, err := s.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the connection serves again
	return response.StatusCode, nil
}

// Post signs body as number and posts it to number's webhook once, whatever it
// holds. It returns the status of the answer.
func (s *Server) Post(ctx context.Context, number string, body []byte) (int, error) {
	n, ok := s.numberNamed(number)
	if !ok || n.WebhookURL == "" {
		return 0, fmt.Errorf("number %q has no webhook", number)
	}
	return s.raw(ctx, n.WebhookURL, body, http.Header{"X-Hub-Signature-256": {Sign(n.AppSecret, body)}})
}

// envelope is the body of a batch: an entry per business account, a change per
// number for all that people said, one for all statuses. s.mu is not held.
func (s *Server) envelope(batch []update) map[string]any {
	type change struct {
		number, kind string
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var accounts []string
	changes := map[string][]any{}
	values := map[change]map[string]any{}
	add := func(n *Number, field string, value map[string]any) {
		if changes[n.AccountID] == nil {
			accounts = append(accounts, n.AccountID)
		}
		changes[n.AccountID] = append(changes[n.AccountID], map[string]any{"field": field, "value": value})
	}
	for _, u := range batch {
		n := s.numbers[u.number]
		if u.field != "" {
			add(n, u.field, u.value)
			continue
		}
		kind, item := "messages", u.message
		if u.status != nil {
			kind, item = "statuses", u.status
		}
		value := values[change{u.number, kind}]
		if value == nil {
			value = map[string]any{"messaging_product": "whatsapp", "metadata": map[string]any{"display_phone_number": n.DisplayPhone, "phone_number_id": n.PhoneNumberID}}
			values[change{u.number, kind}] = value
			add(n, "messages", value)
		}
		items, _ := value[kind].([]any)
		value[kind] = append(items, item)
		for _, p := range u.who {
			contacts, _ := value["contacts"].([]any)
			if !slices.ContainsFunc(contacts, func(c any) bool { return c.(map[string]any)["user_id"] == p.BSUID }) {
				value["contacts"] = append(contacts, contact(p))
			}
		}
	}
	var entries []any
	for _, id := range accounts {
		entries = append(entries, map[string]any{"id": id, "changes": changes[id]})
	}
	return map[string]any{"object": "whatsapp_business_account", "entry": entries}
}

// Register makes the handshake with a webhook and then uses it for number.
func (s *Server) Register(ctx context.Context, number, to string) error {
	n, ok := s.numberNamed(number)
	if !ok {
		return fmt.Errorf("there is no number %q", number)
	}
	return s.register(ctx, n.PhoneNumberID, to, n.VerifyToken)
}

func (s *Server) register(ctx context.Context, number, to, verify string) error {
	if to != "" {
		u, err := url.Parse(to)
		if err != nil || u.Host == "" {
			return fmt.Errorf("%q is no URL", to)
		}
		challenge := numeric(hexDigest(s.options.Seed, number, to))[:10]
		query := u.Query()
		query.Set("hub.mode", "subscribe")
		query.Set("hub.challenge", challenge)
		query.Set("hub.verify_token", verify)
		u.RawQuery = query.Encode()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return err
		}
		response, err := s.client.Do(request)
		if err != nil {
			return fmt.Errorf("the handshake was not answered")
		}
		defer response.Body.Close()
		text, err := io.ReadAll(io.LimitReader(response.Body, 4096))
		if err != nil || response.StatusCode != http.StatusOK || string(text) != challenge {
			return fmt.Errorf("the handshake was answered %d and %d bytes instead of 200 and the challenge", response.StatusCode, len(text))
		}
	}
	s.counts.Add("handshakes")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.numbers[number].WebhookURL = to
	return nil
}

// SetWebhook uses a webhook for number without a handshake; "" for none.
func (s *Server) SetWebhook(number, to string) error {
	number = s.orFirst(number)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.numbers[number] == nil {
		return fmt.Errorf("there is no number %q", number)
	}
	if to != "" && !strings.HasPrefix(to, "http") {
		return fmt.Errorf("%q is no URL", to)
	}
	s.numbers[number].WebhookURL = to
	return nil
}
