package botapi

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// query is something a person did that is to be answered.
type query struct {
	bot      string
	at       time.Time
	answered bool
	chat     int64 // of a guest query
}

func (s *Server) action(b *bot, c call) *result {
	actions := []string{"typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice", "upload_document", "choose_sticker", "find_location", "record_video_note", "upload_video_note"}
	if !slices.Contains(actions, c.params["action"]) {
		return bad("wrong parameter action in request")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, refused := s.target(b, c)
	if refused != nil {
		return refused
	}
	s.counts.Add("typing")
	s.lines.Typing(s.account(b.Username, t.id), t.key(), s.clock.Now().Add(typingLasts))
	return done(true)
}

func (s *Server) answerQuery(b *bot, c call) *result {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queries[c.params["callback_query_id"]]
	switch {
	case q == nil || q.bot != b.Username || s.clock.Now().Sub(q.at) > queryLasts:
		return bad("query is too old and response timeout expired or query ID is invalid")
	case units(c.params["text"]) > maxNotice:
		return bad("MESSAGE_TOO_LONG")
	}
	q.answered = true
	s.counts.Add("queriesAnswered")
	return done(true)
}

// Answered reports whether a callback or guest query was answered.
func (s *Server) Answered(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queries[id] != nil && s.queries[id].answered
}

// answerGuest puts a message into a chat the bot is no member of.
func (s *Server) answerGuest(b *bot, c call) *result {
	var in struct {
		Type    string `json:"type"`
		ID      string `json:"id"`
		Title   string `json:"title"`
		Content *struct {
			Text      string `json:"message_text"`
			ParseMode string `json:"parse_mode"`
		} `json:"input_message_content"`
	}
	if err := json.Unmarshal([]byte(c.params["result"]), &in); err != nil || in.Type != "article" || in.ID == "" || in.Title == "" || in.Content == nil {
		return bad("can't parse inline query result: an article with id, title and input_message_content is expected here")
	}
	text := call{params: map[string]string{"text": in.Content.Text, "parse_mode": in.Content.ParseMode}}
	shown, _, refused := text.text("text", maxText)
	if refused != nil {
		return refused
	}
	if shown == "" {
		return bad("message text is empty")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queries[c.params["guest_query_id"]]
	if q == nil || q.bot != b.Username || q.answered || q.chat == 0 {
		return bad("query is too old and response timeout expired or query ID is invalid")
	}
	q.answered = true
	s.counts.Add("queriesAnswered")
	s.last[q.chat]++
	id := strconv.FormatInt(s.last[q.chat], 10)
	chat := strconv.FormatInt(q.chat, 10)
	s.lines.Add(person.Line{At: s.clock.Now(), Account: s.account(b.Username, q.chat), Chat: chat, ID: id, Kind: "text", Text: shown, Ticks: person.Sent})
	return done(map[string]any{"inline_message_id": "IM-" + chat + "-" + id})
}

// own finds a message that the bot has sent. s.mu is held.
func (s *Server) own(b *bot, c call, missing string) (target, string, map[string]any, *result) {
	t, refused := s.target(b, c)
	if refused != nil {
		return t, "", nil, refused
	}
	id := c.params["message_id"]
	message := s.messages[t.key()+"/"+id]
	if message == nil {
		return t, id, nil, bad("%s", missing)
	}
	return t, id, message, nil
}

// takeBack deletes a message of the bot's own.
func (s *Server) takeBack(b *bot, c call) *result {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, id, message, refused := s.own(b, c, "message to delete not found")
	if refused != nil {
		return refused
	}
	if from, _ := message["from"].(map[string]any); !is(from["id"], b.ID) {
		return bad("message can't be deleted")
	}
	delete(s.messages, t.key()+"/"+id)
	s.lines.Change(s.account(b.Username, t.id), t.key(), id, func(l *person.Line) { l.Gone = true })
	s.counts.Add("deleted")
	return done(true)
}

func (s *Server) edit(b *bot, c call) *result {
	shown, entities, refused := c.text("text", maxText)
	if refused != nil {
		return refused
	}
	if shown == "" {
		return bad("message text is empty")
	}
	markup, choices, refused := c.markup()
	if refused != nil {
		return refused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, id, message, refused := s.own(b, c, "message to edit not found")
	if refused != nil {
		return refused
	}
	if from, _ := message["from"].(map[string]any); !is(from["id"], b.ID) {
		return bad("message can't be edited")
	}
	changed := flat(message)
	delete(changed, "entities")
	delete(changed, "reply_markup")
	changed["text"] = shown
	if len(entities) > 0 {
		changed["entities"] = entities
	}
	if markup != nil {
		changed["reply_markup"] = markup
	}
	if changed["text"] == message["text"] && reflect.DeepEqual(changed["entities"], message["entities"]) && reflect.DeepEqual(changed["reply_markup"], message["reply_markup"]) {
		return bad("message is not modified: specified new message content and reply markup are exactly the same as a current content and reply markup of the message")
	}
	changed["edit_date"] = s.clock.Now().Unix()
	s.messages[t.key()+"/"+id] = changed
	s.lines.Change(s.account(b.Username, t.id), t.key(), id, func(l *person.Line) { l.Text, l.Choices, l.Edited = shown, choices, true })
	s.counts.Add("edits")
	return done(changed)
}

func (s *Server) react(b *bot, c call) *result {
	var marks []struct{ Type, Emoji string }
	if raw := c.params["reaction"]; raw != "" && json.Unmarshal([]byte(raw), &marks) != nil {
		return bad("can't parse reaction")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, id, _, refused := s.own(b, c, "message to react not found")
	if refused != nil {
		return refused
	}
	text := ""
	for _, m := range marks {
		text += m.Emoji
	}
	s.lines.Change(s.account(b.Username, t.id), t.key(), id, func(l *person.Line) { l.Marks = text })
	return done(true)
}
