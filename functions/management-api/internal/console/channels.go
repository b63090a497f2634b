package console

import (
	"net/http"
	"strings"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

type channelsBody struct {
	list[view.ChannelAccount]

	First string
}

func (p *page) channels() error {
	var b channelsBody
	if err := p.get("/channels", pick(p.r.URL.Query(), "after", "limit"), &b.list); err != nil {
		return err
	}
	b.First, b.Next = p.around(b.Next)
	return p.show("channels", "Channels", b)
}

// setUp is how one channel is set up: what to paste where, and what of it is there.
type setUp struct {
	Channel  harness.Channel
	Title    string
	URL      string // to paste at the provider
	Host     bool   // URL has only a path: nobody has said where web hooks come in
	Secrets  []neededSecret
	Accounts []view.ChannelAccount
	Steps    []string
	Command  string // that makes the Secret
}

// neededSecret is a key that the channel's function reads.
type neededSecret struct{ Field, Key, What string }

// guides is what providers ask for.
var guides = map[string]setUp{
	"whatsapp": {
		Channel: harness.ChannelWhatsApp, Title: "WhatsApp", URL: "/api/v1/channels/whatsapp/webhook",
		Secrets: []neededSecret{
			{"verifyTokenSecretRef", "verify-token", "a text of your own, which you also paste beside the URL: Meta sends it when you save"},
			{"appSecretSecretRef", "app-secret", "App settings, Basic: it signs what Meta sends"},
			{"accessTokenSecretRef", "access-token", "of a system user with whatsapp_business_messaging: replies are sent by it"},
		},
		Steps: []string{
			"Make the Secret below; its label lets the agent use it.",
			"In the agent, put a channel of type WHATSAPP into harness.channels: the phone number id, and the three references.",
			"At Meta, under WhatsApp, Configuration, Webhook: paste the URL and the verify token, save, and subscribe to messages.",
			"Write to the number: the line of this account says when something last came in.",
		},
	},
	"telegram": {
		Channel: harness.ChannelTelegram, Title: "Telegram", URL: "/api/v1/channels/telegram/webhook/BOT",
		Secrets: []neededSecret{
			{"botTokenSecretRef", "bot-token", "as @BotFather gave it"},
			{"webhookSecretRef", "webhook-secret", "a text of your own, of letters, digits, _ and -: Telegram sends it with each update"},
		},
		Steps: []string{
			"Ask @BotFather for a bot, and make the Secret below.",
			"In the agent, put a channel of type TELEGRAM into harness.channels: the bot's name, and the two references.",
			"The system registers the URL with Telegram by itself; without a way in, use the poller (config/overlays/telegram-poll).",
			"Write to the bot: the line of this account says when something last came in.",
		},
	},
	"webhook": {
		Channel: harness.ChannelWebhook, Title: "Web hook", URL: "/api/v1/channels/webhook/NAME",
		Secrets: []neededSecret{
			{"webhookSecretRef", "signing-secret", "a random text: it signs what comes in and what goes out"},
		},
		Steps: []string{
			"Make the Secret below.",
			"In the agent, put a channel of type WEBHOOK into harness.channels: a name, the reference, and how to read the JSON.",
			"Let the other system POST to the URL with the NAME of the channel, signed.",
			"Send something: the line of this account says when something last came in.",
		},
	},
}

func (p *page) setUpChannel() error {
	guide, ok := guides[p.r.PathValue("channel")]
	if !ok {
		return &refused{Problem: view.Problem{Status: http.StatusNotFound, Detail: "there is no guide to such a channel: there are whatsapp, telegram and webhook"}}
	}
	var all list[view.ChannelAccount]
	if err := p.get("/channels", nil, &all); err != nil {
		return err
	}
	for _, a := range all.Items {
		if a.Channel == guide.Channel {
			guide.Accounts = append(guide.Accounts, a)
		}
	}
	if guide.Host = p.Hooks == ""; !guide.Host {
		guide.URL = p.Hooks + guide.URL
	}
	command := []string{"kubectl -n tuluat-agents create secret generic NAME"}
	for _, s := range guide.Secrets {
		command = append(command, "  --from-file="+s.Key+"=FILE")
	}
	guide.Command = strings.Join(command, " \\\n") + "\nkubectl -n tuluat-agents label secret NAME tuluat.ai/agent-access=AGENT"
	return p.show("setup", "Set up "+guide.Title, guide)
}
