package pgproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// conn is one connection: what the client asks and what the server answers.
type conn struct {
	proxy          *Proxy
	client, server net.Conn
	prepared       map[string]string // of the client's side only: name -> text

	mu      sync.Mutex
	waiting []Exchange // sent, not answered; answers come in the same order
}

// Message types, by who sends them.
const (
	query    = 'Q' // client: a text, and the end of a round trip
	parse    = 'P'
	bind     = 'B'
	syncEnd  = 'S' // client: the end of a round trip
	failure  = 'E' // server
	ready    = 'Z' // server: the end of an answer
	idleByte = 'I' // of ready: no transaction is open
)

const (
	cancelRequest = 80877102
	tlsRequest    = 80877103
	gssRequest    = 80877104

	maxMessage = 1 << 30
)

// readMessage returns one message with its type and length.
func readMessage(r *bufio.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	return readRest(r, head, binary.BigEndian.Uint32(head[1:]))
}

// readRest completes a message whose length counts itself but not its type.
func readRest(r *bufio.Reader, head []byte, length uint32) ([]byte, error) {
	if length < 4 || length > maxMessage {
		return nil, errors.New("a message of an impossible length")
	}
	message := make([]byte, len(head)+int(length)-4)
	copy(message, head)
	_, err := io.ReadFull(r, message[len(head):])
	return message, err
}

// ask passes on what the client says.
func (c *conn) ask() error {
	r := bufio.NewReader(c.client)
	if err := c.greet(r); err != nil {
		return err
	}
	var unsent []byte
	var statements []string
	for {
		message, err := readMessage(r)
		if err != nil {
			return err
		}
		c.proxy.bytes.Add(int64(len(message)))
		unsent = append(unsent, message...)
		if text, ok := c.executes(message); ok {
			statements = append(statements, text)
		}
		switch message[0] {
		case query, syncEnd:
			if !c.begin(Exchange{Statements: statements}) {
				return errCut
			}
			statements = nil
		case parse, bind, 'D', 'E', 'C':
			continue // of a round trip that is not complete
		}
		if _, err := c.server.Write(unsent); err != nil {
			return err
		}
		unsent = unsent[:0]
	}
}

// greet passes on what comes before the first message with a type: a client
// that asks for encryption is told to go on without.
func (c *conn) greet(r *bufio.Reader) error {
	for {
		head := make([]byte, 4)
		if _, err := io.ReadFull(r, head); err != nil {
			return err
		}
		message, err := readRest(r, head, binary.BigEndian.Uint32(head))
		if err != nil {
			return err
		}
		if len(message) < 8 {
			return errors.New("a greeting without a protocol")
		}
		switch binary.BigEndian.Uint32(message[4:]) {
		case tlsRequest, gssRequest:
			if _, err := c.client.Write([]byte{'N'}); err != nil {
				return err
			}
		case cancelRequest:
			if _, err := c.server.Write(message); err != nil {
				return err
			}
			return io.EOF
		default:
			_, err := c.server.Write(message)
			return err
		}
	}
}

// executes returns the statement that a message has the server execute, and
// learns the names of prepared ones.
func (c *conn) executes(message []byte) (string, bool) {
	body := message[5:]
	switch message[0] {
	case query:
		text, _ := cut(body)
		return text, true
	case parse:
		name, rest := cut(body)
		text, _ := cut(rest)
		c.prepared[name] = text
	case bind:
		_, rest := cut(body) // the portal
		name, _ := cut(rest)
		return c.prepared[name], true
	}
	return "", false
}

// cut returns the text before the first NUL and what follows it.
func cut(b []byte) (string, []byte) {
	text, rest, _ := bytes.Cut(b, []byte{0})
	return string(text), rest
}

func (c *conn) begin(e Exchange) bool {
	if hook := c.proxy.o.Before; hook != nil && !hook(e) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, e)
	return true
}

// answer passes on what the server says. The end of an answer waits for the
// hook; a client does not go on without it.
func (c *conn) answer() error {
	r := bufio.NewReaderSize(c.server, 64<<10)
	w := bufio.NewWriterSize(c.client, 64<<10)
	failed := false
	for {
		message, err := readMessage(r)
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		c.proxy.bytes.Add(int64(len(message)))
		switch message[0] {
		case failure:
			failed = true
		case ready:
			if !c.end(failed, message[5] != idleByte) {
				return errCut
			}
			failed = false
		}
		if _, err := w.Write(message); err != nil {
			return err
		}
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

func (c *conn) end(failed, open bool) bool {
	c.mu.Lock()
	if len(c.waiting) == 0 { // the connection has just been opened
		c.mu.Unlock()
		return true
	}
	e := c.waiting[0]
	c.waiting = c.waiting[1:]
	c.mu.Unlock()
	c.proxy.trips.Add(1)
	e.Failed, e.Open = failed, open
	hook := c.proxy.o.After
	return hook == nil || hook(e)
}
