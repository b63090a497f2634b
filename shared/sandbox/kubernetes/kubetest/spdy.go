package kubetest

import (
	"context"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
)

// serveSPDY speaks the older protocol, which the API server hands through to the
// kubelet.
func serveSPDY(c *Call, x *Exec, script Script, protocols []string) {
	ctx, cancel := context.WithCancel(c.server.ctx)
	defer cancel()
	if _, err := httpstream.Handshake(c.r, c.w, protocols); err != nil {
		return // Handshake has answered
	}
	arrived := make(chan httpstream.Stream, 5)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(c.w, c.r, func(st httpstream.Stream, _ <-chan struct{}) error {
		arrived <- st
		return nil
	})
	if conn == nil {
		return
	}
	under := wire(c.r)
	defer c.server.hijacked(under)
	defer conn.Close()
	gone := make(chan struct{})
	c.server.work.Go(func() {
		defer close(gone)
		select {
		case <-conn.CloseChan():
		case <-c.server.ctx.Done():
		}
		cancel()
	})
	defer func() { _ = conn.Close(); <-gone }()

	open := map[string]httpstream.Stream{}
	wanted := 1
	for _, name := range []string{"stdin", "stdout", "stderr"} {
		if flag(c, name) {
			wanted++
		}
	}
	for len(open) < wanted {
		select {
		case st := <-arrived:
			open[st.Headers().Get(corev1.StreamType)] = st
		case <-gone:
			return
		case <-time.After(10 * time.Second):
			return
		}
	}
	if st, ok := open[corev1.StreamTypeStdin]; ok {
		x.Stdin = st
	}
	x.Stdout, x.Stderr = writerOf(open[corev1.StreamTypeStdout]), writerOf(open[corev1.StreamTypeStderr])
	end := script(ctx, x)
	finish := func() {
		for _, st := range open {
			_ = st.Close()
		}
		wait(gone, farewell)
	}
	switch end.how {
	case byStatus:
		_, _ = open[corev1.StreamTypeError].Write(mustJSON(end.status))
		finish()
	case byClose:
		finish()
	case byCut:
		_ = bare(under).Close()
	case byReset:
		reset(under)
	case byStall:
		<-ctx.Done()
	}
}

func writerOf(st httpstream.Stream) io.Writer {
	if st == nil {
		return io.Discard
	}
	return st
}
