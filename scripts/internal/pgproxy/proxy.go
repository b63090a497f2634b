// Package pgproxy stands between clients and one PostgreSQL server and sees
// every round trip on the wire: it counts them, and lets a test act before the
// server has seen one, or when the server has answered and the client does not
// know yet. Nothing in a client has to be changed for that.
//
// A round trip is what a client sends up to a Query or a Sync message, however
// many statements that holds, and the server's answer up to ReadyForQuery. The
// proxy speaks plain TCP: a client that asks for TLS is told that there is none.
package pgproxy

import (
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Options say where the server is and what to do at its wire.
type Options struct {
	Target string // HOST:PORT of the server

	// Before is called with a round trip that the server has not seen; After
	// when the server has carried it out, so that what it commits is committed,
	// and the client has not been told. The connection waits meanwhile. False
	// cuts it there: before, the server never sees the round trip; after, the
	// client never hears of it. Both may be nil; they are called from many
	// goroutines.
	Before, After func(Exchange) bool
}

// Exchange is one round trip.
type Exchange struct {
	Statements []string // the texts executed, in order; none when it only prepares
	Failed     bool     // After only: the server answered an error
	Open       bool     // After only: a transaction is open, nothing is committed
}

// Proxy is a running proxy. Close ends it.
type Proxy struct {
	o        Options
	listener net.Listener
	trips    atomic.Int64
	bytes    atomic.Int64

	mu     sync.Mutex
	target string
	open   map[net.Conn]bool // every socket, both sides
	closed bool
	served sync.WaitGroup
}

// dialTime bounds the connection to the server.
const dialTime = 5 * time.Second

// Listen starts a proxy on a free port of 127.0.0.1.
func Listen(o Options) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{o: o, listener: listener, target: o.Target, open: map[net.Conn]bool{}}
	p.served.Go(p.accept)
	return p, nil
}

// Addr is HOST:PORT of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// DSN returns the connection string dsn, a URL, with the proxy in the server's
// place.
func (p *Proxy) DSN(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		return "", errors.New("the connection string is not a URL with a host")
	}
	u.Host = p.Addr()
	return u.String(), nil
}

// SetTarget names the server of connections made from now on.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// RoundTrips is how many round trips the server has answered; those of opening
// a connection are not counted.
func (p *Proxy) RoundTrips() int64 { return p.trips.Load() }

// Bytes is how many have passed, both ways, but for greetings.
func (p *Proxy) Bytes() int64 { return p.bytes.Load() }

// Close cuts every connection and returns when nothing of the proxy runs.
func (p *Proxy) Close() {
	_ = p.listener.Close() // it only fails when it is closed already
	p.mu.Lock()
	p.closed = true
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.served.Wait()
}

// Cut ends every connection that is open now, as a network that fails for a
// moment does. New ones are taken meanwhile.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close() // whoever serves it drops it
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: those that are open may end
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.served.Go(func() { p.serve(client) })
	}
}

// hold keeps c to be cut by Close; false if the proxy is closed already.
func (p *Proxy) hold(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.open[c] = true
	return true
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close() // cut already, perhaps
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// serve passes one connection through until either side ends it.
func (p *Proxy) serve(client net.Conn) {
	if !p.hold(client) {
		return
	}
	defer p.drop(client)
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, dialTime)
	if err != nil {
		return // the client sees a cut connection, as from a server that is down
	}
	if !p.hold(server) {
		return
	}
	defer p.drop(server)
	c := &conn{proxy: p, client: client, server: server, prepared: map[string]string{}}
	var answering sync.WaitGroup
	answering.Go(func() {
		_ = c.answer() // its end is the connection's
		p.drop(client)
		p.drop(server)
	})
	_ = c.ask()
	p.drop(client)
	p.drop(server)
	answering.Wait()
}

var errCut = errors.New("cut by a hook")
