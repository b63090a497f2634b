package graph

import (
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// kept is what a state file holds.
type kept struct {
	IDs     int64
	People  []*Person
	Groups  map[string]*Group
	Media   map[string]*media
	Windows []window
	Lines   []person.Line
}

type window struct {
	Number, Chat string
	At           time.Time
}

func (s *Server) load() error {
	var k kept
	if err := person.Load(s.options.State, &k); err != nil {
		return err
	}
	s.lines = person.NewTranscript(k.Lines)
	s.ids, s.people = k.IDs, k.People
	if k.Groups != nil {
		s.groups = k.Groups
	}
	if k.Media != nil {
		s.media = k.Media
	}
	for _, w := range k.Windows {
		s.windows[pair{w.Number, w.Chat}] = w.At
	}
	for _, l := range k.Lines {
		if l.From != "" {
			s.inbound[l.ID] = pair{l.Account, l.Chat}
		}
	}
	return nil
}

// Save keeps the state now. Close does it too.
func (s *Server) Save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := kept{IDs: s.ids, People: s.people, Groups: s.groups, Media: s.media, Lines: s.lines.All()}
	for at, when := range s.windows {
		k.Windows = append(k.Windows, window{at.number, at.chat, when})
	}
	return person.Save(s.options.State, k)
}

// version is another number after every change that is worth keeping.
func (s *Server) version() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.Version() + s.ids + int64(len(s.people)+len(s.groups))
}
