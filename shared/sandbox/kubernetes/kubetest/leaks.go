package kubetest

import (
	"time"

	"go.uber.org/goleak"
)

// Leaks reports goroutines that are left, for a TestMain after its run. client-go's
// WebSocket heartbeat ends only at its next ping, up to five seconds after a
// stream that was cut, so it waits that long.
func Leaks() error {
	var err error
	for deadline := time.Now().Add(8 * time.Second); time.Now().Before(deadline); {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
}
