package telegram

import (
	"maps"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/harness"
)

// content is what a message says.
type content struct {
	kind     string // empty: nothing that a person says
	text     string // fit to be stored
	raw      string // as it came: entities count in it
	entities []any
	rich     bool // text was put together from blocks, without entities
	standIn  bool // text is ours: the message has no words
	files    []harness.Attachment
}

// read finds what m says. A message has one kind; an animation comes as a
// document too, for old readers.
func read(m object) content {
	if m.has("text") {
		return content{kind: "text", text: m.text("text"), raw: m.raw("text"), entities: m.list("entities")}
	}
	if rich := m.object("rich_message"); rich != nil {
		return readRich(rich)
	}
	kind, text, files := readMedia(m)
	if kind == "" {
		kind, text = readShown(m)
	}
	if kind == "" {
		return content{}
	}
	if caption := m.text("caption"); strings.TrimSpace(caption) != "" {
		return content{kind: kind, text: caption, raw: m.raw("caption"), entities: m.list("caption_entities"), files: files}
	}
	return content{kind: kind, text: text, standIn: true, files: files}
}

// words returns what a person wrote into m, empty if nothing.
func words(m object) string {
	if c := read(m); !c.standIn {
		return c.text
	}
	return ""
}

// quoted returns what m refers to: the part that its sender marked, or all of it.
func quoted(m, reply object) string {
	if marked := m.object("quote").text("text"); marked != "" {
		return marked
	}
	return words(reply)
}

// readMedia finds the files of a message, or of a block of a rich one, and what
// stands in for words when it has none.
func readMedia(m object) (kind, text string, files []harness.Attachment) {
	one := func(key string, kind harness.AttachmentKind, mimeType string) []harness.Attachment {
		return file(m.object(key), kind, mimeType)
	}
	switch {
	case m.object("animation") != nil:
		return "animation", "[animation]", one("animation", harness.AttachmentVideo, "video/mp4")
	case m.object("document") != nil:
		return "document", "[document]", one("document", harness.AttachmentDocument, "")
	case len(m.list("photo")) > 0:
		return "photo", "[photo]", file(largest(m.list("photo")), harness.AttachmentImage, "image/jpeg")
	case m.object("video") != nil:
		return "video", "[video]", one("video", harness.AttachmentVideo, "video/mp4")
	case m.object("audio") != nil:
		return "audio", "[audio]", one("audio", harness.AttachmentAudio, "")
	case m.object("voice") != nil:
		return "voice", "[voice message]", one("voice", harness.AttachmentAudio, "audio/ogg")
	case m.object("voice_note") != nil: // what blocks call it
		return "voice", "[voice message]", one("voice_note", harness.AttachmentAudio, "audio/ogg")
	case m.object("video_note") != nil:
		return "video_note", "[video message]", one("video_note", harness.AttachmentVideo, "video/mp4")
	case m.object("sticker") != nil:
		s := m.object("sticker")
		mimeType := "image/webp"
		if s.flag("is_animated") {
			mimeType = "application/x-tgsticker"
		} else if s.flag("is_video") {
			mimeType = "video/webm"
		}
		return "sticker", strings.Replace("[sticker "+shorten(s.text("emoji"), maxName)+"]", " ]", "]", 1), file(s, harness.AttachmentSticker, mimeType)
	case m.object("paid_media") != nil:
		for _, item := range m.object("paid_media").list("paid_media") {
			if _, _, found := readMedia(asObject(item)); len(files) < maxFiles {
				files = append(files, found...)
			}
		}
		return "paid_media", "[paid media]", files
	}
	return "", "", nil
}

// maxFiles is more than one message has.
const maxFiles = 20

// file describes what Telegram hands out under o's file_id; nothing if it has none.
func file(o object, kind harness.AttachmentKind, mimeType string) []harness.Attachment {
	id := opaque(o, "file_id")
	if id == "" {
		return nil
	}
	if said := shorten(o.text("mime_type"), maxName); said != "" {
		mimeType = said
	}
	return []harness.Attachment{{
		Kind: kind, ProviderID: id, FileName: shorten(o.text("file_name"), maxName), MimeType: mimeType, Bytes: max(o.int("file_size"), 0),
	}}
}

// largest returns the biggest of a photo's sizes.
func largest(sizes []any) object {
	var best object
	area := func(o object) float64 { return float64(o.int("width")) * float64(o.int("height")) }
	for _, s := range sizes {
		size := asObject(s)
		if size == nil {
			continue
		}
		if best == nil || area(size) > area(best) || area(size) == area(best) && size.int("file_size") > best.int("file_size") {
			best = size
		}
	}
	return best
}

// readShown finds content that has neither words nor a file. Its text shows it.
func readShown(m object) (kind, text string) {
	line := func(o object, keys ...string) string {
		var parts []string
		for _, key := range keys {
			if part := shorten(strings.TrimSpace(o.text(key)), maxNote); part != "" {
				parts = append(parts, part)
			}
		}
		return strings.Join(parts, ", ")
	}
	switch {
	case m.object("venue") != nil:
		v := m.object("venue")
		return "venue", "Place: " + strings.TrimPrefix(line(v, "title", "address")+", "+coordinates(v.object("location")), ", ")
	case m.object("location") != nil:
		return "location", "Location: " + coordinates(m.object("location"))
	case m.object("contact") != nil:
		c := m.object("contact")
		return "contact", strings.TrimSuffix("Contact: "+line(object{"name": c.raw("first_name") + " " + c.raw("last_name"), "phone": c.raw("phone_number")}, "name", "phone"), " ")
	case m.object("dice") != nil:
		d := m.object("dice")
		return "dice", strings.TrimSpace(shorten(d.text("emoji"), maxName) + " Dice: " + d.number("value"))
	case m.object("poll") != nil:
		return "poll", listing("Poll: ", m.object("poll").text("question"), m.object("poll").list("options"))
	case m.object("checklist") != nil:
		return "checklist", listing("Checklist: ", m.object("checklist").text("title"), m.object("checklist").list("tasks"))
	case m.object("game") != nil:
		return "game", "Game: " + line(m.object("game"), "title", "description")
	case m.object("story") != nil:
		return "story", "[story]"
	}
	return "", ""
}

func coordinates(location object) string {
	latitude, longitude := location.number("latitude"), location.number("longitude")
	if latitude == "" || longitude == "" {
		return "not given"
	}
	return latitude + ", " + longitude
}

func listing(what, title string, items []any) string {
	lines := []string{what + shorten(title, maxNote)}
	for _, item := range items {
		if text := asObject(item).text("text"); text != "" && len(lines) <= 100 {
			lines = append(lines, "- "+shorten(text, maxNote))
		}
	}
	return strings.Join(lines, "\n")
}

// common are the fields that say nothing about what a message is.
var common = map[string]bool{
	"message_id": true, "message_thread_id": true, "direct_messages_topic": true, "from": true, "sender_chat": true, "sender_boost_count": true,
	"sender_business_bot": true, "sender_tag": true, "date": true, "business_connection_id": true, "guest_query_id": true, "chat": true,
	"forward_origin": true, "is_topic_message": true, "is_automatic_forward": true, "reply_to_message": true, "external_reply": true, "quote": true,
	"reply_to_story": true, "reply_to_checklist_task_id": true, "via_bot": true, "edit_date": true, "has_protected_content": true,
	"is_from_offline": true, "is_paid_post": true, "media_group_id": true, "author_signature": true, "paid_star_count": true, "entities": true,
	"caption": true, "caption_entities": true, "show_caption_above_media": true, "has_media_spoiler": true, "link_preview_options": true,
	"effect_id": true, "reply_markup": true, "receiver_user": true, "ephemeral_message_id": true, "new_chat_member": true, "new_chat_participant": true,
}

// service are messages that Telegram writes about a chat, with what they begin with.
var service = []string{
	"new_chat_", "left_chat_", "delete_chat_photo", "group_chat_created", "supergroup_chat_created", "channel_chat_created",
	"message_auto_delete_timer_changed", "pinned_message", "invoice", "successful_payment", "refunded_payment", "users_shared", "user_shared",
	"chat_shared", "gift", "unique_gift", "connected_website", "write_access_allowed", "passport_data", "proximity_alert_triggered", "boost_added",
	"chat_background_set", "checklist_tasks_", "direct_message_price_changed", "forum_topic_", "general_forum_topic_", "giveaway",
	"paid_message_price_changed", "suggested_post_", "video_chat_", "web_app_data", "chat_owner_", "managed_bot_", "poll_option_",
}

// unsaid names what a message without content is.
func unsaid(m object) (harness.NoticeKind, string) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if common[key] || !m.has(key) {
			continue
		}
		name := shorten(harness.CleanText(key), maxName)
		if slices.ContainsFunc(service, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			return harness.NoticeService, name
		}
		return harness.NoticeUnsupported, name
	}
	return harness.NoticeEmpty, "empty"
}
