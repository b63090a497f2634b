package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
)

func TestMessageIsCommittedAndAnnounced(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{IdleTTL: time.Hour})
	p := w.start("public", nil)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	request := signed(http.MethodPost, p.URL+hooksPath+"hook", `{"messageId":"1","channelUserId":"u","chat":"room","text":"hi"}`, secret, time.Now())
	request.Header.Set("Traceparent", trace)
	a := p.do(request)
	if a.Status != http.StatusAccepted || a.Session == "" || a.Message == "" || a.Dup || a.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	heard := w.Broker.Take()
	if len(heard) != 1 || heard[0].Get("Ce-Id") != "message.received:"+string(a.Message) || heard[0].Get("Ce-Tuluatsession") != string(a.Session) || heard[0].Get("Ce-Traceparent") != trace {
		t.Fatalf("published %v", heard)
	}
	if got := w.Query(`SELECT concat_ws(' ', s.chat, s.traceparent, m.provider_id, o.subject = s.session_id) FROM sessions s JOIN messages m USING (session_id) JOIN outbox o USING (session_id)`); got != "room "+trace+" 1 t" {
		t.Fatalf("stored %s", got)
	}
	again := p.do(signed(http.MethodPost, p.URL+hooksPath+"hook", `{"messageId":"1","channelUserId":"u","chat":"room","text":"hi"}`, secret, time.Now()))
	if again.Status != http.StatusAccepted || !again.Dup || again.Message != a.Message || again.Session != a.Session {
		t.Fatalf("the repeat got %d %s", again.Status, again.Body)
	}
	if heard := w.Broker.Take(); len(heard) != 0 {
		t.Fatalf("the repeat was announced: %v", heard)
	}
	w.Broker.Fail(http.StatusServiceUnavailable)
	if a := p.say("hook", "u", "2", "without a broker"); a.Status != http.StatusAccepted {
		t.Fatalf("without a broker: %d %s", a.Status, a.Body)
	}
}

func TestBadInput(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	w.hook("closed", harness.ChannelSpec{}, "alice")
	w.hook("unset", harness.ChannelSpec{Secret: harness.SecretRef{Name: "no-such", Key: "secret"}})
	w.hook("broken", harness.ChannelSpec{Fields: &harness.ChannelFields{Text: "$["}})
	p := w.start("public", nil)
	good := `{"messageId":"%s","channelUserId":"u","text":"MARK"}`
	now := time.Now
	base := p.URL + hooksPath
	body := func(fields string) *http.Request {
		return signed(http.MethodPost, base+"hook", `{"messageId":"x","channelUserId":"u","text":"MARK",`+fields+`}`, secret, now())
	}
	with := func(r *http.Request, name string, values ...string) *http.Request {
		r.Header[name] = values
		return r
	}
	long := strings.Repeat("a", 201)
	for name, c := range map[string]struct {
		request *http.Request
		status  int
		detail  string
	}{
		"method":             {signed(http.MethodPut, base+"hook", good, secret, now()), 405, "POST"},
		"unknown hook":       {signed(http.MethodPost, base+"MARK", good, secret, now()), 404, "hook"},
		"hook with a NUL":    {signed(http.MethodPost, base+"MARK%00", good, secret, now()), 404, "hook"},
		"hook too long":      {signed(http.MethodPost, base+long, good, secret, now()), 404, "hook"},
		"no signature":       {with(signed(http.MethodPost, base+"hook", good, secret, now()), "X-Tuluat-Signature"), 401, "not signed"},
		"two signatures":     {with(signed(http.MethodPost, base+"hook", good, secret, now()), "X-Tuluat-Signature", "v1=00", "v1=11"), 401, "not signed"},
		"other version":      {with(signed(http.MethodPost, base+"hook", good, secret, now()), "X-Tuluat-Signature", "v2="+strings.Repeat("0", 64)), 401, "v1="},
		"short signature":    {with(signed(http.MethodPost, base+"hook", good, secret, now()), "X-Tuluat-Signature", "v1=00"), 401, "v1="},
		"not hexadecimal":    {with(signed(http.MethodPost, base+"hook", good, secret, now()), "X-Tuluat-Signature", "v1="+strings.Repeat("g", 64)), 401, "v1="},
		"stale":              {signed(http.MethodPost, base+"hook", good, secret, now().Add(-6*time.Minute)), 401, "5 minutes"},
		"from the future":    {signed(http.MethodPost, base+"hook", good, secret, now().Add(6*time.Minute)), 401, "5 minutes"},
		"timestamp of words": {with(signed(http.MethodPost, base+"hook", good, secret, now()), "X-Tuluat-Timestamp", "MARK"), 401, "timestamp"},
		"other secret":       {signed(http.MethodPost, base+"hook", good, "MARK", now()), 401, "does not fit"},
		"secret not set":     {signed(http.MethodPost, base+"unset", good, "", now()), 401, "does not fit"},
		"broken mapping":     {signed(http.MethodPost, base+"broken", good, secret, now()), 500, "mapping"},
		"too large":          {signed(http.MethodPost, base+"hook", strings.Repeat(" ", 1<<20+1), secret, now()), 413, "1 MiB"},
		"too large, unannounced": {func() *http.Request {
			r := signed(http.MethodPost, base+"hook", strings.Repeat(" ", 1<<20+1), secret, now())
			r.ContentLength = -1
			return r
		}(), 413, "1 MiB"},
		"empty":                 {signed(http.MethodPost, base+"hook", "", secret, now()), 400, "not valid JSON"},
		"torn":                  {signed(http.MethodPost, base+"hook", `{"text":"MARK`, secret, now()), 400, "not valid JSON"},
		"not UTF-8":             {signed(http.MethodPost, base+"hook", "{\"text\":\"MARK\xff\"}", secret, now()), 400, "UTF-8"},
		"two objects":           {signed(http.MethodPost, base+"hook", `{} {}`, secret, now()), 400, "nothing more"},
		"array":                 {signed(http.MethodPost, base+"hook", `[]`, secret, now()), 400, "object"},
		"null":                  {signed(http.MethodPost, base+"hook", `null`, secret, now()), 400, "object"},
		"endless nesting":       {signed(http.MethodPost, base+"hook", strings.Repeat("[", 20000), secret, now()), 400, "not valid JSON"},
		"key in another case":   {signed(http.MethodPost, base+"hook", `{"messageId":"x","channelUserId":"u","TEXT":"MARK"}`, secret, now()), 400, "text must be a string"},
		"no messageId":          {signed(http.MethodPost, base+"hook", `{"channelUserId":"u","text":"MARK"}`, secret, now()), 400, "messageId must be a string"},
		"numeric user":          {body(`"channelUserId":5000000001`), 400, "channelUserId must be a string"},
		"null user":             {body(`"channelUserId":null`), 400, "channelUserId must be a string"},
		"empty user":            {body(`"channelUserId":" "`), 400, "channelUserId must have"},
		"long user":             {body(`"channelUserId":"` + long + `"`), 400, "channelUserId must have"},
		"line break in an id":   {body(`"messageId":"a\r\nSet-Cookie: b"`), 400, "messageId must have"},
		"NUL in an id":          {body(`"messageId":"a\u0000"`), 400, "messageId must have"},
		"control in chat":       {body(`"chat":"a\u0085b"`), 400, "chat must have"},
		"chat is a number":      {body(`"chat":1`), 400, "chat must be a string"},
		"text is an object":     {body(`"text":{"body":"MARK"}`), 400, "text must be a string"},
		"text is blank":         {body(`"text":" \n\t\u0000"`), 400, "text must not be empty"},
		"text too long":         {body(`"text":"` + strings.Repeat("a", 64<<10+1) + `"`), 413, "64 KiB"},
		"metadata is a list":    {body(`"metadata":["MARK"]`), 400, "metadata must be an object"},
		"metadata too large":    {body(`"metadata":{"a":"` + strings.Repeat("a", 16<<10) + `"}`), 413, "16 KiB"},
		"metadata too deep":     {body(`"metadata":{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`), 400, "nested"},
		"metadata out of range": {body(`"metadata":{"a":1e999999}`), 400, "out of range"},
		"bad Idempotency-Key":   {keyed(base+"hook", fmt.Sprintf(good, "x"), long, long), 400, "Idempotency-Key must have"},
		"sender not allowed":    {signed(http.MethodPost, base+"closed", fmt.Sprintf(good, "x"), secret, now()), 403, "sender"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			a := p.do(c.request)
			var problem struct {
				Title, Detail string
				Status        int
			}
			if err := json.Unmarshal([]byte(a.Body), &problem); err != nil || a.Header.Get("Content-Type") != "application/problem+json" {
				t.Fatalf("not a problem: %d %s", a.Status, a.Body)
			}
			if a.Status != c.status || problem.Status != c.status || !strings.Contains(problem.Detail, c.detail) {
				t.Errorf("got %d %s, want %d %q", a.Status, a.Body, c.status, c.detail)
			}
			if strings.Contains(a.Body, "MARK") {
				t.Errorf("the answer repeats the input: %s", a.Body)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
	if n := w.Query(`SELECT count(*)::text FROM messages`); n != "0" {
		t.Errorf("%s messages stored", n)
	}
	if logs := w.Logs.String(); strings.Contains(logs, "MARK") {
		t.Errorf("the input is in the logs:\n%s", logs)
	}
}

func TestWhatIsStored(t *testing.T) {
	w := newWorld(t)
	p := w.start("public", nil)
	for name, c := range map[string]struct{ body, want string }{
		"surrogates and NUL": {`{"messageId":"m","channelUserId":"u","text":"a\u0000b\ud83d","metadata":{"k\u0000":"v\u0000\udc00"}}`, `m u u ab` + "\uFFFD" + ` {"k": "v` + "\uFFFD" + `"}`},
		"last of two keys":   {`{"messageId":"m","channelUserId":"u","text":"first","text":"last","metadata":{"a":1,"a":2}}`, `m u u last {"a": 2}`},
		"exact numbers":      {`{"messageId":"m","channelUserId":"u","text":"t","metadata":{"a":9007199254740993,"b":0.10,"c":1e2}}`, `m u u t {"a": 9007199254740993, "b": 0.10, "c": 100}`},
		"null is absent":     {`{"messageId":"m","channelUserId":"u","chat":null,"text":"t","metadata":null}`, `m u u t {}`},
		"marks in the ids":   {`{"messageId":"wamid.A/+=ü","channelUserId":"+1 555","chat":"☎","text":"t"}`, `wamid.A/+=ü +1 555 ☎ t {}`},
	} {
		t.Run(name, func(t *testing.T) {
			w.hook(name, harness.ChannelSpec{})
			if a := p.post(url.PathEscape(name), c.body); a.Status != http.StatusAccepted {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			if got := w.Query(`SELECT concat_ws(' ', m.provider_id, m.channel_user_id, s.chat, m.text, m.metadata) FROM messages m JOIN sessions s USING (session_id) WHERE s.account = $1`, name); got != c.want {
				t.Errorf("stored %q, want %q", got, c.want)
			}
		})
	}
}

func TestFieldMapping(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{Fields: &harness.ChannelFields{
		MessageID: "$.event.id", ChannelUserID: `$.event.people[?@.role == "author"].name`, Chat: "$.event['room id']", Text: "$.event.parts[0].text", Metadata: "$.event.extra",
	}})
	p := w.start("public", nil)
	a := p.post("hook", `{"messageId":"ignored","event":{"id":"e1","room id":"r","people":[{"role":"bot","name":"b"},{"role":"author","name":"ann"}],"parts":[{"text":"hello"}],"extra":{"n":12345678901234567890}}}`)
	if a.Status != http.StatusAccepted {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if got := w.Query(`SELECT concat_ws(' ', m.provider_id, m.channel_user_id, s.chat, m.text, m.metadata) FROM messages m JOIN sessions s USING (session_id)`); got != `e1 ann r hello {"n": 12345678901234567890}` {
		t.Errorf("stored %s", got)
	}
	a = p.post("hook", `{"event":{"id":"e2","people":[{"role":"author","name":"ann"},{"role":"author","name":"bob"}],"parts":[{"text":"hello"}]}}`)
	if a.Status != http.StatusBadRequest || !strings.Contains(a.Body, "channelUserId is found more than once") {
		t.Errorf("two authors: %d %s", a.Status, a.Body)
	}
	a = p.post("hook", `{"event":{"id":"e3","parts":[]}}`)
	if a.Status != http.StatusBadRequest || !strings.Contains(a.Body, "channelUserId must be a string") {
		t.Errorf("no author: %d %s", a.Status, a.Body)
	}
}

func TestIdempotencyKeyStandsForTheMessageID(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", nil)
	var got []answer
	for _, body := range []string{`{"messageId":"1","channelUserId":"u","text":"hi"}`, `{"messageId":"2","channelUserId":"u","text":"hi"}`, `{"channelUserId":"u","text":"hi"}`} {
		got = append(got, p.do(keyed(p.URL+hooksPath+"hook", body, "key", "key")))
	}
	if got[0].Dup || !got[1].Dup || !got[2].Dup || got[2].Message != got[0].Message {
		t.Errorf("answers %v", got)
	}
}

// keyed is a message with an Idempotency-Key, signed with signedKey.
func keyed(url, body, key, signedKey string) *http.Request {
	now := time.Now()
	r := signed(http.MethodPost, url, body, secret, now)
	timestamp := strconv.FormatInt(now.Unix(), 10)
	r.Header.Set("X-Tuluat-Signature", signature(secret, timestamp, "key="+signedKey+"."+body))
	r.Header.Set("Idempotency-Key", key)
	return r
}

// A captured request is no other message under another key, and a captured
// reply is no message at all.
func TestCapturedRequestsAreNoNewMessages(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", nil)
	url, body := p.URL+hooksPath+"hook", `{"messageId":"1","channelUserId":"u","text":"hi"}`
	another := signed(http.MethodPost, url, body, secret, time.Now())
	another.Header.Set("Idempotency-Key", "another")
	reply := signed(http.MethodPost, url, body, secret, time.Now())
	reply.Header.Set("X-Tuluat-Signature", signature(secret, reply.Header.Get("X-Tuluat-Timestamp"), "reply."+body))
	replyWithKey := signed(http.MethodPost, url, body, secret, time.Now())
	replyWithKey.Header.Set("X-Tuluat-Signature", signature(secret, replyWithKey.Header.Get("X-Tuluat-Timestamp"), "reply."+body))
	replyWithKey.Header.Set("Idempotency-Key", "reply")
	for name, r := range map[string]*http.Request{
		"a key that was not signed": another, "another key than the signed one": keyed(url, body, "another", "key"),
		"a reply": reply, "a reply with a key": replyWithKey,
	} {
		if a := p.do(r); a.Status != http.StatusUnauthorized {
			t.Errorf("%s: status %d", name, a.Status)
		}
	}
}

func TestRotatedSecrets(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	p := w.start("public", map[string]string{secretName: "new-secret-value, " + secret})
	for key, want := range map[string]int{"new-secret-value": 202, secret: 202, "new-secret-value, " + secret: 401, "": 401} {
		body := fmt.Sprintf(`{"messageId":"%d","channelUserId":"u","text":"hi"}`, len(key))
		if a := p.do(signed(http.MethodPost, p.URL+hooksPath+"hook", body, key, time.Now())); a.Status != want {
			t.Errorf("a key of %d bytes: %d, want %d", len(key), a.Status, want)
		}
	}
}

// Many callers at once share statements; each still gets its own fate, and a
// message that cannot be stored takes no other with it.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	w.hook("hook", harness.ChannelSpec{})
	w.hook("closed", harness.ChannelSpec{}, "alice")
	p := w.start("public", nil)
	const people, each = 10, 20
	var running sync.WaitGroup
	var mu sync.Mutex
	ids := map[harness.MessageID]int{}
	for person := range people {
		for n := range each {
			running.Go(func() {
				a := p.say("hook", fmt.Sprint("u", person), fmt.Sprint("m", person, "-", n/2), "hi") // every one twice
				if a.Status != http.StatusAccepted || a.Message == "" || a.Session == "" {
					t.Errorf("%d %s", a.Status, a.Body)
				}
				mu.Lock()
				ids[a.Message]++
				mu.Unlock()
				if a := p.say("closed", "mallory", fmt.Sprint(person, n), "hi"); a.Status != http.StatusForbidden {
					t.Errorf("%d %s", a.Status, a.Body)
				}
			})
		}
	}
	running.Wait()
	if len(ids) != people*each/2 {
		t.Errorf("%d different messages, want %d", len(ids), people*each/2)
	}
	for id, n := range ids {
		if n != 2 {
			t.Errorf("message %s was answered %d times", id, n)
		}
	}
	if got := w.Query(`SELECT count(*) || ' ' || count(DISTINCT session_id) || ' ' || max(seq) FROM messages`); got != "100 10 10" {
		t.Errorf("messages, sessions, last number: %s", got)
	}
}
