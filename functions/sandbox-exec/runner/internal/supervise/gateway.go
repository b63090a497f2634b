package supervise

import (
	"log/slog"
	"net/netip"
	"time"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/gate"
)

// gateway is whether commands are taken yet.
type gateway struct {
	decided chan struct{} // closed when err is final
	err     error         // why they never will be
}

// newGateway returns a gateway that is open when there is nothing to prove.
func newGateway(addrs []netip.AddrPort) *gateway {
	g := &gateway{decided: make(chan struct{})}
	if len(addrs) == 0 {
		close(g.decided)
	}
	return g
}

// watch opens the gateway when the network is proved to be shut.
func (g *gateway) watch(addrs []netip.AddrPort, bound time.Duration, log *slog.Logger) {
	begun := time.Now()
	g.err = gate.Wait(addrs, bound)
	if g.err == nil {
		log.Info("the network is shut", "ms", time.Since(begun).Milliseconds())
	}
	close(g.decided)
}

// refusal is why no command is taken now, or empty.
func (g *gateway) refusal() string {
	select {
	case <-g.decided:
		if g.err != nil {
			return "the network is not shut: " + g.err.Error()
		}
		return ""
	default:
		return "not ready: the network is being looked at"
	}
}

// await returns when it is decided or the bound is over.
func (g *gateway) await(bound time.Duration) {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-g.decided:
	case <-timer.C:
	}
}
