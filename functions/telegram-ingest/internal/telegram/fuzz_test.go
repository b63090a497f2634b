package telegram

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
)

// tolerate parses body as every kind of account would and reports what must
// never come of any body.
func tolerate(t *testing.T, body []byte, policies ...harness.GroupPolicy) {
	t.Helper()
	for _, policy := range policies {
		account := testAccount()
		account.Spec.Groups = policy
		account.Spec.Senders.Policy = harness.SendersPairing
		account.Keys[channel.RolePairingCode] = []harness.Secret{"pairing-code"}
		begin := time.Now()
		in, err := NewAdapter(nil).Parse(body, channel.Proof{Accounts: map[string]*channel.Account{testBot: account}})
		if took := time.Since(begin); took > time.Second {
			t.Errorf("%s for %q", took, body)
		}
		if err != nil {
			if harness.KindOf(err) != harness.Invalid || len(in.Arrivals)+len(in.Notices) > 0 {
				t.Errorf("%v for %q", err, body)
			}
			continue
		}
		if len(in.Arrivals)+len(in.Notices) == 0 {
			t.Errorf("nothing was recorded of %q", body)
		}
		if err := storable(in); err != nil {
			t.Errorf("%v\nfor %q", err, body)
		}
	}
}

// FuzzParse has its seeds under testdata/fuzz, beside the bodies of the cases.
func FuzzParse(f *testing.F) {
	for _, body := range corpus(f) {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) { tolerate(t, body, harness.GroupsMention, harness.GroupsAll) })
}

// Ten thousand bodies made from those of the cases, the same ones every time.
func TestMutatedBodies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	bodies := corpus(t)
	read := 0
	policies := []harness.GroupPolicy{harness.GroupsMention, harness.GroupsAll}
	for i := range 10_000 {
		body := mutate(random, bodies)
		if _, err := decode(body); err == nil {
			read++
		}
		if tolerate(t, body, policies[i%2]); t.Failed() {
			return
		}
	}
	if read < 3000 {
		t.Errorf("only %d of them are JSON: the mutations try the reader of JSON, not ours", read)
	}
}

// values are what takes the place of another value.
var values = []string{
	`null`, `true`, `0`, `-1`, `1e400`, `9223372036854775808`, `1.5`, `""`, `"\u0000"`, `" "`, `"\ud800"`, `[]`, `{}`, `[null]`, `[[[[]]]]`, `{"id":{}}`,
	`"text"`, `9007199254740993`, `-9223372036854775808`, `{"file_id":"F"}`, `[{"type":"mention","offset":-1,"length":9223372036854775807}]`,
}

func mutate(random *rand.Rand, bodies [][]byte) []byte {
	body := bytes.Clone(bodies[random.IntN(len(bodies))])
	for range 1 + random.IntN(3) {
		if len(body) == 0 {
			return body
		}
		switch random.IntN(6) {
		case 0: // one byte
			body[random.IntN(len(body))] = byte(random.IntN(256))
		case 1: // torn
			body = body[:random.IntN(len(body))]
		case 2, 3: // another value
			body = replaceValue(random, body)
		case 4: // another key
			body = replaceKey(random, body)
		case 5: // spliced with another
			other := bodies[random.IntN(len(bodies))]
			body = append(body[:random.IntN(len(body))], other[random.IntN(len(other)):]...)
		}
	}
	return body
}

// replaceValue puts a value behind one of the colons.
func replaceValue(random *rand.Rand, body []byte) []byte {
	at, ok := pick(random, body, []byte(": "))
	if !ok {
		return body
	}
	end := at
	for depth := 0; end < len(body); end++ {
		switch c := body[end]; {
		case c == '{' || c == '[':
			depth++
		case (c == '}' || c == ']') && depth > 0:
			depth--
			continue
		}
		if depth == 0 && (body[end] == ',' || body[end] == '}' || body[end] == '\n') {
			break
		}
	}
	return append(append(bytes.Clone(body[:at]), values[random.IntN(len(values))]...), body[end:]...)
}

// replaceKey gives a field the name of another.
func replaceKey(random *rand.Rand, body []byte) []byte {
	names := []string{
		"text", "caption", "photo", "rich_message", "chat", "from", "sender_chat", "message_thread_id", "reply_to_message", "migrate_to_chat_id", "poll", "dice",
		"entities", "quote", "venue", "sticker", "business_connection_id", "media_group_id", "data", "message", "callback_query", "guest_message", "update_id",
	}
	at, ok := pick(random, body, []byte(" \""))
	if !ok {
		return body
	}
	end := bytes.IndexByte(body[at:], '"')
	if end < 0 {
		return body
	}
	return append(append(bytes.Clone(body[:at]), names[random.IntN(len(names))]...), body[at+end:]...)
}

// pick returns the place behind one of the marks in body.
func pick(random *rand.Rand, body, mark []byte) (int, bool) {
	n := bytes.Count(body, mark)
	if n == 0 {
		return 0, false
	}
	at := 0
	for range 1 + random.IntN(n) {
		at += bytes.Index(body[at:], mark) + len(mark)
	}
	return at, true
}
