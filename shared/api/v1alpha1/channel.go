package v1alpha1

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/theory/jsonpath"

	"tuluat.ai/harness/shared/harness"
)

func (c *check) channel(path string, channel Channel) {
	switch {
	case channel.typed(): // else it is not known whose fields the others are
		c.foreign(path, channel)
	case channel.Type == "":
		c.fail(path+".type", "is missing", channelTypes)
	default:
		c.fail(path+".type", fmt.Sprintf("is %q", channel.Type), channelTypes)
	}
	switch channel.Type {
	case harness.ChannelWhatsApp:
		c.whatsapp(path, channel)
	case harness.ChannelTelegram:
		c.telegram(path, channel)
	case harness.ChannelWebhook:
		c.webhook(path, channel)
	}
	if channel.Senders.Policy == harness.SendersPairing && channel.Type == harness.ChannelWebhook {
		c.fail(path+".senders.policy", "is pairing, which a webhook does not have: its secret pairs the sender", "use allowlist or open")
	}
	c.senders(path+".senders", channel.Senders)
	c.duration(path+".idleTTL", channel.IdleTTL, minIdleTTL, c.limits.IdleTTL.Truncate(time.Hour), "24h")
}

// typed reports whether c is of a type that an agent can have.
func (c Channel) typed() bool {
	return c.Type == harness.ChannelWebhook || c.Type == harness.ChannelWhatsApp || c.Type == harness.ChannelTelegram
}

const channelTypes = "use WHATSAPP, TELEGRAM or WEBHOOK"

// accountField is the field that names our side of the channel.
func (c Channel) accountField() string {
	switch c.Type {
	case harness.ChannelWhatsApp:
		return "phoneNumberId"
	case harness.ChannelTelegram:
		return "bot"
	}
	return "name"
}

// foreign complains of fields that belong to another type: whoever wrote them
// expects something of them.
func (c *check) foreign(path string, channel Channel) {
	for _, f := range []struct {
		name string
		set  bool
		of   []harness.Channel
	}{
		{"name", channel.Name != "", []harness.Channel{harness.ChannelWebhook}},
		{"secretRef", channel.SecretRef != nil, []harness.Channel{harness.ChannelWebhook}},
		{"callbackURL", channel.CallbackURL != "", []harness.Channel{harness.ChannelWebhook}},
		{"fields", channel.Fields != nil, []harness.Channel{harness.ChannelWebhook}},
		{"phoneNumberId", channel.PhoneNumberID != "", []harness.Channel{harness.ChannelWhatsApp}},
		{"phoneNumber", channel.PhoneNumber != "", []harness.Channel{harness.ChannelWhatsApp}},
		{"verifyTokenSecretRef", channel.VerifyToken != nil, []harness.Channel{harness.ChannelWhatsApp}},
		{"appSecretSecretRef", channel.AppSecret != nil, []harness.Channel{harness.ChannelWhatsApp}},
		{"accessTokenSecretRef", channel.AccessToken != nil, []harness.Channel{harness.ChannelWhatsApp}},
		{"template", channel.Template != nil, []harness.Channel{harness.ChannelWhatsApp}},
		{"bot", channel.Bot != "", []harness.Channel{harness.ChannelTelegram}},
		{"botTokenSecretRef", channel.BotToken != nil, []harness.Channel{harness.ChannelTelegram}},
		{"webhookSecretRef", channel.WebhookSecret != nil, []harness.Channel{harness.ChannelTelegram}},
		{"transport", channel.Transport != "", []harness.Channel{harness.ChannelTelegram}},
		{"groups", channel.Groups != "", []harness.Channel{harness.ChannelWhatsApp, harness.ChannelTelegram}},
	} {
		if f.set && !slices.Contains(f.of, channel.Type) {
			c.fail(path+"."+f.name, fmt.Sprintf("is of another type of channel than %s", channel.Type), "remove it, or change type")
		}
	}
}

func (c *check) webhook(path string, channel Channel) {
	c.name(path+".name", channel.Name, "of the hook: the last part of its path")
	c.secretRef(path+".secretRef", channel.SecretRef)
	if channel.CallbackURL != "" {
		c.url(path+".callbackURL", channel.CallbackURL, "https://example.com/replies")
	}
	if channel.Fields != nil {
		c.fields(path+".fields", *channel.Fields)
	}
}

var (
	phoneNumberID = regexp.MustCompile(`^[0-9]{5,32}$`)
	language      = regexp.MustCompile(`^[a-z]{2,3}(_[A-Z]{2})?$`)
	templateName  = regexp.MustCompile(`^[a-z0-9_]{1,512}$`)
	// Telegram: 5 to 32 characters, and a bot's ends in bot; names bought on
	// Fragment are shorter and need not.
	botName = regexp.MustCompile(`^@?[A-Za-z][A-Za-z0-9_]{2,31}$`)
)

func (c *check) whatsapp(path string, channel Channel) {
	switch {
	case channel.PhoneNumberID == "" && c.limits.PhoneNumberID != "":
	case channel.PhoneNumberID == "":
		c.fail(path+".phoneNumberId", "is missing", "use the Phone number ID of WhatsApp Manager, not the number itself")
	case channel.PhoneNumberID == dialled(channel.PhoneNumber):
		c.fail(path+".phoneNumberId", "is the phone number itself", "use the Phone number ID of WhatsApp Manager")
	case !phoneNumberID.MatchString(channel.PhoneNumberID):
		c.fail(path+".phoneNumberId", "is not an id of digits", "use the Phone number ID of WhatsApp Manager, in quotes")
	}
	if digits := dialled(channel.PhoneNumber); channel.PhoneNumber != "" && (len(digits) < 5 || len(digits) > 20 || len(channel.PhoneNumber) > 40) {
		c.fail(path+".phoneNumber", "is not a phone number", `write it like "+15550009999"`)
	}
	c.optionalRef(path+".verifyTokenSecretRef", channel.VerifyToken)
	c.optionalRef(path+".appSecretSecretRef", channel.AppSecret)
	c.optionalRef(path+".accessTokenSecretRef", channel.AccessToken)
	c.groups(path, channel)
	if t := channel.Template; t != nil {
		if !templateName.MatchString(t.Name) {
			c.fail(path+".template.name", fmt.Sprintf("is %q", t.Name), "use the name of an approved template: lower-case letters, digits and underscores")
		}
		if !language.MatchString(t.Language) {
			c.fail(path+".template.language", fmt.Sprintf("is %q", t.Language), "write it like en or en_US")
		}
	}
}

func (c *check) telegram(path string, channel Channel) {
	switch {
	case channel.Bot == "":
		c.fail(path+".bot", "is missing", "use the bot's username, as BotFather shows it")
	case !botName.MatchString(channel.Bot):
		c.fail(path+".bot", "is not a bot's username", "use letters, digits and underscores, as BotFather shows it")
	}
	c.optionalRef(path+".botTokenSecretRef", channel.BotToken)
	c.optionalRef(path+".webhookSecretRef", channel.WebhookSecret)
	c.groups(path, channel)
	if channel.Transport != "" && channel.Transport != harness.TransportWebhook && channel.Transport != harness.TransportPoll {
		c.fail(path+".transport", fmt.Sprintf("is %q", channel.Transport), "use webhook or poll")
	}
}

func (c *check) groups(path string, channel Channel) {
	switch channel.Groups {
	case "", harness.GroupsMention, harness.GroupsAll, harness.GroupsNone:
	default:
		c.fail(path+".groups", fmt.Sprintf("is %q", channel.Groups), "use mention, all or none")
	}
}

// optionalRef is a reference that the platform's own variable may stand in for.
func (c *check) optionalRef(path string, ref *SecretRef) {
	if ref != nil {
		c.secretRef(path, ref)
	}
}

func (c *check) secretRef(path string, ref *SecretRef) {
	c.key(path, ref.ref(), "Secret")
}

// key checks a reference to a key of an object of some kind.
func (c *check) key(path string, ref harness.SecretRef, kind string) {
	switch {
	case ref.Name == "":
		c.fail(path+".name", "is missing", "name the "+kind+" that holds it")
	case len(ref.Name) > 253 || !dnsName.MatchString(ref.Name):
		c.fail(path+".name", "is not the name of a "+kind, "use lower-case letters, digits, dashes and dots")
	}
	switch {
	case ref.Key == "":
		c.fail(path+".key", "is missing", "name the key in that "+kind)
	case !keyName.MatchString(ref.Key):
		c.fail(path+".key", "is not a key of a "+kind, "use letters, digits, dashes, dots and underscores")
	}
}

func (c *check) url(path string, text URL, like string) {
	u, err := url.Parse(string(text))
	switch {
	case len(text) > 2048 || err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		c.fail(path, "is not an absolute http or https URL", "write it like "+like)
	case u.User != nil:
		c.fail(path, "contains a user name or password", "remove it: what proves who calls belongs in a Secret")
	case strings.Contains(string(text), "#"):
		c.fail(path, "contains a fragment", "remove what follows #")
	}
}

func (c *check) fields(path string, f Fields) {
	for _, field := range []struct{ name, query string }{
		{"messageId", f.MessageID}, {"channelUserId", f.ChannelUserID}, {"chat", f.Chat}, {"text", f.Text}, {"metadata", f.Metadata},
	} {
		if field.query == "" {
			continue
		}
		const most = 1000
		if _, err := jsonpath.Parse(field.query[:min(most, len(field.query))]); err != nil || len(field.query) > most {
			c.fail(path+"."+field.name, "is not a JSONPath (RFC 9535)", "write it like $.message.text")
		}
	}
}

func (c *check) senders(path string, s Senders) {
	switch {
	case s.Policy != "" && s.Policy != harness.SendersOpen && s.Policy != harness.SendersAllowlist && s.Policy != harness.SendersPairing:
		c.fail(path+".policy", fmt.Sprintf("is %q", s.Policy), "use allowlist, pairing or open")
	case s.Policy == harness.SendersOpen && len(s.Allow) > 0:
		c.fail(path+".allow", "lists senders although the policy is open", "use policy allowlist, or remove the list")
	case s.Policy == "" && len(s.Allow) == 0:
		c.fail(path, "says nothing, so nobody could talk to the agent", "list channel user ids in allow, or set policy: open")
	case s.Policy == harness.SendersAllowlist && len(s.Allow) == 0:
		c.fail(path+".allow", "is empty, so nobody could talk to the agent", "list channel user ids, or set policy: open")
	}
	switch {
	case s.Policy == harness.SendersPairing:
		c.secretRef(path+".pairingCodeSecretRef", s.PairingCode)
	case s.PairingCode != nil:
		c.fail(path+".pairingCodeSecretRef", "is set although the policy is not pairing", "use policy pairing, or remove it")
	}
	if len(s.Allow) > c.limits.Senders {
		c.fail(path+".allow", fmt.Sprintf("lists %d senders", len(s.Allow)), fmt.Sprintf("list at most %d", c.limits.Senders))
	}
	for i, id := range s.Allow[:min(len(s.Allow), max(c.limits.Senders, 0))] {
		if id == "" || len(id) > 256 {
			c.fail(fmt.Sprintf("%s.allow[%d]", path, i), "is empty or over 256 bytes", "write a channel user id")
		}
	}
}
