package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// The accounts of the channel measurements, and their secrets.
const (
	number        = "100000000000001"
	appSecret     = "bench-app-secret"
	whatsappPath  = "/api/v1/channels/whatsapp/webhook"
	bot           = "bench_bot"
	webhookSecret = "bench-webhook-secret"
	telegramPath  = "/api/v1/channels/telegram/webhook/" + bot
)

// persons is how many people write: enough that those who write in the same
// moment are mostly different ones, as in life.
const persons = 1000

// words makes a message of ordinary length: the body of one WhatsApp message
// has about 900 bytes with it, that of a Telegram message about 700.
var words = strings.Repeat("Is my order ready? I would pick it up tomorrow. ", 8)

// change is one WhatsApp message as the provider sends it.
func change(id string, person int, text string) map[string]any {
	phone, user := fmt.Sprint(15550000000+person), fmt.Sprint("US.", 9000000000000000000+uint64(person))
	return map[string]any{"field": "messages", "value": map[string]any{
		"messaging_product": "whatsapp",
		"metadata":          map[string]any{"display_phone_number": "15550009999", "phone_number_id": number},
		"contacts":          []any{map[string]any{"profile": map[string]any{"name": fmt.Sprint("Ada Test ", person)}, "wa_id": phone, "user_id": user}},
		"messages": []any{map[string]any{
			"from": phone, "from_user_id": user, "id": "wamid.HBgLMTU1NTAwMDExMTEVAgASGBQz" + id, "timestamp": fmt.Sprint(time.Now().Unix()),
			"type": "text", "text": map[string]any{"body": text},
		}},
	}}
}

// whatsappRequest is one signed webhook.
func whatsappRequest(url string, changes ...map[string]any) (*http.Request, error) {
	body, err := json.Marshal(map[string]any{
		"object": "whatsapp_business_account", "entry": []any{map[string]any{"id": "200000000000001", "changes": changes}},
	})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Hub-Signature-256", "sha256="+signature(appSecret, string(body)))
	return request, nil
}

func whatsappRequests(url, run string) asker {
	return func(c, n int) (*http.Request, error) {
		return whatsappRequest(url, change(fmt.Sprintf("%s-%d-%d", run, c, n), (c*131+n)%persons, words))
	}
}

// telegramRequests are updates of a private chat each. Their ids are apart for
// every run, which is a number.
func telegramRequests(url string, run int) asker {
	return func(c, n int) (*http.Request, error) {
		person := 5000000000 + (c*131+n)%persons
		who := map[string]any{"id": person, "first_name": "Ada", "last_name": "Test", "username": fmt.Sprint("ada_test_", person)}
		from, chat := map[string]any{"is_bot": false, "language_code": "en"}, map[string]any{"type": "private"}
		for name, value := range who {
			from[name], chat[name] = value, value
		}
		id := (run*connections+c)*1_000_000 + n + 1
		body, err := json.Marshal(map[string]any{"update_id": id, "message": map[string]any{
			"message_id": id, "from": from, "chat": chat, "date": time.Now().Unix(), "text": words,
		}})
		if err != nil {
			return nil, err
		}
		request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(string(body)))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("X-Telegram-Bot-Api-Secret-Token", webhookSecret)
		return request, nil
	}
}
