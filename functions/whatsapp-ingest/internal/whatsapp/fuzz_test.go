package whatsapp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// bodies returns the bodies of all cases.
func bodies(t testing.TB) [][]byte {
	paths, err := filepath.Glob("testdata/cases/wa-*.json")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for _, path := range paths {
		if !strings.HasSuffix(path, ".expect.json") && !strings.HasSuffix(path, ".request.json") {
			all = append(all, read(t, path))
		}
	}
	if len(all) < 42 {
		t.Fatalf("%d bodies", len(all))
	}
	return all
}

func parseProved(body []byte) (postgres.Inbound, error) {
	return adapter(nil).Parse(body, channel.Proof{Accounts: number1(nil)})
}

// sound reports what is wrong with the rows of a hostile body.
func sound(in postgres.Inbound, err error) string {
	if err != nil {
		if harness.KindOf(err) != harness.Invalid {
			return "refused as " + string(harness.KindOf(err))
		}
		return ""
	}
	var texts []string
	for _, a := range in.Arrivals {
		m := a.Message
		metadata, err := json.Marshal(m.Metadata)
		switch {
		case err != nil:
			return err.Error()
		case blank(m.Text):
			return "an arrival without text"
		case len(m.Text) > maxText, len(metadata) > maxMetadata:
			return fmt.Sprintf("text of %d bytes, metadata of %d", len(m.Text), len(metadata))
		case a.Account != ourID:
			return "an arrival of the account " + a.Account
		case m.Channel != harness.ChannelWhatsApp, m.ChannelUserID == "", a.Chat == "", a.ProviderID == "", len(a.ProviderID) > maxID:
			return fmt.Sprintf("an arrival without its ids: %+v", a)
		case strings.ContainsFunc(a.ProviderID+a.Chat+m.ChannelUserID, unicode.IsControl):
			return "a control character in an id"
		}
		texts = append(texts, a.Account, a.ProviderID, a.Chat, a.Address, a.OtherID, m.ChannelUserID, m.Text)
		texts = append(append(texts, a.Aliases...), strs(m.Metadata)...)
		for _, f := range a.Attachments {
			texts = append(texts, f.ProviderID, f.FileName, f.MimeType)
		}
	}
	for _, n := range in.Notices {
		data, err := json.Marshal(n.Data)
		if err != nil || len(data) > maxMetadata || n.ProviderID == "" || n.Kind == "" {
			return fmt.Sprintf("a notice that cannot be kept: %+v %v", n, err)
		}
		if n.Data["reason"] == reasonPanic {
			return "the reader panicked"
		}
		if n.Data["field"] != nil && bytes.Contains(data, []byte("://")) {
			return fmt.Sprintf("an address in a notice: %s", data)
		}
		texts = append(append(texts, n.Account, n.ProviderID, n.Chat, n.ChannelUserID, n.Ref), strs(n.Data)...)
	}
	for _, s := range in.Statuses {
		if s.Account != ourID || s.State == "" || s.ProviderID == "" {
			return fmt.Sprintf("a status that cannot be kept: %+v", s)
		}
		texts = append(texts, s.ProviderID, string(s.Reply), s.Reason)
	}
	for _, r := range in.Renames {
		if r.Account != ourID || len(r.From) == 0 || len(r.To) == 0 {
			return fmt.Sprintf("a rename that names nothing: %+v", r)
		}
		texts = append(append(texts, r.From...), r.To...)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Sprintf("%q cannot be stored", text)
		}
	}
	return ""
}

// strs returns every name and string in v.
func strs(v any) []string {
	var all []string
	switch v := v.(type) {
	case string:
		all = append(all, v)
	case []string:
		all = append(all, v...)
	case []any:
		for _, item := range v {
			all = append(all, strs(item)...)
		}
	case map[string]any:
		for name, item := range v {
			all = append(append(all, name), strs(item)...)
		}
	case json.Number:
		if len(v) > maxNumber || strings.ContainsAny(string(v), "eE") {
			all = append(all, "\x00 number "+string(v)) // PostgreSQL writes its zeros out
		}
	}
	return all
}

func FuzzParse(f *testing.F) {
	for _, body := range bodies(f) {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if problem := sound(parseProved(body)); problem != "" {
			t.Fatal(problem)
		}
		again, _ := parseProved(body)
		once, _ := parseProved(body)
		for i := range once.Notices {
			if once.Notices[i].ProviderID != again.Notices[i].ProviderID {
				t.Fatal("a notice has another id when it comes again")
			}
		}
	})
}

// TestMutatedBodies parses 10,000 damaged bodies, the same ones every time.
func TestMutatedBodies(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 97))
	seeds := bodies(t)
	valid := 0
	for i := range 10_000 {
		body := mutate(random, seeds)
		start := time.Now()
		in, err := parseProved(body)
		if took := time.Since(start); took > time.Second {
			t.Fatalf("mutation %d took %s", i, took)
		}
		if err == nil {
			valid++
		}
		if problem := sound(in, err); problem != "" {
			t.Fatalf("mutation %d: %s\n%s", i, problem, body)
		}
	}
	if valid < 3000 {
		t.Errorf("only %d of the bodies were still JSON: the rest tests little", valid)
	}
}

var values = []string{
	"null", "true", "0", "-1", "1e400", "1e-9999", "12345678901234567890123456789012345678901234567890", `""`, `" "`, `"\u0000"`, `"\ud83d"`, `"\udc00x"`, `"a\u0000b"`,
	"{}", "[]", "[null]", `[{}]`, `{"a": {"b": []}}`, `"\n\u202e"`, `"https://example.com/secret"`, `"rpl_0000"`, `"US.1"`, "\"\xff\xfe\"", `"text"`, `"image"`, `"` + strings.Repeat("<&", 9000) + `"`,
}

// mutate damages a body once to three times: on its bytes, or on its tokens so
// that it stays JSON.
func mutate(random *rand.Rand, seeds [][]byte) []byte {
	body := bytes.Clone(seeds[random.IntN(len(seeds))])
	for range 1 + random.IntN(3) {
		if len(body) == 0 {
			return body
		}
		switch random.IntN(8) {
		case 0: // a flipped bit
			body[random.IntN(len(body))] ^= 1 << random.IntN(8)
		case 1: // cut off
			body = body[:random.IntN(len(body))]
		case 2, 3, 4: // another value
			from, to := token(random, body)
			body = splice(body, from, to, values[random.IntN(len(values))])
		case 5: // a key twice
			if from, to := member(random, body); to > from {
				body = splice(body, to, to, ","+string(body[from:to]))
			}
		case 6: // deep nesting
			depth := 1 << random.IntN(13)
			from, to := token(random, body)
			if random.IntN(2) == 0 {
				body = splice(body, from, to, strings.Repeat("[", depth)+strings.Repeat("]", depth))
			} else {
				body = splice(body, from, to, strings.Repeat(`{"value":`, depth)+"1"+strings.Repeat("}", depth))
			}
		case 7: // a piece of another body
			other := seeds[random.IntN(len(seeds))]
			from, to := token(random, body)
			otherFrom, otherTo := token(random, other)
			body = splice(body, from, to, string(other[otherFrom:otherTo]))
		}
	}
	return body
}

func splice(body []byte, from, to int, text string) []byte {
	return append(append(bytes.Clone(body[:from]), text...), body[to:]...)
}

// token returns the bounds of a value in body, where it has any.
func token(random *rand.Rand, body []byte) (int, int) {
	for tries := 0; tries < 50 && (tries > 0 || json.Valid(body)); tries++ {
		i := random.IntN(len(body))
		if n := bytes.IndexByte(body[i:], ':'); n >= 0 {
			if start := skipSpace(body, i+n+1); start < len(body) {
				return start, valueEnd(body, start)
			}
		}
	}
	i := random.IntN(len(body))
	return i, i
}

// member returns the bounds of a key and its value in body, where it has any.
func member(random *rand.Rand, body []byte) (int, int) {
	from, to := token(random, body)
	colon := bytes.LastIndexByte(body[:from], ':')
	if colon < 1 {
		return 0, 0
	}
	quote := bytes.LastIndexByte(body[:colon], '"')
	if quote < 1 {
		return 0, 0
	}
	start := bytes.LastIndexByte(body[:quote], '"')
	if start < 0 {
		return 0, 0
	}
	return start, to
}

// manyUpdates is a body as large as the provider sends them.
func manyUpdates(updates, size int) []byte {
	var b bytes.Buffer
	fill := strings.Repeat(`Gr\u00fc\u00dfe aus dem B\u00fcro, `, 200)
	fill = fill[:size/updates-420]
	fill = fill[:strings.LastIndexByte(fill, ',')]
	b.WriteString(`{"object":"whatsapp_business_account","entry":[{"id":"200000000000001","changes":[{"field":"messages","value":{"messaging_product":"whatsapp","metadata":{"display_phone_number":"15550009999","phone_number_id":"` + ourID + `"},"contacts":[`)
	for i := range updates {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"profile":{"name":"Person %d"},"wa_id":"1555%07d","user_id":"US.9%015d"}`, i%100, i%100, i%100)
	}
	b.WriteString(`],"messages":[`)
	for i := range updates {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"from":"1555%07d","from_user_id":"US.9%015d","id":"wamid.HBgLMTU1NTAwMDExMTEVAgASGBQz%08d","timestamp":"1793534400","type":"text","text":{"body":"%s %d"}}`, i%100, i%100, i, fill, i)
	}
	b.WriteString(`]}}]}]}`)
	return b.Bytes()
}

func BenchmarkParse(b *testing.B) {
	body := manyUpdates(1000, 3_000_000)
	proof := channel.Proof{Accounts: number1(nil)}
	a := adapter(nil)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		in, err := a.Parse(body, proof)
		if err != nil || len(in.Arrivals) != 1000 || len(in.Notices) != 0 {
			b.Fatal(len(in.Arrivals), in.Notices, err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	body := manyUpdates(1000, 3_000_000)
	a := adapter(number1(nil))
	r := posted(nil, hmacHex(appSecret, body))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := a.Verify(b.Context(), r, body); err != nil {
			b.Fatal(err)
		}
	}
}
