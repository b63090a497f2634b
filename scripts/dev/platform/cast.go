package main

import (
	"errors"

	"tuluat.ai/harness/scripts/dev/tour"
	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
)

// ben's phone; Ada's is the tour's.
const benOnWhatsApp = "15550002222"

// castWhatsApp lets somebody be there where nobody is: whoever opens the phone
// can write at once, alone and in a group.
func castWhatsApp(s *graph.Server, err error) (server, error) {
	if err != nil || len(s.People()) > 0 {
		return s, err
	}
	_, noAda := s.AddPerson(graph.Person{Phone: tour.OnWhatsApp, Name: "Ada"})
	_, noBen := s.AddPerson(graph.Person{Phone: benOnWhatsApp, Name: "Ben"})
	_, noGroup := s.AddGroup(graph.Group{Subject: "Weekend", People: []string{tour.OnWhatsApp, benOnWhatsApp}})
	return s, errors.Join(noAda, noBen, noGroup)
}

func castTelegram(s *botapi.Server, err error) (server, error) {
	if err != nil || len(s.People()) > 0 {
		return s, err
	}
	_, noAda := s.AddPerson(botapi.Person{ID: tour.OnTelegram, FirstName: "Ada"})
	_, noBen := s.AddPerson(botapi.Person{ID: tour.OnTelegram + 1, FirstName: "Ben"})
	_, noGroup := s.AddChat(botapi.Chat{Title: "Weekend"})
	return s, errors.Join(noAda, noBen, noGroup)
}
