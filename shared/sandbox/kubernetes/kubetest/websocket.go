package kubetest

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"k8s.io/apimachinery/pkg/util/remotecommand"
)

// serveWebSocket speaks v5.channel.k8s.io as the API server does since 1.30: it
// lets the client in first and asks the kubelet then, so that what the kubelet
// refuses reaches the client as a status.
func serveWebSocket(c *Call, x *Exec, script Script) {
	upgrader := websocket.Upgrader{
		Subprotocols: []string{remotecommand.StreamProtocolV5Name},
		CheckOrigin:  func(*http.Request) bool { return true },
	}
	conn, err := upgrader.Upgrade(c.w, c.r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	under := wire(c.r)
	defer c.server.hijacked(under)
	defer conn.Close()

	ws := &webSocket{conn: conn, gone: make(chan struct{})}
	ctx, cancel := context.WithCancel(c.server.ctx)
	defer cancel()
	var reader sync.WaitGroup
	defer reader.Wait()
	defer conn.Close()
	var stdin *buffer
	if flag(c, "stdin") {
		stdin = newBuffer()
		x.Stdin = stdin
	}
	x.Stdout, x.Stderr = ws.writer(remotecommand.StreamStdOut), ws.writer(remotecommand.StreamStdErr)
	reader.Go(func() {
		defer cancel()
		ws.read(stdin)
	})
	end := script(ctx, x)
	switch end.how {
	case byStatus:
		ws.status(mustJSON(end.status))
		ws.close(websocket.CloseNormalClosure)
	case byClose:
		ws.close(end.code)
	case byCut:
		_ = bare(under).Close()
	case byReset:
		reset(under)
	case byStall:
		<-ctx.Done()
	}
}

type webSocket struct {
	conn *websocket.Conn
	gone chan struct{} // closed when nothing more can be read

	mu sync.Mutex // of writes
}

// read takes stdin until the client goes, and answers its pings.
func (ws *webSocket) read(stdin *buffer) {
	defer close(ws.gone)
	defer stdin.end(io.ErrUnexpectedEOF)
	for {
		_, frame, err := ws.conn.ReadMessage()
		if err != nil {
			return
		}
		switch {
		case len(frame) == 2 && frame[0] == remotecommand.StreamClose && frame[1] == remotecommand.StreamStdIn:
			stdin.end(io.EOF)
		case len(frame) > 1 && frame[0] == remotecommand.StreamStdIn:
			stdin.add(frame[1:])
		}
	}
}

func (ws *webSocket) writer(id byte) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if err := ws.conn.WriteMessage(websocket.BinaryMessage, append([]byte{id}, p...)); err != nil {
			return 0, err
		}
		return len(p), nil
	})
}

func (ws *webSocket) status(text []byte) {
	_, _ = ws.writer(remotecommand.StreamErr).Write(text)
}

// close says farewell and lets the client hang up, so that nothing it has not
// read yet is lost to a reset.
func (ws *webSocket) close(code int) {
	_ = ws.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(farewell))
	wait(ws.gone, farewell)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// buffer is stdin on its way: adding to it never waits. A nil one drops all.
type buffer struct {
	mu   sync.Mutex
	more *sync.Cond
	data []byte
	err  error
}

func newBuffer() *buffer {
	b := &buffer{}
	b.more = sync.NewCond(&b.mu)
	return b
}

func (b *buffer) add(p []byte) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	b.more.Broadcast()
}

func (b *buffer) end(err error) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.more.Broadcast()
}

func (b *buffer) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.data) == 0 && b.err == nil {
		b.more.Wait()
	}
	if len(b.data) == 0 {
		return 0, b.err
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}
