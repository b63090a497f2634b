// Package localport finds ports for processes that are started on this machine.
package localport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports that are taken from: below those that systems give to outgoing
// connections (Linux from 32768 on, ip(7); IANA from 49152 on, RFC 6335), of which
// one could take a port before the process listens that it is for.
const (
	least = 10_000
	most  = 32_767
)

const tries = 100

// Free returns a TCP port of 127.0.0.1 on which nothing listens.
func Free() (int, error) {
	var failed error
	for range tries {
		port := least + rand.IntN(most-least+1)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, listener.Close()
		}
		failed = err
	}
	return 0, errors.Join(fmt.Errorf("none of %d ports from %d to %d is free", tries, least, most), failed)
}
