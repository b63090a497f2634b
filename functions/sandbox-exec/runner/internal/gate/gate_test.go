package gate

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	got, err := Parse("10.96.0.1:443, [2001:db8::1]:80,[::ffff:10.0.0.1]:1")
	want := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:443"), netip.MustParseAddrPort("[2001:db8::1]:80"), netip.MustParseAddrPort("10.0.0.1:1")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "kubernetes.default:443", "10.96.0.1", "10.96.0.1:0", "10.96.0.1:443,", "[fe80::1%eth0]:1", "10.96.0.1:99999"} {
		if got, err := Parse(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// listening returns an address that can be reached until it is closed.
func listening(t *testing.T, network, address string) (net.Listener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, netip.MustParseAddrPort(l.Addr().String())
}

// silent returns an address whose packets are dropped: its backlog is full.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port))
	for range 8 { // those beyond the backlog wait
		c, err := net.DialTimeout("tcp", addr.String(), 50*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("it answers for ever")
	return addr
}

func TestLook(t *testing.T) {
	_, up := listening(t, "tcp", "127.0.0.1:0")
	gone, refused := listening(t, "tcp", "127.0.0.1:0")
	gone.Close()
	all := []netip.AddrPort{refused, up, silent(t)}
	begun := time.Now()
	if reached, err := look(all); err != nil || !slices.Equal(reached, []netip.AddrPort{up}) {
		t.Errorf("%v, %v", reached, err)
	}
	if took := time.Since(begun); took < silence {
		t.Errorf("a silent one takes %v", took)
	}
	var fastest time.Duration
	for try := range 3 { // the machine may be busy
		begun = time.Now()
		if reached, err := look([]netip.AddrPort{refused}); err != nil || len(reached) > 0 {
			t.Errorf("%v, %v", reached, err)
		}
		if took := time.Since(begun); try == 0 || took < fastest {
			fastest = took
		}
	}
	if fastest >= silence/2 {
		t.Errorf("a refusal takes %v", fastest)
	}
}

// A failure that is not the network's is no proof that an address is blocked.
func TestWhatProves(t *testing.T) {
	for _, c := range []struct {
		err                      error
		reached, refused, unsure bool
	}{
		{nil, true, false, false},
		{unix.ECONNREFUSED, false, true, false},
		{unix.EPERM, false, true, false},
		{unix.EHOSTUNREACH, false, false, false},
		{unix.EAFNOSUPPORT, false, false, false},
		{unix.EMFILE, false, false, true},
		{unix.ENOBUFS, false, false, true},
		{unix.EINVAL, false, false, true},
		{unix.EAGAIN, false, false, true},
	} {
		var d dial
		d.heard(c.err)
		if d.reached != c.reached || d.refused != c.refused || (d.unsure != nil) != c.unsure {
			t.Errorf("%v: %+v", c.err, d)
		}
	}
}

func TestWait(t *testing.T) {
	begun := time.Now()
	if err := Wait(nil, time.Minute); err != nil || time.Since(begun) > silence {
		t.Errorf("nothing to look at: %v after %v", err, time.Since(begun))
	}
	l, up := listening(t, "tcp", "127.0.0.1:0")
	var open *Open
	if err := Wait([]netip.AddrPort{up}, 300*time.Millisecond); !errors.As(err, &open) || !slices.Equal(open.Reached, []netip.AddrPort{up}) {
		t.Errorf("it stays open: %v", err)
	}
	shut := make(chan error, 1)
	go func() {
		c, err := l.Accept() // it was reached once
		if err == nil {
			err = c.Close()
		}
		shut <- errors.Join(err, l.Close())
	}()
	if err := Wait([]netip.AddrPort{up}, 10*time.Second); err != nil {
		t.Error(err)
	}
	if err := <-shut; err != nil {
		t.Error(err)
	}
}
