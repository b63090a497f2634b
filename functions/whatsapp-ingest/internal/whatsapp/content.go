package whatsapp

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

// content is what a message says.
type content struct {
	text      string
	standIn   bool           // the text is ours
	malformed bool           // of another form than its kind has
	data      map[string]any // for metadata
	files     []harness.Attachment
}

// say sets the text; stand counts when the person has sent no words.
func (c *content) say(words, stand string) {
	if c.text = words; blank(words) {
		c.text, c.standIn = stand, true
	}
}

// note keeps a text in metadata, if there is one.
func (c *content) note(name, text string) {
	if text != "" {
		c.data[name] = text
	}
}

// read understands one kind of message. It reports false for kinds that no turn
// is made of.
func (c *content) read(kind string, body value) bool {
	c.malformed = !body.absent() && body.kind() != '{' && kind != "contacts"
	switch kind {
	case "text":
		said := body.get("body")
		c.malformed = c.malformed || !said.absent() && said.kind() != '"'
		c.text = said.text()
	case "image":
		c.readFile(harness.AttachmentImage, body, "[image]")
	case "video":
		c.readFile(harness.AttachmentVideo, body, "[video]")
	case "document":
		c.readFile(harness.AttachmentDocument, body, "[document]")
	case "sticker":
		c.readFile(harness.AttachmentSticker, body, "[sticker]")
	case "audio":
		stand := "[audio]"
		if body.get("voice").isTrue() {
			stand = "[voice message]"
		}
		c.readFile(harness.AttachmentAudio, body, stand)
	case "location":
		c.readLocation(body)
	case "contacts":
		c.readContacts(body)
	case "button":
		c.note("payload", cut(body.get("payload").text(), 1024))
		c.say(body.get("text").text(), body.get("payload").text())
	case "order":
		c.readOrder(body)
	case "interactive":
		return c.readInteractive(body)
	default:
		return false
	}
	return true
}

// readFile keeps what is said of a file, never its address: that is asked for
// when the file is needed.
func (c *content) readFile(kind harness.AttachmentKind, body value, stand string) {
	caption := body.get("caption").text()
	id := identifier(body.get("id"), maxWord)
	if id == "" {
		c.text = caption // what was said stands even if the file is lost
		return
	}
	file := harness.Attachment{Kind: kind, ProviderID: id, FileName: line(body.get("filename").text(), 255), MimeType: line(body.get("mime_type").text(), maxWord)}
	c.files = append(c.files, file)
	c.note("mediaId", id)
	c.note("mimeType", file.MimeType)
	c.note("fileName", file.FileName)
	c.say(caption, stand)
}

func (c *content) readLocation(body value) {
	latitude, longitude := number(body.get("latitude")), number(body.get("longitude"))
	if latitude == "" || longitude == "" {
		c.malformed = !body.absent()
		return
	}
	text := "[location: " + latitude + ", " + longitude
	for _, name := range []string{"name", "address"} {
		if s := line(body.get(name).text(), maxLine); s != "" {
			text += ", " + s
		}
	}
	c.say("", text+"]")
}

// number is a number as it is written, also one within quotes.
func number(v value) string {
	s := v.scalar()
	if v.kind() == 't' || s == "" || len(s) > maxNumber || strings.Trim(s, "0123456789+-.eE") != "" {
		return ""
	}
	return s
}

// maxListed is how many items of a list are written out.
const maxListed = 50

func (c *content) readContacts(list value) {
	if !list.absent() && list.kind() != '[' {
		c.malformed = true
		return
	}
	var lines []string
	for contact := range list.items {
		if len(lines) == maxListed {
			lines = append(lines, "…")
			break
		}
		words := []string{}
		for _, name := range []string{"formatted_name", "first_name", "last_name"} {
			if s := line(contact.get("name", name).text(), maxLine); s != "" {
				words = append(words, s)
				break
			}
		}
		for phone := range contact.get("phones").items {
			s := line(phone.get("phone").scalar(), maxWord)
			if s == "" {
				s = line(phone.get("wa_id").scalar(), maxWord)
			}
			if s != "" && len(words) < 6 {
				words = append(words, s)
			}
		}
		if len(words) == 0 {
			words = []string{"no name, no number"}
		}
		lines = append(lines, "[contact: "+strings.Join(words, ", ")+"]")
	}
	c.say("", strings.Join(lines, "\n"))
}

func (c *content) readOrder(body value) {
	lines := []string{}
	for item := range body.get("product_items").items {
		if len(lines) == maxListed {
			lines = append(lines, "…")
			break
		}
		lines = append(lines, fmt.Sprintf("%s × %s at %s %s", number(item.get("quantity")), line(item.get("product_retailer_id").scalar(), maxLine),
			number(item.get("item_price")), line(item.get("currency").text(), maxWord)))
	}
	said := body.get("text").text()
	if len(lines) == 0 {
		c.text = said
		return
	}
	order := "[order]\n" + strings.Join(lines, "\n")
	if blank(said) {
		c.say("", order)
		return
	}
	c.text = said + "\n\n" + order
}

// readInteractive understands taps and forms.
func (c *content) readInteractive(body value) bool {
	kind := body.get("type").text()
	answer := body.get(kind)
	switch kind {
	case "button_reply", "list_reply":
		id := cut(answer.get("id").text(), 1024)
		c.note("selectionId", id)
		c.say(answer.get("title").text(), id)
	case "nfm_reply":
		c.readForm(answer)
	case "":
		return body.absent() || body.kind() != '{' // nothing was said, or nothing readable
	default:
		return false
	}
	return true
}

// readForm writes the answers of a form out. They come as JSON within a string;
// the token that names the form is the business's own.
func (c *content) readForm(answer value) {
	raw := answer.get("response_json").text()
	form := whole(nil)
	if valid(raw) {
		form = whole([]byte(raw))
	}
	if form.kind() != '{' {
		c.say(raw, answer.get("body").text())
		return
	}
	answers, _ := form.data(0).(map[string]any)
	delete(answers, "flow_token")
	names := make([]string, 0, len(answers))
	for name := range answers {
		names = append(names, name)
	}
	slices.Sort(names)
	lines := []string{"[form]"}
	for _, name := range names {
		lines = append(lines, line(name, maxLine)+": "+plain(answers[name]))
	}
	if len(answers) == 0 {
		c.say(answer.get("body").text(), "[form without answers]")
		return
	}
	c.data["flow"] = answers
	c.say("", strings.Join(lines, "\n"))
}

// addressed reports whether something said in a group is for the agent.
func (p *parser) addressed(m *message, c content) bool {
	switch p.account.Spec.Groups {
	case harness.GroupsAll:
		return true
	case harness.GroupsNone:
		return false
	}
	if p.ours(party(m.context.get("from"))) {
		return true // an answer to something that we said
	}
	if c.standIn {
		return false
	}
	names := []string{"bot", string(p.account.Agent), p.display, digits(p.account.Spec.PhoneNumber)}
	return slices.ContainsFunc(names, func(name string) bool { return mentions(c.text, name) })
}

// mentions reports whether text has @name, or @+name, as a word of its own.
func mentions(text, name string) bool {
	if name == "" {
		return false
	}
	for {
		_, after, found := strings.Cut(text, "@")
		if !found {
			return false
		}
		text = after
		word := strings.TrimPrefix(after, "+")
		if len(word) < len(name) || !strings.EqualFold(word[:len(name)], name) {
			continue
		}
		next, _ := utf8.DecodeRuneInString(word[len(name):])
		if len(word) == len(name) || !unicode.IsLetter(next) && !unicode.IsDigit(next) && next != '_' && next != '-' {
			return true
		}
	}
}
