package graph

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// Say is something a person does. One of Text, File, Press, React, Edit, Revoke,
// Location and Message says what.
type Say struct {
	Number string `json:"number,omitempty"` // to whom; empty: the first
	From   string `json:"from"`             // id, phone or BSUID
	Group  string `json:"group,omitempty"`  // said in it

	Text      string         `json:"text,omitempty"` // of File: its caption
	File      *Upload        `json:"file,omitempty"`
	Press     string         `json:"press,omitempty"`   // a choice: its id, its title or its place, from 1; of ReplyTo, else of the newest
	ReplyTo   string         `json:"replyTo,omitempty"` // a message's id
	React     string         `json:"react,omitempty"`   // an emoji on ReplyTo; "-" takes it away
	Edit      string         `json:"edit,omitempty"`    // an own message's id: it reads Text now
	Revoke    string         `json:"revoke,omitempty"`  // an own message's id
	Location  *Location      `json:"location,omitempty"`
	Forwarded bool           `json:"forwarded,omitempty"`
	Message   map[string]any `json:"message,omitempty"` // fields of the message as they go over the wire: added, or in place of others
}

// Upload is a file a person sends.
type Upload struct {
	Name     string `json:"name,omitempty"`
	MimeType string `json:"mimeType"`
	Data     []byte `json:"data"`
	Voice    bool   `json:"voice,omitempty"`
}

// Location is a pin.
type Location struct {
	Latitude  float64 `json:"latitude"`
	Longitude float64 `json:"longitude"`
	Name      string  `json:"name,omitempty"`
	Address   string  `json:"address,omitempty"`
}

// maxBatch is how many updates one POST holds at most.
const maxBatch = 1000

// Say does these things one after another; they are told in one POST, or in one
// per 1000. It returns the lines they left in the chats.
func (s *Server) Say(all ...Say) ([]person.Line, error) {
	var lines []person.Line
	var told []update
	for i, say := range all {
		line, u, err := s.say(say)
		if err != nil {
			s.tell(told...)
			return lines, fmt.Errorf("say %d: %w", i+1, err)
		}
		lines, told = append(lines, line), append(told, u)
	}
	s.tell(told...)
	return lines, nil
}

func (s *Server) say(say Say) (person.Line, update, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if say.Number == "" {
		say.Number = s.order[0]
	}
	n, p := s.numbers[say.Number], s.find(say.From)
	if n == nil {
		return person.Line{}, update{}, fmt.Errorf("there is no number %q", say.Number)
	}
	if p == nil {
		return person.Line{}, update{}, fmt.Errorf("there is no person %q: add them first", say.From)
	}
	now := s.clock.Now()
	message := map[string]any{"id": s.wamid(p.ID), "from_user_id": p.BSUID, "timestamp": stamp(now)}
	if p.Phone != "" && !p.Hidden {
		message["from"] = p.Phone
	}
	chat := p.ID
	if say.Group != "" {
		if s.groups[say.Group] == nil {
			return person.Line{}, update{}, fmt.Errorf("there is no group %q", say.Group)
		}
		chat = groupKey(say.Group)
		message["group_id"] = say.Group
	}
	line := person.Line{At: now, Account: n.PhoneNumberID, Chat: chat, From: p.ID, Name: p.Name, ReplyTo: say.ReplyTo, Ticks: person.Sent}
	if err := s.content(n, say, &line, message); err != nil {
		return person.Line{}, update{}, err
	}
	if say.ReplyTo != "" && message["context"] == nil && message["reaction"] == nil {
		message["context"] = s.quoted(n, p, chat, say.ReplyTo)
	}
	if say.Forwarded {
		message["context"] = map[string]any{"forwarded": true}
	}
	maps.Copy(message, say.Message)
	line.ID, _ = message["id"].(string)
	if line.ID != "" {
		s.inbound[line.ID] = pair{n.PhoneNumberID, chat}
	}
	s.windows[pair{n.PhoneNumberID, chat}] = now
	s.counts.Add("said")
	switch line.Kind {
	case "reaction":
		l, _ := s.lines.Change(n.PhoneNumberID, chat, say.ReplyTo, func(l *person.Line) { l.Marks = strings.TrimPrefix(say.React, "-") })
		line = l
	case "edit":
		l, _ := s.lines.Change(n.PhoneNumberID, chat, say.Edit, func(l *person.Line) { l.Text, l.Edited = say.Text, true })
		line = l
	case "revoke":
		l, _ := s.lines.Change(n.PhoneNumberID, chat, say.Revoke, func(l *person.Line) { l.Gone = true })
		line = l
	default:
		line = s.lines.Add(line)
	}
	return line, update{number: n.PhoneNumberID, chat: chat, message: message, who: []Person{*p}}, nil
}

// content fills in what was done. s.mu is held.
func (s *Server) content(n *Number, say Say, line *person.Line, message map[string]any) error {
	of := func(kind string, value any) { message["type"], message[kind], line.Kind = kind, value, kind }
	own := func(id string) error {
		if l, ok := s.lines.Find(n.PhoneNumberID, line.Chat, id); !ok || l.From != line.From {
			return fmt.Errorf("%s has not said %q here", line.From, id)
		}
		return nil
	}
	switch {
	case say.Press != "":
		return s.press(n, say, line, message)
	case say.React != "":
		if _, ok := s.lines.Find(n.PhoneNumberID, line.Chat, say.ReplyTo); !ok {
			return fmt.Errorf("there is no message %q to react to", say.ReplyTo)
		}
		reaction := map[string]any{"message_id": say.ReplyTo}
		if say.React != "-" {
			reaction["emoji"] = say.React
		}
		of("reaction", reaction)
	case say.Edit != "":
		if err := own(say.Edit); err != nil {
			return err
		}
		of("edit", map[string]any{"original_message_id": say.Edit, "message": map[string]any{"context": map[string]any{"id": say.Edit}, "type": "text", "text": map[string]any{"body": say.Text}}})
		s.unsupported(n, "edit", message)
	case say.Revoke != "":
		if err := own(say.Revoke); err != nil {
			return err
		}
		of("revoke", map[string]any{"original_message_id": say.Revoke})
		s.unsupported(n, "revoke", message)
	case say.Location != nil:
		of("location", say.Location)
		line.Text = fmt.Sprintf("%g, %g", say.Location.Latitude, say.Location.Longitude)
	case say.File != nil:
		kind := "document"
		switch main, _, _ := strings.Cut(say.File.MimeType, "/"); {
		case say.File.MimeType == "image/webp":
			kind = "sticker"
		case say.File.Voice, main == "audio":
			kind = "audio"
		case main == "image", main == "video":
			kind = main
		}
		f := s.keep(n.PhoneNumberID, say.File.Name, say.File.MimeType, say.File.Data, inboundLife)
		sum := sha256.Sum256(say.File.Data)
		body := map[string]any{"id": f.ID, "mime_type": f.MimeType, "sha256": base64.StdEncoding.EncodeToString(sum[:])}
		if say.Text != "" && kind != "audio" && kind != "sticker" {
			body["caption"], line.Text = say.Text, say.Text
		}
		if kind == "document" && say.File.Name != "" {
			body["filename"] = say.File.Name
		}
		if kind == "audio" {
			body["voice"] = say.File.Voice
		}
		of(kind, body)
		line.File = &f
	case say.Text != "":
		of("text", map[string]any{"body": say.Text})
		line.Text = say.Text
	case say.Message["type"] != nil:
		line.Kind = fmt.Sprint(say.Message["type"])
	default:
		return fmt.Errorf("nothing is said")
	}
	return nil
}

// unsupported is how numbers hear of edits that are not in the app as well.
func (s *Server) unsupported(n *Number, what string, message map[string]any) {
	if n.Coexistence {
		return
	}
	delete(message, what)
	message["type"] = "unsupported"
	message["unsupported"] = map[string]any{"type": what}
	message["errors"] = []any{map[string]any{"code": 131051, "title": "Message type unknown", "message": "Message type unknown", "error_data": map[string]any{"details": "Message type is not currently supported."}}}
}

// press taps a choice. s.mu is held.
func (s *Server) press(n *Number, say Say, line *person.Line, message map[string]any) error {
	shown, ok := s.lines.Last(n.PhoneNumberID, line.Chat, func(l person.Line) bool {
		return l.From == "" && len(l.Choices) > 0 && (say.ReplyTo == "" || l.ID == say.ReplyTo)
	})
	if !ok {
		return fmt.Errorf("there is nothing to press here")
	}
	at := -1
	for i, c := range shown.Choices {
		if c.ID == say.Press || c.Title == say.Press || at < 0 && strconv.Itoa(i+1) == say.Press {
			at = i
		}
	}
	if at < 0 {
		return fmt.Errorf("there is no choice %q", say.Press)
	}
	choice := shown.Choices[at]
	line.ReplyTo, line.Text, line.Kind = shown.ID, choice.Title, "press"
	message["context"] = map[string]any{"from": n.DisplayPhone, "id": shown.ID}
	if shown.Kind == "template" {
		message["type"], message["button"] = "button", map[string]any{"payload": choice.ID, "text": choice.Title}
		return nil
	}
	kind, body := "button_reply", map[string]any{"id": choice.ID, "title": choice.Title}
	if shown.Kind == "list" {
		kind = "list_reply"
		if choice.Description != "" {
			body["description"] = choice.Description
		}
	}
	message["type"], message["interactive"] = "interactive", map[string]any{"type": kind, kind: body}
	return nil
}

// quoted is the context of a reply. s.mu is held.
func (s *Server) quoted(n *Number, p *Person, chat, id string) map[string]any {
	from := n.DisplayPhone
	if l, ok := s.lines.Find(n.PhoneNumberID, chat, id); ok && l.From != "" {
		from = p.Phone
		if other := s.find(l.From); other != nil {
			from = other.Phone
		}
	}
	return map[string]any{"from": from, "id": id}
}
