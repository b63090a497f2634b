//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// tunnel is a port of this machine that leads to a port of a Pod, through the
// API server: it works on every cluster, whatever its network. A connection that
// breaks, as when the API server restarts, is made again for the next caller.
type tunnel struct {
	cluster   *cluster
	namespace string
	selector  string // of the Pod
	port      int
	listener  net.Listener

	mu   sync.Mutex
	conn httpstream.Connection // nil: none yet, or broken
	last int                   // request id

	wait sync.WaitGroup
}

// newTunnel listens on a free port of this machine until close.
func newTunnel(c *cluster, namespace, selector string, port int) (*tunnel, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &tunnel{cluster: c, namespace: namespace, selector: selector, port: port, listener: listener}
	t.wait.Go(t.serve)
	return t, nil
}

func (t *tunnel) address() string { return t.listener.Addr().String() }

func (t *tunnel) close() {
	_ = t.listener.Close()
	t.drop(nil)
	t.wait.Wait()
}

func (t *tunnel) serve() {
	for {
		local, err := t.listener.Accept()
		if err != nil {
			return // closed
		}
		t.wait.Go(func() {
			defer local.Close()
			_ = t.carry(local) // the caller sees its connection end
		})
	}
}

// carry copies both ways until one side ends.
func (t *tunnel) carry(local net.Conn) error {
	conn, id, err := t.open()
	if err != nil {
		return err
	}
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(t.port))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(id))
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	complaints, err := conn.CreateStream(headers)
	if err != nil {
		t.drop(conn)
		return err
	}
	defer conn.RemoveStreams(complaints)
	_ = complaints.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		t.drop(conn)
		return err
	}
	defer conn.RemoveStreams(data)
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(local, data)
		_ = local.(*net.TCPConn).CloseWrite()
	})
	both.Go(func() {
		_, _ = io.Copy(data, local)
		_ = data.Close()
	})
	text, _ := io.ReadAll(complaints) // ends with the stream or the connection
	if len(text) > 0 {
		_ = data.Reset()
		_ = local.Close()
	}
	both.Wait()
	if len(text) > 0 {
		return errors.New(string(text))
	}
	return nil
}

// open returns the connection to the Pod and a number for a request on it.
func (t *tunnel) open() (httpstream.Connection, int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	if t.conn != nil {
		select {
		case <-t.conn.CloseChan():
			t.conn = nil
		default:
			return t.conn, t.last, nil
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	pods, err := t.cluster.pods(ctx, t.namespace, t.selector)
	if err != nil {
		return nil, 0, err
	}
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		url := t.cluster.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(t.namespace).Name(pod.Name).SubResource("portforward").URL()
		transport, upgrader, err := spdy.RoundTripperFor(t.cluster.config)
		if err != nil {
			return nil, 0, err
		}
		dialer, err := portforward.NewSPDYOverWebsocketDialer(url, t.cluster.config)
		if err != nil {
			return nil, 0, err
		}
		old := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
		conn, _, err := portforward.NewFallbackDialer(dialer, old, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		}).Dial(portforward.PortForwardProtocolV1Name)
		if err != nil {
			return nil, 0, err
		}
		t.conn = conn
		return conn, t.last, nil
	}
	return nil, 0, fmt.Errorf("no running Pod in %s with %s", t.namespace, t.selector)
}

// drop ends conn, if it is the one in use; nil: whatever is.
func (t *tunnel) drop(conn httpstream.Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn != nil && (conn == nil || conn == t.conn) {
		_ = t.conn.Close()
		t.conn = nil
	}
}
