package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
	"tuluat.ai/harness/scripts/tuluat/internal/devstate"
	"tuluat.ai/harness/scripts/tuluat/internal/hook"
	"tuluat.ai/harness/scripts/tuluat/internal/phone"
	"tuluat.ai/harness/scripts/tuluat/internal/probe"
	"tuluat.ai/harness/scripts/tuluat/internal/sse"
	"tuluat.ai/harness/scripts/tuluat/internal/telegram"
	"tuluat.ai/harness/shared/harness"
)

const (
	isTaken   = "a signed request is taken"
	isRefused = "a forged request is refused"
	isKnown   = "the provider accepts the credential"
	comesHere = "updates are sent here"
	isOpened  = "the handshake succeeds"
	answers   = "a message is answered"
)

// routeFix is what to do when an account's requests are not taken.
func routeFix(status int, err error, secretName string) string {
	switch {
	case err != nil:
		return "the function did not answer: look into the system's log, then try again"
	case status == http.StatusNotFound:
		return "nothing serves this path: is the function deployed, and does its YAML carry the annotation tuluat.ai/public-path?"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "the " + secretName + " here and the one the function reads differ, or no agent that is READY has this account: see the agent's status"
	case status >= http.StatusInternalServerError:
		return "the function cannot reach its database or its secrets: see its log"
	}
	return "see the function's log"
}

// webhook looks at a signed hook, by reading a chat that nobody has.
func (d *doctor) webhook(ctx context.Context, agent string) {
	name, secret, err := d.state.Hook(agent, "", d.sys.Getenv)
	if err != nil {
		d.add(isTaken, err, "put the hook's secret into the file that dev.json names, or set TULUAT_WEBHOOK_SECRET")
		return
	}
	read := func(secret harness.Secret) (int, error) {
		client, err := hook.New(d.state.URL, name, secret, time.Now)
		if err != nil {
			return 0, err
		}
		err = client.Stream(ctx, "doctor", "", false, nil, func(sse.Event) error { return nil })
		if p, ok := errors.AsType[*hook.Problem](err); ok {
			return p.Status, nil
		}
		return http.StatusOK, err
	}
	status, err := read(secret)
	d.add(isTaken, expect(status, err, http.StatusOK), routeFix(status, err, "secret"))
	status, err = read(probe.Forged())
	d.add(isRefused, expect(status, err, http.StatusUnauthorized), "this is a fault of webhook-ingest: do not expose it")
}

func (d *doctor) whatsApp(ctx context.Context, c devstate.Channel) {
	if secret, ok := d.secret(isTaken, c, devstate.AppSecret, "WHATSAPP_APP_SECRET"); ok {
		status, err := d.probe.WhatsApp(ctx, d.state.URL, secret)
		d.add(isTaken, expect(status, err, http.StatusOK), routeFix(status, err, "app secret"))
	}
	status, err := d.probe.WhatsApp(ctx, d.state.URL, probe.Forged())
	d.add(isRefused, expect(status, err, http.StatusUnauthorized, http.StatusForbidden), "this is a fault of whatsapp-ingest: do not expose it")
	if token, ok := d.secret(isOpened, c, devstate.VerifyToken, "WHATSAPP_VERIFY_TOKEN"); ok {
		status, err := d.probe.Handshake(ctx, d.state.URL, token)
		d.add(isOpened, expect(status, err, http.StatusOK), routeFix(status, err, "verify token"))
	}
	token, ok := d.secret(isKnown, c, devstate.AccessToken, "WHATSAPP_ACCESS_TOKEN")
	if !ok {
		return
	}
	number, err := d.probe.Graph(ctx, d.whatsAppAPI, d.whatsAppVersion, c.Account, token)
	if err == nil && number.ID != c.Account {
		err = fmt.Errorf("the provider knows the number as %q", number.ID)
	}
	if d.add(isKnown, err, graphFix(err, c.Account, d.whatsAppAPI)) && number.Webhook.Number != "" {
		want := d.public + probe.WhatsAppPath
		var problem error
		if number.Webhook.Number != want {
			problem = fmt.Errorf("they are sent to %s", number.Webhook.Number)
		}
		d.add(comesHere, problem, "set the callback URL of the app, or of this number, to "+want+"; if that is another name of the same place, give it as --public-url")
	}
}

func graphFix(err error, number, api string) string {
	refused, ok := errors.AsType[*probe.GraphError](err)
	switch {
	case !ok:
		return "is " + api + " reachable from here? give --whatsapp-api for another one"
	case refused.Code == 190:
		return "make a new access token (a permanent one, of a system user) and put it into the secret"
	case refused.Code == 100:
		return "is " + number + " the phone number's id, not the number itself, and has the token's user a role in its business account?"
	case refused.Code == 10, refused.Code >= 200 && refused.Code < 300:
		return "give the token the permissions whatsapp_business_messaging and whatsapp_business_management"
	}
	return "see the provider's status page, then try again"
}

func (d *doctor) telegram(ctx context.Context, c devstate.Channel) {
	polls := c.Transport == harness.TransportPoll
	if !polls {
		if secret, ok := d.secret(isTaken, c, devstate.WebhookSecret, "TELEGRAM_WEBHOOK_SECRET"); ok {
			status, err := d.probe.Telegram(ctx, d.state.URL, c.Account, secret)
			d.add(isTaken, expect(status, err, http.StatusOK), routeFix(status, err, "webhook secret"))
		}
		status, err := d.probe.Telegram(ctx, d.state.URL, c.Account, probe.Forged())
		d.add(isRefused, expect(status, err, http.StatusUnauthorized, http.StatusForbidden), "this is a fault of telegram-ingest: do not expose it")
	}
	token, ok := d.secret(isKnown, c, devstate.BotToken, "TELEGRAM_BOT_TOKEN")
	if !ok {
		return
	}
	client, err := telegram.New(d.telegramAPI, token)
	me := ""
	if err == nil {
		me, err = client.Me(ctx)
	}
	if err == nil && !strings.EqualFold(me, c.Account) {
		err = fmt.Errorf("the token is of bot %s", me)
	}
	fix := "is " + d.telegramAPI + " reachable from here? give --telegram-api for another one"
	if refused, ok := errors.AsType[*telegram.Refusal](err); ok || me != "" {
		fix = "put the token that @BotFather shows for " + c.Account + " into the secret"
		if ok && refused.Code == http.StatusTooManyRequests {
			fix = "wait, then try again"
		}
	}
	if !d.add(isKnown, err, fix) {
		return
	}
	info, err := client.Webhook(ctx)
	want := d.public + telegram.Path(c.Account)
	fix = fmt.Sprintf("tuluat telegram set-webhook %s --url %s", c.Account, d.public)
	switch {
	case err != nil:
	case polls && info.URL != "":
		err, fix = fmt.Errorf("a webhook is set, so nothing can be polled"), "tuluat telegram delete-webhook "+c.Account
	case polls:
	case info.URL == "":
		err = errors.New("no webhook is set")
	case info.URL != want:
		err = fmt.Errorf("they are sent to %s", info.URL)
		fix += "; if that is another name of the same place, give it as --public-url"
	case info.LastError != "" && info.Pending > 0:
		err = fmt.Errorf("%d wait, the last try failed: %s", info.Pending, info.LastError)
		fix = "see the log of telegram-ingest; they are tried again by themselves"
	}
	d.add(comesHere, err, fix)
}

// converse says one thing over a fake and waits for an answer.
func (d *doctor) converse(ctx context.Context, c devstate.Channel) {
	as := somePhone
	if c.Type == harness.ChannelTelegram {
		as = someUser
	}
	fix := "see the log of the ingest function and of agent-step; `tuluat chat " + string(d.now.Agent) + " --via " + strings.ToLower(string(c.Type)) + " -v` shows the ticks; or " + unheard(c, as)
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("no answer within %s", d.timeout))
	defer cancel()
	p, err := phone.Pick(ctx, d.state.Fakes.Of(c.Type), c.Type, c.Account, as, "Doctor")
	if err != nil {
		d.add(answers, err, "is the stand-in running? `make dev` starts it")
		return
	}
	at, err := p.Say(ctx, "Hello, this is a test of the channel.")
	for said := at; err == nil; {
		var page phone.Page
		if page, err = p.Read(ctx, at, 10*time.Second); err != nil {
			break
		}
		at = page.Next
		for _, l := range page.Lines {
			if l.From == "" && l.Seq > said && l.Ticks != person.Failed {
				d.add(answers, nil, "")
				return
			}
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	d.add(answers, err, fix)
}
