package botapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// The limits on sending.
const (
	maxText     = 4096  // UTF-16 code units, after parsing
	maxSource   = 32768 // bytes
	maxCaption  = 1024
	maxData     = 64 // bytes of callback_data
	maxButtons  = 100
	maxNotice   = 200
	typingLasts = 5 * time.Second
	queryLasts  = 15 * time.Minute
)

// do calls a method.
func (s *Server) do(ctx context.Context, b *bot, c call) *result {
	switch c.method {
	case "getme":
		me := b.user()
		me["can_join_groups"], me["can_read_all_group_messages"], me["supports_inline_queries"], me["can_connect_to_business"] = true, b.ReadsAll, false, true
		return done(me)
	case "getupdates":
		return s.getUpdates(ctx, b, c)
	case "setwebhook":
		return s.setWebhook(b, c)
	case "deletewebhook":
		c.params["url"] = ""
		return s.setWebhook(b, c)
	case "getwebhookinfo":
		return s.webhookInfo(b)
	case "sendmessage", "sendphoto", "senddocument":
		return s.send(ctx, b, c)
	case "sendchataction":
		return s.action(b, c)
	case "answercallbackquery":
		return s.answerQuery(b, c)
	case "answerguestquery":
		return s.answerGuest(b, c)
	case "deletemessage":
		return s.takeBack(b, c)
	case "editmessagetext":
		return s.edit(b, c)
	case "setmessagereaction":
		return s.react(b, c)
	case "getfile":
		return s.getFile(b, c)
	}
	return fail(http.StatusNotFound, "Not Found: method not found")
}

// target is where a message goes.
type target struct {
	id       int64
	chat     map[string]any
	thread   int64
	direct   int64 // a topic of a channel's direct messages
	business string
}

func (t target) key() string { return strconv.FormatInt(t.id, 10) }

// text reads a text or caption with its format. It must fit most units.
func (c *call) text(name string, most int) (string, []Entity, *result) {
	source := c.params[name]
	if !utf8.ValidString(source) {
		return "", nil, bad("strings must be encoded in UTF-8")
	}
	what := "message"
	if name == "caption" {
		what = "message caption"
	}
	if len(source) > maxSource {
		return "", nil, bad("%s is too long", what)
	}
	shown, entities := trim(source, nil)
	switch mode := c.params["parse_mode"]; strings.ToLower(mode) {
	case "":
		entitiesName := strings.TrimPrefix(name+"_entities", "text_")
		if raw := c.params[entitiesName]; raw != "" {
			if err := json.Unmarshal([]byte(raw), &entities); err != nil {
				return "", nil, bad("can't parse entities JSON object")
			}
			for _, e := range entities {
				if e.Offset < 0 || e.Length <= 0 || e.Offset+e.Length > units(source) {
					return "", nil, bad("entity beyond the end of the text")
				}
			}
			shown, entities = trim(source, entities)
		}
	case "html":
		var err error
		if shown, entities, err = ParseHTML(source); err != nil {
			return "", nil, bad("can't parse entities: %v", err)
		}
	case "markdown", "markdownv2":
		return "", nil, bad("the fake parses HTML only")
	default:
		return "", nil, bad("unsupported parse_mode")
	}
	if units(shown) > most {
		return "", nil, bad("%s is too long", what)
	}
	return shown, entities, nil
}

func (s *Server) send(ctx context.Context, b *bot, c call) *result {
	s.counts.Add("sends")
	fault, _ := s.faults.Take("send", c.params["chat_id"])
	switch fault.Do {
	case "error":
		return faulty(fault)
	case "cutBefore":
		return &result{cut: true}
	case "stall": // what has come in is done, whether or not somebody still waits
		if !s.clock.Sleep(s.jobs.Context(), time.Duration(fault.Delay)) {
			return &result{cut: true}
		}
	}
	m, refused := s.take(b, c)
	if refused != nil {
		return refused
	}
	s.counts.Add("sent")
	switch fault.Do {
	case "cutAfter":
		return &result{cut: true}
	case "delay":
		s.clock.Sleep(ctx, time.Duration(fault.Delay))
	}
	return done(m)
}

// faulty is an error that a fault asks for.
func faulty(f person.Fault) *result {
	status := f.Status
	if status == 0 {
		status = f.Code
	}
	if status < 400 {
		status = http.StatusInternalServerError
	}
	r := fail(status, "%s", f.Text)
	switch {
	case status == http.StatusTooManyRequests:
		after := max(f.RetryAfter, 1)
		r.parameters = map[string]any{"retry_after": after}
		if f.Text == "" {
			r.description = fmt.Sprintf("Too Many Requests: retry after %d", after)
		}
	case f.Text == "":
		r.description = http.StatusText(status)
	}
	return r
}

// take checks a message and takes it.
func (s *Server) take(b *bot, c call) (map[string]any, *result) {
	field, most := "text", maxText
	if c.method != "sendmessage" {
		field, most = "caption", maxCaption
	}
	shown, entities, refused := c.text(field, most)
	if refused != nil {
		return nil, refused
	}
	if c.method == "sendmessage" && shown == "" {
		return nil, bad("message text is empty")
	}
	markup, choices, refused := c.markup()
	if refused != nil {
		return nil, refused
	}
	s.mu.Lock()
	t, refused := s.target(b, c)
	s.mu.Unlock()
	if refused != nil {
		return nil, refused
	}
	if s.options.OnSend != nil {
		s.options.OnSend(Sending{Bot: b.Username, Chat: t.id, Method: c.method, Text: shown})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	message := map[string]any{"from": b.user(), "chat": t.chat, "date": s.clock.Now().Unix()}
	line := person.Line{At: s.clock.Now(), Account: s.account(b.Username, t.id), Chat: t.key(), Kind: "text", Text: shown, Choices: choices, Ticks: person.Sent}
	line.Source = c.params[field]
	if line.Source == shown {
		line.Source = ""
	}
	if len(choices) > 0 {
		line.Kind = "choices"
	}
	if c.method != "sendmessage" {
		if refused := s.attach(b, c, message, &line); refused != nil {
			return nil, refused
		}
	}
	if refused := s.quote(b, c, t, message, &line); refused != nil {
		return nil, refused
	}
	if refused := s.flood(b, t); refused != nil {
		return nil, refused
	}
	if shown != "" {
		message[field] = shown
		if len(entities) > 0 {
			message[strings.TrimPrefix(field+"_entities", "text_")] = entities
		}
	}
	if markup != nil {
		message["reply_markup"] = markup
	}
	if t.thread != 0 {
		message["message_thread_id"], message["is_topic_message"] = t.thread, true
		line.Thread = strconv.FormatInt(t.thread, 10)
	}
	if t.direct != 0 {
		message["direct_messages_topic"] = map[string]any{"topic_id": t.direct}
		line.Thread = "direct " + strconv.FormatInt(t.direct, 10)
	}
	if t.business != "" {
		message["business_connection_id"] = t.business
	}
	s.last[t.id]++
	message["message_id"] = s.last[t.id]
	line.ID = strconv.FormatInt(s.last[t.id], 10)
	s.messages[t.key()+"/"+line.ID] = message
	s.lines.Add(line)
	return message, nil
}

// target finds the chat of a call and whether the bot may write there. s.mu is held.
func (s *Server) target(b *bot, c call) (target, *result) {
	id, ok := c.integer("chat_id")
	if c.params["chat_id"] == "" {
		return target{}, bad("chat_id is empty")
	}
	if !ok {
		return target{}, bad("chat not found")
	}
	thread, ok := c.integer("message_thread_id")
	if !ok {
		return target{}, bad("message thread not found")
	}
	t := target{id: id, business: c.params["business_connection_id"]}
	if t.business != "" {
		if link, ok := s.links[t.business]; !ok || link.Bot != b.Username {
			return t, bad("business connection not found")
		}
	}
	if p := s.people[id]; p != nil {
		t.chat = private(p)
		switch {
		case t.business != "": // the owner's chat
		case slices.Contains(p.Blocked, b.Username):
			return t, fail(http.StatusForbidden, "Forbidden: bot was blocked by the user")
		case !slices.Contains(p.Started, b.Username):
			return t, fail(http.StatusForbidden, "Forbidden: bot can't initiate conversation with a user")
		case thread != 0:
			return t, bad("message thread not found")
		}
		return t, nil
	}
	g := s.chats[id]
	switch {
	case g == nil:
		return t, bad("chat not found")
	case g.MovedTo != 0:
		r := bad("group chat was upgraded to a supergroup chat")
		r.parameters = map[string]any{"migrate_to_chat_id": g.MovedTo}
		return t, r
	case !slices.Contains(g.Bots, b.Username):
		return t, fail(http.StatusForbidden, "Forbidden: bot is not a member of the %s chat", g.Type)
	}
	t.chat = group(g)
	if direct, ok := c.integer("direct_messages_topic_id"); direct != 0 || !ok {
		if !g.Direct || !ok {
			return t, bad("direct messages topic not found")
		}
		t.direct = direct
	}
	if thread != 0 {
		if !g.Forum || !slices.ContainsFunc(g.Topics, func(topic Topic) bool { return topic.ID == thread && !topic.Closed }) {
			return t, bad("message thread not found")
		}
		t.thread = thread
	}
	return t, nil
}

// quote handles what a message answers. s.mu is held.
func (s *Server) quote(b *bot, c call, t target, message map[string]any, line *person.Line) *result {
	reply := struct {
		MessageID int64 `json:"message_id"`
		Lenient   bool  `json:"allow_sending_without_reply"`
	}{}
	if raw := c.params["reply_parameters"]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &reply); err != nil {
			return bad("can't parse reply parameters JSON object")
		}
	} else if id, ok := c.integer("reply_to_message_id"); ok {
		reply.MessageID, reply.Lenient = id, c.flag("allow_sending_without_reply")
	}
	if reply.MessageID == 0 {
		return nil
	}
	id := strconv.FormatInt(reply.MessageID, 10)
	quoted := s.messages[t.key()+"/"+id]
	if quoted == nil {
		if reply.Lenient {
			return nil
		}
		return bad("message to be replied not found")
	}
	message["reply_to_message"], line.ReplyTo = flat(quoted), id
	return nil
}

// flat is a message without what it answers itself.
func flat(message map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range message {
		if name != "reply_to_message" {
			out[name] = value
		}
	}
	return out
}

// flood is the limit on messages: 30 a second in all, one a second in a private
// chat with three at once, 20 a minute in a group. s.mu is held.
func (s *Server) flood(b *bot, t target) *result {
	if !s.limits {
		return nil
	}
	now := s.clock.Now()
	every, burst := time.Second, 3
	if t.id < 0 {
		every, burst = 3*time.Second, 20
	}
	type limit struct {
		key   string
		every time.Duration
		burst int
	}
	all := []limit{{b.Username, time.Second / 30, 30}, {b.Username + "|" + t.key(), every, burst}}
	var wait time.Duration
	for _, l := range all {
		if tat := s.tats[l.key]; tat.After(now) { // the zero time is too far away to be subtracted
			wait = max(wait, tat.Sub(now)-time.Duration(l.burst-1)*l.every)
		}
	}
	if wait > 0 {
		after := int(math.Ceil(wait.Seconds()))
		s.counts.Add("floods")
		return &result{status: http.StatusTooManyRequests, description: fmt.Sprintf("Too Many Requests: retry after %d", after), parameters: map[string]any{"retry_after": after}}
	}
	for _, l := range all {
		tat := s.tats[l.key]
		if tat.Before(now) {
			tat = now
		}
		s.tats[l.key] = tat.Add(l.every)
	}
	return nil
}

// markup reads reply_markup.
func (c *call) markup() (any, []person.Choice, *result) {
	raw := c.params["reply_markup"]
	if raw == "" {
		return nil, nil, nil
	}
	var m struct {
		Rows [][]struct {
			Text string  `json:"text"`
			Data *string `json:"callback_data"`
			URL  *string `json:"url"`
		} `json:"inline_keyboard"`
	}
	if err := json.Unmarshal([]byte(raw), &m); err != nil {
		return nil, nil, bad("can't parse reply keyboard markup JSON object")
	}
	var choices []person.Choice
	n := 0
	for _, row := range m.Rows {
		for _, button := range row {
			n++
			switch {
			case button.Text == "":
				return nil, nil, bad("BUTTON_TEXT_EMPTY")
			case button.Data == nil && button.URL == nil:
				return nil, nil, bad("can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard")
			case button.Data != nil && (len(*button.Data) < 1 || len(*button.Data) > maxData):
				return nil, nil, bad("BUTTON_DATA_INVALID")
			case button.Data != nil:
				choices = append(choices, person.Choice{ID: *button.Data, Title: button.Text})
			}
		}
	}
	switch {
	case n > maxButtons:
		return nil, nil, bad("reply markup is too long")
	case n == 0: // takes a keyboard away
		return nil, nil, nil
	}
	return json.RawMessage(raw), choices, nil
}
