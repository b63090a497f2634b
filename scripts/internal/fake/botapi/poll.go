package botapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// poller is a getUpdates that waits.
type poller struct {
	ended chan struct{}
	why   string
}

func (p *poller) end(why string) {
	p.why = why
	close(p.ended)
}

const (
	longestPoll   = 50 * time.Second
	conflictAfter = 3 * time.Second
)

func (s *Server) getUpdates(ctx context.Context, b *bot, c call) *result {
	offset, ok1 := c.integer("offset")
	limit, ok2 := c.integer("limit")
	timeout, ok3 := c.integer("timeout")
	if !ok1 || !ok2 || !ok3 {
		return bad("offset, limit and timeout must be integers")
	}
	if limit < 1 || limit > 100 {
		limit = 100
	}
	wait := min(time.Duration(max(timeout, 0))*time.Second, longestPoll)
	s.mu.Lock()
	if b.hook != nil {
		s.mu.Unlock()
		return fail(http.StatusConflict, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first")
	}
	if refused := b.allow(c); refused != nil {
		s.mu.Unlock()
		return refused
	}
	if b.poll != nil { // the older one is told, the newer goes on
		b.poll.end("terminated by other getUpdates request; make sure that only one bot instance is running")
	}
	me := &poller{ended: make(chan struct{})}
	b.poll = me
	s.confirm(b, offset)
	s.counts.Add("polls")
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if b.poll == me {
			b.poll = nil
		}
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.jobs.Context(), cancel)()
	late := make(chan struct{})
	go func() { // ends with ctx
		s.clock.Sleep(ctx, wait)
		close(late)
	}()
	defer func() { cancel(); <-late }()
	for {
		s.mu.Lock()
		found, changed := b.oldest(int(limit)), b.changed
		s.mu.Unlock()
		if len(found) > 0 || wait == 0 {
			return done(found)
		}
		select {
		case <-changed:
		case <-me.ended:
			s.counts.Add("conflicts")
			if !s.clock.Sleep(ctx, conflictAfter) {
				return &result{cut: true}
			}
			return fail(http.StatusConflict, "Conflict: %s", me.why)
		case <-late:
			return done(found)
		}
	}
}

// confirm forgets what is below offset, all but the newest -offset for a
// negative one, and what is too old. s.mu is held.
func (s *Server) confirm(b *bot, offset int64) {
	if offset < 0 {
		all := b.oldest(1 << 30)
		if n := len(all) + int(offset); n > 0 {
			var u struct {
				ID int64 `json:"update_id"`
			}
			if json.Unmarshal(all[n], &u) == nil {
				offset = u.ID
			}
		}
	}
	now := s.clock.Now()
	for chat, list := range b.waiting {
		list = slices.DeleteFunc(list, func(q *queued) bool {
			if q.ID >= offset && now.Sub(q.At) <= keepFor {
				return false
			}
			if q.ID < offset {
				s.told(b, q)
			} else {
				s.counts.Add("updatesLost")
			}
			return true
		})
		b.waiting[chat] = list
		if len(list) == 0 {
			delete(b.waiting, chat)
		}
	}
}

// oldest returns the first updates that wait, in the order of their ids.
func (b *bot) oldest(limit int) []json.RawMessage {
	var all []*queued
	for _, list := range b.waiting {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, c *queued) int { return compare(a.ID, c.ID) })
	found := []json.RawMessage{}
	for _, q := range all[:min(limit, len(all))] {
		found = append(found, q.Body)
	}
	return found
}

// allow takes allowed_updates; without them, what was asked for before stays.
func (b *bot) allow(c call) *result {
	text, ok := c.params["allowed_updates"]
	if !ok || text == "" {
		return nil
	}
	var kinds []string
	if err := json.Unmarshal([]byte(text), &kinds); err != nil {
		return bad("can't parse allowed_updates: an array of strings is expected")
	}
	b.allowed = kinds
	return nil
}

func (s *Server) setWebhook(b *bot, c call) *result {
	to := c.params["url"]
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if s.limits && now.Sub(b.set) < time.Second {
		return &result{status: http.StatusTooManyRequests, description: "Too Many Requests: retry after 1", parameters: map[string]any{"retry_after": 1}}
	}
	b.set = now
	most, ok := c.integer("max_connections")
	secret := c.params["secret_token"]
	switch u, err := url.Parse(to); {
	case to != "" && (err != nil || u.Host == ""):
		return bad("bad webhook: invalid URL")
	case to != "" && u.Scheme != "https" && u.Scheme != "http": // plain http leads to this machine here
		return bad("bad webhook: An HTTPS URL must be provided for webhook")
	case secret != "" && !validSecret.MatchString(secret):
		return bad("secret token contains unallowed characters")
	case !ok || most < 0 || most > 100:
		return bad("max_connections must be between 1 and 100")
	}
	if refused := b.allow(c); refused != nil {
		return refused
	}
	if most > 0 {
		b.most = int(most)
	}
	if c.flag("drop_pending_updates") {
		b.waiting = map[string][]*queued{}
		s.counts.Add("backlogsDropped")
	}
	had := b.hook
	s.unhook(b)
	switch {
	case to == "" && had == nil:
		return &result{status: http.StatusOK, value: true, description: "Webhook is already deleted"}
	case to == "":
		return &result{status: http.StatusOK, value: true, description: "Webhook was deleted"}
	}
	s.sethook(b, to, secret)
	if had != nil && had.url == to && had.secret == secret {
		return &result{status: http.StatusOK, value: true, description: "Webhook is already set"}
	}
	return &result{status: http.StatusOK, value: true, description: "Webhook was set"}
}

func (s *Server) webhookInfo(b *bot) *result {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := map[string]any{"url": "", "has_custom_certificate": false, "pending_update_count": b.pending()}
	if b.hook != nil {
		info["url"], info["max_connections"], info["ip_address"] = b.hook.url, b.most, "127.0.0.1"
	}
	if !b.failed.IsZero() && b.hook != nil {
		info["last_error_date"], info["last_error_message"] = b.failed.Unix(), b.failure
	}
	if len(b.allowed) > 0 {
		info["allowed_updates"] = b.allowed
	}
	return done(info)
}
