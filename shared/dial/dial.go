// Package dial keeps requests to addresses that an agent's author wrote away from
// what is not public: the cluster's own Services, a node's metadata, this process.
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

// ErrPrivate refuses an address.
var ErrPrivate = errors.New("the address is not public: private, loopback and link-local addresses are refused")

// RefusePrivate is the ControlContext of a net.Dialer. It looks at the address
// that is dialled, not at the name: what a name resolves to may change between a
// check and the call.
func RefusePrivate(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !public(ap.Addr()) {
		return ErrPrivate
	}
	return nil
}

// Transport returns a transport that dials public addresses only, or any where
// allowPrivate is set. It uses no proxy, which would dial for us, unchecked.
func Transport(allowPrivate bool, timeout time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: timeout}
	if !allowPrivate {
		dialer.ControlContext = RefusePrivate
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.DialContext = dialer.DialContext
	return transport
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
