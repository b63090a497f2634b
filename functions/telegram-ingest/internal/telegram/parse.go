package telegram

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The paces at which Telegram takes messages (its FAQ for bots): about one a
// second in a private chat, 20 a minute in a group.
var (
	privatePace = postgres.Pace{Every: time.Second, Burst: 3}
	groupPace   = postgres.Pace{Every: 3 * time.Second, Burst: 20}
)

// The limits of what is kept of an update, in bytes.
const (
	maxText = 64 << 10
	maxNote = 1000 // text in a notice, a quote
	maxName = 200  // names of people and files
	maxID   = 300  // ids that are not numbers
)

// Parse makes rows of one update. Whatever is in it that starts no turn becomes
// a Notice; only a body that is no JSON is refused, for a retry may bring it whole.
func (a *Adapter) Parse(body []byte, proof channel.Proof) (postgres.Inbound, error) {
	value, err := decode(body)
	if err != nil {
		return postgres.Inbound{}, err
	}
	var in postgres.Inbound
	for _, account := range proof.Accounts { // one: the bot of the path
		readUpdate(&in, account, value, body)
	}
	return in, nil
}

// update is one update while it is read.
type update struct {
	in      *postgres.Inbound
	account *channel.Account
	bot     int64
	id      string // update_id; empty: it has none
	digest  string // stands for it then: the same bytes are the same update
}

// readUpdate adds to in what value, which was decoded from body, says to account.
func readUpdate(in *postgres.Inbound, account *channel.Account, value any, body []byte) *update {
	u := &update{in: in, account: account, bot: botID(account)}
	o := asObject(value)
	if id, ok := o.id("update_id"); ok {
		u.id = decimal(id)
	} else {
		sum := sha256.Sum256(body)
		u.digest = "sha256:" + hex.EncodeToString(sum[:16])
	}
	u.read(o)
	return u
}

func (u *update) providerID() string {
	if u.id == "" {
		return u.digest
	}
	return u.id
}

// kinds are the updates with a reader of their own, in the order in which they
// are looked for: an update has one of them.
var kinds = []string{
	"message", "channel_post", "business_message", "guest_message", "callback_query",
	"edited_message", "edited_channel_post", "edited_business_message",
	"message_reaction", "message_reaction_count", "deleted_business_messages", "my_chat_member", "business_connection",
	"chat_member", "chat_join_request", "chat_boost", "removed_chat_boost", "managed_bot", "subscription",
}

func (u *update) read(o object) {
	kind := ""
	for _, k := range kinds {
		if o.has(k) {
			kind = k
			break
		}
	}
	if kind == "" {
		for _, k := range slices.Sorted(maps.Keys(o)) {
			if k != "update_id" && o.has(k) {
				kind = shorten(harness.CleanText(k), maxName)
				u.other(harness.NoticeUnsupported, kind, o.object(k))
				return
			}
		}
		u.malformed("")
		return
	}
	body := o.object(kind)
	if body == nil {
		u.malformed(kind)
		return
	}
	switch kind {
	case "message", "channel_post", "business_message", "guest_message":
		u.message(kind, body)
	case "callback_query":
		u.callback(body)
	case "edited_message", "edited_channel_post", "edited_business_message":
		u.edited(kind, body)
	case "message_reaction", "message_reaction_count":
		u.reaction(kind, body)
	case "deleted_business_messages":
		u.deleted(kind, body)
	case "my_chat_member":
		u.membership(kind, body)
	case "business_connection":
		u.notice(postgres.Notice{
			Kind: harness.NoticeService, ChannelUserID: person(body.object("user")),
			Data: map[string]any{"type": kind, "businessConnectionId": opaque(body, "id"), "enabled": body.flag("is_enabled")},
		})
	default:
		u.other(harness.NoticeService, kind, body)
	}
}

func (u *update) notice(n postgres.Notice) {
	n.Account, n.ProviderID = u.account.Name, u.providerID()
	u.in.Notices = append(u.in.Notices, n)
}

func (u *update) malformed(kind string) {
	data := map[string]any{}
	if kind != "" {
		data["type"] = kind
	}
	u.notice(postgres.Notice{Kind: harness.NoticeMalformed, Data: data})
}

// other records an update that no turn is made of.
func (u *update) other(notice harness.NoticeKind, kind string, body object) {
	from := body.object("from")
	if from == nil {
		from = body.object("user")
	}
	n := postgres.Notice{Kind: notice, ChannelUserID: person(from), Data: map[string]any{"type": kind}}
	if id := body.object("chat").int("id"); id != 0 {
		n.Chat = decimal(id)
	}
	u.notice(n)
}

// message reads what somebody said somewhere.
func (u *update) message(kind string, m object) {
	messageID, ok := m.id("message_id")
	at := place(m)
	if kind == "guest_message" {
		at.guest = opaque(m, "guest_query_id")
	}
	if !ok || at.chat == 0 || (kind == "business_message" && at.business == "") || (kind == "guest_message" && at.guest == "") {
		u.malformed(kind)
		return
	}
	if u.migrated(m, at.chat) {
		return
	}
	c := read(m)
	note := postgres.Notice{Chat: at.String(), Ref: decimal(messageID), Data: map[string]any{"type": c.kind}}
	say := func(k harness.NoticeKind) {
		note.Kind = k
		u.notice(note)
	}
	if c.kind == "" {
		k, name := unsaid(m)
		note.ChannelUserID, note.Data["type"] = person(m.object("from")), name
		say(k)
		return
	}
	sender, name, refused := u.sender(m)
	if sender != 0 {
		note.ChannelUserID = decimal(sender)
	}
	switch {
	case refused != "":
		say(refused)
	case kind == "business_message" && (sender != at.chat || m.has("sender_business_bot")):
		say(harness.NoticeEcho) // the owner of the business account, or a bot for it
	case at.direct != 0 && ownerWrote(m, sender):
		say(harness.NoticeEcho)
	case at.business == "" && inGroup(m) && !u.meant(at, m, c):
		say(harness.NoticeNotAddressed)
	case strings.TrimSpace(c.text) == "":
		say(harness.NoticeEmpty)
	default:
		u.arrive(m, at, sender, name, c)
	}
}

// arrive adds the message that c was read from.
func (u *update) arrive(m object, at address, sender int64, name string, c content) {
	a := u.arrival(at, sender, m)
	meta := a.Message.Metadata
	set(meta, "type", c.kind)
	set(meta, "profileName", name)
	a.Message.Text = shorten(c.text, maxText)
	if len(c.files) > 0 {
		set(meta, "mediaId", c.files[0].ProviderID)
		set(meta, "mimeType", c.files[0].MimeType)
		set(meta, "fileName", c.files[0].FileName)
		a.Attachments = c.files
	}
	if c.kind == "text" && u.pairs(c.text) {
		// The code is a secret: neither the agent nor the log of the conversation sees it.
		a.Paired, c.standIn = true, true
		a.Message.Text = "Hello! I have just been paired with you."
	}
	if c.standIn {
		meta[postgres.StandIn] = true
	}
	if a.Album = opaque(m, "media_group_id"); a.Album != "" {
		meta["albumId"] = a.Album
	}
	reply := m.object("reply_to_message")
	if id, ok := reply.id("message_id"); ok && !opensTopic(reply) {
		meta["replyTo"] = decimal(id)
		set(meta, "quote", shorten(quoted(m, reply), maxNote))
	}
	if m.has("forward_origin") {
		meta["forwarded"] = true
	}
	if date := m.int("date"); date > 0 && date < 1<<33 {
		a.SentAt = time.Unix(date, 0)
		meta["timestamp"] = decimal(date)
	}
	if a.ProviderID == "" { // what names a message is as good as what names its update
		a.ProviderID = "message:" + decimal(at.chat) + "/" + decimal(m.int("message_id"))
	}
	u.in.Arrivals = append(u.in.Arrivals, a)
}

// arrival begins one from the message m, which was said or whose button was
// pressed at the address.
func (u *update) arrival(at address, sender int64, m object) postgres.Arrival {
	meta := map[string]any{"messageId": decimal(m.int("message_id")), "chatId": decimal(at.chat)}
	set(meta, "updateId", u.id)
	if at.topic != 0 {
		meta["threadId"] = decimal(at.topic)
	}
	set(meta, "businessConnectionId", at.business)
	set(meta, "guestQueryId", at.guest)
	a := postgres.Arrival{
		Account: u.account.Name, ProviderID: u.id, Chat: at.String(), Address: at.String(), Pace: privatePace,
		Message: harness.Message{Channel: harness.ChannelTelegram, ChannelUserID: decimal(sender), Metadata: meta},
	}
	if at.group() {
		a.Pace = groupPace
	}
	return a
}

// callback reads the press of a button under one of our messages. Who pressed is
// in the query; the message is the bot's own, and may be gone.
func (u *update) callback(q object) {
	m, data, id := q.object("message"), shorten(q.text("data"), maxName), opaque(q, "id")
	at, from := place(m), q.object("from")
	sender := from.int("id")
	if at.chat == 0 || sender == 0 || strings.TrimSpace(data) == "" || (u.id == "" && id == "") {
		u.notice(postgres.Notice{Kind: harness.NoticeUnsupported, ChannelUserID: person(from), Data: map[string]any{"type": "callback_query", "callbackQueryId": id}})
		return
	}
	if inGroup(m) && u.account.Spec.Groups == harness.GroupsNone {
		u.notice(postgres.Notice{Kind: harness.NoticeNotAddressed, Chat: at.String(), ChannelUserID: decimal(sender), Data: map[string]any{"type": "callback_query"}})
		return
	}
	a := u.arrival(at, sender, m)
	meta := a.Message.Metadata
	meta["type"], meta["payload"] = "callback_query", data
	set(meta, "callbackQueryId", id)
	set(meta, "profileName", fullName(from))
	set(meta, "quote", shorten(words(m), maxNote))
	a.Message.Text = data
	if title := strings.TrimSpace(buttonTitle(m, q.raw("data"))); title != "" && title != data {
		a.Message.Text = title + " [" + data + "]"
	}
	if a.ProviderID == "" {
		a.ProviderID = "callback:" + id
	}
	u.in.Arrivals = append(u.in.Arrivals, a)
}

// buttonTitle finds what is written on the button that has data.
func buttonTitle(m object, data string) string {
	for _, row := range m.object("reply_markup").list("inline_keyboard") {
		buttons, _ := row.([]any)
		for _, b := range buttons {
			if button := asObject(b); button.raw("callback_data") == data {
				return shorten(button.text("text"), maxNote)
			}
		}
	}
	return ""
}

// edited records a change; live locations come as a stream of them. Its text is
// kept only where everything is said to the agent.
func (u *update) edited(kind string, m object) {
	messageID, ok := m.id("message_id")
	at := place(m)
	if !ok || at.chat == 0 {
		u.malformed(kind)
		return
	}
	data := map[string]any{"type": read(m).kind}
	if !inGroup(m) {
		set(data, "text", shorten(words(m), maxNote))
	}
	u.notice(postgres.Notice{Kind: harness.NoticeEdit, Chat: at.String(), ChannelUserID: person(m.object("from")), Ref: decimal(messageID), Data: data})
}

func (u *update) reaction(kind string, r object) {
	who := person(r.object("user"))
	if who == "" {
		who = person(r.object("actor_chat"))
	}
	var marks []string
	for _, mark := range r.list("new_reaction") {
		if o := asObject(mark); len(marks) < 10 && o != nil {
			marks = append(marks, shorten(o.text("emoji")+opaque(o, "custom_emoji_id"), maxName))
		}
	}
	u.notice(postgres.Notice{
		Kind: harness.NoticeReaction, Chat: place(r).String(), ChannelUserID: who, Ref: decimal(r.int("message_id")),
		Data: map[string]any{"type": kind, "reactions": marks},
	})
}

func (u *update) deleted(kind string, d object) {
	var ids []string
	for _, id := range d.list("message_ids") {
		if n, ok := (object{"id": id}).id("id"); ok && len(ids) < 100 {
			ids = append(ids, decimal(n))
		}
	}
	n := postgres.Notice{Kind: harness.NoticeRevoke, Chat: place(d).String(), Data: map[string]any{"type": kind, "messageIds": ids}}
	if len(ids) > 0 {
		n.Ref = ids[0]
	}
	u.notice(n)
}

// membership reads what became of the bot itself in a chat.
func (u *update) membership(kind string, m object) {
	at := address{chat: m.object("chat").int("id")}
	status := shorten(m.object("new_chat_member").text("status"), maxName)
	if at.chat == 0 || status == "" {
		u.malformed(kind)
		return
	}
	n := postgres.Notice{
		Kind: harness.NoticeService, Chat: at.String(), ChannelUserID: person(m.object("from")), Data: map[string]any{"type": kind, "status": status},
	}
	if status == "kicked" || status == "left" {
		reason := "the person has blocked the bot"
		if at.group() {
			reason = "the bot is no longer a member of the group"
		}
		n.Kind = harness.NoticeBlocked
		u.in.Blocks = append(u.in.Blocks, postgres.Block{Account: u.account.Name, Chat: at.String(), Reason: reason})
	}
	u.notice(n)
}

// migrated reads that a group has become a supergroup. Both chats say so, in
// either order.
func (u *update) migrated(m object, chat int64) bool {
	from, to := chat, m.int("migrate_to_chat_id")
	if to == 0 {
		from, to = m.int("migrate_from_chat_id"), chat
	}
	if from == 0 {
		return false
	}
	u.in.Renames = append(u.in.Renames, postgres.Rename{
		Account: u.account.Name, ProviderID: "migrate:" + decimal(from) + ":" + decimal(to), // both chats say it, in an update each
		From: []string{decimal(from)}, To: []string{decimal(to)},
	})
	u.notice(postgres.Notice{Kind: harness.NoticeIdentity, Chat: decimal(from), Data: map[string]any{"chatId": decimal(from), "newChatId": decimal(to)}})
	return true
}

// pairs reports whether text is a pairing code of the account, as it is or as
// the parameter of a link that starts the bot.
func (u *update) pairs(text string) bool {
	if u.account.Spec.Senders.Policy != harness.SendersPairing {
		return false
	}
	code := strings.TrimSpace(text)
	if command, parameter, found := strings.Cut(code, " "); found && (command == "/start" || strings.EqualFold(command, "/start@"+u.account.Name)) {
		code = strings.TrimSpace(parameter)
	}
	return oneOf(code, u.account.Keys[channel.RolePairingCode])
}

// place says where m was said.
func place(m object) address {
	at := address{chat: m.object("chat").int("id"), direct: max(m.object("direct_messages_topic").int("topic_id"), 0), business: opaque(m, "business_connection_id")}
	// Replies in groups without topics have a thread id too, and nothing can be
	// sent to it.
	if thread := m.int("message_thread_id"); m.flag("is_topic_message") && thread > generalTopic {
		at.topic = thread
	}
	return at
}

// person returns the id of a user or chat, empty if there is none.
func person(o object) string {
	if id := o.int("id"); id != 0 {
		return decimal(id)
	}
	return ""
}

// opaque returns an id that is no number, empty if nobody could have made it.
func opaque(o object, key string) string {
	id := o.raw(key)
	if len(id) > maxID || strings.TrimSpace(id) == "" || strings.ContainsFunc(id, unicode.IsControl) || strings.ContainsRune(id, unicode.ReplacementChar) {
		return ""
	}
	return id
}

func set(meta map[string]any, key, value string) {
	if value != "" {
		meta[key] = value
	}
}
