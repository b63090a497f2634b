package botapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// kept is what a state file holds.
type kept struct {
	Whole    bool // written at Close: nothing happened after it
	IDs      int64
	People   map[int64]*Person
	Chats    map[int64]*Chat
	Links    map[string]Business
	Messages map[string]json.RawMessage
	Last     map[int64]int64
	Files    map[string]*file
	Lines    []person.Line
	Bots     map[string]keptBot
}

// keptBot is what waits for a bot, and what was agreed with it.
type keptBot struct {
	Next    int64
	Allowed []string
	Waiting map[string][]*queued
	URL     string
	Secret  string // the file is as private as the bot's token
	Most    int
}

func (s *Server) load() error {
	var k kept
	if err := person.Load(s.options.State, &k); err != nil {
		return err
	}
	s.lines = person.NewTranscript(k.Lines)
	s.ids = k.IDs
	keep(s.people, k.People)
	keep(s.chats, k.Chats)
	keep(s.links, k.Links)
	keep(s.last, k.Last)
	keep(s.files, k.Files)
	gap := int64(0)
	if !k.Whole {
		gap = 1000 // ids of what happened after the last Save never come again
	}
	for chat := range s.last {
		s.last[chat] += gap
	}
	for key, text := range k.Messages {
		message := map[string]any{}
		if err := decodeNumbers(text, &message); err != nil {
			return err
		}
		s.messages[key] = message
	}
	for _, b := range s.bots {
		old, ok := k.Bots[b.Username]
		if !ok {
			continue
		}
		b.next, b.allowed, b.most = old.Next+gap, old.Allowed, max(old.Most, 1)
		keep(b.waiting, old.Waiting)
		if b.WebhookURL == "" {
			b.WebhookURL, b.Secret = old.URL, old.Secret
		}
	}
	return nil
}

// decodeNumbers keeps ids whole: they do not fit a float.
func decodeNumbers(text []byte, value *map[string]any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(value)
}

func keep[K comparable, V any](into, from map[K]V) { maps.Copy(into, from) }

// Save keeps the state now. Close does it too.
func (s *Server) Save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := kept{
		Whole: s.jobs.Context().Err() != nil,
		IDs:   s.ids, People: s.people, Chats: s.chats, Links: s.links, Last: s.last, Files: s.files, Lines: s.lines.All(),
		Messages: map[string]json.RawMessage{}, Bots: map[string]keptBot{},
	}
	for key, message := range s.messages {
		text, err := json.Marshal(message)
		if err != nil {
			return err
		}
		k.Messages[key] = text
	}
	for _, b := range s.bots {
		old := keptBot{Next: b.next, Allowed: b.allowed, Waiting: b.waiting, Most: b.most}
		if b.hook != nil {
			old.URL, old.Secret = b.hook.url, b.hook.secret
		}
		k.Bots[b.Username] = old
	}
	return person.Save(s.options.State, k)
}

// is compares an id of a message: a number, or what a state file made of it.
func is(value any, id int64) bool { return fmt.Sprint(value) == strconv.FormatInt(id, 10) }

// version is another number after every change that is worth keeping.
func (s *Server) version() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.lines.Version() + s.ids + int64(len(s.people)+len(s.chats))
	for _, b := range s.bots {
		n += b.next
	}
	return n
}
