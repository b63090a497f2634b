// Package whatsapp speaks the WhatsApp Business Cloud API: its webhooks on the
// way in, its Graph API on the way out. A fact about the provider is from its
// documentation of 2026 unless a comment says otherwise.
package whatsapp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The limits of what is kept of one update, in bytes.
const (
	maxText     = 64 << 10
	maxMetadata = 16 << 10 // as JSON
	maxID       = 512      // of a message; the provider's have about 60
	maxPerson   = 200      // of a phone number, a BSUID or a group
	maxWord     = 128      // of a kind, a MIME type
	maxLine     = 512      // of a name, a title, a reason
)

// pairPace is the provider's limit between one number and one person: a burst
// borrows from the future. None is documented for groups.
var pairPace = postgres.Pace{Every: 6 * time.Second, Burst: 45}

// parser collects the rows of one request.
type parser struct {
	proof channel.Proof
	now   time.Time
	out   postgres.Inbound

	entry   string // id of the WhatsApp Business Account
	time    string // of the entry
	account *channel.Account
	name    string // of the account in the rows
	value   value
	display string // our number's digits, as people see it
	people  map[string]*person
}

// Parse makes rows of the updates in body, one by one: an update that cannot be
// used becomes a notice and never costs another one. Keys are exact, and of a
// key given twice the last value counts. Only what is no JSON, or nested more
// than 10,000 deep, is refused.
func (a *Adapter) Parse(body []byte, proof channel.Proof) (postgres.Inbound, error) {
	if !json.Valid(body) {
		return postgres.Inbound{}, harness.Errorf(harness.Invalid, "the body is not valid JSON")
	}
	p := &parser{proof: proof, now: a.now()}
	root := whole(body)
	entries := root.get("entry")
	if !root.get("object").oneOf("whatsapp_business_account") || entries.kind() != '[' {
		p.malformed(root, "no list of entries of a WhatsApp Business Account")
		return p.out, nil
	}
	for entry := range entries.items {
		p.readEntry(entry)
	}
	return p.out, nil
}

func (p *parser) readEntry(entry value) {
	p.entry, p.time, p.account, p.name = "", "", nil, ""
	if id := party(entry.get("id")); id != "" {
		p.entry = id
		p.name = "waba:" + id // never the name of a number: those are digits
	}
	p.time = entry.get("time").scalar()
	changes := entry.get("changes")
	if changes.kind() != '[' {
		p.malformed(entry, "an entry without a list of changes")
		return
	}
	waba := p.name
	for change := range changes.items {
		p.account, p.name, p.people = nil, waba, nil
		p.readChange(change)
	}
}

func (p *parser) readChange(change value) {
	if change.kind() != '{' {
		p.malformed(change, "a change that is no object")
		return
	}
	var field string
	var metadata value
	p.value = nil
	for key, item := range change.fields {
		switch string(key) {
		case "field":
			if field = line(item.text(), maxWord); strings.Contains(field, "/") {
				field = ""
			}
		case "value":
			p.value = item
			metadata = item.get("metadata")
		}
	}
	number := party(metadata.get("phone_number_id"))
	p.display = digits(metadata.get("display_phone_number").scalar())
	if number != "" {
		p.name, p.account = number, p.proof.Accounts[number]
	}
	switch {
	case field == "messages" && number == "":
		p.malformed(change, "messages without a phone_number_id")
	case field == "messages":
		p.readMessages()
	case field == "smb_message_echoes" && number != "":
		for echo := range p.value.get("message_echoes").items {
			p.each(echo, p.echo)
		}
	case number != "" && p.account == nil:
		p.unrouted(p.anonymous(change), map[string]any{"field": field})
	default:
		data := facts(p.value)
		data["field"] = field
		p.notice(postgres.Notice{ProviderID: p.anonymous(change), Kind: harness.NoticeService, Data: data})
	}
}

func (p *parser) readMessages() {
	for key, list := range p.value.fields {
		switch string(key) {
		case "messages":
			for item := range list.items {
				p.each(item, p.readMessage)
			}
		case "statuses":
			for item := range list.items {
				p.each(item, p.readStatus)
			}
		case "errors":
			for item := range list.items {
				p.each(item, p.readError)
			}
		}
	}
}

// each reads one update. One that makes the reader panic is recorded like any
// other that cannot be read: it must not cost its neighbours, nor be sent again
// for a week.
func (p *parser) each(item value, read func(value)) {
	before := p.out
	defer func() {
		if recover() != nil {
			p.out = before
			p.malformed(item, reasonPanic)
		}
	}()
	if item.kind() != '{' {
		p.malformed(item, "an update that is no object")
		return
	}
	read(item)
}

const reasonPanic = "the reader failed on it"

// readError records an error that the provider reports on a number rather than
// on a message.
func (p *parser) readError(item value) {
	if p.account == nil {
		p.unrouted(p.anonymous(item), map[string]any{"field": "errors"})
		return
	}
	p.notice(postgres.Notice{ProviderID: p.anonymous(item), Kind: harness.NoticeService, Data: problem(item)})
}

// problem is what an error object of the provider says. Its link is left out.
func problem(item value) map[string]any {
	data := map[string]any{"code": json.Number(strconv.Itoa(code(item.get("code"))))}
	for name, v := range map[string]value{"title": item.get("title"), "details": item.get("error_data", "details")} {
		if text := cut(v.text(), maxLine); text != "" {
			data[name] = text
		}
	}
	return data
}

// code is an error code, 0 if there is none.
func code(v value) int {
	n, err := strconv.ParseInt(v.scalar(), 10, 32)
	if err != nil {
		return 0
	}
	return int(n)
}

func (p *parser) notice(n postgres.Notice) {
	n.Account = p.name
	p.out.Notices = append(p.out.Notices, n)
}

func (p *parser) malformed(item value, reason string) {
	p.notice(postgres.Notice{ProviderID: p.anonymous(item), Kind: harness.NoticeMalformed, Data: map[string]any{"reason": reason}})
}

// unrouted records that something came for a number that the signature does not
// speak for, and nothing of what it said.
func (p *parser) unrouted(id string, data map[string]any) {
	p.notice(postgres.Notice{ProviderID: id, Kind: harness.NoticeUnrouted, Data: data})
}

// anonymous is the id of what has none of its own: the same for a repeat,
// however it is batched.
func (p *parser) anonymous(item value) string {
	hash := sha256.New()
	for _, part := range []string{p.entry, p.time, p.name} {
		hash.Write([]byte(part))
		hash.Write([]byte{0})
	}
	hash.Write(item)
	return "sha256:" + hex.EncodeToString(hash.Sum(nil))
}

// facts flattens what the provider says about an account or a chat: its names
// and numbers, no address and nothing that may open a door.
func facts(v value) map[string]any {
	data := map[string]any{}
	var walk func(prefix string, v value, depth int)
	add := func(name string, item value, depth int) {
		if len(data) >= 30 || len(name) > maxWord || private(name) {
			return
		}
		if text := item.scalar(); text != "" {
			if !strings.Contains(text, "://") {
				data[name] = cut(text, 200)
			}
		} else if depth < 4 {
			walk(name+".", item, depth+1)
		}
	}
	walk = func(prefix string, v value, depth int) {
		for key, item := range v.fields {
			add(prefix+harness.CleanText(string(key)), item, depth)
		}
		n := 0
		for item := range v.items {
			add(prefix+strconv.Itoa(n), item, depth)
			n++
		}
	}
	walk("", v, 0)
	return data
}

func private(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"url", "href", "link", "token", "secret", "password", "pin", "media", "messages"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// identifier returns an id of at most limit bytes, "" if it is none. A number
// is taken as it is written.
func identifier(v value, limit int) string {
	id := v.scalar()
	if v.kind() == 't' || strings.TrimSpace(id) != id || len(id) > limit || strings.ContainsFunc(id, func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }) {
		return ""
	}
	if bytes.Contains(v, []byte(`\u0000`)) {
		return "" // without its NUL it could be another's
	}
	return id
}

// party returns the id of a person, a number, a group or an account, "" if it is
// none.
func party(v value) string {
	id := identifier(v, maxPerson)
	if strings.ContainsFunc(id, func(r rune) bool { return r == '/' || unicode.IsSpace(r) }) {
		return ""
	}
	return id
}

func digits(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, s)
}

// cut shortens s to at most limit bytes, never inside a character.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// line makes s one line of at most limit bytes without control characters.
func line(s string, limit int) string {
	return cut(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " "), limit)
}

// blank reports whether s has nothing that a person can see.
func blank(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !unicode.IsSpace(r) && !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r) }) < 0
}
