//go:build system

package system_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

// asker is an agent that asks one person on each messenger and two users of the
// API before it runs a command.
type asker struct {
	name, number, bot, token string
	phone                    string // of the approver on WhatsApp
	user                     int64  // the approver on Telegram
	hook                     agent  // one more way to it, on which it asks a person too; none without a name
}

func newAskers(n int) []asker {
	var all []asker
	for i := range n {
		all = append(all, asker{
			name: fmt.Sprintf("ask-%02d", i), number: fmt.Sprintf("1000000000002%02d", i), bot: fmt.Sprintf("ask_%02d_bot", i),
			token: fmt.Sprintf("7100000%02d:token-of-a-bot-that-asks", i), phone: fmt.Sprintf("15554000%03d", i), user: 6000 + int64(i),
		})
	}
	return all
}

const askerYAML = `apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: %[1]s
  annotations:
    tuluat.ai/allow-open-code: "true"
spec:
  description: Does what the test says, once a human has said yes.
  systemPrompt: You run commands.
  harness:
    type: BOTH
    sandbox:
      cpu: "1"
      memory: 64Mi
      volumeSize: 8Mi
      timeoutSeconds: 30
      ttlSeconds: 600
      idleSeconds: 20
      egress: none
    maxSandboxes: 2
    channels:
      - type: WHATSAPP
        phoneNumberId: "%[2]s"
        phoneNumber: "+15550009999"
        verifyTokenSecretRef: {name: %[1]s-whatsapp, key: verify-token}
        appSecretSecretRef: {name: %[1]s-whatsapp, key: app-secret}
        accessTokenSecretRef: {name: %[1]s-whatsapp, key: access-token}
        senders:
          policy: open
      - type: TELEGRAM
        bot: %[3]s
        botTokenSecretRef: {name: %[1]s-telegram, key: bot-token}
        webhookSecretRef: {name: %[1]s-telegram, key: webhook-secret}
        senders:
          policy: open
%[6]s  approvals:
    timeout: 2h
    approvers:
      - user: ann
      - user: bob
      - channel: WHATSAPP
        channelUserId: "%[4]s"
      - channel: TELEGRAM
        channelUserId: "%[5]d"
`

// hookYAML is a channel that the list of askerYAML goes on with.
const hookYAML = `      - type: WEBHOOK
        name: %[1]s
        secretRef: {name: %[1]s-hook, key: secret}
        callbackURL: %[2]s/%[1]s
        senders:
          policy: open
`

// hookPerson is who is asked on the hook of an asker.
const hookPerson = "hana"

// yaml is the agent, whose hook answers below callback.
func (a asker) yaml(callback string) string {
	hook, approver := "", ""
	if a.hook.name != "" {
		hook = fmt.Sprintf(hookYAML, a.name, callback)
		approver = "      - channel: WEBHOOK\n        channelUserId: " + hookPerson + "\n"
	}
	return fmt.Sprintf(askerYAML, a.name, a.number, a.bot, a.phone, a.user, hook) + approver
}

// secrets sets the variables that stand for the agent's Secrets.
func (a asker) secrets(env map[string]string) {
	of := strings.ToUpper(strings.ReplaceAll(a.name, "-", "_"))
	env[of+"_WHATSAPP_APP_SECRET"], env[of+"_WHATSAPP_ACCESS_TOKEN"], env[of+"_WHATSAPP_VERIFY_TOKEN"] = appSecret, accessToken, verifyToken
	env[of+"_TELEGRAM_BOT_TOKEN"], env[of+"_TELEGRAM_WEBHOOK_SECRET"] = a.token, hookSecret
}

// greet has the approvers of every asker write first, as their providers demand,
// and returns when they are answered.
func (w *world) greet() {
	w.t.Helper()
	for _, a := range w.plan.people.askers {
		_, err := w.people.whatsapp.AddPerson(graph.Person{Phone: a.phone, Name: "Approver " + a.phone})
		w.must(err)
		_, err = w.people.telegram.AddPerson(botapi.Person{ID: a.user, FirstName: fmt.Sprint("Approver ", a.user)})
		w.must(err)
		w.sayTo(a, "WHATSAPP", "hello")
		w.sayTo(a, "TELEGRAM", "hello")
	}
	w.await(5*time.Minute, "approvers are greeted", func() (bool, string) {
		open := 0
		for _, a := range w.plan.people.askers {
			for _, channel := range []string{"WHATSAPP", "TELEGRAM"} {
				if len(answers(w.linesOf(a, channel))) == 0 {
					open++
				}
			}
		}
		return open == 0, fmt.Sprintf("%d are not", open)
	})
}

// sayTo has the approver of a write a text.
func (w *world) sayTo(a asker, channel, text string) {
	w.t.Helper()
	var err error
	if channel == "WHATSAPP" {
		_, err = w.people.whatsapp.Say(graph.Say{Number: a.number, From: a.phone, Text: text})
	} else {
		_, err = w.people.telegram.Say(botapi.Say{Bot: a.bot, From: a.user, Text: text})
	}
	w.must(err)
}

// press has the approver of a tap a button of a line. It reports whether the
// button was still there.
func (w *world) press(a asker, channel, title string, on person.Line) bool {
	if channel == "WHATSAPP" {
		_, err := w.people.whatsapp.Say(graph.Say{Number: a.number, From: a.phone, Press: title, ReplyTo: on.ID})
		return err == nil
	}
	id, _ := strconv.ParseInt(on.ID, 10, 64) // the fake's own
	_, err := w.people.telegram.Say(botapi.Say{Bot: a.bot, From: a.user, Press: title, ReplyTo: id})
	return err == nil
}

func (w *world) linesOf(a asker, channel string) []person.Line {
	var lines []person.Line
	if channel == "WHATSAPP" {
		lines, _ = w.people.whatsapp.Chat(a.number, a.phone, 0)
	} else {
		lines, _ = w.people.telegram.Chat(a.bot, a.user, 0)
	}
	return lines
}

// chatOf is what the rows call the chat of the approver of a.
func (a asker) chatOf(channel string) string {
	if channel == "WHATSAPP" {
		return a.phone
	}
	return strconv.FormatInt(a.user, 10)
}

// The callers of the management API.
const apiTokens = "token-of-the-user-ann-000000 ann admin\ntoken-of-the-user-bob-000000 bob approver\n"

func tokenOf(user string) string { return "token-of-the-user-" + user + "-000000" }

// rest is the management API as its callers use it.
type rest struct {
	world  *world
	client *http.Client
}

func newREST(w *world) *rest { return &rest{w, newCaller(w).client} }

// call asks again until there is an answer that is not the platform's, and says
// how often there was none.
func (r *rest) call(ctx context.Context, user, method, path, key string, body any) (status int, answer []byte, lost int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, 0, err
	}
	if raw, ok := body.([]byte); ok {
		text = raw
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		status, answer = r.once(ctx, user, method, path, key, text)
		if status >= 200 && status < 500 && status != http.StatusTooManyRequests {
			return status, answer, lost, nil
		}
		lost++
		select {
		case <-ctx.Done():
			return status, answer, lost, fmt.Errorf("%s %s: last answer %d %s", method, path, status, answer)
		case <-time.After(pause):
		}
	}
}

func (r *rest) once(ctx context.Context, user, method, path, key string, body []byte) (int, []byte) {
	request, err := http.NewRequestWithContext(ctx, method, r.world.cluster.GatewayURL()+"/api/v1"+path, bytes.NewReader(body))
	if err != nil {
		return 0, []byte(err.Error())
	}
	request.Header.Set("Authorization", "Bearer "+tokenOf(user))
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return 0, []byte(err.Error())
	}
	return response.StatusCode, text
}
