package telegram

import (
	"strings"
	"unicode"
	"unicode/utf16"

	"tuluat.ai/harness/shared/harness"
)

// maxEntities is more than Telegram puts into one message.
const maxEntities = 500

// sender says who wrote m, and why nobody who may be answered did. Anonymous
// administrators and channels write as a chat: the user beside it is one that
// all of them share.
func (u *update) sender(m object) (id int64, name string, refused harness.NoticeKind) {
	if as := m.object("sender_chat"); as.int("id") != 0 {
		return as.int("id"), shorten(as.text("title"), maxName), ""
	}
	from := m.object("from")
	id = from.int("id")
	switch {
	case id == 0 && m.object("chat").raw("type") == "channel":
		return m.object("chat").int("id"), shorten(m.object("chat").text("title"), maxName), ""
	case id == 0:
		return 0, "", harness.NoticeMalformed
	case id == u.bot && u.bot != 0:
		return id, "", harness.NoticeEcho
	case from.flag("is_bot"): // two bots would talk for ever
		return id, "", harness.NoticeService
	}
	return id, fullName(from), ""
}

func fullName(user object) string {
	return shorten(strings.TrimSpace(user.text("first_name")+" "+user.text("last_name")), maxName)
}

// inGroup reports whether m was said where several people talk to each other.
func inGroup(m object) bool {
	chat := m.object("chat")
	switch {
	case chat.flag("is_direct_messages"): // one person and the owners of a channel
		return false
	case chat.raw("type") == "":
		return chat.int("id") < 0
	}
	return chat.raw("type") != "private"
}

// ownerWrote reports whether a direct message to a channel is its owners' answer.
func ownerWrote(m object, sender int64) bool {
	customer := m.object("direct_messages_topic").object("user").int("id")
	return customer != 0 && sender != customer
}

// meant reports whether the agent answers what was said in a group. A guest is
// always spoken to.
func (u *update) meant(at address, m object, c content) bool {
	if u.account.Spec.Groups == harness.GroupsNone {
		return false
	}
	return at.guest != "" || u.addressed(m, c)
}

// addressed reports whether something said in a group is said to the bot. What
// begins with a command of another bot never is.
func (u *update) addressed(m object, c content) bool {
	name := u.account.Name
	units := utf16.Encode([]rune(c.raw))
	mentioned := c.rich && mentions(c.text, name)
	for i, e := range c.entities {
		entity := asObject(e)
		if i >= maxEntities {
			break
		}
		switch entity.raw("type") {
		case "bot_command":
			command, first := cut(units, entity), entity.int("offset") == 0
			_, bot, named := strings.Cut(command, "@")
			switch {
			case command == "":
			case named && strings.EqualFold(bot, name), !named && first:
				mentioned = true
			case named && first:
				return false
			}
		case "mention":
			mentioned = mentioned || strings.EqualFold(cut(units, entity), "@"+name)
		case "text_mention":
			mentioned = mentioned || u.bot != 0 && entity.object("user").int("id") == u.bot
		}
	}
	return mentioned || u.account.Spec.Groups == harness.GroupsAll || u.answers(m)
}

// answers reports whether m is a reply to a message of the bot. Whatever is said
// in a topic refers to the message that opened it: that is no reply.
func (u *update) answers(m object) bool {
	reply := m.object("reply_to_message")
	return u.bot != 0 && reply.object("from").int("id") == u.bot && !opensTopic(reply)
}

func opensTopic(m object) bool { return m.has("forum_topic_created") }

// mentions finds @name in a text that comes without entities.
func mentions(text, name string) bool {
	words := strings.FieldsFunc(text, func(r rune) bool {
		return r != '@' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	for _, word := range words {
		if strings.EqualFold(word, "@"+name) {
			return true
		}
	}
	return false
}
