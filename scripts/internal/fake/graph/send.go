package graph

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// The limits on sending.
const (
	pairEvery    = 6 * time.Second // one message to one person
	pairBurst    = 45              // borrowed from the future
	perSecond    = 80              // of one number
	windowOpen   = 24 * time.Hour  // after the person's last message
	typingLasts  = 25 * time.Second
	maxOpaque    = 512
	receiptsLast = 30 * 24 * time.Hour
)

// accepted is a message that was taken.
type accepted struct {
	number, chat, id string
	to               string // as the sender wrote it, normalised
	byBSUID          bool
	person           *Person // nil: nobody has this number
	reader           *Person // of a group: who reads
	group            string
	opaque           string
	unread           bool
	failing          int // fails later with this code
}

// request is the body of POST messages.
type request struct {
	Product       string                     `json:"messaging_product"`
	RecipientType string                     `json:"recipient_type"`
	To            string                     `json:"to"`
	Recipient     string                     `json:"recipient"`
	Type          string                     `json:"type"`
	Status        string                     `json:"status"`
	MessageID     string                     `json:"message_id"`
	Typing        *struct{ Type string }     `json:"typing_indicator"`
	Opaque        string                     `json:"biz_opaque_callback_data"`
	Fields        map[string]json.RawMessage `json:"-"`
}

func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	n, refused := s.number(r, r.PathValue("id"))
	body, torn := readBody(r)
	if refused == nil {
		refused = torn
	}
	var ask request
	if refused == nil {
		ask, refused = parse(body)
	}
	if refused != nil {
		s.refuse(w, r, n, body, refused)
		return
	}
	if ask.Status != "" {
		s.receipt(w, r, n, body, ask)
		return
	}
	s.counts.Add("sends")
	fault, _ := s.faults.Take("send", s.destination(ask))
	switch fault.Do {
	case "error":
		s.refuse(w, r, n, body, coded(fault))
		return
	case "cutBefore":
		s.cut(r, n, body)
	case "stall": // what has come in is done, whether or not somebody still waits
		if !s.clock.Sleep(s.jobs.Context(), time.Duration(fault.Delay)) {
			s.cut(r, n, body)
		}
	}
	m, line, contact, refused := s.take(n, ask)
	if refused != nil {
		s.refuse(w, r, n, body, refused)
		return
	}
	s.counts.Add("sent")
	s.lines.Add(line)
	s.report(m)
	switch fault.Do {
	case "cutAfter":
		s.cut(r, n, body)
	case "delay":
		s.clock.Sleep(r.Context(), time.Duration(fault.Delay))
	}
	message := map[string]any{"id": m.id}
	if ask.Type == "template" {
		message["message_status"] = "accepted"
	}
	s.answer(w, r, n, body, map[string]any{"messaging_product": "whatsapp", "contacts": []any{contact}, "messages": []any{message}})
}

// cut ends the connection without an answer.
func (s *Server) cut(r *http.Request, n Number, body []byte) {
	s.counts.Add("cut")
	s.remember(r, n, body, 0, nil)
	panic(http.ErrAbortHandler)
}

// parse reads what every call has.
func parse(body []byte) (request, *apiError) {
	var ask request
	if err := json.Unmarshal(body, &ask.Fields); err != nil {
		return ask, &apiError{Status: http.StatusBadRequest, Code: 100, Type: oauth, Message: "(#100) The parameter messaging_product is required."}
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		return ask, parameter("a parameter has the wrong type")
	}
	if ask.Product != "whatsapp" {
		return ask, &apiError{Status: http.StatusBadRequest, Code: 100, Type: oauth, Message: "(#100) The parameter messaging_product is required."}
	}
	return ask, nil
}

// destination is the chat that a call is about, as far as that can be said.
func (s *Server) destination(ask request) string {
	if ask.To == "" {
		ask.To = ask.Recipient
	}
	return s.key(ask.To)
}

// receipt marks as read, and shows that somebody types.
func (s *Server) receipt(w http.ResponseWriter, r *http.Request, n Number, body []byte, ask request) {
	s.mu.Lock()
	at, known := s.inbound[ask.MessageID]
	s.mu.Unlock()
	line, found := s.lines.Find(at.number, at.chat, ask.MessageID)
	switch {
	case ask.Status != "read":
		s.refuse(w, r, n, body, value("status must be read"))
		return
	case !known || at.number != n.PhoneNumberID:
		s.refuse(w, r, n, body, value("message_id is not of a message that this number has received"))
		return
	case isGroup(at.chat):
		s.refuse(w, r, n, body, parameter("messages of groups cannot be marked as read"))
		return
	case found && s.clock.Now().Sub(line.At) > receiptsLast:
		s.refuse(w, r, n, body, value("message_id is older than 30 days"))
		return
	case ask.Typing != nil && ask.Typing.Type != "text":
		s.refuse(w, r, n, body, parameter("typing_indicator.type must be text"))
		return
	}
	s.counts.Add("receipts")
	lines, _ := s.lines.Lines(at.number, at.chat, 0)
	for _, l := range lines {
		if l.From != "" && l.Seq <= line.Seq && l.Ticks != person.Read {
			s.lines.Tick(at.number, at.chat, l.ID, person.Read, "")
		}
	}
	if ask.Typing != nil {
		s.counts.Add("typing")
		s.lines.Typing(at.number, at.chat, s.clock.Now().Add(typingLasts))
	}
	s.answer(w, r, n, body, map[string]any{"success": true})
}

func isGroup(chat string) bool { return len(chat) > 6 && chat[:6] == "group:" }

// take checks a message and takes it.
func (s *Server) take(n Number, ask request) (accepted, person.Line, map[string]any, *apiError) {
	m := accepted{number: n.PhoneNumberID, opaque: ask.Opaque}
	line := person.Line{Account: n.PhoneNumberID, Opaque: ask.Opaque}
	if len(ask.Opaque) > maxOpaque {
		return m, line, nil, parameter("biz_opaque_callback_data has more than %d characters", maxOpaque)
	}
	contact, refused := s.address(&m, ask)
	if refused == nil {
		refused = s.check(n, ask, &m, &line)
	}
	if refused != nil {
		return m, line, nil, refused
	}
	if refused := s.permit(n, m, ask.Type == "template"); refused != nil {
		return m, line, nil, refused
	}
	if s.options.OnSend != nil {
		s.options.OnSend(Sending{Number: n.PhoneNumberID, Chat: m.chat, Type: ask.Type, Text: line.Text, Opaque: ask.Opaque})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.id = s.wamid(n.DisplayPhone)
	line.At, line.Chat, line.ID = s.clock.Now(), m.chat, m.id
	return m, line, contact, nil
}

// address finds whom a message is for.
func (s *Server) address(m *accepted, ask request) (map[string]any, *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch ask.RecipientType {
	case "group":
		g := s.groups[ask.To]
		if g == nil {
			return nil, value("to is not a group of this number")
		}
		m.group, m.to, m.chat = g.ID, g.ID, groupKey(g.ID)
		for _, id := range g.People {
			if p := s.find(id); p != nil && m.reader == nil {
				reader := *p
				m.reader = &reader
			}
		}
		return map[string]any{"input": g.ID, "wa_id": g.ID}, nil
	case "", "individual":
	default:
		return nil, parameter("recipient_type must be individual or group")
	}
	if ask.To != "" { // to wins over recipient
		m.to = digits(ask.To)
		if bsuid.MatchString(ask.To) || len(m.to) < 7 || len(m.to) > 15 {
			return nil, value("to is not a phone number; a business-scoped user id goes into recipient")
		}
		m.chat = m.to
	} else {
		if ask.Recipient == "" {
			return nil, &apiError{Status: http.StatusBadRequest, Code: 100, Type: oauth, Message: "(#100) The parameter to is required."}
		}
		if !bsuid.MatchString(ask.Recipient) {
			return nil, value("recipient is not a business-scoped user id")
		}
		m.to, m.byBSUID, m.chat = ask.Recipient, true, ask.Recipient
	}
	if p := s.find(m.to); p != nil {
		found := *p
		m.person, m.chat, m.unread = &found, p.ID, p.Unread
	}
	if m.byBSUID {
		return map[string]any{"input": ask.Recipient, "user_id": ask.Recipient}, nil
	}
	return map[string]any{"input": ask.To, "wa_id": m.to}, nil
}

// permit asks the window and the limits.
func (s *Server) permit(n Number, m accepted, template bool) *apiError {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, at := s.clock.Now(), pair{n.PhoneNumberID, m.chat}
	refuse := func(status, code int, details string) *apiError {
		return &apiError{Status: status, Code: code, Type: oauth, Message: "(#" + itoa(code) + ") " + title(code), Details: details}
	}
	if last := s.windows[at]; !template && (last.IsZero() || now.Sub(last) >= windowOpen) {
		return refuse(http.StatusBadRequest, 131047, "Message failed to send because more than 24 hours have passed since the customer last replied to this number.")
	}
	if !s.limits {
		return nil
	}
	recent := slices.DeleteFunc(s.sent[n.PhoneNumberID], func(t time.Time) bool { return now.Sub(t) >= time.Second })
	s.sent[n.PhoneNumberID] = recent
	if len(recent) >= perSecond {
		return refuse(http.StatusTooManyRequests, 130429, "Cloud API message throughput has been reached.")
	}
	tat := s.tats[at]
	if tat.Before(now) {
		tat = now
	}
	if tat.Sub(now) > (pairBurst-1)*pairEvery {
		return refuse(http.StatusBadRequest, 131056, "Too many messages sent from the sender phone number to the same recipient phone number in a short period of time.")
	}
	s.tats[at] = tat.Add(pairEvery)
	s.sent[n.PhoneNumberID] = append(recent, now)
	return nil
}
