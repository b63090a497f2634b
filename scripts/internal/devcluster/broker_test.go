package devcluster_test

import (
	"encoding/base64"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"tuluat.ai/harness/scripts/internal/devcluster"
)

func TestBrokerDeliversWhatMatches(t *testing.T) {
	w := start(t, setting{})
	for _, eventType := range []string{"unwanted", "wanted"} {
		if status := w.publish("e-"+eventType, eventType); status != http.StatusAccepted {
			t.Fatalf("the broker answered %d", status)
		}
	}
	got := w.await("worker", "request", 1)[0].fields
	for name, want := range map[string]string{
		"id": "e-wanted", "type": "wanted", "path": "/events", "body": `{"session":"ses_1"}`, "prefer": "reply", "host": "worker.n.svc.cluster.local",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	w.until("the count", func() bool { return w.cluster.Counts().Delivered == 1 })
	if n := w.cluster.Counts(); n.Published != 2 || n.Matched != 1 || n.Attempts != 1 {
		t.Errorf("%+v", n)
	}
}

func TestBrokerRefusesWhatIsNoEvent(t *testing.T) {
	w := start(t, setting{})
	good := map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "test", "Ce-Type": "wanted"}
	without := func(name string) map[string]string {
		header := map[string]string{}
		for k, v := range good {
			if k != name {
				header[k] = v
			}
		}
		return header
	}
	url := w.cluster.BrokerURL("n", "default")
	for name, c := range map[string]struct {
		url    string
		header map[string]string
		body   string
		want   int
	}{
		"no id":            {url, without("Ce-Id"), "", 400},
		"no version":       {url, without("Ce-Specversion"), "", 400},
		"nothing":          {url, nil, "", 400},
		"torn structured":  {url, map[string]string{"Content-Type": "application/cloudevents+json"}, `{"specversion":"1.0","id":`, 400},
		"too large":        {url, good, strings.Repeat("x", 2<<20), 400},
		"no such broker":   {w.cluster.BrokerURL("n", "other"), good, "", 404},
		"good":             {url, good, "", 202},
		"good, structured": {url, map[string]string{"Content-Type": "application/cloudevents+json"}, `{"specversion":"1.0","id":"1","source":"s","type":"t"}`, 202},
	} {
		if got := w.post(c.url, c.header, c.body); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A failing subscriber is asked again by the Trigger's rule, then the dead
// letter sink gets the event with the cause.
func TestBrokerRetriesThenDeadLetters(t *testing.T) {
	for name, c := range map[string]struct {
		worker   string
		attempts int
		code     string
		answer   string
	}{
		"503 is retried":             {"status=503", 3, "503", "no good"},
		"409 is retried":             {"status=409", 3, "409", "no good"},
		"400 is final":               {"status=400", 1, "400", "no good"},
		"302 is final":               {"status=304", 1, "304", ""},
		"a body that is no event":    {"says OK", 3, "502", ""},
		"a process that always dies": {"dies", 3, "502", "*"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, setting{worker: c.worker, scale: 1})
			w.publish("e1", "wanted")
			letter := w.await("dead", "request", 1)[0].fields
			if got := len(w.notes("worker", "request")); got != c.attempts {
				t.Errorf("%d attempts, want %d", got, c.attempts)
			}
			data, err := base64.StdEncoding.DecodeString(letter["errordata"])
			if err != nil || (c.answer != "*" && string(data) != c.answer) {
				t.Errorf("the cause is %q (%v), want %q", data, err, c.answer)
			}
			if letter["id"] != "e1" || letter["errorcode"] != c.code || letter["errordest"] != "http://worker.n.svc.cluster.local/events" {
				t.Errorf("%+v", letter)
			}
			w.until("the count", func() bool { return w.cluster.Counts().DeadLettered == 1 })
		})
	}
}

func TestBrokerRecovers(t *testing.T) {
	w := start(t, setting{worker: "fails first=2", scale: 1})
	w.publish("e1", "wanted")
	w.until("the delivery", func() bool { return w.cluster.Counts().Delivered == 1 })
	if n := w.cluster.Counts(); n.Attempts != 3 || n.DeadLettered != 0 {
		t.Errorf("%+v", n)
	}
}

func TestBrokerGivesUpOnTheDeadLetterSink(t *testing.T) {
	w := start(t, setting{worker: "status=400", dead: "status=503"})
	w.publish("e1", "wanted")
	w.until("the loss", func() bool { return w.cluster.Counts().Lost == 1 })
	if n := w.cluster.Counts(); n.Attempts != 1+3 {
		t.Errorf("%+v", n)
	}
}

func TestTriggerTimeoutEndsAnAttempt(t *testing.T) {
	w := start(t, setting{worker: "slow=60000", trigger: "{retry: 0, backoffPolicy: linear, backoffDelay: PT0S, timeout: PT0.3S}"})
	w.publish("e1", "wanted")
	letter := w.await("dead", "request", 1)[0].fields
	if letter["errorcode"] != "500" {
		t.Errorf("%+v", letter)
	}
	w.await("worker", "cancelled", 1)
}

func TestReplyIsPublished(t *testing.T) {
	w := start(t, setting{worker: "replies"})
	w.publish("e1", "wanted")
	got := w.await("worker", "request", 2)
	if got[1].fields["type"] != "reply" || got[1].fields["id"] != "r1" {
		t.Errorf("%+v", got)
	}
}

// An asynchronous Broker answers before delivery, a synchronous one after it and
// with what came of it.
func TestBrokerModes(t *testing.T) {
	for _, c := range []struct {
		async, worker, dead string
		want                int
	}{
		{"true", "status=400", "status=400", 202},
		{"false", "", "", 202},
		{"false", "status=400", "", 202}, // the dead letter sink took it
		{"false", "status=400", "status=400", 500},
	} {
		w := start(t, setting{async: c.async, worker: c.worker, dead: c.dead})
		if got := w.publish("e1", "wanted"); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
		if c.async == "false" && len(w.notes("worker", "request")) == 0 {
			t.Errorf("%+v: answered before delivery", c)
		}
	}
}

func TestFaults(t *testing.T) {
	const events = 400
	run := func(f devcluster.Faults) (map[string]int, devcluster.Counts) {
		var mu sync.Mutex
		got := map[string]int{}
		w := start(t, setting{options: func(o *devcluster.Options) {
			o.Faults = f
			o.OnDeliver = func(d devcluster.Delivery) {
				mu.Lock()
				defer mu.Unlock()
				got[d.Event.ID()]++
			}
		}})
		for i := range events {
			w.publish("e"+string(rune('A'+i%26))+strings.Repeat("x", i/26), "wanted")
		}
		w.until("every delivery", func() bool {
			n := w.cluster.Counts()
			return n.Delivered == n.Matched-n.Dropped+n.Doubled
		})
		w.stop()
		return got, w.cluster.Counts()
	}
	faults := devcluster.Faults{Seed: 7, DropRate: 0.1, DoubleRate: 0.1, MaxDelay: 20 * time.Millisecond}
	first, n := run(faults)
	if n.Dropped < events/20 || n.Dropped > events/5 || n.Doubled < events/20 || n.Doubled > events/5 {
		t.Errorf("%d dropped and %d doubled of %d", n.Dropped, n.Doubled, events)
	}
	again, _ := run(faults)
	if len(first) != len(again) {
		t.Errorf("the same seed delivered %d and %d events", len(first), len(again))
	}
	if nothing, n := run(devcluster.Faults{DeliverNothing: true}); len(nothing) != 0 || n.Dropped != events {
		t.Errorf("delivered %d events, dropped %d", len(nothing), n.Dropped)
	}
}

func TestOnPublishSeesEveryEvent(t *testing.T) {
	seen := make(chan string, 10)
	w := start(t, setting{options: func(o *devcluster.Options) { o.OnPublish = func(e cloudevents.Event) { seen <- e.ID() } }})
	w.publish("e1", "unwanted")
	if id := <-seen; id != "e1" {
		t.Errorf("got %s", id)
	}
}
