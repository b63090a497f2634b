package botapi

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// Say is something a person does. One of Text, Files, Press, React, Edit,
// Location, Guest and Message says what.
type Say struct {
	Bot      string `json:"bot,omitempty"`      // to whom; empty: the first; in a group, all bots in it may hear
	From     int64  `json:"from"`               // the person
	Chat     int64  `json:"chat,omitempty"`     // a group; 0: their private chat with the bot
	Thread   int64  `json:"thread,omitempty"`   // a topic of a forum, or of direct messages
	Business string `json:"business,omitempty"` // a business link: to its owner, or by the owner to Chat

	Text     string         `json:"text,omitempty"`  // of Files: the caption
	Files    []Upload       `json:"files,omitempty"` // several are an album
	Press    string         `json:"press,omitempty"` // a button: its data, its text or its place, from 1; of ReplyTo, else of the newest
	ReplyTo  int64          `json:"replyTo,omitempty"`
	React    string         `json:"react,omitempty"` // an emoji on ReplyTo; "-" takes it away
	Edit     int64          `json:"edit,omitempty"`  // an own message: it reads Text now
	Location *Location      `json:"location,omitempty"`
	Guest    bool           `json:"guest,omitempty"`   // in a group that the bot is not in
	Message  map[string]any `json:"message,omitempty"` // fields of the message as they go over the wire: added, or in place of others
}

// Upload is a file a person sends.
type Upload struct {
	Kind     string `json:"kind,omitempty"` // photo, document, voice, audio, video or sticker; empty: by MimeType
	Name     string `json:"name,omitempty"`
	MimeType string `json:"mimeType"`
	Data     []byte `json:"data"`
	Bytes    int64  `json:"bytes,omitempty"` // said to be so large
}

// Location is a pin.
type Location struct {
	Latitude  float64 `json:"latitude"`
	Longitude float64 `json:"longitude"`
}

// Say does these things one after another and returns the lines they left in
// the chats.
func (s *Server) Say(all ...Say) ([]person.Line, error) {
	var lines []person.Line
	for i, say := range all {
		left, err := s.say(say)
		lines = append(lines, left...)
		if err != nil {
			return lines, fmt.Errorf("say %d: %w", i+1, err)
		}
	}
	return lines, nil
}

// Update queues an update of any kind for a bot: value as it goes over the wire.
// chat says which others it must not overtake. It returns the update_id; 0: the
// bot has not asked for this kind.
func (s *Server) Update(bot, chat, kind string, value any) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bot(bot)
	if err != nil {
		return 0, err
	}
	return s.push(b, chat, kind, value), nil
}

// speech is a Say whose names were found.
type speech struct {
	Say
	person *Person
	group  *Chat // nil: private
	bots   []*bot
	chat   map[string]any
	id     int64
	kind   string // of the update
}

func (s *Server) say(say Say) ([]person.Line, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, err := s.find(say)
	if err != nil {
		return nil, err
	}
	s.counts.Add("said")
	switch {
	case say.Press != "":
		return s.press(sp)
	case say.React != "":
		return s.mark(sp)
	case say.Edit != 0:
		return s.rewrite(sp)
	case len(say.Files) > 0:
		var lines []person.Line
		album := ""
		if len(say.Files) > 1 {
			s.ids++
			album = fmt.Sprint(13_000_000_000_000 + s.ids)
		}
		for i, f := range say.Files {
			message := map[string]any{}
			if album != "" {
				message["media_group_id"] = album
			}
			line := person.Line{}
			if i == 0 && say.Text != "" {
				message["caption"], line.Text = say.Text, say.Text
				if found := entities(say.Text); len(found) > 0 {
					message["caption_entities"] = found
				}
			}
			kind := kindOf(f)
			kept := s.keep(sp.bots[0], kind, f.Name, f.MimeType, f.Data, f.Bytes)
			message[kind] = shownFile(kind, kept)
			line.Kind, line.File = kind, &kept
			lines = append(lines, s.speak(sp, message, line))
		}
		return lines, nil
	case say.Location != nil:
		line := person.Line{Kind: "location", Text: fmt.Sprintf("%g, %g", say.Location.Latitude, say.Location.Longitude)}
		return []person.Line{s.speak(sp, map[string]any{"location": say.Location}, line)}, nil
	case say.Text != "":
		message := map[string]any{"text": say.Text}
		if found := entities(say.Text); len(found) > 0 {
			message["entities"] = found
		}
		return []person.Line{s.speak(sp, message, person.Line{Kind: "text", Text: say.Text})}, nil
	case len(say.Message) > 0:
		return []person.Line{s.speak(sp, map[string]any{}, person.Line{Kind: "other"})}, nil
	}
	return nil, fmt.Errorf("nothing is said")
}

// find looks up who says something, where, and which bots may hear it. s.mu is held.
func (s *Server) find(say Say) (speech, error) {
	b, err := s.bot(say.Bot)
	if err != nil {
		return speech{}, err
	}
	sp := speech{Say: say, person: s.people[say.From], bots: []*bot{b}, kind: "message"}
	if sp.person == nil {
		return sp, fmt.Errorf("there is no person %d: add them first", say.From)
	}
	switch {
	case say.Business != "":
		link, ok := s.links[say.Business]
		if !ok {
			return sp, fmt.Errorf("there is no business link %q", say.Business)
		}
		customer := sp.person
		if say.From == link.Owner {
			customer = s.people[say.Chat]
		}
		if customer == nil {
			return sp, fmt.Errorf("there is no person %d", say.Chat)
		}
		sp.bots, sp.kind, sp.chat, sp.id = []*bot{s.named(link.Bot)}, "business_message", private(customer), customer.ID
	case say.Chat == 0:
		if slices.Contains(sp.person.Blocked, b.Username) {
			return sp, fmt.Errorf("person %d has blocked %s", say.From, b.Username)
		}
		if !slices.Contains(sp.person.Started, b.Username) {
			sp.person.Started = append(sp.person.Started, b.Username)
		}
		sp.chat, sp.id = private(sp.person), sp.person.ID
	default:
		sp.group = s.chats[say.Chat]
		if sp.group == nil || sp.group.MovedTo != 0 {
			return sp, fmt.Errorf("there is no chat %d, or no more", say.Chat)
		}
		sp.chat, sp.id = group(sp.group), say.Chat
		if sp.group.Type == "channel" {
			sp.kind = "channel_post"
		}
		if say.Guest {
			sp.kind = "guest_message"
			break
		}
		sp.bots = nil
		for _, name := range sp.group.Bots {
			if member := s.named(name); member != nil {
				sp.bots = append(sp.bots, member)
			}
		}
		if len(sp.bots) == 0 {
			return sp, fmt.Errorf("there is no bot in chat %d", say.Chat)
		}
	}
	return sp, nil
}

// speak writes a message down and tells it to those who hear it. s.mu is held.
func (s *Server) speak(sp speech, message map[string]any, line person.Line) person.Line {
	s.last[sp.id]++
	id := s.last[sp.id]
	key := strconv.FormatInt(sp.id, 10)
	message["message_id"], message["chat"], message["date"] = id, sp.chat, s.clock.Now().Unix()
	if sp.kind == "channel_post" {
		message["sender_chat"] = sp.chat
	} else {
		message["from"] = user(sp.person)
	}
	if sp.Business != "" {
		message["business_connection_id"] = sp.Business
	}
	if sp.Thread > 1 && sp.group != nil && sp.group.Forum { // the General topic has no id
		message["message_thread_id"], message["is_topic_message"] = sp.Thread, true
	}
	if sp.Thread > 0 && sp.group != nil && sp.group.Direct {
		message["direct_messages_topic"] = map[string]any{"topic_id": sp.Thread, "user": user(sp.person)}
	}
	if quoted := s.messages[key+"/"+strconv.FormatInt(sp.ReplyTo, 10)]; sp.ReplyTo != 0 && quoted != nil {
		message["reply_to_message"] = flat(quoted)
		line.ReplyTo = strconv.FormatInt(sp.ReplyTo, 10)
		if sp.group != nil && sp.group.Type == "supergroup" && message["message_thread_id"] == nil {
			message["message_thread_id"] = sp.ReplyTo // so do plain replies, without is_topic_message
		}
	}
	maps.Copy(message, sp.Message)
	line.At, line.Account, line.Chat, line.ID = s.clock.Now(), s.account(sp.bots[0].Username, sp.id), key, strconv.FormatInt(id, 10)
	line.From, line.Name, line.Ticks = strconv.FormatInt(sp.person.ID, 10), sp.person.FirstName, person.Sent
	if sp.Thread != 0 {
		line.Thread = strconv.FormatInt(sp.Thread, 10)
	}
	s.messages[key+"/"+line.ID] = message
	line = s.lines.Add(line)
	for _, b := range sp.bots {
		told := maps.Clone(message)
		if sp.kind == "guest_message" {
			told["guest_query_id"] = s.ask(b, sp.id)
		}
		if sp.group == nil || sp.kind != "message" || s.hears(b, sp, message) {
			s.push(b, key, sp.kind, told)
		} else {
			s.counts.Add("unheard")
		}
	}
	return line
}

// ask makes a query that the bot has to answer. s.mu is held.
func (s *Server) ask(b *bot, chat int64) string {
	s.ids++
	id := strconv.FormatUint(8_000_000_000_000_000_000+number(s.options.Seed, "query", strconv.FormatInt(s.ids, 10))%1_000_000_000_000_000, 10)
	s.queries[id] = &query{bot: b.Username, at: s.clock.Now(), chat: chat}
	return id
}

// hears applies privacy mode. s.mu is held.
func (s *Server) hears(b *bot, sp speech, message map[string]any) bool {
	if b.ReadsAll || sp.group.Direct || slices.Contains(sp.group.Admins, b.Username) {
		return true
	}
	if quoted, _ := message["reply_to_message"].(map[string]any); quoted != nil {
		if from, _ := quoted["from"].(map[string]any); is(from["id"], b.ID) {
			return true
		}
	}
	text, _ := message["text"].(string)
	if text == "" {
		text, _ = message["caption"].(string)
	}
	if strings.HasPrefix(text, "/") {
		command, _, _ := strings.Cut(text, " ")
		_, name, given := strings.Cut(command, "@")
		return !given || strings.EqualFold(name, b.Username)
	}
	if strings.Contains(strings.ToLower(text), "@"+strings.ToLower(b.Username)) {
		return true
	}
	return text == "" && sp.Message != nil // service messages
}

// press taps a button. s.mu is held.
func (s *Server) press(sp speech) ([]person.Line, error) {
	b, key := sp.bots[0], strconv.FormatInt(sp.id, 10)
	account := s.account(b.Username, sp.id)
	shown, ok := s.lines.Last(account, key, func(l person.Line) bool {
		return l.From == "" && len(l.Choices) > 0 && (sp.ReplyTo == 0 || l.ID == strconv.FormatInt(sp.ReplyTo, 10))
	})
	if !ok {
		return nil, fmt.Errorf("there is nothing to press here")
	}
	message := s.messages[key+"/"+shown.ID]
	if from, _ := message["from"].(map[string]any); sp.group != nil {
		for _, member := range sp.bots {
			if is(from["id"], member.ID) {
				b = member
			}
		}
	}
	for i, c := range shown.Choices {
		if c.ID != sp.Press && c.Title != sp.Press && strconv.Itoa(i+1) != sp.Press {
			continue
		}
		id := s.ask(b, 0)
		s.push(b, key, "callback_query", map[string]any{
			"id": id, "from": user(sp.person), "message": message, "chat_instance": strconv.FormatUint(number(key), 10), "data": c.ID,
		})
		// The app shows no message for a tap; the transcript keeps it all the same.
		line := s.lines.Add(person.Line{
			At: s.clock.Now(), Account: account, Chat: key, ID: "query " + id, From: strconv.FormatInt(sp.person.ID, 10), Name: sp.person.FirstName,
			Kind: "press", Text: c.Title, ReplyTo: shown.ID, Ticks: person.Sent,
		})
		return []person.Line{line}, nil
	}
	return nil, fmt.Errorf("there is no button %q", sp.Press)
}

// mark reacts to a message. s.mu is held.
func (s *Server) mark(sp speech) ([]person.Line, error) {
	key, id := strconv.FormatInt(sp.id, 10), strconv.FormatInt(sp.ReplyTo, 10)
	before := ""
	line, ok := s.lines.Change(s.account(sp.bots[0].Username, sp.id), key, id, func(l *person.Line) {
		before, l.Marks = l.Marks, strings.TrimPrefix(sp.React, "-")
	})
	if !ok {
		return nil, fmt.Errorf("there is no message %d to react to", sp.ReplyTo)
	}
	emoji := func(text string) []any {
		if text == "" {
			return []any{}
		}
		return []any{map[string]any{"type": "emoji", "emoji": text}}
	}
	for _, b := range sp.bots {
		s.push(b, key, "message_reaction", map[string]any{
			"chat": sp.chat, "message_id": sp.ReplyTo, "user": user(sp.person), "date": s.clock.Now().Unix(), "old_reaction": emoji(before), "new_reaction": emoji(line.Marks),
		})
	}
	return []person.Line{line}, nil
}

// rewrite edits an own message. s.mu is held.
func (s *Server) rewrite(sp speech) ([]person.Line, error) {
	key, id := strconv.FormatInt(sp.id, 10), strconv.FormatInt(sp.Edit, 10)
	message := s.messages[key+"/"+id]
	if from, _ := message["from"].(map[string]any); message == nil || !is(from["id"], sp.person.ID) {
		return nil, fmt.Errorf("person %d has not said %d here", sp.person.ID, sp.Edit)
	}
	changed := maps.Clone(message)
	field := "text"
	if changed["caption"] != nil {
		field = "caption"
	}
	changed[field], changed["edit_date"] = sp.Text, s.clock.Now().Unix()
	delete(changed, strings.TrimPrefix(field+"_entities", "text_"))
	maps.Copy(changed, sp.Message)
	s.messages[key+"/"+id] = changed
	line, _ := s.lines.Change(s.account(sp.bots[0].Username, sp.id), key, id, func(l *person.Line) { l.Text, l.Edited = sp.Text, true })
	for _, b := range sp.bots {
		if sp.group == nil || s.hears(b, sp, changed) {
			s.push(b, key, "edited_"+sp.kind, changed)
		}
	}
	return []person.Line{line}, nil
}

func kindOf(f Upload) string {
	if f.Kind != "" {
		return f.Kind
	}
	switch main, _, _ := strings.Cut(f.MimeType, "/"); main {
	case "image":
		return "photo"
	case "audio", "video":
		return main
	}
	return "document"
}

var marks = regexp.MustCompile(`@[A-Za-z][A-Za-z0-9_]{3,31}|(?:^|\s)/[A-Za-z0-9_]{1,32}(?:@[A-Za-z0-9_]{3,32})?|https?://\S+`)

// entities finds what an app marks by itself: commands, mentions and links.
func entities(text string) []Entity {
	var found []Entity
	for _, at := range marks.FindAllStringIndex(text, -1) {
		part := text[at[0]:at[1]]
		trimmed := strings.TrimLeft(part, " \t\r\n")
		e := Entity{Type: "mention", Offset: units(text[:at[1]-len(trimmed)]), Length: units(trimmed)}
		switch trimmed[0] {
		case '/':
			e.Type = "bot_command"
		case 'h':
			e.Type = "url"
		}
		found = append(found, e)
	}
	return found
}
