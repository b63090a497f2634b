//go:build system

package system_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// message is one that a caller sends, and what its answer must show.
type message struct {
	id       string // messageId: the chat and the number in it
	agent    agent
	chat     string
	number   int // from 1, in its chat
	text     string
	commands []command
}

// command is one command that a message asks for.
type command struct {
	id   string // in its evidence
	exit int
}

// result is what the command prints, after it has done its work.
func (c command) result() string { return "RESULT-" + c.id }

// shell is the command's text: it leaves a line before its work and one after
// it where no part of the system can touch them. The number of the first makes
// two starts of one command differ.
func (c command) shell() string {
	text := fmt.Sprintf(`echo "%[1]s $(cat /proc/sys/kernel/random/uuid)" >> %[2]s/%[3]s; sleep 0.05; echo "%[1]s end" >> %[2]s/%[4]s; echo %[5]s`,
		c.id, insideEvidence, startsFile, endsFile, c.result())
	if c.exit != 0 {
		text += fmt.Sprintf("; exit %d", c.exit)
	}
	return text
}

func chatName(i int) string { return fmt.Sprintf("s%03d", i) }

// newMessage draws a message: a third asks for a command, a tenth of these for
// two, and some commands fail by themselves.
func newMessage(a agent, chat string, number int, lot *rand.Rand) message {
	m := message{id: fmt.Sprintf("%s-m%03d", chat, number), agent: a, chat: chat, number: number}
	exit := func() int {
		if lot.IntN(6) == 0 {
			return 3
		}
		return 0
	}
	switch {
	case lot.IntN(3) > 0:
		m.text = "note " + m.id
	case lot.IntN(10) > 0:
		m.commands = []command{{m.id, exit()}}
		m.text = "run: " + m.commands[0].shell()
	default:
		m.commands = []command{{m.id + "a", exit()}, {m.id + "b", exit()}}
		m.text = "run twice: " + m.commands[0].shell() + " ;; " + m.commands[1].shell()
	}
	return m
}

// newTraffic draws the messages of every chat, in order.
func newTraffic(agents []agent, sessions, messages int, seed uint64) [][]message {
	chats := make([][]message, sessions)
	for i := range chats {
		lot := rand.New(rand.NewPCG(seed, uint64(i)))
		n := messages / sessions
		if i < messages%sessions {
			n++
		}
		for number := range n {
			chats[i] = append(chats[i], newMessage(agents[i%len(agents)], chatName(i), number+1, lot))
		}
	}
	return chats
}

// caller sends messages as another system would: signed, in order per chat, and
// again under the same messageId until it has an answer it can believe.
type caller struct {
	world  *world
	client *http.Client

	mu         sync.Mutex
	posts      int
	retries    int
	duplicates int // posts that the system knew already
}

func newCaller(w *world) *caller {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.MaxIdleConnsPerHost = 64
	w.t.Cleanup(transport.CloseIdleConnections)
	return &caller{world: w, client: &http.Client{Transport: transport, Timeout: 30 * time.Second}}
}

// send posts m until it is taken; an error is an answer that says never.
func (c *caller) send(ctx context.Context, m message) error {
	body, err := json.Marshal(map[string]string{"messageId": m.id, "channelUserId": "user-" + m.chat, "chat": m.chat, "text": m.text})
	if err != nil {
		return err
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		status, answer := c.post(ctx, m, body)
		switch {
		case status == http.StatusAccepted:
			return nil
		case status >= 400 && status < 500:
			return fmt.Errorf("message %s was refused: %d %s", m.id, status, answer)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("message %s was not taken: last answer %d %s", m.id, status, answer)
		case <-time.After(pause):
		}
	}
}

// post returns the status, 0 if there was no answer.
func (c *caller) post(ctx context.Context, m message, body []byte) (int, string) {
	c.count(func() { c.posts++ })
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.world.cluster.GatewayURL()+"/api/v1/channels/webhook/"+m.agent.name, bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	sign(request.Header, m.agent.key, string(body))
	request.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		c.count(func() { c.retries++ })
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil || response.StatusCode != http.StatusAccepted {
		c.count(func() { c.retries++ })
		return response.StatusCode, strings.TrimSpace(string(text))
	}
	var accepted struct{ Duplicate bool }
	if json.Unmarshal(text, &accepted) != nil {
		return 0, "an answer that is no JSON: " + string(text)
	}
	if accepted.Duplicate {
		c.count(func() { c.duplicates++ })
	}
	return response.StatusCode, ""
}

func (c *caller) count(add func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add()
}

// converse sends a chat's messages, at most ahead of them unanswered, and
// returns when all are answered.
func (c *caller) converse(ctx context.Context, messages []message, ahead int) error {
	for i, m := range messages {
		if err := c.awaitAnswers(ctx, m.chat, i+1-ahead); err != nil {
			return err
		}
		if err := c.send(ctx, m); err != nil {
			return err
		}
	}
	return c.awaitAnswers(ctx, messages[0].chat, len(messages))
}

func (c *caller) awaitAnswers(ctx context.Context, chat string, want int) error {
	for {
		have, changed := c.world.receiver.answered(chat)
		if have >= want {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("chat %s: %d of %d answers", chat, have, want)
		}
	}
}

// converseAll does so for every chat at once and returns what went wrong. How
// far each is ahead is drawn.
func (c *caller) converseAll(ctx context.Context, chats [][]message, seed uint64) []error {
	errs := make([]error, len(chats))
	var all sync.WaitGroup
	lot := rand.New(rand.NewPCG(seed, 1<<32))
	for i, messages := range chats {
		if len(messages) == 0 {
			continue
		}
		ahead := 1 + lot.IntN(4)
		all.Go(func() { errs[i] = c.converse(ctx, messages, ahead) })
	}
	all.Wait()
	var bad []error
	for _, err := range errs {
		if err != nil {
			bad = append(bad, err)
		}
	}
	return bad
}
