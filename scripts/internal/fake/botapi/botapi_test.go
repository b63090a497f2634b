package botapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

func TestUpdatesHaveTheVendorsShape(t *testing.T) {
	w := newWorld(t, true, func(o *botapi.Options) { o.Now = func() time.Time { return time.Unix(1788000000, 0) } })
	w.say(botapi.Say{Text: "👩‍🚀 日本 @example_helper_bot help me"})
	text, err := json.Marshal(w.heard()[0])
	if err != nil {
		t.Fatal(err)
	}
	want := `{"message":{"chat":{"first_name":"Ada","id":5000000001,"last_name":"Test","type":"private","username":"ada_test"},"date":1788000000,` +
		`"entities":[{"length":19,"offset":9,"type":"mention"}],"from":{"first_name":"Ada","id":5000000001,"is_bot":false,"language_code":"en","last_name":"Test","username":"ada_test"},` +
		`"message_id":1,"text":"👩‍🚀 日本 @example_helper_bot help me"},"update_id":910000001}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("update (-want +got):\n%s", diff)
	}
}

func TestHTML(t *testing.T) {
	for in, want := range map[string]string{
		"<b>a <i>b</i></b> c":                                  "a b c bold 0+3 italic 2+1",
		"a &lt;b&gt; &amp;amp; &#x1F600; &nbsp; & x":           "a <b> &amp; 😀 &nbsp; & x",
		"😀<b>x</b>":                                            "😀x bold 2+1",
		`<pre><code class="language-go">x &lt; y</code></pre>`: "x < y pre 0+5 go",
		`<a href="https://example.com/?a=1&amp;b=2">l</a>`:     "l text_link 0+1 https://example.com/?a=1&b=2",
		"  <b> x </b>  ":                                       "x bold 0+1",
		"<blockquote expandable>q</blockquote>":                "q expandable_blockquote 0+1",
		`<span class="tg-spoiler">s</span>`:                    "s spoiler 0+1",
		"<code>a<b>b</b></code>":                               "ab code 0+2",
		"<B>x</>":                                              "x bold 0+1",
		"<b></b>y":                                             "y",
		"<b>x":                                                 `! Can't find end tag corresponding to start tag "b"`,
		"x</b>":                                                "! Unexpected end tag at byte offset 1",
		"<b><i>x</b></i>":                                      `! Unmatched end tag at byte offset 7, expected "</i>", found "</b>"`,
		"<div>x</div>":                                         `! Unsupported start tag "div" at byte offset 0`,
		"a <b":                                                 "! Unclosed start tag at byte offset 2",
		"a < b":                                                `! Unsupported start tag "" at byte offset 2`,
		"<span>x</span>":                                       `! Tag "span" must have class "tg-spoiler" at byte offset 0`,
		`<a href="x>y</a>`:                                     `! Unclosed start tag "a" at byte offset 0`,
		"<b x>y</b>":                                           `! Expected equal sign in declaration of an attribute of the tag "b" at byte offset 0`,
	} {
		text, entities, err := botapi.ParseHTML(in)
		got := text
		for _, e := range entities {
			got += fmt.Sprintf(" %s %d+%d", e.Type, e.Offset, e.Length)
			if more := e.URL + e.Language; more != "" {
				got += " " + more
			}
		}
		if err != nil {
			got = "! " + err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestSend(t *testing.T) {
	w := newWorld(t, true, nil)
	if got := w.send("hi", nil); got.Code != 403 || got.Description != "Forbidden: bot can't initiate conversation with a user" {
		t.Errorf("before the person wrote: %+v", got)
	}
	first := w.say(botapi.Say{Text: "/start"})[0]
	html := map[string]any{"parse_mode": "HTML"}
	if got := w.send("<b>hello</b> &amp; more", html); got.message["text"] != "hello & more" || fmt.Sprint(got.message["entities"]) != "[map[length:5 offset:0 type:bold]]" {
		t.Errorf("%+v", got)
	}
	for text, c := range map[string]struct {
		params map[string]any
		want   string
	}{
		strings.Repeat("😀", 2048):                  {nil, ""},
		strings.Repeat("😀", 2049):                  {nil, "Bad Request: message is too long"},
		"<b>" + strings.Repeat("x", 4096) + "</b>": {html, ""},
		"<b>" + strings.Repeat("x", 4097) + "</b>": {html, "Bad Request: message is too long"},
		" \n ":     {nil, "Bad Request: message text is empty"},
		"<b> </b>": {html, "Bad Request: message text is empty"},
		"<b>x":     {html, `Bad Request: can't parse entities: Can't find end tag corresponding to start tag "b"`},
		"a":        {map[string]any{"chat_id": 1}, "Bad Request: chat not found"},
		"b":        {map[string]any{"message_thread_id": 7}, "Bad Request: message thread not found"},
		"c":        {map[string]any{"reply_parameters": map[string]any{"message_id": 99}}, "Bad Request: message to be replied not found"},
		"d":        {map[string]any{"reply_parameters": map[string]any{"message_id": 99, "allow_sending_without_reply": true}}, ""},
		"e":        {map[string]any{"reply_markup": map[string]any{"inline_keyboard": [][]any{{map[string]any{"text": "x", "callback_data": strings.Repeat("x", 65)}}}}}, "Bad Request: BUTTON_DATA_INVALID"},
		"f":        {map[string]any{"parse_mode": "BBCode"}, "Bad Request: unsupported parse_mode"},
	} {
		if got := w.send(text, c.params); got.Description != c.want {
			t.Errorf("%.20q: %q, want %q", text, got.Description, c.want)
		}
	}
	if got := w.send("re", map[string]any{"reply_parameters": map[string]any{"message_id": 1}}); fmt.Sprint(got.message["reply_to_message"].(map[string]any)["text"]) != "/start" {
		t.Errorf("reply: %+v", got)
	}
	if err := w.server.Block(name, ada, true); err != nil {
		t.Fatal(err)
	}
	if got := w.send("x", nil); got.Code != 403 || got.Description != "Forbidden: bot was blocked by the user" {
		t.Errorf("blocked: %+v", got)
	}
	updates := w.heard()
	last := updates[len(updates)-1]["my_chat_member"].(map[string]any)
	if last["new_chat_member"].(map[string]any)["status"] != "kicked" {
		t.Errorf("my_chat_member: %v", last)
	}
	lines, _ := w.server.Chat("", ada, 0)
	if lines[0].ID != first.ID || lines[0].Ticks != person.Delivered || lines[1].Text != "hello & more" || lines[1].Source != "<b>hello</b> &amp; more" {
		t.Errorf("lines: %+v", lines[:2])
	}
	for path, want := range map[string]int{"/bot1:x/getMe": 401, "/botx/getMe": 404, "/bot" + token + "/nothing": 404} {
		response, err := http.Get(w.api.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, response.StatusCode, want)
		}
	}
}

func TestFloodControl(t *testing.T) {
	w := newWorld(t, true, func(o *botapi.Options) { o.Limits = true })
	w.say(botapi.Say{Text: "hi"})
	var got answer
	for range 4 {
		got = w.send("x", nil)
	}
	if got.Code != 429 || got.Parameters["retry_after"] != 1 || got.Description != "Too Many Requests: retry after 1" {
		t.Errorf("%+v", got)
	}
	w.server.Clock().Jump(time.Second)
	if got := w.send("x", nil); !got.OK {
		t.Errorf("a second later: %+v", got)
	}
	if err := w.server.Fault(person.Fault{On: "send", Do: "error", Code: 429, RetryAfter: 17}); err != nil {
		t.Fatal(err)
	}
	if got := w.send("x", nil); got.Parameters["retry_after"] != 17 {
		t.Errorf("%+v", got)
	}
}

func TestWebhookRetriesAndBlocksOneChatOnly(t *testing.T) {
	w := newWorld(t, true, nil)
	if _, err := w.server.AddPerson(botapi.Person{ID: 5000000002, FirstName: "Bo"}); err != nil {
		t.Fatal(err)
	}
	w.answer = func(try int, update map[string]any, out http.ResponseWriter) {
		text := update["message"].(map[string]any)["text"]
		if text == "bad" && w.server.Counters()["webhookFailures"] < 3 {
			out.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.updates = append(w.updates, update)
	}
	w.say(botapi.Say{Text: "bad"}, botapi.Say{Text: "behind"})
	w.reaches("webhookFailures", 1)
	w.say(botapi.Say{From: 5000000002, Text: "other chat"})
	var texts []any
	for _, u := range w.heard() {
		texts = append(texts, u["message"].(map[string]any)["text"])
	}
	if len(texts) != 3 || texts[1] != "bad" && texts[0] != "bad" || texts[2] != "behind" {
		t.Errorf("texts: %v", texts)
	}
	if n := w.server.Counters()["webhookRetries"]; n != 3 {
		t.Errorf("%d retries", n)
	}
	var info struct {
		URL     string
		Pending int    `json:"pending_update_count"`
		Error   string `json:"last_error_message"`
	}
	if err := json.Unmarshal(w.call("getWebhookInfo", nil).Result, &info); err != nil || info.URL != w.hook.URL || info.Pending != 0 || info.Error != "Wrong response from the webhook: 500 Internal Server Error" {
		t.Errorf("info: %+v %v", info, err)
	}

	w.answer = func(_ int, _ map[string]any, out http.ResponseWriter) { out.WriteHeader(http.StatusBadGateway) }
	w.say(botapi.Say{Text: "never"})
	w.reaches("webhookRetries", 5)
	w.server.Clock().Jump(25 * time.Hour)
	w.settled()
	if n := w.server.Counters()["updatesLost"]; n != 1 {
		t.Errorf("%d lost after a day, want 1", n)
	}
}

func TestGoneForLongTakesTheWebhookAway(t *testing.T) {
	w := newWorld(t, true, nil)
	w.answer = func(_ int, _ map[string]any, out http.ResponseWriter) { out.WriteHeader(http.StatusGone) }
	w.say(botapi.Say{Text: "x"})
	w.reaches("webhookFailures", 2)
	w.server.Clock().Jump(23 * time.Hour)
	w.reaches("webhooksRemoved", 1)
	w.settled()
	if bots := w.server.Bots(); bots[0].WebhookURL != "" {
		t.Errorf("still set: %v", bots)
	}
}

func TestAnswersThatNameAMethodAreExecuted(t *testing.T) {
	w := newWorld(t, true, nil)
	w.answer = func(_ int, _ map[string]any, out http.ResponseWriter) {
		out.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(out, `{"method":"sendMessage","chat_id":5000000001,"text":"from the answer"}`)
	}
	w.say(botapi.Say{Text: "x"})
	w.settled()
	lines, _ := w.server.Chat("", ada, 0)
	if n := w.server.Counters()["methodsInAnswers"]; n != 1 || len(lines) != 2 || lines[1].Text != "from the answer" {
		t.Errorf("%d methods, %+v", n, lines)
	}
}

func TestPolling(t *testing.T) {
	w := newWorld(t, true, func(o *botapi.Options) { o.Speed = 20 })
	if got := w.call("getUpdates", nil); got.Code != 409 || !strings.Contains(got.Description, "webhook is active") {
		t.Errorf("with a webhook: %+v", got)
	}
	if got := w.call("deleteWebhook", nil); got.Description != "Webhook was deleted" {
		t.Errorf("%+v", got)
	}
	w.say(botapi.Say{Text: "one"}, botapi.Say{Text: "two"}, botapi.Say{Text: "three"})
	ids := func(got answer) (ids []int64) {
		t.Helper()
		var updates []struct {
			ID int64 `json:"update_id"`
		}
		if err := json.Unmarshal(got.Result, &updates); err != nil {
			t.Fatalf("%+v: %v", got, err)
		}
		for _, u := range updates {
			ids = append(ids, u.ID)
		}
		return ids
	}
	for params, want := range map[string]string{`{"limit":2}`: "[910000001 910000002]", `{}`: "[910000001 910000002 910000003]"} {
		var p map[string]any
		_ = json.Unmarshal([]byte(params), &p)
		if got := fmt.Sprint(ids(w.call("getUpdates", p))); got != want {
			t.Errorf("%s: %s", params, got)
		}
	}
	if got := ids(w.call("getUpdates", map[string]any{"offset": 910000002})); fmt.Sprint(got) != "[910000002 910000003]" {
		t.Errorf("offset: %v", got)
	}
	if got := ids(w.call("getUpdates", map[string]any{"offset": -1})); fmt.Sprint(got) != "[910000003]" {
		t.Errorf("negative offset: %v", got)
	}
	older := make(chan answer)
	go func() { older <- w.call("getUpdates", map[string]any{"offset": 910000004, "timeout": 50}) }()
	w.reaches("polls", 5)
	newer := make(chan answer)
	go func() { newer <- w.call("getUpdates", map[string]any{"offset": 910000004, "timeout": 50}) }()
	w.reaches("polls", 6)
	if got := <-older; got.Code != 409 || !strings.Contains(got.Description, "other getUpdates request") {
		t.Errorf("the older poll: %+v", got)
	}
	w.say(botapi.Say{Text: "four"})
	if got := <-newer; fmt.Sprint(ids(got)) != "[910000004]" {
		t.Errorf("the newer poll: %+v", got)
	}
}

func TestGroups(t *testing.T) {
	w := newWorld(t, true, nil)
	group, err := w.server.AddChat(botapi.Chat{Title: "Test group", Forum: true, Topics: []botapi.Topic{{ID: 7, Name: "a"}, {ID: 8, Name: "b", Closed: true}}})
	if err != nil {
		t.Fatal(err)
	}
	w.say(
		botapi.Say{Chat: group.ID, Text: "not for the bot"}, botapi.Say{Chat: group.ID, Text: "/go@other_bot"}, botapi.Say{Chat: group.ID, Text: "/go@EXAMPLE_helper_bot"},
		botapi.Say{Chat: group.ID, Thread: 7, Text: "@example_helper_bot hi"}, botapi.Say{Chat: group.ID, Thread: 1, Text: "@example_helper_bot general"},
	)
	sent := w.call("sendMessage", map[string]any{"chat_id": group.ID, "message_thread_id": 7, "text": "hello"})
	if !sent.OK || sent.message["is_topic_message"] != true {
		t.Errorf("%+v", sent)
	}
	w.say(botapi.Say{Chat: group.ID, Text: "thanks", ReplyTo: int64(sent.message["message_id"].(float64))})
	var got []string
	for _, u := range w.heard() {
		m := u["message"].(map[string]any)
		got = append(got, fmt.Sprint(m["text"], " ", m["message_thread_id"], " ", m["is_topic_message"]))
	}
	want := []string{"/go@EXAMPLE_helper_bot <nil> <nil>", "@example_helper_bot hi 7 true", "@example_helper_bot general <nil> <nil>", "thanks 6 <nil>"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
	for _, thread := range []int{1, 8, 9} {
		if got := w.call("sendMessage", map[string]any{"chat_id": group.ID, "message_thread_id": thread, "text": "x"}); got.Description != "Bad Request: message thread not found" {
			t.Errorf("thread %d: %+v", thread, got)
		}
	}
	direct, err := w.server.AddChat(botapi.Chat{Title: "Direct", Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	w.say(botapi.Say{Chat: direct.ID, Thread: 11, Text: "is it open?"})
	if got := w.call("sendMessage", map[string]any{"chat_id": direct.ID, "direct_messages_topic_id": 11, "text": "yes"}); fmt.Sprint(got.message["direct_messages_topic"]) != "map[topic_id:11]" {
		t.Errorf("direct: %+v", got)
	}
	if got := w.call("sendMessage", map[string]any{"chat_id": group.ID, "direct_messages_topic_id": 11, "text": "yes"}); got.Code != 400 {
		t.Errorf("direct into a group: %+v", got)
	}
	small, err := w.server.AddChat(botapi.Chat{Type: "group", Title: "Small"})
	if err != nil {
		t.Fatal(err)
	}
	next, err := w.server.Migrate(small.ID, ada)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.call("sendMessage", map[string]any{"chat_id": small.ID, "text": "x"}); got.Code != 400 || got.Parameters["migrate_to_chat_id"] != next.ID {
		t.Errorf("to the old chat: %+v", got)
	}
	if err := w.server.Kick(name, next.ID, ada, true); err != nil {
		t.Fatal(err)
	}
	if got := w.call("sendMessage", map[string]any{"chat_id": next.ID, "text": "x"}); got.Code != 403 {
		t.Errorf("kicked: %+v", got)
	}
	w.say(botapi.Say{Chat: next.ID, Guest: true, Text: "@example_helper_bot sum this up"})
	var guest map[string]any
	for _, u := range w.heard() { // chats do not wait for each other
		if m, ok := u["guest_message"].(map[string]any); ok {
			guest = m
		}
	}
	result := map[string]any{"type": "article", "id": "1", "title": "t", "input_message_content": map[string]any{"message_text": "<b>done</b>", "parse_mode": "HTML"}}
	if got := w.call("answerGuestQuery", map[string]any{"guest_query_id": guest["guest_query_id"], "result": result}); !got.OK || got.message["inline_message_id"] == nil {
		t.Errorf("guest: %+v", got)
	}
}

func TestButtonsEditsReactions(t *testing.T) {
	w := newWorld(t, true, nil)
	if got := w.call("setWebhook", map[string]any{"url": w.hook.URL, "secret_token": secret, "allowed_updates": []string{"message", "edited_message", "callback_query", "message_reaction"}}); !got.OK {
		t.Fatalf("%+v", got)
	}
	first := w.say(botapi.Say{Text: "hi"})[0]
	keys := map[string]any{"inline_keyboard": [][]any{{map[string]any{"text": "Approve", "callback_data": "a:1"}, map[string]any{"text": "Deny", "callback_data": "d:1"}}}}
	sent := w.send("Sure?", map[string]any{"reply_markup": keys})
	w.say(botapi.Say{Press: "2"}, botapi.Say{React: "👍", ReplyTo: 2}, botapi.Say{Edit: 1, Text: "hello"})
	if err := w.server.Block(name, ada, false); err != nil { // not asked for: not told
		t.Fatal(err)
	}
	updates := w.heard()
	if len(updates) != 4 {
		t.Fatalf("updates: %v", updates)
	}
	query := updates[1]["callback_query"].(map[string]any)
	if query["data"] != "d:1" || query["message"].(map[string]any)["text"] != "Sure?" {
		t.Errorf("query: %v", query)
	}
	if r := updates[2]["message_reaction"].(map[string]any); fmt.Sprint(r["new_reaction"]) != "[map[emoji:👍 type:emoji]]" {
		t.Errorf("reaction: %v", r)
	}
	if e := updates[3]["edited_message"].(map[string]any); e["text"] != "hello" || e["edit_date"] == nil {
		t.Errorf("edit: %v", e)
	}
	id := query["id"].(string)
	if w.server.Answered(id) || !w.call("answerCallbackQuery", map[string]any{"callback_query_id": id}).OK || !w.server.Answered(id) {
		t.Error("the query is not answered as it should")
	}
	if got := w.call("answerCallbackQuery", map[string]any{"callback_query_id": "1"}); got.Code != 400 {
		t.Errorf("another query: %+v", got)
	}
	edit := map[string]any{"chat_id": ada, "message_id": sent.message["message_id"], "text": "Denied."}
	if got := w.call("editMessageText", edit); got.message["text"] != "Denied." || got.message["reply_markup"] != nil {
		t.Errorf("%+v", got)
	}
	if got := w.call("editMessageText", edit); !strings.HasPrefix(got.Description, "Bad Request: message is not modified") {
		t.Errorf("%+v", got)
	}
	edit["reply_markup"] = map[string]any{"inline_keyboard": []any{}} // as taking no keyboard away
	if got := w.call("editMessageText", edit); !strings.HasPrefix(got.Description, "Bad Request: message is not modified") {
		t.Errorf("%+v", got)
	}
	edit["message_id"] = 999
	if got := w.call("editMessageText", edit); got.Description != "Bad Request: message to edit not found" {
		t.Errorf("%+v", got)
	}
	edit["message_id"] = 1
	if got := w.call("editMessageText", edit); got.Description != "Bad Request: message can't be edited" {
		t.Errorf("%+v", got)
	}
	if got := w.call("sendChatAction", map[string]any{"chat_id": ada, "action": "typing"}); !got.OK {
		t.Errorf("%+v", got)
	}
	lines, _ := w.server.Chat("", ada, first.Seq)
	if lines[0].Text != "hello" || !lines[0].Edited || lines[1].Marks != "👍" || lines[1].Text != "Denied." {
		t.Errorf("lines: %+v", lines)
	}
	for id, want := range map[any]string{999: "message to delete not found", 1: "message can't be deleted"} {
		if got := w.call("deleteMessage", map[string]any{"chat_id": ada, "message_id": id}); got.Description != "Bad Request: "+want {
			t.Errorf("%+v", got)
		}
	}
	if got := w.call("deleteMessage", map[string]any{"chat_id": ada, "message_id": sent.message["message_id"]}); !got.OK {
		t.Errorf("%+v", got)
	}
	edit["message_id"] = sent.message["message_id"]
	if got := w.call("editMessageText", edit); got.Description != "Bad Request: message to edit not found" {
		t.Errorf("%+v", got)
	}
	if lines, _ := w.server.Chat("", ada, first.Seq); !lines[1].Gone {
		t.Errorf("lines: %+v", lines)
	}
}

func TestFiles(t *testing.T) {
	w := newWorld(t, true, nil)
	lines := w.say(botapi.Say{Text: "both", Files: []botapi.Upload{{MimeType: "image/png", Data: []byte("one")}, {MimeType: "image/png", Data: []byte("two")}}},
		botapi.Say{Files: []botapi.Upload{{Name: "big.zip", MimeType: "application/zip", Bytes: 50 << 20}}})
	updates := w.heard()
	album := func(i int) any { return updates[i]["message"].(map[string]any)["media_group_id"] }
	if album(0) == nil || album(0) != album(1) || album(2) != nil {
		t.Errorf("albums: %v %v %v", album(0), album(1), album(2))
	}
	got := w.call("getFile", map[string]any{"file_id": lines[1].File.ID})
	response, err := http.Get(fmt.Sprintf("%s/file/bot%s/%s", w.api.URL, token, got.message["file_path"]))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if string(body) != "two" {
		t.Errorf("%d %q", response.StatusCode, body)
	}
	if got := w.call("getFile", map[string]any{"file_id": lines[2].File.ID}); got.Description != "Bad Request: file is too big" {
		t.Errorf("%+v", got)
	}
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	_ = parts.WriteField("chat_id", fmt.Sprint(ada))
	_ = parts.WriteField("caption", "here")
	file, _ := parts.CreateFormFile("document", "report.txt")
	_, _ = io.WriteString(file, "all well")
	parts.Close()
	response, err = http.Post(w.api.URL+"/bot"+token+"/sendDocument", parts.FormDataContentType(), &form)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	shown, _ := w.server.Chat("", ada, 0)
	last := shown[len(shown)-1]
	if response.StatusCode != 200 || last.File == nil || last.File.Name != "report.txt" || last.Text != "here" {
		t.Errorf("%d %+v", response.StatusCode, last)
	}
	if _, data, _ := w.server.File(last.File.ID); string(data) != "all well" {
		t.Errorf("data %q", data)
	}
}

func TestBusiness(t *testing.T) {
	w := newWorld(t, true, nil)
	if _, err := w.server.AddPerson(botapi.Person{ID: 5000000002, FirstName: "Bo"}); err != nil {
		t.Fatal(err)
	}
	link, err := w.server.AddBusiness(botapi.Business{Owner: ada})
	if err != nil {
		t.Fatal(err)
	}
	w.say(botapi.Say{From: 5000000002, Business: link.ID, Text: "do you deliver?"}, botapi.Say{Business: link.ID, Chat: 5000000002, Text: "I say we do"})
	updates := w.heard()
	var business []map[string]any
	for _, u := range updates {
		if m, ok := u["business_message"].(map[string]any); ok {
			business = append(business, m)
		}
	}
	if len(business) != 2 || business[0]["business_connection_id"] != link.ID || fmt.Sprint(business[1]["chat"].(map[string]any)["id"]) != "5000000002" || fmt.Sprint(business[1]["from"].(map[string]any)["id"]) != fmt.Sprint(ada) {
		t.Errorf("business: %v", business)
	}
	if got := w.call("sendMessage", map[string]any{"chat_id": 5000000002, "business_connection_id": link.ID, "text": "we do"}); !got.OK {
		t.Errorf("%+v", got)
	}
}

func TestFaults(t *testing.T) {
	w := newWorld(t, true, nil)
	for _, do := range []string{"drop", "double"} {
		if err := w.server.Fault(person.Fault{On: "webhook", Do: do}); err != nil {
			t.Fatal(err)
		}
		w.say(botapi.Say{Text: do})
		w.settled()
	}
	var texts []any
	for _, u := range w.heard() {
		texts = append(texts, u["message"].(map[string]any)["text"])
	}
	if diff := cmp.Diff([]any{"double", "double"}, texts); diff != "" {
		t.Errorf("texts (-want +got):\n%s", diff)
	}
	for _, c := range []struct {
		do   string
		sent int
	}{{"cutBefore", 0}, {"cutAfter", 1}} {
		if err := w.server.Fault(person.Fault{On: "send", Do: c.do}); err != nil {
			t.Fatal(err)
		}
		if got := w.send("x", nil); got.Code != -1 || w.server.Counters()["sent"] != c.sent {
			t.Errorf("%s: %+v, %d sent", c.do, got, w.server.Counters()["sent"])
		}
	}
}

func TestStateIsKept(t *testing.T) {
	state := filepath.Join(t.TempDir(), "tg.json")
	w := newWorld(t, false, func(o *botapi.Options) { o.State = state })
	w.say(botapi.Say{Text: "hi"})
	w.send("hello", nil)
	if err := w.server.Save(); err != nil {
		t.Fatal(err)
	}
	again := newWorld(t, true, func(o *botapi.Options) { o.State = state })
	if got := again.heard(); len(got) != 1 { // waited over the restart
		t.Errorf("updates: %v", got)
	}
	lines, _ := again.server.Chat("", ada, 0)
	if len(lines) != 2 || lines[1].Text != "hello" {
		t.Errorf("lines: %+v", lines)
	}
	if got := again.call("editMessageText", map[string]any{"chat_id": ada, "message_id": 2, "text": "hello again"}); !got.OK {
		t.Errorf("%+v", got)
	}
	again.say(botapi.Say{Text: "next"})
	if got := again.heard(); fmt.Sprint(got[1]["update_id"]) != "910001002" { // nothing says that the first one has ended
		t.Errorf("next: %v", got[1])
	}
}
