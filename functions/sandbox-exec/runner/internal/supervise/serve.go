package supervise

import (
	"errors"
	"net"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/wire"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

const (
	requestBound   = 10 * time.Second // for a client to say what it wants
	visitorsAtOnce = 64               // connections; more wait in the backlog
	maxWait        = time.Minute      // of a ping
	chunk          = 32 << 10
	defaultTimeout = 5 * time.Minute
	defaultOutput  = 1 << 20
)

type listener struct {
	*net.UnixListener
	inside bool // reachable by commands: only visitors from outside are served
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// accept serves connections until the process ends.
func (s *supervisor) accept(l listener) {
	room := make(chan struct{}, visitorsAtOnce)
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Warn("accept", "error", err)
			time.Sleep(10 * time.Millisecond) // out of files, most likely
			continue
		}
		if l.inside && !fromOutside(conn) {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			_ = wire.WriteFrame(conn, wire.Refuse, []byte("not for commands of this sandbox"))
			_ = conn.Close()
			continue
		}
		room <- struct{}{}
		s.conns.Add(1)
		go func() {
			defer func() { <-room; s.conns.Done() }()
			defer conn.Close()
			s.serve(conn)
		}()
	}
}

// fromOutside reports whether the peer was put into this sandbox from outside:
// its parent is in no namespace of ours. A command cannot bring that about, for
// the orphans of a pid namespace fall to its PID 1.
func fromOutside(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil || cred.Pid <= 1 {
		return false
	}
	_, parent, err := stat(int(cred.Pid))
	return err == nil && parent == 0
}

// serve answers one request.
func (s *supervisor) serve(conn *net.UnixConn) {
	_ = conn.SetReadDeadline(time.Now().Add(requestBound))
	req, err := wire.ReadRequest(conn)
	if err != nil {
		_ = wire.WriteFrame(conn, wire.Refuse, []byte("unreadable request"))
		return
	}
	if req.Op == wire.Ping {
		s.gate.await(time.Duration(min(max(0, req.WaitMS), maxWait.Milliseconds())) * time.Millisecond)
	}
	if why := s.gate.refusal(); why != "" && req.Op != wire.Shutdown {
		_ = wire.WriteFrame(conn, wire.Refuse, []byte(why))
		return
	}
	switch req.Op {
	case wire.Ping:
		_ = wire.WriteFrame(conn, wire.Ready, nil)
		return
	case wire.Shutdown:
		select {
		case s.shutdown <- struct{}{}:
		default:
		}
		_ = wire.WriteFrame(conn, wire.Ready, nil)
		return
	}
	switch {
	case req.Op == wire.Put:
		s.servePut(conn, req)
		return
	case req.Op == wire.Out && validID.MatchString(req.ID):
		s.serveOut(conn, req)
		return
	case !validID.MatchString(req.ID) || req.Nonce == "":
		_ = wire.WriteFrame(conn, wire.Refuse, []byte("an id and a nonce are needed"))
		return
	}
	gone := closed(conn)
	switch req.Op {
	case wire.Run:
		s.serveRun(conn, gone, req)
	case wire.Status:
		s.answer(conn, req, s.find(req.ID))
	case wire.Output:
		s.serveOutput(conn, req)
	case wire.Cancel:
		c := s.refuse(req)
		c.end(trailer.Cancelled)
		select {
		case <-c.done:
			s.answer(conn, req, c)
		case <-gone:
		}
	default:
		_ = wire.WriteFrame(conn, wire.Refuse, []byte("unknown request"))
	}
}

// closed is closed when the client hangs up. Clients say nothing after their
// request, so reading on tells.
func closed(conn *net.UnixConn) <-chan struct{} {
	_ = conn.SetReadDeadline(time.Time{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		var b [64]byte
		for {
			if _, err := conn.Read(b[:]); err != nil {
				return
			}
		}
	}()
	return gone
}

func (s *supervisor) find(id string) *command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commands[id]
}

// answer sends the last word on an id, sealed with the nonce of the first
// request for it: who cannot open it has no business with it.
func (s *supervisor) answer(conn net.Conn, req wire.Request, c *command) {
	if c == nil {
		s.seal(conn, wire.Sealed, trailer.Status{ID: req.ID, State: trailer.Unknown}, req.Nonce)
		return
	}
	s.seal(conn, wire.Sealed, c.now(), c.nonce)
}

func (s *supervisor) seal(conn net.Conn, kind wire.Kind, st trailer.Status, nonce string) {
	sealed, err := trailer.Seal(st, nonce)
	if err != nil {
		s.log.Error("seal a status", "execution", st.ID, "error", err)
		return
	}
	_ = wire.WriteFrame(conn, kind, sealed)
}

// serveRun starts the command of a new id and follows it; for a known id it
// only follows. A client that goes away changes nothing.
func (s *supervisor) serveRun(conn *net.UnixConn, gone <-chan struct{}, req wire.Request) {
	if len(req.Command) == 0 {
		req.Command = []string{""} // for a known id it does not matter; the shim refuses it
	}
	if req.TimeoutMS <= 0 {
		req.TimeoutMS = defaultTimeout.Milliseconds()
	}
	if req.MaxOutput <= 0 {
		req.MaxOutput = defaultOutput
	}
	req.MaxOutput = min(req.MaxOutput, s.kept/2) // both streams of one command fit
	c, fresh, state := s.enter(req)
	if c == nil {
		s.seal(conn, wire.Sealed, trailer.Status{ID: req.ID, State: state}, req.Nonce)
		return
	}
	if fresh {
		go s.run(c, req)
	}
	select {
	case <-c.started:
	case <-gone:
		return
	}
	s.seal(conn, wire.Note, c.now(), c.nonce)
	if stdout, stderr, ok := c.output(); ok {
		if !follow(conn, gone, c.done, stdout, stderr, req.StdoutOffset, req.StderrOffset) {
			return
		}
	}
	select {
	case <-c.done:
		s.answer(conn, req, c)
	case <-gone:
	}
}

// follow sends both streams from the offsets until the command is done and all
// that is kept has been sent. It reports whether the client is still there.
func follow(conn net.Conn, gone, done <-chan struct{}, stdout, stderr *capture, outOff, errOff int64) bool {
	buf := make([]byte, chunk)
	for {
		final := false
		select {
		case <-done: // looked at before reading: nothing is kept after it
			final = true
		default:
		}
		nOut, moreOut := stdout.at(outOff, buf)
		if nOut > 0 && wire.WriteFrame(conn, wire.Stdout, buf[:nOut]) != nil {
			return false
		}
		nErr, moreErr := stderr.at(errOff, buf)
		if nErr > 0 && wire.WriteFrame(conn, wire.Stderr, buf[:nErr]) != nil {
			return false
		}
		outOff, errOff = outOff+int64(nOut), errOff+int64(nErr)
		if nOut > 0 || nErr > 0 {
			continue
		}
		if final {
			return true
		}
		select {
		case <-moreOut:
		case <-moreErr:
		case <-done:
		case <-gone:
			return false
		}
	}
}

// serveOutput sends what is kept of one stream now.
func (s *supervisor) serveOutput(conn *net.UnixConn, req wire.Request) {
	c := s.find(req.ID)
	if c == nil {
		s.answer(conn, req, nil)
		return
	}
	if stdout, stderr, ok := c.output(); ok {
		source, kind := stdout, wire.Stdout
		if req.Stream == "stderr" {
			source, kind = stderr, wire.Stderr
		}
		buf := make([]byte, chunk)
		for off, sent := req.StdoutOffset, int64(0); req.Limit <= 0 || sent < req.Limit; {
			want := buf
			if req.Limit > 0 {
				want = buf[:min(int64(chunk), req.Limit-sent)]
			}
			n, _ := source.at(off, want)
			if n == 0 {
				break
			}
			if wire.WriteFrame(conn, kind, want[:n]) != nil {
				return
			}
			off, sent = off+int64(n), sent+int64(n)
		}
	}
	s.answer(conn, req, c)
}
