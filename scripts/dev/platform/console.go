package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/phone"
)

// console is what a person sees. It says a thing once: while a fault lasts,
// functions log it at every attempt.
type console struct {
	out io.Writer

	mu   sync.Mutex
	last map[string]time.Time // when a line was last shown
}

// repeatAfter is when a line that was shown is shown again.
const repeatAfter = time.Minute

func (c *console) say(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if shown, ok := c.last[line]; ok && now.Sub(shown) < repeatAfter {
		return
	}
	if c.last == nil || len(c.last) > 1000 {
		c.last = map[string]time.Time{}
	}
	c.last[line] = now
	// Nobody is left to tell if the terminal is gone.
	_, _ = fmt.Fprintln(c.out, "dev: "+line)
}

// functionError shows what a function logged as an ERROR.
func (c *console) functionError(service, line string) {
	c.say(service + ": " + strings.TrimPrefix(line, service+": "))
}

// ready says what there is, and ends with the one line that says the system can
// be used.
func (c *console) ready(s *system, url string, m model) {
	h := s.handover
	c.say(fmt.Sprintf("agents are read from %s; sandboxes have no network; logs are in %s", h.Agents, h.Logs()))
	c.say(fmt.Sprintf("model: %s", m))
	c.say(fmt.Sprintf("messengers: %s", s.messengers))
	if s.messengers.fakes.WhatsApp != "" {
		c.say(fmt.Sprintf("a phone on WhatsApp: %s%s", s.messengers.fakes.WhatsApp, phone.Path))
	}
	if s.messengers.fakes.Telegram != "" {
		c.say(fmt.Sprintf("a phone on Telegram: %s%s", s.messengers.fakes.Telegram, phone.Path))
	}
	if s.api != nil {
		c.say(fmt.Sprintf("management API: %s/api/v1, described at %s/docs; its token is in %s, which tuluat reads itself", url, url, s.api.tokenFile))
		c.say(fmt.Sprintf("console: %s (opens once, without a token; later at %s/console/ with the token)", s.api.console(url), url))
	}
	if s.guide != nil {
		c.say(fmt.Sprintf("a tour of five minutes: %s/ (make dev ARGS=-open opens it)", s.guide.url()))
	}
	c.say(fmt.Sprintf("ready at %s. Try, in a second shell: echo 'run: uname -a' | go run ./scripts/tuluat chat python-coder", url))
}

// handler writes the platform's log to next and shows its errors.
func (c *console) handler(next slog.Handler) slog.Handler { return consoleHandler{next, c} }

type consoleHandler struct {
	slog.Handler
	console *console
}

// Enabled lets errors through whatever the log file takes.
func (h consoleHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelError || h.Handler.Enabled(ctx, level)
}

func (h consoleHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		line := r.Message
		r.Attrs(func(a slog.Attr) bool {
			line += fmt.Sprintf(" (%s: %v)", a.Key, a.Value)
			return true
		})
		h.console.say(strings.ReplaceAll(line, "\n", "; "))
	}
	return h.Handler.Handle(ctx, r)
}

func (h consoleHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return consoleHandler{h.Handler.WithAttrs(attrs), h.console}
}

func (h consoleHandler) WithGroup(name string) slog.Handler {
	return consoleHandler{h.Handler.WithGroup(name), h.console}
}
