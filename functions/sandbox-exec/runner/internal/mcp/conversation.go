package mcp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"tuluat.ai/harness/shared/sandbox/stdio"
)

// protocol is the version that is asked for. A server that knows another answers
// with that, and what is said here is the same in all of them.
const protocol = "2025-06-18"

// maxNoise is how many lines that are no messages a server may write.
const maxNoise = 1000

// message is one of JSON-RPC, whatever it is.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// incoming is a message, or why none follows.
type incoming struct {
	message
	err error
}

// conversation is one session with a server.
type conversation struct {
	server   *server
	messages chan incoming
	deadline <-chan time.Time
	asked    <-chan os.Signal
	last     int  // id of a request
	called   bool // the call may have come to the server
}

func newConversation(s *server, limit time.Duration, asked <-chan os.Signal, stderr io.Writer) *conversation {
	c := &conversation{server: s, messages: make(chan incoming, 8), deadline: time.After(limit), asked: asked}
	_ = s.in.SetWriteDeadline(time.Now().Add(limit)) // of a pipe; without one the deadline of the command holds
	go c.read(stderr)
	return c
}

// read passes on what the server writes until it ends, or writes what no server does.
func (c *conversation) read(stderr io.Writer) {
	defer close(c.messages)
	from := bufio.NewReaderSize(c.server.out, 64<<10)
	noise := 0
	for {
		line, err := readLine(from)
		if err != nil {
			c.pass(incoming{err: err})
			return
		}
		var m message
		if json.Unmarshal(line, &m) == nil && (m.Method != "" || len(m.ID) > 0) {
			if !c.pass(incoming{message: m}) {
				return
			}
			continue
		}
		if len(line) == 0 {
			continue
		}
		if noise++; noise <= 10 {
			fmt.Fprintf(stderr, "[the server wrote a line on its standard output that is no message: %.200q]\n", line)
		}
		if noise > maxNoise {
			c.pass(incoming{err: errNoise})
			return
		}
	}
}

func (c *conversation) pass(m incoming) bool {
	select {
	case c.messages <- m:
		return true
	case <-c.server.over:
		return false
	}
}

var (
	errNoise = errors.New("it writes what is not of the Model Context Protocol")
	errLong  = errors.New("too long")
)

// readLine reads one line, without its end.
func readLine(from *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := from.ReadSlice('\n')
		if len(line)+len(part) > maxMessage {
			return nil, errLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			for len(line) > 0 && (line[len(line)-1] == '\n' || line[len(line)-1] == '\r' || line[len(line)-1] == ' ') {
				line = line[:len(line)-1]
			}
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

func (c *conversation) initialize() error {
	var answer struct{}
	err := c.ask("initialize", map[string]any{
		"protocolVersion": protocol, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "tuluat-harness", "version": "1"},
	}, &answer)
	if err != nil {
		return err
	}
	return c.write(map[string]any{"method": "notifications/initialized"})
}

// ask sends a request and waits for its answer. What the server asks meanwhile is
// refused: neither the model, nor a person, nor files are its to have.
func (c *conversation) ask(method string, params, answer any) error {
	c.last++
	if err := c.write(map[string]any{"id": c.last, "method": method, "params": params}); err != nil {
		return err
	}
	for {
		m, err := c.next()
		if err != nil {
			return err
		}
		switch {
		case m.Method != "" && len(m.ID) > 0:
			reply := map[string]any{"id": m.ID, "error": map[string]any{"code": -32601, "message": "not given to servers"}}
			if m.Method == "ping" {
				reply = map[string]any{"id": m.ID, "result": map[string]any{}}
			}
			if err := c.write(reply); err != nil {
				return err
			}
		case m.Method != "" || string(m.ID) != strconv.Itoa(c.last):
		case m.Error != nil && c.called:
			return problem{stdio.ExitRefused, m.Error.Message}
		case m.Error != nil:
			return problem{stdio.ExitNotRun, fmt.Sprintf("it answered %s with the error %d", method, m.Error.Code)}
		case json.Unmarshal(m.Result, answer) != nil:
			return c.problem("it gave no answer that is of the Model Context Protocol")
		default:
			return nil
		}
	}
}

func (c *conversation) next() (message, error) {
	select {
	case <-c.asked:
		return message{}, c.problem("it was ended")
	case <-c.deadline:
		return message{}, c.problem("it did not answer in time")
	case m, open := <-c.messages:
		switch {
		case !open:
			return message{}, c.problem("it ended before it answered")
		case errors.Is(m.err, errLong):
			return message{}, problem{c.exit(stdio.ExitTooLarge), fmt.Sprintf("its answer is longer than %d MiB", maxMessage>>20)}
		case errors.Is(m.err, errNoise):
			return message{}, c.problem(errNoise.Error())
		case m.err != nil:
			return message{}, c.problem("it ended before it answered" + c.server.how())
		}
		return m.message, nil
	}
}

// problem is text as the reason why there is no result.
func (c *conversation) problem(text string) error {
	return problem{c.exit(stdio.ExitNoResult), text}
}

// exit is what holds once the call may have come to the server.
func (c *conversation) exit(called int) int {
	if c.called {
		return called
	}
	return stdio.ExitNotRun
}

// write sends one message.
func (c *conversation) write(m map[string]any) error {
	m["jsonrpc"] = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = c.server.in.Write(append(line, '\n'))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return c.problem("it did not read what it was asked in time")
	case err != nil:
		return c.problem("it ended before it was asked" + c.server.how())
	}
	return nil
}
