package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tuluat.ai/harness/scripts/internal/figure"
)

// asker makes the nth request of connection c. No two are the same message.
type asker func(c, n int) (*http.Request, error)

type loadResult struct {
	rate, p99 float64 // per second; milliseconds
	answers   int
}

// load sends requests over kept connections for d. Any answer but want ends the
// measurement: a fast refusal is no figure.
func load(ctx context.Context, d time.Duration, want int, ask asker) (loadResult, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var running sync.WaitGroup
	began := time.Now()
	for c := range connections {
		running.Go(func() {
			var mine []time.Duration
			var err error
			for n := 0; err == nil && time.Since(began) < d; n++ {
				sent := time.Now()
				var request *http.Request
				if request, err = ask(c, n); err == nil {
					err = send(ctx, client, request, want)
				}
				mine = append(mine, time.Since(sent))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			if err != nil {
				failed = err
			}
		})
	}
	running.Wait()
	elapsed := time.Since(began)
	if failed != nil {
		return loadResult{}, failed
	}
	slices.Sort(took)
	return loadResult{rate: float64(len(took)) / elapsed.Seconds(), p99: figure.Milliseconds(figure.At(took, 0.99)), answers: len(took)}, nil
}

func send(ctx context.Context, client *http.Client, request *http.Request, want int) error {
	response, err := client.Do(request.WithContext(ctx))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != want {
		return fmt.Errorf("status %d: %s", response.StatusCode, answer)
	}
	return nil
}

// sink is a broker that takes every event and counts them.
type sink struct {
	*httptest.Server
	taken atomic.Int64
}

func newSink() *sink {
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.taken.Add(1)
		w.WriteHeader(http.StatusAccepted)
	}))
	return s
}
