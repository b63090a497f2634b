//go:build system

package system_test

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/pgproxy"
)

var (
	flagFullPosts = flag.Int("fullposts", 7, "POSTs of 1,000 updates to a process that runs")
	flagStarts    = flag.Int("starts", 12, "POSTs of 1,000 updates to a process that they start")
)

const (
	postUpdates  = 1000
	postSessions = 100
	postBytes    = 3 << 20
	// slowPost bounds what a busy machine may make of 250 ms, slowStart of 1 s.
	slowPost  = 2 * time.Second
	slowStart = 10 * time.Second
)

// wakes is a broker that counts, by type, the sessions that it is told of.
type wakes struct {
	url string

	mu    sync.Mutex
	heard map[string][]string // sessions by type, as they came
}

func newWakes(w *world) *wakes {
	k := &wakes{heard: map[string][]string{}}
	k.url = w.serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // what cannot be read was not sent
		k.mu.Lock()
		k.heard[r.Header.Get("Ce-Type")] = append(k.heard[r.Header.Get("Ce-Type")], r.Header.Get("Ce-Tuluatsession"))
		k.mu.Unlock()
		rw.WriteHeader(http.StatusAccepted)
	}))
	return k
}

func (k *wakes) take() map[string][]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	heard := k.heard
	k.heard = map[string][]string{}
	return heard
}

// crossings collects the round trips of one proxy.
type crossings struct {
	mu    sync.Mutex
	trips []pgproxy.Exchange
}

func (c *crossings) after(e pgproxy.Exchange) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trips = append(c.trips, e)
	return true
}

// take returns how many round trips stored updates, read routes, only prepared
// statements, and did anything else.
func (c *crossings) take() (inserts, routes, prepares int, others []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.trips {
		switch text := strings.Join(e.Statements, "\n"); {
		case strings.Contains(text, "INSERT INTO inbox"):
			inserts++
		case len(e.Statements) == 0:
			prepares++
		case strings.Contains(text, "FROM channel_routes"):
			routes++
		default:
			others = append(others, firstWords(e))
		}
	}
	c.trips = nil
	return inserts, routes, prepares, others
}

// fullPost is a webhook of 1,000 messages in 3 MB of 100 people, signed. round
// makes its ids its own.
func fullPost(round int) letter {
	var contacts, messages []any
	fill := strings.Repeat("all work and no play makes a long message ", postBytes/postUpdates/42+1)
	for i := range postUpdates {
		from := fmt.Sprintf("1555300%04d", i%postSessions)
		if i < postSessions {
			contacts = append(contacts, map[string]any{"wa_id": from, "profile": map[string]any{"name": "Person " + from}})
		}
		text := fmt.Sprintf("round %d message %d %s", round, i, fill)
		messages = append(messages, map[string]any{
			"from": from, "id": fmt.Sprintf("wamid.full-%d-%d", round, i), "timestamp": fmt.Sprint(time.Now().Unix()), "type": "text",
			"text": map[string]any{"body": text[:postBytes/postUpdates-150]},
		})
	}
	body := graph.Escape(map[string]any{"object": "whatsapp_business_account", "entry": []any{map[string]any{"id": "2" + phoneNumber, "changes": []any{map[string]any{
		"field": "messages", "value": map[string]any{
			"messaging_product": "whatsapp", "metadata": map[string]any{"display_phone_number": "15550009999", "phone_number_id": phoneNumber},
			"contacts": contacts, "messages": messages,
		},
	}}}}})
	return letter{http.Header{"Content-Type": {"application/json"}, "X-Hub-Signature-256": {graph.Sign(appSecret, body)}}, body}
}

// TestWakesOfAFullPost: the largest POST a provider makes costs one round trip
// to store and one wake per session, and is answered in time, also by a process
// that it starts.
func TestWakesOfAFullPost(t *testing.T) {
	w := newWorld(t, plan{people: &crowd{}, noTicks: true})
	broker, seen := newWakes(w), &crossings{}
	proxy, err := pgproxy.Listen(pgproxy.Options{Target: w.serverAddr(), After: seen.after})
	w.must(err)
	t.Cleanup(proxy.Close)
	w.proxies["whatsapp-ingest"].SetTarget(proxy.Addr()) // of connections made from now on: those of the processes below
	client := w.client()
	post := func(p *started, l letter) time.Duration {
		t.Helper()
		began := time.Now()
		status, err := l.post(t.Context(), client, p.url+whatsappPath)
		took := time.Since(began)
		if err != nil || status != http.StatusOK {
			t.Fatalf("a full POST is answered %d, %v, after %s", status, err, took)
		}
		return took
	}
	p := w.launch("whatsapp-ingest", map[string]string{"BROKER_URL": broker.url})
	w.must(p.awaitReady(t.Context(), client))
	round := 0
	next := func() letter { round++; return fullPost(round) }
	size := len(next().body)
	t.Logf("a POST: %d updates, %d bytes, %d sessions", postUpdates, size, postSessions)
	if size < 29*postBytes/30 || size > 32*postBytes/30 {
		t.Errorf("a full POST has %d bytes, want about %d", size, postBytes)
	}
	post(p, next())
	inserts, routes, prepares, others := seen.take()
	t.Logf("the first of the process: %d round trips that store, %d that read routes, %d that prepare, others %q", inserts, routes, prepares, others)
	broker.take()
	var running []time.Duration
	for range *flagFullPosts {
		running = append(running, post(p, next()))
		inserts, routes, prepares, others := seen.take()
		if inserts != 1 || len(others) != 0 {
			t.Errorf("a full POST took %d round trips to store and others %q; want one", inserts, others)
		}
		if routes+prepares > 0 {
			t.Logf("beside it, %d round trips that read routes and %d that prepare", routes, prepares)
		}
		w.assertWakes(broker.take())
	}
	p.end()
	var cold []time.Duration
	for range *flagStarts {
		l := next()
		p := w.launch("whatsapp-ingest", map[string]string{"BROKER_URL": broker.url})
		w.must(p.awaitReady(t.Context(), client))
		post(p, l)
		cold = append(cold, time.Since(p.began))
		w.assertWakes(broker.take())
		p.end()
		seen.take()
	}
	stored := w.strings("SELECT count(*)::text FROM messages WHERE text LIKE 'round %'")
	t.Logf("%s messages stored", stored[0])
	if want := fmt.Sprint(postUpdates * (1 + *flagFullPosts + *flagStarts)); stored[0] != want {
		t.Errorf("%s messages are stored of %s", stored[0], want)
	}
	t.Logf("to a process that runs, %d POSTs: p50 %s, longest %s; all %v", len(running), share(running, 0.5), share(running, 1), running)
	t.Logf("to a process that the POST starts, %d times, from its start to the answer: p50 %s, p99 %s", len(cold), share(cold, 0.5), share(cold, 0.99))
	if got := share(running, 0.5); got > slowPost {
		t.Errorf("half of the full POSTs took over %s", got)
	}
	if got := share(cold, 0.99); got > slowStart {
		t.Errorf("a full POST to a process that it started took %s", got)
	}
}

func (w *world) assertWakes(heard map[string][]string) {
	w.t.Helper()
	sessions := heard["ai.tuluat.message.received.v1"]
	distinct := slices.Compact(slices.Sorted(slices.Values(sessions)))
	if len(heard) != 1 || len(sessions) != postSessions || len(distinct) != postSessions {
		w.t.Errorf("%d wakes of %d sessions (of %d types); want one of each of %d sessions", len(sessions), len(distinct), len(heard), postSessions)
	}
}

// share is the duration that a share of all do not exceed.
func share(all []time.Duration, of float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*of))].Round(time.Millisecond)
}
