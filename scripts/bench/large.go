package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/scripts/internal/pgproxy"
)

// The largest request the provider sends.
const (
	largeUpdates = 1000
	largeBytes   = 3_000_000
)

// large measures one POST of 1,000 WhatsApp messages and 3 MB: to a process that
// runs, and from the start of a process to the answer to its first request.
func large(ctx context.Context, o options, bin string, pg *localpg.Server) ([]figure.Figure, error) {
	if err := prepareChannels(ctx, pg, "bench_large"); err != nil {
		return nil, err
	}
	broker := newSink()
	defer broker.Close()
	program := filepath.Join(bin, "whatsapp-ingest")
	env := channelEnv(pg.DSN("bench_large"), broker.URL)
	var figures []figure.Figure
	sent := 0
	for _, people := range []int{100, largeUpdates} {
		say("%d POSTs of 1,000 updates of %d people, and as many process starts", o.posts, people)
		warm, err := largeWarm(ctx, o, program, env, people, &sent)
		if err != nil {
			return nil, err
		}
		cold, err := largeCold(ctx, o, program, env, people, &sent)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("POST of 1,000 updates, 3 MB, %d people", people)
		figures = append(figures,
			quantile(name, 0.5, warm).AtMost(250, "at most 250 ms"), quantile(name, 0.99, warm),
			quantile(name+", from process start", 0.5, cold), quantile(name+", from process start", 0.99, cold).AtMost(1000, "at most 1 s"),
		)
	}
	counted, err := largeCounted(ctx, program, pg, &sent, broker)
	if err != nil {
		return nil, err
	}
	rows := &side{rows: `SELECT count(*) FROM messages WHERE direction = 'INBOUND'`, sent: sent * largeUpdates}
	return append(figures, counted...), checkRows(ctx, pg.DSN("bench_large"), []*side{rows})
}

func quantile(name string, q float64, took []float64) figure.Figure {
	return figure.Quantile(fmt.Sprintf("%s: p%g", name, q*100), "ms", q, took)
}

func largeRequest(base string, sent *int, people int) (*http.Request, error) {
	*sent++
	changes := make([]map[string]any, largeUpdates)
	for i := range changes {
		changes[i] = change(fmt.Sprintf("large-%d-%d", *sent, i), i%people, "")
	}
	probe, err := whatsappRequest(base+whatsappPath, changes...)
	if err != nil {
		return nil, err
	}
	text := strings.Repeat("x", (largeBytes-int(probe.ContentLength))/largeUpdates)
	for i := range changes {
		changes[i] = change(fmt.Sprintf("large-%d-%d", *sent, i), i%people, text)
	}
	return whatsappRequest(base+whatsappPath, changes...)
}

func largeWarm(ctx context.Context, o options, program string, env []string, people int, sent *int) ([]float64, error) {
	s, err := startServer(ctx, []string{program}, env)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var took []float64
	for n := range o.posts + 1 {
		request, err := largeRequest(s.url, sent, people)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := send(ctx, client, request, http.StatusOK); err != nil {
			return nil, err
		}
		if n > 0 { // the first opens the connections
			took = append(took, figure.Milliseconds(time.Since(began)))
		}
	}
	return took, nil
}

// largeCold starts a process and sends as soon as it takes requests, as a pod
// that a request has started gets it.
func largeCold(ctx context.Context, o options, program string, env []string, people int, sent *int) ([]float64, error) {
	var took []float64
	for range o.posts {
		request, err := largeRequest("http://unknown", sent, people)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		s, err := startServer(ctx, []string{program}, env)
		if err != nil {
			return nil, err
		}
		target, err := url.Parse(s.url + whatsappPath)
		if err == nil {
			request.URL, request.Host = target, target.Host
			client := &http.Client{Transport: &http.Transport{}}
			err = send(ctx, client, request, http.StatusOK)
			client.CloseIdleConnections()
		}
		took = append(took, figure.Milliseconds(time.Since(began)))
		s.stop()
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

// largeCounted counts what one such POST costs the database and the broker.
func largeCounted(ctx context.Context, program string, pg *localpg.Server, sent *int, broker *sink) ([]figure.Figure, error) {
	const people = 100
	dsn := pg.DSN("bench_large")
	target, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	proxy, err := pgproxy.Listen(pgproxy.Options{Target: target.Host})
	if err != nil {
		return nil, err
	}
	defer proxy.Close()
	through, err := proxy.DSN(dsn)
	if err != nil {
		return nil, err
	}
	s, err := startServer(ctx, []string{program}, channelEnv(through, broker.URL))
	if err != nil {
		return nil, err
	}
	defer s.stop()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var trips, wakes float64
	for range 2 { // the first prepares the statements and reads the accounts
		request, err := largeRequest(s.url, sent, people)
		if err != nil {
			return nil, err
		}
		before, woken := proxy.RoundTrips(), broker.taken.Load()
		if err := send(ctx, client, request, http.StatusOK); err != nil {
			return nil, err
		}
		trips, wakes = float64(proxy.RoundTrips()-before), float64(broker.taken.Load()-woken)
	}
	return []figure.Figure{
		figure.Of("POST of 1,000 updates: SQL round trips", "", trips).AtMost(1, "one"),
		figure.Of("POST of 1,000 updates, 100 people: wake events", "", wakes).AtMost(people, "one per conversation"),
	}, nil
}
