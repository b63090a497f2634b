package trace

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// client sends spans as OTLP over HTTP says. The official one links gRPC, which
// would be a third of a small function's binary.
type client struct {
	target  string
	headers http.Header
	timeout time.Duration // of a batch, with its repeats
	gzip    bool
	log     *slog.Logger
	http    *http.Client
}

func newClient(target string, headers http.Header, timeout time.Duration, gzip bool, log *slog.Logger) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1
	return &client{target: target, headers: headers, timeout: timeout, gzip: gzip, log: log, http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // headers are for the target
	}}
}

// Start implements otlptrace.Client.
func (c *client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// tries are how often a batch is sent that the far end has no room for.
const tries = 3

// UploadTraces implements otlptrace.Client. A batch that cannot be sent is dropped
// and logged: traces hold nothing up.
func (c *client) UploadTraces(ctx context.Context, spans []*otlp.ResourceSpans) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	// ExportTraceServiceRequest has the same one field with the same number.
	body, err := proto.Marshal(&otlp.TracesData{ResourceSpans: spans})
	if err == nil && c.gzip {
		body, err = zipped(body)
	}
	again := err == nil
	for n := 1; again && n <= tries; n++ {
		if n > 1 && !wait(ctx, time.Duration(n-1)*500*time.Millisecond) {
			break
		}
		again, err = c.post(ctx, body)
	}
	if err != nil {
		c.log.Warn("spans not exported", "err", err)
	}
	return nil
}

// post sends a batch once; again says that it may be repeated.
func (c *client) post(ctx context.Context, body []byte) (again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.target, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("request: %w", err)
	}
	request.Header = c.headers.Clone()
	request.Header.Set("Content-Type", "application/x-protobuf")
	if c.gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return true, fmt.Errorf("the collector does not answer: %w", err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)); err != nil {
		return false, nil //nolint:nilerr // it has said what it did
	}
	switch code := response.StatusCode; {
	case code/100 == 2:
		return false, nil
	case code == http.StatusTooManyRequests, code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return true, fmt.Errorf("the collector answered %d", code)
	default:
		return false, fmt.Errorf("the collector answered %d", code)
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func zipped(body []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
