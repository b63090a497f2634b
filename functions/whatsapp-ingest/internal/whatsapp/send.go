package whatsapp

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/channel/markup"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The provider's limits, in characters. They are counted here in UTF-16 units,
// of which a text never has fewer than characters.
const (
	maxBody        = 4096 // of a text and of a list
	maxButtonBody  = 1024
	maxCaption     = 1024
	maxParameter   = 1000 // of a template's; the template's own words come on top
	maxButtons     = 3
	maxButtonTitle = 20
	maxButtonID    = 256
	maxRows        = 10
	maxRowTitle    = 24
	maxRowText     = 72
	maxRowID       = 200
)

const chooseLabel = "Choose"

// Split cuts a text into parts that have at most 4096 characters once they are
// formatted.
func (g *Graph) Split(text string) []string {
	if blank(text) {
		return nil
	}
	return slices.DeleteFunc(markup.Split(text, fitsBody), blank)
}

func fitsBody(part string) bool { return fits(markup.WhatsApp(part), maxBody) }

func fits(s string, limit int) bool { return markup.UTF16Len(s) <= limit }

// Send sends one part. A file is uploaded before begin: that sends nothing to
// anybody, and is done again with every attempt.
func (g *Graph) Send(ctx context.Context, account *channel.Account, c *postgres.ReplyClaim, begin func(context.Context) error) (postgres.ReplyOutcome, error) {
	if account.Key(channel.RoleAccessToken) == "" {
		g.Log.ErrorContext(ctx, "a number has no access token: its replies wait", "account", account.Name, "agent", string(account.Agent), "do", "set accessTokenSecretRef of the channel")
		return postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "the number has no access token: set accessTokenSecretRef of the channel", Retry: configTime}, nil
	}
	message := addressed(c)
	asTemplate := c.Format == harness.FormatTemplate || !c.WindowOpen
	var stop *postgres.ReplyOutcome
	switch {
	case asTemplate && (account.Spec.Template == nil || c.Kind == harness.ReplyFile):
		o := windowClosed(account, c)
		stop = &o
	case asTemplate:
		stop = fillTemplate(&message, account.Spec.Template, c)
	case c.Kind == harness.ReplyFile:
		stop = g.attach(ctx, &message, account, c)
	case c.Kind.Tappable() && len(c.Choices) > 0 && message.RecipientType != recipientGroup: // groups have no interactive messages
		stop = fillChoices(&message, c)
	default:
		stop = fillText(&message, withChoices(c))
	}
	if stop != nil {
		return *stop, nil
	}
	if err := begin(ctx); err != nil {
		return postgres.ReplyOutcome{}, err
	}
	return g.outcome(account, c, g.postJSON(ctx, account, message)), nil
}

// Settle is asked about parts whose sender ended in the middle of a send.
func (g *Graph) Settle(context.Context, *channel.Account, *postgres.ReplyClaim) postgres.ReplyOutcome {
	return unknown("sending was interrupted and no status has come: the message may have been sent")
}

const (
	recipientGroup      = "group"
	recipientIndividual = "individual"
)

var bsuid = regexp.MustCompile(`^[A-Z]{2}\.`)

// addressed begins a message to where the claim's replies go. A BSUID must be in
// recipient: in to it is refused. In a group the first part quotes what it
// answers, because others may have spoken since; in private a quote says nothing
// that the order does not.
func addressed(c *postgres.ReplyClaim) outgoing {
	m := outgoing{RecipientType: recipientIndividual, Opaque: string(c.ID)}
	address := c.Address
	if address == "" {
		address = c.Session.Chat
	}
	group, isGroup := strings.CutPrefix(address, groupPrefix)
	switch {
	case isGroup:
		m.RecipientType, m.To = recipientGroup, group
		if c.InReplyTo != "" && c.Part <= 1 {
			m.Context = &quoted{MessageID: c.InReplyTo}
		}
	case bsuid.MatchString(address):
		m.Recipient = address
	default:
		m.To = address
	}
	if c.Kind == harness.ReplyDecision && c.Card != nil { // several may be asked alike: this one is answered
		m.Context = &quoted{MessageID: c.Card.ProviderID}
	}
	return m
}

func failed(reason string) *postgres.ReplyOutcome {
	return &postgres.ReplyOutcome{State: harness.ReplyFailed, Reason: reason}
}

// body is the claim's text as it is sent.
func body(c *postgres.ReplyClaim, text string) string {
	if c.Format == harness.FormatPlain {
		return markup.Plain(text)
	}
	formatted := markup.WhatsApp(text)
	if !fits(formatted, maxBody) && fits(text, maxBody) {
		return markup.Plain(text)
	}
	return formatted
}

func fillText(m *outgoing, c *postgres.ReplyClaim) *postgres.ReplyOutcome {
	text := body(c, c.Text)
	switch {
	case blank(text):
		return failed("there is nothing to send")
	case !fits(text, maxBody):
		return failed("the text has more than 4096 characters")
	}
	m.Type, m.Text = "text", &outText{Body: text}
	return nil
}

// fillChoices makes buttons of up to three short choices, a list of up to ten,
// and a numbered text of more or longer ones: nothing is cut that a person must
// read to choose.
func fillChoices(m *outgoing, c *postgres.ReplyClaim) *postgres.ReplyOutcome {
	rows := make([]row, len(c.Choices))
	for i, choice := range c.Choices {
		rows[i] = row{ID: choice.ID, Title: line(choice.Title, maxID), Description: line(choice.Description, maxID)}
	}
	text := body(c, c.Text)
	switch {
	case blank(text), len(rows) == 0, !distinct(rows), !fits(text, maxBody):
		return fillText(m, withChoices(c))
	case fits(text, maxButtonBody) && len(rows) <= maxButtons && each(rows, maxButtonTitle, 0, maxButtonID):
		i := &interactive{Type: "button", Body: outBody{text}}
		for _, r := range rows {
			i.Action.Buttons = append(i.Action.Buttons, button{Type: "reply", Reply: r})
		}
		m.Type, m.Interactive = "interactive", i
	case len(rows) <= maxRows && each(rows, maxRowTitle, maxRowText, maxRowID):
		m.Type, m.Interactive = "interactive", &interactive{Type: "list", Body: outBody{text}, Action: action{Button: chooseLabel, Sections: []section{{Rows: rows}}}}
	default:
		return fillText(m, withChoices(c))
	}
	return nil
}

// distinct reports whether every row has an id and a title of its own, which the
// provider requires.
func distinct(rows []row) bool {
	ids, titles := map[string]bool{}, map[string]bool{}
	for _, r := range rows {
		if r.ID == "" || blank(r.Title) || ids[r.ID] || titles[r.Title] {
			return false
		}
		ids[r.ID], titles[r.Title] = true, true
	}
	return true
}

func each(rows []row, title, description, id int) bool {
	return !slices.ContainsFunc(rows, func(r row) bool {
		return !fits(r.Title, title) || !fits(r.Description, description) || len(r.ID) > id
	})
}

// withChoices writes the choices of a claim below its text, with numbers to
// answer by; without their descriptions where there is no room.
func withChoices(c *postgres.ReplyClaim) *postgres.ReplyClaim {
	if c.Kind != harness.ReplyChoices || len(c.Choices) == 0 {
		return c
	}
	numbered := *c
	for _, described := range []bool{true, false} {
		lines := []string{}
		for i, choice := range c.Choices {
			title := choice.Title
			if blank(title) {
				title = choice.ID
			}
			text := fmt.Sprintf("%d. %s", i+1, line(title, maxID))
			if described && !blank(choice.Description) {
				text += " – " + line(choice.Description, maxID)
			}
			lines = append(lines, text)
		}
		numbered.Text = strings.TrimSpace(c.Text + "\n\n" + strings.Join(lines, "\n"))
		if fitsBody(numbered.Text) {
			break
		}
	}
	return &numbered
}

// fillTemplate puts the text into the one parameter of the account's template,
// which may not have line breaks, tabs or runs of blanks.
func fillTemplate(m *outgoing, t *harness.ChannelTemplate, c *postgres.ReplyClaim) *postgres.ReplyOutcome {
	text := strings.Join(strings.Fields(markup.Plain(withChoices(c).Text)), " ")
	if c.Kind == harness.ReplyCard && len(c.Choices) > 0 { // nobody decides by what is cut, or is shown on one line
		title, _, _ := strings.Cut(c.Text, "\n")
		text = strings.Join(strings.Fields(title), " ") + " Write: show " + c.Code + ", to see it and to decide."
	}
	if blank(text) {
		return failed("there is nothing to send")
	}
	if !fits(text, maxParameter) {
		runes := []rune(text)
		runes = runes[:min(len(runes), maxParameter-1)]
		for !fits(string(runes), maxParameter-1) {
			runes = runes[:len(runes)-1]
		}
		text = string(runes) + "…"
	}
	m.Type, m.Template = "template", &outTemplate{
		Name: t.Name, Language: language{t.Language},
		Components: []component{{Type: "body", Parameters: []parameter{{Type: "text", Text: text}}}},
	}
	m.Context = nil
	return nil
}
