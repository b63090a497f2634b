package botapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// queued is an update that waits for its bot.
type queued struct {
	ID   int64
	Kind string
	Chat string // updates of one chat go one after the other
	At   time.Time
	Body json.RawMessage
}

// hook is a webhook that is set.
type hook struct {
	url, secret string
	ctx         context.Context // ends when another one is set
	cancel      context.CancelFunc
	slots       chan struct{} // as many as connections are allowed
	running     map[string]bool
}

// The rules of webhooks.
const (
	keepFor       = 24 * time.Hour
	firstRetry    = time.Second
	longestAfter  = time.Hour      // of Retry-After
	goneFor       = 23 * time.Hour // 410 takes the webhook away
	mostHookReply = 1 << 20
)

// unasked are the kinds that only come when they are asked for.
var unasked = []string{"chat_member", "message_reaction", "message_reaction_count"}

// push queues an update. s.mu is held.
func (s *Server) push(b *bot, chat, kind string, value any) int64 {
	if len(b.allowed) > 0 && !slices.Contains(b.allowed, kind) || len(b.allowed) == 0 && slices.Contains(unasked, kind) {
		s.counts.Add("updatesNotAllowed")
		return 0
	}
	id := b.next
	b.next++
	body, err := json.Marshal(map[string]any{"update_id": id, kind: value})
	if err != nil { // plain values of this package
		panic(err)
	}
	s.enqueue(b, &queued{ID: id, Kind: kind, Chat: chat, At: s.clock.Now(), Body: body})
	return id
}

func (s *Server) enqueue(b *bot, q *queued) {
	s.counts.Add("updates")
	b.waiting[q.Chat] = append(b.waiting[q.Chat], q)
	close(b.changed)
	b.changed = make(chan struct{})
	s.pump(b, q.Chat)
}

// pending counts what waits. s.mu is held.
func (b *bot) pending() int {
	n := 0
	for _, list := range b.waiting {
		n += len(list)
	}
	return n
}

// pump delivers the updates of one chat, one after the other, unless that goes
// on already. s.mu is held.
func (s *Server) pump(b *bot, chat string) {
	h := b.hook
	if h == nil || h.running[chat] || len(b.waiting[chat]) == 0 {
		return
	}
	h.running[chat] = true
	s.jobs.Go(func(ctx context.Context) {
		for {
			s.mu.Lock()
			if b.hook != h || len(b.waiting[chat]) == 0 || h.ctx.Err() != nil {
				h.running[chat] = false
				s.mu.Unlock()
				return
			}
			q := b.waiting[chat][0]
			s.mu.Unlock()
			if !s.deliver(b, h, q) {
				s.mu.Lock()
				h.running[chat] = false
				s.mu.Unlock()
				return
			}
			s.remove(b, q)
		}
	})
}

func (s *Server) remove(b *bot, q *queued) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.waiting[q.Chat] = slices.DeleteFunc(b.waiting[q.Chat], func(o *queued) bool { return o == q })
	if len(b.waiting[q.Chat]) == 0 {
		delete(b.waiting, q.Chat)
	}
}

// deliver tries q until it is told or lost. It reports false when the webhook
// is no longer set.
func (s *Server) deliver(b *bot, h *hook, q *queued) bool {
	fault, _ := s.faults.Take("webhook", q.Chat)
	s.mu.Lock()
	held := s.reorder
	s.reorder = nil
	s.mu.Unlock()
	tries := 1
	switch fault.Do {
	case "drop":
		s.counts.Add("webhooksDropped")
		return true
	case "delay":
		if !s.clock.Sleep(h.ctx, time.Duration(fault.Delay)) {
			return false
		}
	case "reorder":
		next := make(chan struct{})
		s.mu.Lock()
		s.reorder = next
		s.mu.Unlock()
		select {
		case <-next:
		case <-h.ctx.Done():
			return false
		}
	case "double":
		tries = 2
	}
	pause := firstRetry
	for {
		select {
		case h.slots <- struct{}{}:
		case <-h.ctx.Done():
			return false
		}
		if tries == 2 {
			second := make(chan struct{})
			go func() {
				defer close(second)
				s.try(b, h, q)
			}()
			tries = 1
			defer func() { <-second }()
		}
		told, after := s.try(b, h, q)
		<-h.slots
		if held != nil {
			close(held)
			held = nil
		}
		if told {
			s.counts.Add("webhooksTold")
			s.told(b, q)
			return true
		}
		if h.ctx.Err() != nil {
			return false
		}
		wait := max(after, pause)
		pause = min(2*pause, time.Minute+time.Duration(number(s.options.Seed, strconv.FormatInt(q.ID, 10))%60)*time.Second)
		if s.clock.Now().Add(wait).Sub(q.At) > keepFor {
			s.counts.Add("updatesLost")
			return true
		}
		if !s.clock.Sleep(h.ctx, wait) {
			return false
		}
		s.counts.Add("webhookRetries")
	}
}

// told ticks what a person has said.
func (s *Server) told(b *bot, q *queued) {
	var u map[string]json.RawMessage
	var m struct {
		MessageID int64              `json:"message_id"`
		Chat      struct{ ID int64 } `json:"chat"`
	}
	if json.Unmarshal(q.Body, &u) == nil && json.Unmarshal(u[q.Kind], &m) == nil && m.MessageID != 0 {
		s.lines.Tick(s.account(b.Username, m.Chat.ID), strconv.FormatInt(m.Chat.ID, 10), strconv.FormatInt(m.MessageID, 10), person.Delivered, "")
	}
}

// try posts q once. after is what Retry-After asks for.
func (s *Server) try(b *bot, h *hook, q *queued) (told bool, after time.Duration) {
	s.counts.Add("webhookPosts")
	request, err := http.NewRequestWithContext(h.ctx, http.MethodPost, h.url, bytes.NewReader(q.Body))
	if err != nil {
		return false, 0
	}
	request.Header.Set("Content-Type", "application/json")
	if h.secret != "" {
		request.Header.Set("X-Telegram-Bot-Api-Secret-Token", h.secret)
	}
	response, err := s.client.Do(request)
	if err != nil {
		if h.ctx.Err() == nil {
			s.failed(b, h, 0, reason(err))
		}
		return false, 0
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, mostHookReply))
	if err != nil || response.StatusCode/100 != 2 {
		s.failed(b, h, response.StatusCode, "Wrong response from the webhook: "+response.Status)
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // none or a date: our own pause
		return false, min(time.Duration(max(seconds, 0))*time.Second, longestAfter)
	}
	s.mu.Lock()
	b.gone = time.Time{}
	s.mu.Unlock()
	s.execute(b, response.Header.Get("Content-Type"), text)
	return true, 0
}

// Post posts body to a bot's webhook once, with its secret, whatever it holds.
// It returns the status of the answer.
func (s *Server) Post(ctx context.Context, bot string, body []byte) (int, error) {
	s.mu.Lock()
	b, err := s.bot(bot)
	var h *hook
	if err == nil {
		h = b.hook
	}
	s.mu.Unlock()
	if h == nil {
		return 0, fmt.Errorf("bot %q has no webhook", bot)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	if h.secret != "" {
		request.Header.Set("X-Telegram-Bot-Api-Secret-Token", h.secret)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the connection serves again
	return response.StatusCode, nil
}

// reason is what getWebhookInfo says of a failed connection.
func reason(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok && u.Timeout() {
		return "Read timeout expired"
	}
	return "Connection refused or closed"
}

func (s *Server) failed(b *bot, h *hook, status int, why string) {
	s.counts.Add("webhookFailures")
	s.options.Log.Warn("a telegram webhook fails", "bot", b.Username, "reason", why)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	b.failed, b.failure = now, why
	switch {
	case status != http.StatusGone:
		b.gone = time.Time{}
	case b.gone.IsZero():
		b.gone = now
	case now.Sub(b.gone) >= goneFor && b.hook == h:
		s.unhook(b)
		s.counts.Add("webhooksRemoved")
	}
}

// execute does what the answer to a webhook asks for, as the API does with any
// answer that names a method.
func (s *Server) execute(b *bot, contentType string, text []byte) {
	c := call{params: map[string]string{}, files: map[string]upload{}, body: string(text)}
	if strings.HasPrefix(contentType, "application/x-www-form-urlencoded") {
		form, err := url.ParseQuery(string(text))
		if err != nil {
			return
		}
		for name := range form {
			c.params[name] = form.Get(name)
		}
	} else if c.fromJSON(bytes.TrimSpace(text)) != nil {
		return
	}
	c.method = strings.ToLower(c.params["method"])
	if c.method == "" {
		return
	}
	s.counts.Add("methodsInAnswers")
	s.options.Log.Warn("the answer to a webhook names a method", "method", c.method)
	if strings.HasPrefix(c.method, "get") || slices.Contains([]string{"setwebhook", "deletewebhook", "close", "logout"}, c.method) {
		return
	}
	r := s.do(s.jobs.Context(), b, c)
	s.calls.Add(person.Call{At: s.clock.Now(), Account: b.Username, Method: c.method, Path: "/webhook-answer/" + c.method, Body: c.body, Status: r.status, Answer: r.description})
}

// SetWebhook sets a webhook without the checks of the API; "" takes it away.
func (s *Server) SetWebhook(bot, to, secret string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bot(bot)
	if err != nil {
		return err
	}
	if secret != "" && !validSecret.MatchString(secret) {
		return fmt.Errorf("a webhook's secret has 1 to 256 of A-Z, a-z, 0-9, _ and -")
	}
	s.unhook(b)
	if to != "" {
		s.sethook(b, to, secret)
	}
	return nil
}

// sethook uses a webhook from now on. s.mu is held.
func (s *Server) sethook(b *bot, to, secret string) {
	if b.poll != nil {
		b.poll.end("terminated by setWebhook request")
		b.poll = nil
	}
	h := &hook{url: to, secret: secret, slots: make(chan struct{}, b.most), running: map[string]bool{}}
	h.ctx, h.cancel = context.WithCancel(s.jobs.Context())
	b.hook, b.failed, b.failure, b.gone = h, time.Time{}, "", time.Time{}
	for chat := range b.waiting {
		s.pump(b, chat)
	}
}

func (s *Server) unhook(b *bot) {
	if b.hook != nil {
		b.hook.cancel()
		b.hook = nil
	}
}
