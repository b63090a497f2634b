package localport_test

import (
	"fmt"
	"net"
	"testing"

	"tuluat.ai/harness/scripts/internal/localport"
)

// Nothing listens there, and no outgoing connection will be given it.
func TestFree(t *testing.T) {
	for range 200 {
		port, err := localport.Free()
		if err != nil || port < 1024 || port >= 32768 {
			t.Fatalf("port %d, %v", port, err)
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() // so that the next one must be another
	}
}
