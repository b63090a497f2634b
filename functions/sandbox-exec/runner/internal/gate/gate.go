// Package gate keeps a sandbox shut until the network around it is. Some
// networks enforce a policy only seconds after a Pod has started and let
// everything through until then, so the proof is taken from inside: addresses
// that the policy forbids must not be reachable.
//
// An address is blocked when its dial is refused, fails as unreachable, or stays
// silent. Anything that answers is reached, be it a proxy on the way. What fails
// for a reason of this machine (no file, no memory) proves nothing.
package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// silence is how long an address may say nothing until it counts as blocked.
	// A second dial in its middle makes one lost packet no proof.
	silence   = 500 * time.Millisecond
	shortWait = 50 * time.Millisecond // before all are dialled again; doubles
	longWait  = 500 * time.Millisecond
)

// Parse reads addresses separated by commas. They are numeric: a name would ask
// a server that may be blocked too.
func Parse(list string) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for text := range strings.SplitSeq(list, ",") {
		a, err := netip.ParseAddrPort(strings.TrimSpace(text))
		if err != nil || a.Port() == 0 || a.Addr().Zone() != "" {
			return nil, fmt.Errorf("%q is not IP:PORT", text)
		}
		all = append(all, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	}
	return all, nil
}

// Open says that the network is not shut.
type Open struct {
	Reached []netip.AddrPort // that answered to the last
	Unsure  error            // why others could not be dialled; may be nil
}

func (o *Open) Error() string {
	text := fmt.Sprintf("%v can be reached", o.Reached)
	if len(o.Reached) == 0 {
		text = "the network could not be looked at"
	}
	if o.Unsure != nil {
		text += ": " + o.Unsure.Error()
	}
	return text
}

// Wait returns nil when none of the addresses can be reached, at once when there
// are none, and an Open when that has not come true within the bound.
func Wait(addrs []netip.AddrPort, bound time.Duration) error {
	deadline := time.Now().Add(bound)
	for pause := shortWait; ; pause = min(2*pause, longWait) {
		reached, unsure := look(addrs)
		if len(reached) == 0 && unsure == nil {
			return nil
		}
		if time.Now().Add(pause).After(deadline) {
			return &Open{Reached: reached, Unsure: unsure}
		}
		time.Sleep(pause)
	}
}

// dial is one address of a look.
type dial struct {
	addr    netip.AddrPort
	sockets []int
	reached bool
	refused bool // by whoever enforces the policy, or the address itself: no need to wait
	unsure  error
}

// look dials all addresses at once.
func look(addrs []netip.AddrPort) (reached []netip.AddrPort, unsure error) {
	begun := time.Now()
	dials := make([]*dial, 0, len(addrs))
	for _, a := range addrs {
		dials = append(dials, &dial{addr: a})
	}
	defer func() {
		for _, d := range dials {
			for _, fd := range d.sockets {
				_ = unix.Close(fd)
			}
		}
	}()
	for _, until := range []time.Duration{silence / 2, silence} {
		open := 0
		for _, d := range dials {
			if !d.decided() {
				d.begin()
			}
			if !d.decided() {
				open++
			}
		}
		if open > 0 {
			collect(dials, begun.Add(until))
		}
	}
	for _, d := range dials {
		if d.reached {
			reached = append(reached, d.addr)
		} else if !d.refused {
			unsure = errors.Join(unsure, d.unsure)
		}
	}
	return reached, unsure
}

func (d *dial) decided() bool { return d.reached || d.refused }

// begin opens one more socket to the address.
func (d *dial) begin() {
	family := unix.AF_INET
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(d.addr.Port()), Addr: as4(d.addr.Addr())}
	if d.addr.Addr().Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(d.addr.Port()), Addr: d.addr.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		d.heard(err)
		return
	}
	err = unix.Connect(fd, to)
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		d.sockets = append(d.sockets, fd)
		return
	}
	_ = unix.Close(fd) // poll would call a socket ready that never began
	d.heard(err)
}

func as4(a netip.Addr) [4]byte {
	if a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}

// heard notes what became of a socket.
func (d *dial) heard(err error) {
	switch {
	case err == nil:
		d.reached = true
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ECONNRESET):
		d.refused = true
	case slices.ContainsFunc([]error{
		unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN, unix.ENONET, unix.ETIMEDOUT, unix.ENOPROTOOPT,
		unix.EAFNOSUPPORT, unix.EADDRNOTAVAIL, // this sandbox has no such network at all
	}, func(e error) bool { return errors.Is(err, e) }):
		// Blocked, unless the network comes up only now: the second dial tells.
	default:
		d.unsure = fmt.Errorf("%s: %w", d.addr, err)
	}
}

// collect waits until all dials are decided or the time is over. The last look
// comes after it: a process that got no processor in time has missed nothing.
func collect(dials []*dial, deadline time.Time) {
	for over := false; ; {
		var fds []unix.PollFd
		var whose []*dial
		open := false
		for _, d := range dials {
			if d.decided() {
				continue
			}
			open = true
			for _, fd := range d.sockets {
				fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT})
				whose = append(whose, d)
			}
		}
		if !open || over {
			return
		}
		left := time.Until(deadline)
		over = left <= 0
		n, err := unix.Poll(fds, int(max(0, left+time.Millisecond-1)/time.Millisecond))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			for _, d := range whose {
				d.unsure = fmt.Errorf("%s: %w", d.addr, err)
			}
			return
		}
		for i, fd := range fds {
			if n > 0 && fd.Revents != 0 {
				whose[i].settle(int(fd.Fd))
			}
		}
	}
}

// settle asks a socket that has something to say, and lets go of it.
func (d *dial) settle(fd int) {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	d.heard(err)
	d.sockets = slices.DeleteFunc(d.sockets, func(s int) bool { return s == fd })
	_ = unix.Close(fd)
}
