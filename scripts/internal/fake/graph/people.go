package graph

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Person is someone with the app.
type Person struct {
	ID       string `json:"id"` // the name of their chats here: the first phone or BSUID they had
	Phone    string `json:"phone,omitempty"`
	BSUID    string `json:"bsuid,omitempty"` // business-scoped user id
	Name     string `json:"name,omitempty"`
	Username string `json:"username,omitempty"`
	Hidden   bool   `json:"hidden,omitempty"`  // webhooks do not tell the phone
	Blocked  bool   `json:"blocked,omitempty"` // they take nothing
	Unread   bool   `json:"unread,omitempty"`  // they do not open the app: no read status
}

// Group is a group chat.
type Group struct {
	ID      string   `json:"id"`
	Subject string   `json:"subject,omitempty"`
	People  []string `json:"people"` // their ids
}

var bsuid = regexp.MustCompile(`^[A-Z]{2}\.(ENT\.)?[A-Za-z0-9]{1,128}$`)

// AddPerson adds p, or changes the one with the same id, phone or BSUID.
// Without a BSUID it gets one; without an id, the phone is it.
func (s *Server) AddPerson(p Person) (Person, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Phone = digits(p.Phone)
	if p.BSUID != "" && !bsuid.MatchString(p.BSUID) {
		return p, fmt.Errorf("%q is no business-scoped user id: two capital letters, a dot, letters and digits", p.BSUID)
	}
	if p.ID == "" && p.Phone == "" && p.BSUID == "" {
		return p, fmt.Errorf("a person needs a phone or a BSUID")
	}
	if strings.HasPrefix(p.ID, "group:") {
		return p, fmt.Errorf("a person's id cannot begin with group:")
	}
	for _, key := range []string{p.ID, p.Phone, p.BSUID} {
		old := s.find(key)
		if old == nil {
			continue
		}
		if p.ID == "" {
			p.ID = old.ID
		}
		if p.Phone == "" {
			p.Phone = old.Phone
		}
		if p.BSUID == "" {
			p.BSUID = old.BSUID
		}
		*old = p
		return p, nil
	}
	if p.BSUID == "" {
		p.BSUID = "US." + numeric(hexDigest(s.options.Seed, "bsuid", p.Phone))[:19]
	}
	if p.ID == "" {
		p.ID = p.Phone
	}
	if p.ID == "" {
		p.ID = p.BSUID
	}
	s.people = append(s.people, &p)
	return p, nil
}

// numeric makes digits of hex.
func numeric(text string) string {
	return strings.Map(func(r rune) rune { return '0' + r%10 }, text)
}

// AddGroup adds g or changes the one with its id. Its people must exist.
func (s *Server) AddGroup(g Group) (Group, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.ID == "" {
		g.ID = "GRP-" + hexDigest(s.options.Seed, "group", fmt.Sprint(s.next()))[:20]
	}
	for i, key := range g.People {
		p := s.find(key)
		if p == nil {
			return g, fmt.Errorf("there is no person %q", key)
		}
		g.People[i] = p.ID
	}
	s.groups[g.ID] = &g
	return g, nil
}

// People lists everyone.
func (s *Server) People() []Person {
	s.mu.Lock()
	defer s.mu.Unlock()
	people := []Person{}
	for _, p := range s.people {
		people = append(people, *p)
	}
	return people
}

// Groups lists all groups, sorted.
func (s *Server) Groups() []Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := []Group{}
	for _, g := range s.groups {
		groups = append(groups, *g)
	}
	slices.SortFunc(groups, func(a, b Group) int { return strings.Compare(a.ID, b.ID) })
	return groups
}

// find returns the person with this id, phone or BSUID, or nil. s.mu is held.
func (s *Server) find(key string) *Person {
	if key == "" {
		return nil
	}
	phone := digits(key)
	for _, p := range s.people {
		if p.ID == key || p.BSUID == key || phone != "" && p.Phone == phone && !bsuid.MatchString(key) {
			return p
		}
	}
	return nil
}

// key is the name of a chat: a person's id, or group: and a group's.
func (s *Server) key(chat string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.find(chat); p != nil {
		return p.ID
	}
	if s.groups[chat] != nil {
		return groupKey(chat)
	}
	return chat
}

func groupKey(id string) string { return "group:" + id }

// NewNumber gives a person another phone, and with it another BSUID, and tells
// every number they have written to.
func (s *Server) NewNumber(id, phone string) (Person, error) {
	s.mu.Lock()
	p := s.find(id)
	if p == nil {
		s.mu.Unlock()
		return Person{}, fmt.Errorf("there is no person %q", id)
	}
	old := *p
	p.Phone = digits(phone)
	p.BSUID = "US." + numeric(hexDigest(s.options.Seed, "bsuid", p.Phone))[:19]
	now := *p
	var told []update
	for _, number := range s.order {
		if s.windows[pair{number, p.ID}].IsZero() {
			continue
		}
		message := map[string]any{
			"from": old.Phone, "id": s.wamid(old.Phone), "timestamp": stamp(s.clock.Now()), "type": "system",
			"system": map[string]any{
				"type": "user_changed_number", "body": fmt.Sprintf("%s changed from %s to %s", old.Name, old.Phone, now.Phone),
				"wa_id": now.Phone, "user_id": now.BSUID, "previous_user_id": old.BSUID,
			},
		}
		told = append(told, update{number: number, chat: p.ID, message: message})
	}
	s.mu.Unlock()
	s.tell(told...)
	return now, nil
}

func stamp(t time.Time) string { return fmt.Sprint(t.Unix()) }

// contact is what a webhook says of a person.
func contact(p Person) map[string]any {
	c := map[string]any{"user_id": p.BSUID}
	if p.Phone != "" && !p.Hidden {
		c["wa_id"] = p.Phone
	}
	profile := map[string]any{}
	if p.Name != "" {
		profile["name"] = p.Name
	}
	if p.Username != "" {
		profile["username"] = "@" + strings.TrimPrefix(p.Username, "@")
	}
	if len(profile) > 0 {
		c["profile"] = profile
	}
	return c
}
