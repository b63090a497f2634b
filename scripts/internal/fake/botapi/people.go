package botapi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Person is someone with the app.
type Person struct {
	ID        int64    `json:"id"` // also of their private chats
	FirstName string   `json:"firstName"`
	LastName  string   `json:"lastName,omitempty"`
	Username  string   `json:"username,omitempty"`
	Language  string   `json:"language,omitempty"`
	IsBot     bool     `json:"isBot,omitempty"`
	Started   []string `json:"started,omitempty"` // the bots they have written to
	Blocked   []string `json:"blocked,omitempty"` // the bots they have blocked
}

// Chat is a group, a supergroup or a channel.
type Chat struct {
	ID      int64    `json:"id"`   // negative
	Type    string   `json:"type"` // group, supergroup or channel
	Title   string   `json:"title"`
	Forum   bool     `json:"forum,omitempty"`
	Direct  bool     `json:"direct,omitempty"` // direct messages of a channel
	Topics  []Topic  `json:"topics,omitempty"`
	Bots    []string `json:"bots"`             // the bots in it; nil: all
	Admins  []string `json:"admins,omitempty"` // those that hear everything
	MovedTo int64    `json:"movedTo,omitempty"`
}

// Topic is one of a forum. The General topic, 1, is always there.
type Topic struct {
	ID     int64  `json:"id"`
	Name   string `json:"name"`
	Closed bool   `json:"closed,omitempty"` // takes no messages any more
}

// Business is the link between a business account and a bot.
type Business struct {
	ID    string `json:"id"`
	Bot   string `json:"bot"`
	Owner int64  `json:"owner"` // a person
}

const maxID = 1<<52 - 1

// AddPerson adds p or changes the one with the same id. Without an id it gets one.
func (s *Server) AddPerson(p Person) (Person, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.ID == 0 {
		for p.ID = 5_000_000_001; s.people[p.ID] != nil; p.ID++ {
		}
	}
	if p.ID < 0 || p.ID > maxID {
		return p, fmt.Errorf("a person's id is positive and has at most 52 bits")
	}
	p.Username = strings.TrimPrefix(p.Username, "@")
	if p.FirstName == "" {
		p.FirstName = "Person"
	}
	if old := s.people[p.ID]; old != nil {
		if p.Started == nil {
			p.Started = old.Started
		}
		if p.Blocked == nil {
			p.Blocked = old.Blocked
		}
	}
	s.people[p.ID] = &p
	return p, nil
}

// AddChat adds c or changes the one with the same id. Without an id it gets one.
func (s *Server) AddChat(c Chat) (Chat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Type == "" {
		c.Type = "supergroup"
	}
	if !slices.Contains([]string{"group", "supergroup", "channel"}, c.Type) {
		return c, fmt.Errorf("a chat's type is group, supergroup or channel, not %q", c.Type)
	}
	if c.ID == 0 {
		for c.ID = -1_001_234_500_001; s.chats[c.ID] != nil; c.ID-- {
		}
		if c.Type == "group" {
			for c.ID = -4_000_000_001; s.chats[c.ID] != nil; c.ID-- {
			}
		}
	}
	if c.ID > 0 {
		return c, fmt.Errorf("a group's id is negative")
	}
	if c.Bots == nil {
		for _, b := range s.bots {
			c.Bots = append(c.Bots, b.Username)
		}
	}
	s.chats[c.ID] = &c
	return c, nil
}

// AddBusiness links a business account to a bot and tells the bot. Without an
// id it gets one.
func (s *Server) AddBusiness(link Business) (Business, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bot(link.Bot)
	if err != nil {
		return link, err
	}
	owner := s.people[link.Owner]
	if owner == nil {
		return link, fmt.Errorf("there is no person %d", link.Owner)
	}
	link.Bot = b.Username
	if link.ID == "" {
		s.ids++
		link.ID = fmt.Sprintf("BC-%016x", number(s.options.Seed, "business", strconv.FormatInt(s.ids, 10)))
	}
	s.links[link.ID] = link
	s.push(b, "business "+link.ID, "business_connection", map[string]any{
		"id": link.ID, "user": user(owner), "user_chat_id": owner.ID, "date": s.clock.Now().Unix(), "is_enabled": true, "rights": map[string]any{"can_reply": true},
	})
	return link, nil
}

// People lists everyone, by id.
func (s *Server) People() []Person {
	s.mu.Lock()
	defer s.mu.Unlock()
	people := []Person{}
	for _, p := range s.people {
		people = append(people, *p)
	}
	slices.SortFunc(people, func(a, b Person) int { return compare(a.ID, b.ID) })
	return people
}

// Chats lists groups and channels, by id.
func (s *Server) Chats() []Chat {
	s.mu.Lock()
	defer s.mu.Unlock()
	chats := []Chat{}
	for _, c := range s.chats {
		chats = append(chats, *c)
	}
	slices.SortFunc(chats, func(a, b Chat) int { return compare(a.ID, b.ID) })
	return chats
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Block lets a person block a bot, or think better of it. The bot is told.
func (s *Server) Block(bot string, id int64, blocked bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bot(bot)
	p := s.people[id]
	if err != nil || p == nil {
		return fmt.Errorf("there is no bot %q or no person %d", bot, id)
	}
	p.Blocked = slices.DeleteFunc(p.Blocked, func(name string) bool { return name == b.Username })
	before, after := "kicked", "member"
	if blocked {
		p.Blocked = append(p.Blocked, b.Username)
		before, after = after, before
	}
	s.member(b, private(p), p, before, after)
	return nil
}

// Kick takes a bot out of a group, or puts it back in. The bot is told.
func (s *Server) Kick(bot string, chat, by int64, out bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bot(bot)
	c, p := s.chats[chat], s.people[by]
	if err != nil || c == nil || p == nil {
		return fmt.Errorf("there is no bot %q, no chat %d or no person %d", bot, chat, by)
	}
	c.Bots = slices.DeleteFunc(c.Bots, func(name string) bool { return name == b.Username })
	before, after := "left", "member"
	if out {
		before, after = "member", "kicked"
	} else {
		c.Bots = append(c.Bots, b.Username)
	}
	s.member(b, group(c), p, before, after)
	return nil
}

// member tells a bot how it stands in a chat. s.mu is held.
func (s *Server) member(b *bot, chat map[string]any, by *Person, before, after string) {
	status := func(what string) map[string]any {
		m := map[string]any{"user": b.user(), "status": what}
		if what == "kicked" {
			m["until_date"] = 0
		}
		return m
	}
	s.push(b, fmt.Sprint(chat["id"]), "my_chat_member", map[string]any{
		"chat": chat, "from": user(by), "date": s.clock.Now().Unix(), "old_chat_member": status(before), "new_chat_member": status(after),
	})
}

// Migrate makes a supergroup of a group and tells its bots: the old chat's last
// message names the new one, the new one's first the old.
func (s *Server) Migrate(chat, by int64) (Chat, error) {
	s.mu.Lock()
	old, p := s.chats[chat], s.people[by]
	if old == nil || p == nil || old.Type != "group" || old.MovedTo != 0 {
		s.mu.Unlock()
		return Chat{}, fmt.Errorf("chat %d is no group, or there is no person %d", chat, by)
	}
	next := Chat{Type: "supergroup", Title: old.Title, Bots: old.Bots, Admins: old.Admins}
	s.mu.Unlock()
	next, err := s.AddChat(next)
	if err != nil {
		return next, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old.MovedTo = next.ID
	for _, b := range s.bots {
		if !slices.Contains(next.Bots, b.Username) {
			continue
		}
		for _, m := range []struct {
			chat *Chat
			what string
			id   int64
		}{{old, "migrate_to_chat_id", next.ID}, {&next, "migrate_from_chat_id", old.ID}} {
			s.last[m.chat.ID]++
			s.push(b, strconv.FormatInt(m.chat.ID, 10), "message", map[string]any{
				"message_id": s.last[m.chat.ID], "from": user(p), "chat": group(m.chat), "date": s.clock.Now().Unix(), m.what: m.id,
			})
		}
	}
	s.lines.Move("", strconv.FormatInt(old.ID, 10), strconv.FormatInt(next.ID, 10))
	return next, nil
}

// user is a person as the API shows them.
func user(p *Person) map[string]any {
	u := map[string]any{"id": p.ID, "is_bot": p.IsBot, "first_name": p.FirstName}
	for name, value := range map[string]string{"last_name": p.LastName, "username": p.Username, "language_code": p.Language} {
		if value != "" {
			u[name] = value
		}
	}
	return u
}

func (b *bot) user() map[string]any {
	return map[string]any{"id": b.ID, "is_bot": true, "first_name": b.Name, "username": b.Username}
}

func private(p *Person) map[string]any {
	c := map[string]any{"id": p.ID, "first_name": p.FirstName, "type": "private"}
	for name, value := range map[string]string{"last_name": p.LastName, "username": p.Username} {
		if value != "" {
			c[name] = value
		}
	}
	return c
}

func group(g *Chat) map[string]any {
	c := map[string]any{"id": g.ID, "title": g.Title, "type": g.Type}
	if g.Forum {
		c["is_forum"] = true
	}
	if g.Direct {
		c["is_direct_messages"] = true
	}
	return c
}
