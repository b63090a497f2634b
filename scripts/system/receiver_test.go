//go:build system

package system_test

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// callback is one POST of a reply, as it came in.
type callback struct {
	At            time.Time
	Agent         string
	ReplyID       string `json:"messageId"`
	Session       string `json:"session"`
	Chat          string `json:"chat"`
	ChannelUserID string `json:"channelUserId"`
	Text          string `json:"text"`
	Part          int    `json:"part"`
	Parts         int    `json:"parts"`
	InReplyTo     string `json:"inReplyTo"`
}

// receiver is the caller's system: it takes replies and says of each whether it
// has it. A flaky one sometimes takes a reply and breaks off before it says so,
// and sometimes says 503 without having taken it.
type receiver struct {
	url  string
	keys map[string]harness.Secret
	seed uint64

	flaky   bool
	faults  []string // of the next POSTs, one each
	mu      sync.Mutex
	raw     []callback      // every POST that was taken, repeats too
	taken   map[string]bool // reply ids
	tried   map[string]int  // POSTs per reply id, taken or not
	perChat map[string]int  // messages answered
	changed chan struct{}   // closed and replaced when a reply comes in
	broken  []string        // requests that break the contract
	lost    int             // answers broken off
	refused int             // 503 without having taken it
	asked   int             // questions whether a reply arrived
}

func newReceiver(t *testing.T, agents []agent, seed uint64, flaky bool) *receiver {
	r := &receiver{
		keys: map[string]harness.Secret{}, seed: seed, flaky: flaky, taken: map[string]bool{}, tried: map[string]int{},
		perChat: map[string]int{}, changed: make(chan struct{}),
	}
	for _, a := range agents {
		r.keys[a.name] = a.key
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /replies/{agent}", r.take)
	mux.HandleFunc("GET /replies/{agent}", r.has)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	r.url = server.URL + "/replies"
	return r
}

func (r *receiver) take(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the sender broke off: nothing was taken
	}
	c := callback{At: time.Now(), Agent: request.PathValue("agent")}
	fault := ""
	switch err := json.Unmarshal(body, &c); {
	case err != nil:
		fault = "a body that is no JSON: " + err.Error()
	case !signed(request.Header, r.keys[c.Agent], "reply."+string(body)):
		fault = "a signature that does not fit"
	case c.ReplyID == "" || request.Header.Get("Idempotency-Key") != c.ReplyID:
		fault = "an Idempotency-Key that is not the reply's id"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if fault != "" {
		r.broken = append(r.broken, fmt.Sprintf("POST %s: %s", request.URL, fault))
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.tried[c.ReplyID]++
	luck, wrong := r.draw(c), ""
	if len(r.faults) > 0 {
		wrong, r.faults = r.faults[0], r.faults[1:]
	}
	switch wrong {
	case receiverFails:
		w.WriteHeader(http.StatusInternalServerError)
		return
	case receiverBusy:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if r.flaky && r.tried[c.ReplyID] == 1 && luck < 2 {
		r.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if !r.taken[c.ReplyID] && c.Part == c.Parts {
		r.perChat[c.Chat]++
	}
	r.raw = append(r.raw, c)
	r.taken[c.ReplyID] = true
	close(r.changed)
	r.changed = make(chan struct{})
	if r.flaky && r.tried[c.ReplyID] == 1 && luck < 5 {
		r.lost++
		panic(http.ErrAbortHandler) // the connection breaks
	}
	if wrong == receiverBreaks {
		panic(http.ErrAbortHandler)
	}
}

// What a receiver does to a POST.
const (
	receiverFails  = "500"
	receiverBusy   = "429"
	receiverBreaks = "taken, and no answer"
)

// fail has the next POSTs go wrong.
func (r *receiver) fail(faults ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, faults...)
}

// draw is a number below 100 that depends on the seed and the message answered
// alone, so that it is the same in every run.
func (r *receiver) draw(c callback) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, r.seed, c.InReplyTo, c.Part) // a hash never fails
	return h.Sum64() >> 16 % 100
}

func (r *receiver) has(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !signed(request.Header, r.keys[request.PathValue("agent")], request.URL.RequestURI()) {
		r.broken = append(r.broken, fmt.Sprintf("GET %s: a signature that does not fit", request.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.asked++
	reply := request.URL.Query().Get("reply")
	if !r.taken[reply] {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("X-Tuluat-Message-Id", reply)
}

// answered says how many messages of the chat, or of all for "", are answered,
// and what is closed when there are more.
func (r *receiver) answered(chat string) (int, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if chat != "" {
		return r.perChat[chat], r.changed
	}
	n := 0
	for _, of := range r.perChat {
		n += of
	}
	return n, r.changed
}

// callbacks returns everything taken so far, in the order it came in.
func (r *receiver) callbacks() []callback {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.raw)
}

// answer returns the first answer to a message.
func (r *receiver) answer(messageID string) (callback, bool) {
	for _, c := range r.callbacks() {
		if c.InReplyTo == messageID {
			return c, true
		}
	}
	return callback{}, false
}
