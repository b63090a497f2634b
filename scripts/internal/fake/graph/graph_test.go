package graph_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

func TestWebhookHasTheVendorsShape(t *testing.T) {
	w := newWorld(t, nil)
	w.say(graph.Say{Text: "Grüße 😀 an a/b"})
	messages, _, contacts := w.heard()
	if len(messages) != 1 || messages[0]["from"] != ada || messages[0]["from_user_id"] != "US.9000000000000000001" || messages[0]["type"] != "text" {
		t.Errorf("messages: %v", messages)
	}
	want := []map[string]any{{"wa_id": ada, "user_id": "US.9000000000000000001", "profile": map[string]any{"name": "Ada Test"}}}
	if diff := cmp.Diff(want, contacts); diff != "" {
		t.Errorf("contacts (-want +got):\n%s", diff)
	}
	body := string(w.bodies[0])
	if !strings.Contains(body, `Gr\u00fc\u00dfe \ud83d\ude00 an a\/b`) {
		t.Errorf("not escaped as the vendor does: %s", body)
	}
	if id, _ := messages[0]["id"].(string); !strings.HasPrefix(id, "wamid.") {
		t.Errorf("id %q", id)
	}
}

func TestAPersonWithoutPhone(t *testing.T) {
	w := newWorld(t, nil)
	if _, err := w.server.AddPerson(graph.Person{BSUID: "US.9000000000000000003", Name: "Cy", Username: "cy.test", Phone: "15550003333", Hidden: true}); err != nil {
		t.Fatal(err)
	}
	w.say(graph.Say{From: "US.9000000000000000003", Text: "hi"})
	messages, _, contacts := w.heard()
	if messages[0]["from"] != nil || contacts[0]["wa_id"] != nil || contacts[0]["profile"].(map[string]any)["username"] != "@cy.test" {
		t.Errorf("the phone is told: %v %v", messages, contacts)
	}
	_, answer, _ := w.send(map[string]any{"to": nil, "recipient": "US.9000000000000000003", "type": "text", "text": map[string]any{"body": "hello"}})
	if diff := cmp.Diff([]any{map[string]any{"input": "US.9000000000000000003", "user_id": "US.9000000000000000003"}}, answer["contacts"]); diff != "" {
		t.Errorf("contacts (-want +got):\n%s", diff)
	}
	_, statuses, _ := w.heard()
	if statuses[0]["recipient_id"] != nil || statuses[0]["recipient_user_id"] != "US.9000000000000000003" {
		t.Errorf("status: %v", statuses[0])
	}
	if _, _, code := w.send(map[string]any{"to": nil, "recipient": "US.", "type": "text", "text": map[string]any{"body": "x"}}); code != 131009 {
		t.Errorf("a bad BSUID is refused with %d", code)
	}
	if _, _, code := w.send(map[string]any{"to": "US.9000000000000000003", "type": "text", "text": map[string]any{"body": "x"}}); code != 131009 {
		t.Errorf("a BSUID in to is refused with %d", code)
	}
}

func TestSendIsCheckedAndReported(t *testing.T) {
	w := newWorld(t, nil)
	w.say(graph.Say{Text: "hi"})
	status, answer, _ := w.send(map[string]any{"type": "text", "text": map[string]any{"body": "hello"}, "biz_opaque_callback_data": "rep_1"})
	if status != 200 || answer["messaging_product"] != "whatsapp" {
		t.Fatalf("%d %v", status, answer)
	}
	id := answer["messages"].([]any)[0].(map[string]any)["id"]
	_, statuses, _ := w.heard()
	var states []any
	for _, s := range statuses {
		states = append(states, s["status"])
		if s["id"] != id || s["biz_opaque_callback_data"] != "rep_1" || s["recipient_id"] != ada {
			t.Errorf("status %v", s)
		}
	}
	if diff := cmp.Diff([]any{"sent", "delivered", "read"}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	lines, _ := w.server.Chat("", ada, 0)
	if l := lines[1]; l.Text != "hello" || l.Ticks != person.Read || l.Opaque != "rep_1" || lines[0].Ticks != person.Delivered {
		t.Errorf("lines: %+v", lines)
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, nil)
	w.say(graph.Say{Text: "hi"})
	button := func(n, title int) map[string]any {
		var buttons []any
		for i := range n {
			buttons = append(buttons, map[string]any{"type": "reply", "reply": map[string]any{"id": string(rune('a' + i)), "title": strings.Repeat(string(rune('a'+i)), title)}})
		}
		return map[string]any{"type": "interactive", "interactive": map[string]any{"type": "button", "body": map[string]any{"text": "choose"}, "action": map[string]any{"buttons": buttons}}}
	}
	long := button(2, 5)
	long["interactive"].(map[string]any)["body"] = map[string]any{"text": strings.Repeat("x", 1025)}
	template := func(text string) map[string]any {
		return map[string]any{"type": "template", "template": map[string]any{"name": "note", "language": map[string]any{"code": "en_US"}, "components": []any{
			map[string]any{"type": "body", "parameters": []any{map[string]any{"type": "text", "text": text}}},
		}}}
	}
	for name, c := range map[string]struct {
		fields map[string]any
		code   int
	}{
		"empty":                {text(""), 100},
		"4096 fit":             {text(strings.Repeat("ä", 4096)), 0},
		"4097 do not":          {text(strings.Repeat("x", 4097)), 100},
		"no product":           {map[string]any{"messaging_product": nil, "type": "text", "text": map[string]any{"body": "x"}}, 100},
		"no to":                {map[string]any{"to": nil, "type": "text", "text": map[string]any{"body": "x"}}, 100},
		"no text":              {map[string]any{"type": "text"}, 100},
		"unknown type":         {map[string]any{"type": "fax"}, 100},
		"three buttons":        {button(3, 20), 0},
		"four buttons":         {button(4, 5), 100},
		"long title":           {button(1, 21), 100},
		"long button body":     {long, 100},
		"template":             {template("all well"), 0},
		"template, line break": {template("all\nwell"), 132018},
		"long opaque":          {map[string]any{"type": "text", "text": map[string]any{"body": "x"}, "biz_opaque_callback_data": strings.Repeat("x", 513)}, 100},
		"nobody's file":        {map[string]any{"type": "document", "document": map[string]any{"id": "4711"}}, 131009},
		"unknown group":        {map[string]any{"recipient_type": "group", "to": "G", "type": "text", "text": map[string]any{"body": "x"}}, 131009},
		"read, unknown":        {map[string]any{"status": "read", "message_id": "wamid.no"}, 131009},
	} {
		if _, answer, code := w.send(c.fields); code != c.code {
			t.Errorf("%s: code %d, want %d: %v", name, code, c.code, answer)
		}
	}
	for path, bearer := range map[string]string{"/v25.0/" + numberID + "/messages": "wrong", "/v25.0/" + numberID: ""} {
		if status, _, code := w.call(http.MethodPost, path, bearer, map[string]any{}); status != 401 || code != 190 {
			t.Errorf("%s without its token: %d, code %d", path, status, code)
		}
	}
	if status, _, code := w.call(http.MethodPost, "/v25.0/99/messages", token, map[string]any{}); status != 400 || code != 100 {
		t.Errorf("another number: %d, code %d", status, code)
	}
	if status, answer, _ := w.call(http.MethodGet, "/v25.0/"+numberID, token, nil); status != 200 || answer["display_phone_number"] != "+15550009999" {
		t.Errorf("the number: %d %v", status, answer)
	}
}

func TestWindowAndLimits(t *testing.T) {
	w := newWorld(t, func(o *graph.Options) { o.Limits = true })
	if _, _, code := w.send(text("x")); code != 131047 {
		t.Errorf("before any message: code %d", code)
	}
	w.say(graph.Say{Text: "hi"})
	for i := range 45 {
		if _, _, code := w.send(text("x")); code != 0 {
			t.Fatalf("message %d of the burst: code %d", i+1, code)
		}
	}
	if status, _, code := w.send(text("x")); code != 131056 || status != 400 {
		t.Errorf("after the burst: %d, code %d", status, code)
	}
	w.server.Clock().Jump(7 * time.Second)
	if _, _, code := w.send(text("x")); code != 0 {
		t.Errorf("one is free again: code %d", code)
	}
	w.server.Clock().Jump(25 * time.Hour)
	if _, _, code := w.send(text("x")); code != 131047 {
		t.Errorf("a day later: code %d", code)
	}
	if _, _, code := w.send(map[string]any{"type": "template", "template": map[string]any{"name": "note", "language": map[string]any{"code": "en_US"}}}); code != 0 {
		t.Errorf("a template: code %d", code)
	}
}

func TestThroughput(t *testing.T) {
	fixed := time.Unix(1788000000, 0)
	w := newWorld(t, func(o *graph.Options) { o.Limits, o.Now = true, func() time.Time { return fixed } })
	var codes []int
	for i := range 3 {
		phone := "1555000200" + string(rune('0'+i))
		if _, err := w.server.AddPerson(graph.Person{Phone: phone}); err != nil {
			t.Fatal(err)
		}
		w.say(graph.Say{From: phone, Text: "hi"})
		for range 40 {
			_, _, code := w.send(map[string]any{"to": phone, "type": "text", "text": map[string]any{"body": "x"}})
			codes = append(codes, code)
		}
	}
	if n := len(codes); codes[79] != 0 || codes[80] != 130429 || codes[n-1] != 130429 {
		t.Errorf("codes: %v", codes)
	}
}

func TestRetriesUntilAnswered200(t *testing.T) {
	w := newWorld(t, nil)
	w.answer = func(try int) int {
		if try < 5 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}
	w.say(graph.Say{Text: "hi"})
	messages, _, _ := w.heard()
	if n := w.server.Counters()["webhookRetries"]; len(messages) != 1 || n != 4 {
		t.Errorf("%d messages after %d retries", len(messages), n)
	}
	w.answer = func(int) int { return http.StatusAccepted } // not 200
	w.say(graph.Say{Text: "hi"})
	for deadline := time.Now().Add(10 * time.Second); w.server.Counters()["webhookRetries"] < 6 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	w.server.Clock().Jump(8 * 24 * time.Hour)
	w.settled()
	if n := w.server.Counters()["webhooksLost"]; n != 1 {
		t.Errorf("%d lost after 7 days, want 1", n)
	}
}

func TestBatches(t *testing.T) {
	w := newWorld(t, nil)
	all := make([]graph.Say, 1001)
	for i := range all {
		all[i] = graph.Say{Text: "hi"}
	}
	w.say(all...)
	messages, _, contacts := w.heard()
	if len(w.bodies) != 2 || len(messages) != 1001 || len(contacts) != 2 {
		t.Errorf("%d bodies, %d messages, %d contacts", len(w.bodies), len(messages), len(contacts))
	}
}

func TestFaults(t *testing.T) {
	w := newWorld(t, nil)
	fault := func(f person.Fault) {
		t.Helper()
		if err := w.server.Fault(f); err != nil {
			t.Fatal(err)
		}
	}
	fault(person.Fault{On: "webhook", Do: "drop"})
	w.say(graph.Say{Text: "dropped"})
	fault(person.Fault{On: "webhook", Do: "double"})
	w.settled()
	w.say(graph.Say{Text: "twice"})
	w.settled()
	fault(person.Fault{On: "webhook", Do: "reorder"})
	w.say(graph.Say{Text: "later"})
	w.waitTaken("webhook")
	w.say(graph.Say{Text: "sooner"})
	messages, _, _ := w.heard()
	var texts []string
	for _, m := range messages {
		texts = append(texts, m["text"].(map[string]any)["body"].(string))
	}
	if diff := cmp.Diff([]string{"twice", "twice", "sooner", "later"}, texts); diff != "" {
		t.Errorf("texts (-want +got):\n%s", diff)
	}

	fault(person.Fault{On: "send", Do: "error", Code: 131000, Times: 2})
	for _, want := range []int{131000, 131000, 0} {
		if _, _, code := w.send(text("x")); code != want {
			t.Errorf("code %d, want %d", code, want)
		}
	}
	before := w.server.Counters()["sent"]
	fault(person.Fault{On: "send", Do: "cutBefore"})
	if status, _, _ := w.send(text("lost")); status != 0 || w.server.Counters()["sent"] != before {
		t.Errorf("cut before: status %d", status)
	}
	fault(person.Fault{On: "send", Do: "cutAfter"})
	if status, _, _ := w.send(text("taken")); status != 0 || w.server.Counters()["sent"] != before+1 {
		t.Errorf("cut after: status %d", status)
	}
	w.heard()
	w.bodies = nil
	fault(person.Fault{On: "status", Do: "withhold"})
	w.send(text("x"))
	if _, statuses, _ := w.heard(); len(statuses) != 0 {
		t.Errorf("withheld, but %v", statuses)
	}
	if n := w.server.Release(true); n != 3 {
		t.Errorf("%d released", n)
	}
	_, statuses, _ := w.heard()
	if len(statuses) != 3 || statuses[0]["status"] != "read" || len(w.bodies) != 1 {
		t.Errorf("released: %v", statuses)
	}
	fault(person.Fault{On: "status", Do: "fail", Code: 131047})
	w.send(text("x"))
	_, statuses, contacts := w.heard()
	last := statuses[len(statuses)-1]
	if last["status"] != "failed" || last["errors"].([]any)[0].(map[string]any)["code"] != 131047.0 || len(contacts) != 1 {
		t.Errorf("failed: %v, contacts %v", last, contacts)
	}
	if err := w.server.Fault(person.Fault{On: "send", Do: "nothing"}); err == nil {
		t.Error("an unknown fault is taken")
	}
}

// waitTaken waits until no fault on what is left.
func (w *world) waitTaken(on string) {
	w.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var left []person.Fault
		response, err := http.Get(w.api.URL + "/_fake/faults")
		if err == nil {
			err = json.NewDecoder(response.Body).Decode(&left)
			response.Body.Close()
		}
		if err != nil || time.Now().After(deadline) {
			w.t.Fatalf("faults are left: %v %v", left, err)
		}
		if !slices.ContainsFunc(left, func(f person.Fault) bool { return f.On == on }) {
			return
		}
	}
}

func TestPressReplyReactEditRead(t *testing.T) {
	w := newWorld(t, nil)
	first := w.say(graph.Say{Text: "hi"})[0]
	w.settled() // webhooks overtake each other
	w.send(map[string]any{"type": "interactive", "interactive": map[string]any{"type": "button", "body": map[string]any{"text": "Sure?"}, "action": map[string]any{"buttons": []any{
		map[string]any{"type": "reply", "reply": map[string]any{"id": "approve", "title": "Approve"}}, map[string]any{"type": "reply", "reply": map[string]any{"id": "deny", "title": "Deny"}},
	}}}})
	lines, _ := w.server.Chat("", ada, 0)
	shown := lines[1]
	w.say(graph.Say{Press: "2"}, graph.Say{Text: "yes", ReplyTo: shown.ID}, graph.Say{React: "👍", ReplyTo: shown.ID}, graph.Say{Edit: first.ID, Text: "hello"})
	messages, _, _ := w.heard()
	for _, m := range messages[1:] {
		delete(m, "id")
		delete(m, "timestamp")
	}
	from := map[string]any{"from": ada, "from_user_id": "US.9000000000000000001"}
	with := func(fields map[string]any) map[string]any {
		for k, v := range from {
			fields[k] = v
		}
		return fields
	}
	context := map[string]any{"from": "15550009999", "id": shown.ID}
	want := []map[string]any{
		with(map[string]any{"type": "interactive", "context": context, "interactive": map[string]any{"type": "button_reply", "button_reply": map[string]any{"id": "deny", "title": "Deny"}}}),
		with(map[string]any{"type": "text", "context": context, "text": map[string]any{"body": "yes"}}),
		with(map[string]any{"type": "reaction", "reaction": map[string]any{"message_id": shown.ID, "emoji": "👍"}}),
		with(map[string]any{"type": "unsupported", "unsupported": map[string]any{"type": "edit"}, "errors": []any{map[string]any{
			"code": 131051.0, "title": "Message type unknown", "message": "Message type unknown", "error_data": map[string]any{"details": "Message type is not currently supported."},
		}}}),
	}
	if diff := cmp.Diff(want, messages[1:]); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if status, _, _ := w.send(map[string]any{"status": "read", "message_id": first.ID, "typing_indicator": map[string]any{"type": "text"}}); status != 200 {
		t.Errorf("read: %d", status)
	}
	lines, _ = w.server.Chat("", ada, 0)
	if lines[0].Ticks != person.Read || lines[0].Text != "hello" || lines[1].Marks != "👍" {
		t.Errorf("lines: %+v", lines)
	}
	var page graph.Page
	w.get("/_fake/chats/"+ada+"?after="+"0", &page)
	if !page.Typing || len(page.Lines) != 4 {
		t.Errorf("page: %+v", page)
	}
}

func (w *world) get(path string, into any) int {
	w.t.Helper()
	response, err := http.Get(w.api.URL + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode
}

func TestMedia(t *testing.T) {
	w := newWorld(t, nil)
	line := w.say(graph.Say{Text: "look", File: &graph.Upload{Name: "a.jpg", MimeType: "image/jpeg", Data: []byte("picture")}})[0]
	messages, _, _ := w.heard()
	image := messages[0]["image"].(map[string]any)
	if image["id"] != line.File.ID || image["caption"] != "look" || image["mime_type"] != "image/jpeg" {
		t.Errorf("image: %v", image)
	}
	_, answer, _ := w.call(http.MethodGet, "/v25.0/"+line.File.ID, token, nil)
	fetch := func(bearer string) (int, string) {
		request, err := http.NewRequest(http.MethodGet, answer["url"].(string), nil)
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			request.Header.Set("Authorization", "Bearer "+bearer)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	if status, _ := fetch(""); status != 401 {
		t.Errorf("without bearer: %d", status)
	}
	if status, body := fetch(token); status != 200 || body != "picture" {
		t.Errorf("with bearer: %d %q", status, body)
	}
	w.server.Clock().Jump(6 * time.Minute)
	if status, _ := fetch(token); status != 404 {
		t.Errorf("after six minutes: %d", status)
	}
	if status, _ := w.upload("a.exe", "application/x-msdownload", []byte("MZ")); status != 400 {
		t.Errorf("an upload of a kind that is not taken: %d", status)
	}
	if status, _ := w.upload("a.png", "image/png", bytes.Repeat([]byte("x"), 5<<20+1)); status != 400 {
		t.Errorf("an image above 5 MB: %d", status)
	}
	status, id := w.upload("out.pdf", "application/pdf", []byte("%PDF"))
	if status != 200 {
		t.Fatalf("upload: %d", status)
	}
	if _, _, code := w.send(map[string]any{"type": "document", "document": map[string]any{"id": id, "filename": "report.pdf", "caption": "here"}}); code != 0 {
		t.Errorf("document: code %d", code)
	}
	if _, _, code := w.send(map[string]any{"type": "image", "image": map[string]any{"id": id}}); code != 131009 {
		t.Errorf("a PDF as image: code %d", code)
	}
	lines, _ := w.server.Chat("", ada, 0)
	if last := lines[len(lines)-1]; last.File == nil || last.File.Name != "report.pdf" || last.Text != "here" {
		t.Errorf("line: %+v", last)
	}
}

func TestGroupsAndHandshakeAndState(t *testing.T) {
	state := filepath.Join(t.TempDir(), "wa.json")
	w := newWorld(t, func(o *graph.Options) { o.State = state })
	if _, err := w.server.AddGroup(graph.Group{ID: "GRP-1", People: []string{ada}}); err != nil {
		t.Fatal(err)
	}
	w.say(graph.Say{Group: "GRP-1", Text: "hi all"})
	messages, _, _ := w.heard()
	if messages[0]["group_id"] != "GRP-1" || messages[0]["from"] != ada {
		t.Errorf("group message: %v", messages[0])
	}
	if _, _, code := w.send(map[string]any{"recipient_type": "group", "to": "GRP-1", "type": "text", "text": map[string]any{"body": "hello all"}}); code != 0 {
		t.Errorf("to a group: %d", code)
	}
	_, statuses, _ := w.heard()
	if s := statuses[1]; s["recipient_type"] != "group" || s["recipient_participant_id"] != ada {
		t.Errorf("status: %v", s)
	}
	if err := w.server.Register(t.Context(), "", w.hook.URL); err != nil {
		t.Errorf("handshake: %v", err)
	}
	if status, _, code := w.call(http.MethodPost, "/v25.0/"+numberID, token, map[string]any{"webhook_configuration": map[string]any{"override_callback_uri": w.hook.URL, "verify_token": "wrong"}}); status != 400 || code != 2200 {
		t.Errorf("a handshake with another token: %d, code %d", status, code)
	}
	if err := w.server.Save(); err != nil {
		t.Fatal(err)
	}
	again := newWorld(t, func(o *graph.Options) { o.State = state })
	lines, next := again.server.Chat("", "GRP-1", 0)
	if len(lines) != 2 || next == 0 {
		t.Errorf("kept: %+v", lines)
	}
	if _, err := again.server.NewNumber(ada, "15550005555"); err != nil {
		t.Fatal(err)
	}
	again.say(graph.Say{Text: "still me", From: "15550005555"})
	if messages, _, _ := again.heard(); len(messages) != 1 || messages[0]["from"] != "15550005555" {
		t.Errorf("after a new number: %v", messages)
	}
}

func TestControlIsForThisMachine(t *testing.T) {
	w := newWorld(t, nil)
	for name, change := range map[string]func(*http.Request){
		"host":   func(r *http.Request) { r.Host = "evil.example" },
		"origin": func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
	} {
		request, err := http.NewRequest(http.MethodPost, w.api.URL+"/_fake/say", strings.NewReader(`{"from":"`+ada+`","text":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		change(request)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusForbidden {
			t.Errorf("another %s: %d", name, response.StatusCode)
		}
	}
	response, err := http.Post(w.api.URL+"/_fake/say", "application/json", strings.NewReader(`[{"from":"`+ada+`","text":"x"}]`))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if messages, _, _ := w.heard(); response.StatusCode != 200 || len(messages) != 1 {
		t.Errorf("say: %d, %v", response.StatusCode, messages)
	}
}
