package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/tuluat/internal/devstate"
	"tuluat.ai/harness/scripts/tuluat/internal/phone"
	"tuluat.ai/harness/shared/harness"
)

// The people a chat is played as unless one says otherwise.
const (
	somePhone = "15550001111"
	someUser  = "5000000001"
)

// via is a chat over a fake messenger.
type via struct {
	target  *target
	channel harness.Channel
	as      string // phone number or user id
	verbose bool

	account     devstate.Channel
	phone       *phone.Phone
	interactive bool
	screen      *screen
	at          int64                   // all before is shown
	ticks       map[string]person.Ticks // shown so far, by message
	said        map[string]string       // texts of our side that were shown: an edit is shown again
	choices     int                     // how many the newest message offers
}

// unheard says why an agent may not answer a person on a messenger: strangers
// are told nothing there.
func unheard(c devstate.Channel, as string) string {
	if file := c.SecretFiles[devstate.PairingCode]; file != "" {
		return fmt.Sprintf("%s is neither paired nor allowed there: say the pairing code first, which is in %s", as, file)
	}
	return fmt.Sprintf("its senders do not allow %s: list it in senders.allow; with the policy pairing say the code first, which `make dev` keeps in .tuluat/secrets/NAME/KEY", as)
}

// viaChannel reads --via.
func viaChannel(name string) (harness.Channel, error) {
	switch strings.ToLower(name) {
	case "whatsapp":
		return harness.ChannelWhatsApp, nil
	case "telegram":
		return harness.ChannelTelegram, nil
	}
	return "", fmt.Errorf("--via must be whatsapp or telegram, not %q", name)
}

func (v *via) run(ctx context.Context, agent string) error {
	state, err := v.target.find()
	if err != nil {
		return err
	}
	v.account, err = state.Channel(agent, v.channel, "")
	if err != nil {
		return err
	}
	base := state.Fakes.Of(v.channel)
	if base == "" {
		return harness.Errorf(harness.NotFound, "no fake stands for %s here: `make dev` starts one unless real credentials are set; then use the app itself", strings.ToLower(string(v.channel)))
	}
	if v.as == "" {
		v.as = somePhone
		if v.channel == harness.ChannelTelegram {
			v.as = someUser
		}
	}
	v.phone, err = phone.Pick(ctx, base, v.channel, v.account.Account, v.as, v.target.user)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("nothing listens at %s: start it with `make dev`", base)
	}
	if err != nil {
		return err
	}
	sys := v.target.sys
	v.interactive = terminal(sys.Stdin) && terminal(sys.Stdout)
	v.screen, v.ticks, v.said = newScreen(sys.Stdout, sys.Stderr, false), map[string]person.Ticks{}, map[string]string{}
	if v.interactive {
		v.screen = newScreen(sys.Stdout, sys.Stdout, true)
		fmt.Fprintf(sys.Stdout, "%s over %s as %s. A number presses a button, /file PATH sends a file, /quit leaves.\n", visible(agent), strings.ToLower(string(v.channel)), visible(v.as))
	}
	page, err := v.phone.Read(ctx, 0, 0)
	if err != nil {
		return err
	}
	v.at = page.Next
	v.past(page.Lines)
	ctx, cancel := context.WithCancel(ctx)
	pages, broken, ended := v.follow(ctx)
	defer func() { cancel(); <-ended }()
	lines, failed := read(ctx, sys.Stdin)
	if v.interactive {
		return v.talk(ctx, lines, failed, pages, broken)
	}
	return v.ask(ctx, lines, failed, pages, broken)
}

// past takes note of an earlier chat; its newest answer is shown.
func (v *via) past(lines []person.Line) {
	last := person.Line{}
	for _, l := range lines {
		v.ticks[l.ID], v.said[l.ID] = l.Ticks, l.Text
		if l.From == "" {
			last = l
		}
	}
	v.choices = len(last.Choices)
	if v.interactive && last.ID != "" {
		v.screen.aside("", "Its last message: "+last.Text)
		v.offer(last)
	}
}

const (
	readWait  = 20 * time.Second
	retryWait = time.Second
)

// follow reads the chat until ctx ends.
func (v *via) follow(ctx context.Context) (<-chan phone.Page, <-chan error, <-chan struct{}) {
	pages, broken, ended := make(chan phone.Page), make(chan error, 1), make(chan struct{})
	at := v.at
	go func() {
		defer close(ended)
		failures := 0
		for ctx.Err() == nil {
			page, err := v.phone.Read(ctx, at, readWait)
			if err != nil {
				if failures++; failures > 10 {
					broken <- err
					return
				}
				select {
				case <-time.After(retryWait):
				case <-ctx.Done():
				}
				continue
			}
			failures, at = 0, page.Next
			select {
			case pages <- page:
			case <-ctx.Done():
			}
		}
	}()
	return pages, broken, ended
}

// talk is a chat on a terminal.
func (v *via) talk(ctx context.Context, lines <-chan string, failed *error, pages <-chan phone.Page, broken <-chan error) error {
	for {
		fmt.Fprint(v.screen.answers, prompt)
		select {
		case line, more := <-lines:
			if !more {
				fmt.Fprintln(v.screen.answers)
				return *failed
			}
			if line = strings.TrimSpace(line); line == "/quit" || line == "/exit" {
				return nil
			}
			if _, err := v.say(ctx, line); err != nil {
				return err
			}
		case page := <-pages:
			fmt.Fprint(v.screen.answers, "\r")
			v.show(page.Lines)
		case err := <-broken:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// quiet is how long nothing may come before an answer counts as complete: a
// messenger does not say how many messages make one.
const quiet = 1500 * time.Millisecond

// ask says line after line, and waits for an answer to each.
func (v *via) ask(ctx context.Context, lines <-chan string, failed *error, pages <-chan phone.Page, broken <-chan error) error {
	for {
		select {
		case line, more := <-lines:
			if !more {
				return *failed
			}
			at, err := v.say(ctx, strings.TrimSpace(line))
			if err == nil && at > 0 {
				err = v.await(ctx, at, pages, broken)
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await shows what comes until there was an answer to what stands at a place.
func (v *via) await(ctx context.Context, at int64, pages <-chan phone.Page, broken <-chan error) error {
	late := time.NewTimer(v.target.timeout)
	defer late.Stop()
	var done <-chan time.Time
	for {
		select {
		case page := <-pages:
			v.show(page.Lines)
			for _, l := range page.Lines {
				if l.From == "" && l.Seq > at {
					done = time.After(quiet)
				}
			}
		case <-done:
			return nil
		case err := <-broken:
			return err
		case <-late.C:
			return &timeoutError{v.target.timeout, unheard(v.account, v.as)}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// say says one line, presses a button where it is the number of one, or sends
// the file it names. The place is 0 for nothing said.
func (v *via) say(ctx context.Context, line string) (int64, error) {
	if line == "" {
		return 0, nil
	}
	if at, ok := pressed(line, v.choices); ok {
		return v.phone.Press(ctx, strconv.Itoa(at+1))
	}
	if rest, ok := strings.CutPrefix(line, "/file "); ok {
		path, caption := fileAndCaption(strings.TrimSpace(rest))
		file, err := phone.ReadFile(path)
		if err != nil && v.interactive {
			v.screen.aside("", "The file cannot be sent: "+err.Error())
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return v.phone.Send(ctx, file, caption)
	}
	return v.phone.Say(ctx, line)
}

// fileAndCaption parts what follows /file. A path with spaces is in quotes.
func fileAndCaption(text string) (path, caption string) {
	if rest, ok := strings.CutPrefix(text, `"`); ok {
		path, caption, _ = strings.Cut(rest, `"`)
	} else {
		path, caption, _ = strings.Cut(text, " ")
	}
	return path, strings.TrimSpace(caption)
}

// show prints what is new in a chat.
func (v *via) show(lines []person.Line) {
	for _, l := range lines {
		old, known := v.said[l.ID]
		switch {
		case l.From != "":
		case !known:
			v.screen.answer(v.content(l))
			v.offer(l)
			v.choices = len(l.Choices)
		case old != l.Text:
			v.screen.answer("(now) " + v.content(l))
			v.offer(l)
		}
		if before, seen := v.ticks[l.ID]; v.verbose && l.Ticks != "" && (!seen || before != l.Ticks) {
			v.screen.aside(indent, tick(l))
		} else if !v.verbose && l.Ticks == person.Failed && before != l.Ticks {
			v.screen.aside(indent, tick(l))
		}
		v.said[l.ID], v.ticks[l.ID] = l.Text, l.Ticks
	}
}

// content is a message in words.
func (v *via) content(l person.Line) string {
	text := l.Text
	if l.File != nil {
		text = strings.TrimSpace(fmt.Sprintf("[%s %s, %d bytes: %s] %s", l.Kind, l.File.Name, l.File.Bytes, v.phone.FileURL(l.File.ID), text))
	}
	return text
}

func (v *via) offer(l person.Line) {
	choices := make([]harness.Choice, len(l.Choices))
	for i, c := range l.Choices {
		choices[i] = harness.Choice{ID: c.ID, Title: c.Title, Description: c.Description}
	}
	v.screen.offer(choices)
}

// tick is how far a message has come, as phones show it.
func tick(l person.Line) string {
	who := "its"
	if l.From != "" {
		who = "your"
	}
	switch l.Ticks {
	case person.Sent:
		return "✓ " + who + " message is sent"
	case person.Delivered:
		return "✓✓ " + who + " message is delivered"
	case person.Read:
		return "✓✓ " + who + " message is read"
	}
	return "✗ " + who + " message has failed: " + l.Why
}
