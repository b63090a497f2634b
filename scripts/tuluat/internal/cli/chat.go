package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/hook"
	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/shared/harness"
)

func newChat(sys System) *cobra.Command {
	t := &target{sys: sys}
	v := &via{target: t}
	var over string
	cmd := &cobra.Command{
		Use:   "chat AGENT",
		Short: "Talk to an agent",
		Long: `Talk to an agent. What it runs is shown while it runs.

On a terminal: /new starts a new conversation, /quit or Ctrl-D leaves; the end of
an answer that is still written is shown on one line (model.stream of the agent).
With piped input: each line is a message; its answer is printed to stdout before
the next line is sent, what the agent runs goes to stderr.

With --via the chat goes over the messengers' stand-ins of a running ` + "`make dev`" + `, as
people have it: every message is printed as it comes, and the line
"/file PATH [caption]" sends a file (a path with spaces in double quotes).

Choices that the agent offers are printed with numbers; a line that is only the
number of one presses it.`,
		Example: `  tuluat chat python-coder
  tuluat chat python-coder --via whatsapp -v
  printf '/file data.csv\nWhat is the sum of its first column?\n' | tuluat chat python-coder --via telegram`,
		Args: cobra.ExactArgs(1),
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			beside, foreign := "without", []string{"as", "verbose"}
			if over != "" {
				if v.channel, err = viaChannel(over); err != nil {
					return err
				}
				beside, foreign = "with", []string{"url", "chat", "hook"}
			}
			for _, name := range foreign {
				if cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s has no meaning %s --via", name, beside)
				}
			}
			return nil
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&over, "via", "", "whatsapp or telegram (default: the agent's webhook)")
	cmd.Flags().StringVar(&v.as, "as", "", "with --via: the phone number or Telegram user id to be (default: "+somePhone+", "+someUser+")")
	cmd.Flags().BoolVarP(&v.verbose, "verbose", "v", false, "with --via: show delivery ticks")
	cmd.RunE = running(func(cmd *cobra.Command, args []string) error {
		if v.channel != "" {
			return v.run(cmd.Context(), args[0])
		}
		if err := t.resolve(args[0]); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		c := &chat{target: t, interactive: terminal(sys.Stdin) && terminal(sys.Stdout)}
		err := c.run(ctx)
		cancel()
		if c.conversation != nil {
			<-c.conversation.ended
		}
		return err
	})
	return cmd
}

type chat struct {
	target       *target
	interactive  bool
	conversation *conversation
	screen       *screen
	choices      []harness.Choice           // what the newest answer offers
	mine         map[harness.MessageID]bool // said here: not shown again when their turn begins
	asked        harness.MessageID          // the newest of them
}

const (
	prompt  = "> "
	maxLine = 64 << 10 // the hook's own limit on a text
)

func (c *chat) run(ctx context.Context) error {
	sys := c.target.sys
	c.screen, c.mine = newScreen(sys.Stdout, sys.Stderr, false), map[harness.MessageID]bool{}
	if c.interactive {
		c.screen = newScreen(sys.Stdout, sys.Stdout, true)
	}
	var err error
	c.conversation, err = join(ctx, c.target, c.lost())
	if err != nil {
		return err
	}
	c.greet()
	lines, failed := read(ctx, sys.Stdin)
	for {
		line, more, err := c.next(ctx, lines)
		if err != nil {
			return err
		}
		if !more {
			return *failed
		}
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if c.interactive && (line == "/quit" || line == "/exit") {
			return nil
		}
		if err := c.ask(ctx, line); err != nil {
			return err
		}
	}
}

func (c *chat) greet() {
	if c.interactive {
		fmt.Fprintf(c.screen.answers, "%s at %s. /new starts afresh, /quit leaves.\n", visible(c.target.agent), visible(c.target.baseURL))
	}
	if c.conversation.goesOn() {
		c.screen.aside("", "An earlier conversation goes on: "+turns(c.conversation.history.Turns)+" so far.")
		if last := c.conversation.last; last.Message != "" { // it may have come while nobody was here
			c.screen.aside(indent, "Its last answer: "+last.Text)
			c.offer(last)
		}
	}
}

// lost says once that the connection is gone; what is missed comes afterwards.
func (c *chat) lost() func(error) {
	said := false
	return func(error) {
		if !said {
			fmt.Fprintln(c.target.sys.Stderr, "The connection is lost; trying again.")
		}
		said = true
	}
}

// next waits for a line and shows what happens meanwhile.
func (c *chat) next(ctx context.Context, lines <-chan string) (line string, more bool, err error) {
	c.prompt()
	for {
		events := c.conversation.events
		if !c.interactive {
			events = nil // a line's own answer is awaited; nobody watches
		}
		select {
		case line, more = <-lines:
			if !more && c.interactive {
				fmt.Fprintln(c.screen.answers)
			}
			return line, more, nil
		case e := <-events:
			if e.Name == "draft" { // the line is the prompt's
				continue
			}
			fmt.Fprint(c.screen.answers, "\r")
			c.others(e)
			c.prompt()
		case err := <-c.conversation.broken:
			return "", false, c.target.located(err)
		case <-ctx.Done():
			return "", false, ctx.Err()
		}
	}
}

func (c *chat) prompt() {
	if c.interactive {
		fmt.Fprint(c.screen.answers, prompt)
	}
}

// ask says one line and shows the way to its answer.
func (c *chat) ask(ctx context.Context, line string) error {
	say := func() (hook.Receipt, error) { return c.conversation.say(ctx, line) }
	if at, ok := pressed(line, len(c.choices)); ok {
		choice := c.choices[at]
		say = func() (hook.Receipt, error) { return c.conversation.press(ctx, choice) }
	}
	receipt, err := say()
	if err != nil {
		return err
	}
	if receipt.Message != "" { // else it was a decision, and what was asked before goes on
		c.asked, c.mine[receipt.Message] = receipt.Message, true
	}
	answer, err := c.conversation.await(ctx, c.asked, c.others)
	if late, ok := errors.AsType[*timeoutError](err); ok && c.interactive {
		c.screen.aside("", late.Error())
		return nil
	}
	if err != nil {
		return err
	}
	c.reply(answer)
	return nil
}

// reply shows an answer. What it offers can be pressed until the next one.
func (c *chat) reply(e sse.Event) {
	c.screen.answer(e.Text)
	c.offer(e)
}

func (c *chat) offer(e sse.Event) {
	c.choices = e.Choices
	c.screen.offer(e.Choices)
}

// others shows what is not the awaited answer.
func (c *chat) others(e sse.Event) {
	switch {
	case e.Name == "turn" && !c.mine[e.Message] && c.interactive:
		c.screen.aside("", e.ChannelUserID+": "+e.Text)
	case e.Name == "reply" && c.interactive: // late, or to somebody else
		c.reply(e)
	default:
		c.screen.show(e)
	}
}

// read hands out the lines of r. The failure is to be looked at when the lines
// have ended.
func read(ctx context.Context, r io.Reader) (<-chan string, *error) {
	lines := make(chan string)
	failed := new(error)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(r)
		scanner.Buffer(nil, maxLine+1)
		for scanner.Scan() {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
		if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
			*failed = harness.Errorf(harness.Invalid, "a line is longer than %d KiB", maxLine>>10)
		} else {
			*failed = err
		}
	}()
	return lines, failed
}
