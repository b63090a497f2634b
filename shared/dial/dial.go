// Package dial reaches addresses that an agent's author wrote: callbacks, servers
// of tools, other agents. They may not lead into the platform's own network.
package dial

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// ErrPrivate refuses an address. No byte was sent to it.
var ErrPrivate = errors.New("the address is not public: private, loopback and link-local addresses are refused")

// Transport returns an http.RoundTripper whose connections come about within
// timeout and go, unless allowPrivate, to public addresses only: others fail with
// ErrPrivate. Close its idle connections when it is not needed any more.
func Transport(timeout time.Duration, allowPrivate bool) *http.Transport {
	dialer := &net.Dialer{Timeout: timeout}
	if !allowPrivate {
		dialer.ControlContext = refusePrivate
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // a proxy would dial for us, unchecked
	transport.DialContext = dialer.DialContext
	transport.MaxIdleConnsPerHost = 8
	return transport
}

// refusePrivate looks at the address that is dialled, not at the name: what a
// name resolves to may change between a check and the call.
func refusePrivate(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !public(ap.Addr()) {
		return ErrPrivate
	}
	return nil
}

// notPublic lists what netip has no question for (RFC 6890 and its registries).
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT, often a cluster's pods
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"),        // IPv4 written as IPv6
	netip.MustParsePrefix("64:ff9b::/96"), // NAT64: leads to any IPv4 address
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2002::/16"), // 6to4: the same
	netip.MustParsePrefix("fec0::/10"),
}

func public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.IsLinkLocalUnicast() {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
