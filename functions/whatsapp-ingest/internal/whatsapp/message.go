package whatsapp

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// person is one element of contacts, the list beside the messages.
type person struct{ phone, bsuid, name string }

// sender finds who sent a message. Contacts are joined by their ids: they come
// in any order, or not at all.
func (p *parser) sender(m *message) person {
	if p.people == nil {
		p.people = map[string]*person{}
		for contact := range p.value.get("contacts").items {
			c := &person{phone: party(contact.get("wa_id")), bsuid: party(contact.get("user_id")), name: line(contact.get("profile", "name").text(), maxLine)}
			for _, id := range []string{c.phone, c.bsuid} {
				if id != "" {
					p.people[id] = c
				}
			}
		}
	}
	who := person{phone: m.from, bsuid: m.fromUserID}
	known := p.people[m.fromUserID]
	if known == nil || m.fromUserID == "" {
		known = p.people[m.from]
	}
	if known == nil {
		return who
	}
	who.name = known.name
	if who.bsuid == "" {
		who.bsuid = known.bsuid
	}
	if who.phone == "" {
		who.phone = known.phone
	}
	return who
}

// message is one element of messages.
type message struct {
	value
	id, from, fromUserID, timestamp, kind, group string
	context, referral                            value
	who                                          person
}

// id is what the sender is called: the phone number while there is one.
func (w person) id() string {
	if w.phone != "" {
		return w.phone
	}
	return w.bsuid
}

func readFields(item value) *message {
	m := &message{value: item}
	for key, v := range item.fields {
		switch string(key) {
		case "id":
			m.id = ""
			if v.kind() == '"' {
				m.id = identifier(v, maxID)
			}
		case "from":
			m.from = party(v)
		case "from_user_id":
			m.fromUserID = party(v)
		case "timestamp":
			m.timestamp = cut(v.scalar(), maxWord)
		case "type":
			m.kind = line(v.text(), maxWord)
		case "group_id":
			m.group = party(v)
			if m.group == "" && !v.absent() && v.scalar() != "" {
				m.group = "?" // said in a group that cannot be named: never answered in private
			}
		case "context":
			m.context = v
		case "referral":
			m.referral = v
		}
	}
	return m
}

// chat is where the conversation is: the group, or the person.
func (m *message) chat() string {
	if m.group != "" {
		return groupPrefix + m.group
	}
	return m.who.id()
}

const groupPrefix = "group:"

func (p *parser) readMessage(item value) {
	m := readFields(item)
	if m.id == "" {
		p.malformed(item, "a message without a usable id")
		return
	}
	if p.account == nil {
		p.unrouted(m.id, map[string]any{"type": m.kind})
		return
	}
	m.who = p.sender(m)
	switch {
	case m.kind == "system": // has no contacts, and perhaps no sender
		p.readSystem(m)
	case m.who.id() == "" || m.group == "?":
		p.noted(m, harness.NoticeMalformed, "", map[string]any{"type": m.kind, "reason": "a message without a usable sender or group"})
	case p.ours(m.from):
		p.noted(m, harness.NoticeEcho, "", map[string]any{"type": m.kind})
	default:
		p.readContent(m)
	}
}

// noted records a message that starts no turn.
func (p *parser) noted(m *message, kind harness.NoticeKind, ref string, data map[string]any) {
	p.notice(postgres.Notice{ProviderID: m.id, Kind: kind, Chat: m.chat(), ChannelUserID: m.who.id(), Ref: ref, Data: data})
}

// ours reports whether id is our own number, by what the update calls it or by
// what the agent's channel says.
func (p *parser) ours(id string) bool {
	d := digits(id)
	return d != "" && d == id && (d == p.display || d == digits(p.account.Spec.PhoneNumber))
}

// readContent decides between a turn and a notice.
func (p *parser) readContent(m *message) {
	c := content{data: map[string]any{}}
	body := m.get(m.kind)
	switch m.kind {
	case "reaction":
		emoji := cut(body.get("emoji").text(), maxWord)
		p.noted(m, harness.NoticeReaction, identifier(body.get("message_id"), maxID), map[string]any{"emoji": emoji, "removed": emoji == ""})
		return
	case "edit":
		p.noted(m, harness.NoticeEdit, identifier(body.get("original_message_id"), maxID), map[string]any{"text": cut(spoken(body.get("message")), 4<<10)})
		return
	case "revoke":
		p.noted(m, harness.NoticeRevoke, identifier(body.get("original_message_id"), maxID), nil)
		return
	case "request_welcome":
		p.noted(m, harness.NoticeService, "", map[string]any{"type": m.kind})
		return
	case "unsupported":
		p.readUnsupported(m, body)
		return
	default:
		if !c.read(m.kind, body) {
			p.noted(m, harness.NoticeUnsupported, "", map[string]any{"type": m.kind, "interactive": line(m.get("interactive", "type").text(), maxWord)})
			return
		}
	}
	switch {
	case c.malformed:
		p.noted(m, harness.NoticeMalformed, "", map[string]any{"type": m.kind, "reason": "its content has another form than its type says"})
	case blank(c.text):
		p.noted(m, harness.NoticeEmpty, "", map[string]any{"type": m.kind})
	case m.group != "" && !p.addressed(m, c):
		p.noted(m, harness.NoticeNotAddressed, "", map[string]any{"type": m.kind})
	default:
		p.arrive(m, c)
	}
}

// readUnsupported records a message that the provider does not hand out. An
// edit or a deletion reaches most numbers in this way.
func (p *parser) readUnsupported(m *message, body value) {
	data := map[string]any{"type": m.kind, "unsupported": line(body.get("type").text(), maxWord)}
	for item := range m.get("errors").items {
		for name, v := range problem(item) {
			data[name] = v
		}
	}
	kind := harness.NoticeUnsupported
	switch body.get("type").text() {
	case "edit":
		kind = harness.NoticeEdit
	case "revoke":
		kind = harness.NoticeRevoke
	}
	p.noted(m, kind, "", data)
}

func (p *parser) arrive(m *message, c content) {
	data := c.data
	data["messageId"], data["type"], data["phoneNumberId"] = m.id, m.kind, p.name
	for name, text := range map[string]string{
		"userId": m.who.bsuid, "profileName": m.who.name, "groupId": m.group, "timestamp": m.timestamp,
		"replyTo": identifier(m.context.get("id"), maxID),
	} {
		if text != "" {
			data[name] = text
		}
	}
	if m.context.get("forwarded").isTrue() || m.context.get("frequently_forwarded").isTrue() {
		data["forwarded"] = true
	}
	if referral := referred(m.referral); len(referral) > 0 {
		data["referral"] = referral
	}
	if len(c.text) > maxText {
		c.text = cut(c.text, maxText)
		data["truncated"] = true
	}
	if c.standIn {
		data[postgres.StandIn] = true
	}
	a := postgres.Arrival{
		Account: p.name, ProviderID: m.id, Chat: m.chat(), Address: m.chat(), SentAt: sentAt(m.timestamp, p.now), Attachments: c.files,
		Message: harness.Message{Channel: harness.ChannelWhatsApp, ChannelUserID: m.who.id(), Text: c.text},
	}
	if m.who.phone != "" && m.who.bsuid != "" {
		a.OtherID = m.who.bsuid
	}
	if m.group == "" {
		a.Pace = pairPace
		for _, id := range []string{m.who.bsuid, m.who.phone} { // a BSUID outlives a hidden number
			if id != "" {
				a.Aliases = append(a.Aliases, id)
			}
		}
		a.Lasting = m.who.bsuid // a number is handed out again, a BSUID never
		if p.pairs(c.text) {
			// The code is a secret: it goes into no conversation.
			a.Paired, a.Message.Text, data[postgres.StandIn] = true, pairedText, true
		}
	}
	a.Message.Metadata = limit(data)
	p.out.Arrivals = append(p.out.Arrivals, a)
}

const pairedText = "Hello! I have just been paired with you."

// pairs reports whether text is the pairing code. Only what is said in private
// counts: a group would read the code.
func (p *parser) pairs(text string) bool {
	if p.account.Spec.Senders.Policy != harness.SendersPairing {
		return false
	}
	text, found := strings.TrimSpace(text), false
	for _, key := range p.account.Keys[channel.RolePairingCode] {
		if key != "" && sameSecret(key, text) {
			found = true
		}
	}
	return found
}

// limit drops what an agent needs least until metadata is small enough to keep.
func limit(data map[string]any) map[string]any {
	rough := 0
	for _, v := range data {
		if text, ok := v.(string); ok {
			rough += 6 * len(text) // as escaped as it gets
		} else if _, flag := v.(bool); !flag {
			rough = maxMetadata
		}
	}
	for _, name := range []string{"flow", "referral", "payload", "selectionId", "profileName", "fileName"} {
		if rough < maxMetadata/2 {
			break
		}
		if text, err := json.Marshal(data); err == nil && len(text) <= maxMetadata {
			break
		}
		delete(data, name)
		data["truncated"] = true
	}
	return data
}

// referred is what is known of the advertisement that brought the person. Its
// pictures are left out.
func referred(v value) map[string]any {
	data := map[string]any{}
	for _, name := range []string{"source_type", "source_id", "source_url", "headline", "body", "ctwa_clid"} {
		if text := cut(v.get(name).scalar(), maxLine); text != "" {
			data[name] = text
		}
	}
	return data
}

// sentAt is the provider's time of a message, zero if it is none that can be:
// not before the provider's first year, not in the future.
func sentAt(timestamp string, now time.Time) time.Time {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if at := time.Unix(seconds, 0).UTC(); err == nil && at.Year() >= 2009 && at.Before(now.Add(time.Minute)) {
		return at
	}
	return time.Time{}
}

// echo records a message that our own side sent from its phone.
func (p *parser) echo(item value) {
	m := readFields(item)
	m.who = person{phone: party(item.get("to")), bsuid: party(item.get("to_user_id"))}
	switch {
	case m.id == "":
		p.malformed(item, "an echo without a usable id")
	case p.account == nil:
		p.unrouted(m.id, map[string]any{"type": m.kind})
	default:
		p.notice(postgres.Notice{ProviderID: m.id, Kind: harness.NoticeEcho, Chat: m.who.id(), Data: map[string]any{"type": m.kind, "text": cut(spoken(item), 4<<10)}})
	}
}

// spoken is what a message says in words.
func spoken(m value) string {
	kind := m.get("type").text()
	if kind == "text" {
		return m.get("text", "body").text()
	}
	return m.get(kind, "caption").text()
}

// readSystem records that a person has other ids now, and moves the
// conversation. Such a message names no contact.
func (p *parser) readSystem(m *message) {
	body := m.get("system")
	kind := line(body.get("type").text(), maxWord)
	phone, bsuid, previous := party(body.get("wa_id")), party(body.get("user_id")), party(body.get("previous_user_id"))
	if phone == "" {
		phone = party(body.get("new_wa_id"))
	}
	var from []string
	switch kind {
	case "user_changed_number", "customer_changed_number":
		from = []string{previous, m.from, m.fromUserID}
	case "user_changed_user_id": // the number stays as it is
		from = []string{previous, m.fromUserID}
		phone = ""
	case "customer_identity_changed", "user_identity_changed":
	default:
		p.noted(m, harness.NoticeService, "", map[string]any{"type": m.kind, "system": kind})
		return
	}
	rename := postgres.Rename{Account: p.name, ProviderID: m.id, Lasting: bsuid}
	for _, id := range []string{phone, bsuid} {
		if id != "" {
			rename.To = append(rename.To, id)
		}
	}
	for _, id := range from {
		if id != "" && id != phone && id != bsuid && !slices.Contains(rename.From, id) {
			rename.From = append(rename.From, id)
		}
	}
	if len(rename.From) > 0 && len(rename.To) > 0 {
		p.out.Renames = append(p.out.Renames, rename)
	}
	p.noted(m, harness.NoticeIdentity, "", map[string]any{"type": m.kind, "system": kind, "from": rename.From, "to": rename.To})
}
