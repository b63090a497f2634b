package dial

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"
)

func TestPublicAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.215.14": true, "2606:2800:21f:cb07::1": true, "1.1.1.1": true, "172.32.0.1": true,
		"127.0.0.1": false, "127.9.9.9": false, "0.0.0.0": false, "0.1.2.3": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false,
		"169.254.169.254": false, "100.64.0.1": false, "192.0.0.1": false, "198.18.0.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "fe80::1": false, "fc00::1": false, "fd12::1": false, "fec0::1": false, "ff02::1": false,
		"::ffff:10.0.0.1": false, "::ffff:93.184.215.14": true, "::127.0.0.1": false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false, "2001::1": false,
	} {
		if got := public(netip.MustParseAddr(address)); got != want {
			t.Errorf("public(%s) = %v", address, got)
		}
	}
}

// The address that is dialled decides, whatever the name, and nothing is sent.
func TestTransportRefusesPrivateAddresses(t *testing.T) {
	heard := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard++ }))
	defer server.Close()
	for _, allowed := range []bool{false, true} {
		transport := Transport(time.Second, allowed)
		defer transport.CloseIdleConnections()
		_, err := (&http.Client{Transport: transport}).Get(server.URL)
		if errors.Is(err, ErrPrivate) == allowed || (heard == 1) != allowed {
			t.Errorf("private addresses allowed: %v, got %v, heard %d", allowed, err, heard)
		}
	}
}
