package temporal_test

import (
	"net"
	"sync"
	"testing"
)

// wire is a TCP connection between the bridge and Temporal that can hold what goes
// one way.
type wire struct {
	address string
	target  string

	mu       sync.Mutex
	changed  *sync.Cond
	requests bool // are held
	answers  bool
	closed   bool
	conns    []net.Conn
	running  sync.WaitGroup
}

func newWire(t *testing.T, target string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{address: listener.Addr().String(), target: target}
	w.changed = sync.NewCond(&w.mu)
	w.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", w.target)
			if err != nil {
				_ = client.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, client, server)
			w.mu.Unlock()
			w.running.Go(func() { w.copy(server, client, &w.requests) })
			w.running.Go(func() { w.copy(client, server, &w.answers) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		w.mu.Lock()
		w.closed = true
		for _, c := range w.conns {
			_ = c.Close()
		}
		w.changed.Broadcast()
		w.mu.Unlock()
		w.running.Wait()
	})
	return w
}

// hold holds requests, answers, both or none from now on.
func (w *wire) hold(requests, answers bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests, w.answers = requests, answers
	w.changed.Broadcast()
}

func (w *wire) copy(to, from net.Conn, held *bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		for *held && !w.closed {
			w.changed.Wait()
		}
		w.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
