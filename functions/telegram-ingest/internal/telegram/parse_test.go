package telegram

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The parts that updates of these tests are made of.
const (
	ada     = `"from":{"id":5000000001,"is_bot":false,"first_name":"Ada","last_name":"Test"}`
	private = `"chat":{"id":5000000001,"type":"private"}`
	group   = `"chat":{"id":-1001234500001,"title":"G","type":"supergroup"}`
	head    = `"message_id":7,"date":1788000000,`
)

func said(parts ...string) string { return `{` + head + strings.Join(parts, ",") + `}` }

func parseOne(t *testing.T, account *channel.Account, body string) postgres.Inbound {
	t.Helper()
	in, status := deliver(account, testBot, http.Header{secretHeader: {testSecret}}, []byte(body))
	if status != http.StatusOK {
		t.Fatalf("status %d for %s", status, body)
	}
	for _, a := range in.Arrivals {
		if err := sound(a); err != nil {
			t.Fatal(err)
		}
	}
	return in
}

// Every kind of content is an arrival whose text shows it.
func TestContent(t *testing.T) {
	for name, c := range map[string]struct{ part, kind, text string }{
		"text":            {`"text":"hi\u0000 there"`, "text", "hi there"},
		"animation":       {`"animation":{"file_id":"A","mime_type":"video/mp4","file_size":5},"document":{"file_id":"A"}`, "animation", "[animation]"},
		"document":        {`"document":{"file_id":"D","file_name":"../../x","mime_type":"a/b"}`, "document", "[document]"},
		"blank caption":   {`"video":{"file_id":"V"},"caption":"  "`, "video", "[video]"},
		"video note":      {`"video_note":{"file_id":"N"}`, "video_note", "[video message]"},
		"audio":           {`"audio":{"file_id":"N"},"caption":"listen"`, "audio", "listen"},
		"sticker":         {`"sticker":{"file_id":"S","emoji":"😀"}`, "sticker", "[sticker 😀]"},
		"plain sticker":   {`"sticker":{"file_id":"S"}`, "sticker", "[sticker]"},
		"paid media":      {`"paid_media":{"star_count":1,"paid_media":[{"type":"photo","photo":[{"file_id":"P"}]}]}`, "paid_media", "[paid media]"},
		"location":        {`"location":{"latitude":52.520000001,"longitude":-13.4}`, "location", "Location: 52.520000001, -13.4"},
		"broken location": {`"location":{"latitude":"x"}`, "location", "Location: not given"},
		"venue":           {`"venue":{"title":"Cafe","address":"Street 1","location":{"latitude":1,"longitude":2}},"location":{"latitude":1,"longitude":2}`, "venue", "Place: Cafe, Street 1, 1, 2"},
		"contact":         {`"contact":{"phone_number":"+15550000","first_name":"Bo"}`, "contact", "Contact: Bo, +15550000"},
		"dice":            {`"dice":{"emoji":"🎲","value":4}`, "dice", "🎲 Dice: 4"},
		"poll":            {`"poll":{"question":"When?","options":[{"text":"Now"},{"text":"Later"}]}`, "poll", "Poll: When?\n- Now\n- Later"},
		"checklist":       {`"checklist":{"title":"Trip","tasks":[{"id":1,"text":"pack"}]}`, "checklist", "Checklist: Trip\n- pack"},
		"game":            {`"game":{"title":"Chess"}`, "game", "Game: Chess"},
		"story":           {`"story":{"id":1}`, "story", "[story]"},
		"rich list":       {`"rich_message":{"blocks":[{"type":"list","items":[{"label":"1.","blocks":[{"type":"paragraph","text":"pack"}]}]},{"type":"photo","photo":[{"file_id":"P"}],"caption":"map"}]}`, "text", "1. pack\nmap"},
		"rich photo":      {`"rich_message":{"blocks":[{"type":"photo","photo":[{"file_id":"P"}]}]}`, "text", "[files]"},
	} {
		in := parseOne(t, testAccount(), `{"update_id":1,"message":`+said(ada, private, c.part)+`}`)
		if len(in.Arrivals) != 1 || len(in.Notices) != 0 {
			t.Errorf("%s: %d arrivals, notices %+v", name, len(in.Arrivals), in.Notices)
			continue
		}
		a := in.Arrivals[0]
		if a.Message.Text != c.text || a.Message.Metadata["type"] != c.kind {
			t.Errorf("%s: %q of type %v", name, a.Message.Text, a.Message.Metadata["type"])
		}
		if ours := a.Message.Metadata[postgres.StandIn] == true; ours != (c.kind != "text" && c.text != "listen" || c.text == "[files]") {
			t.Errorf("%s: stand-in is %v", name, ours)
		}
	}
}

func TestArrivalSaysEverything(t *testing.T) {
	in := parseOne(t, testAccount(), `{"update_id":9,"message":`+said(ada, private, `"media_group_id":"77"`, `"forward_origin":{"type":"user"}`,
		`"reply_to_message":{"message_id":3,"text":"before"}`, `"quote":{"text":"bef"}`, `"caption":"look"`,
		`"photo":[{"file_id":"big","width":9,"height":9,"file_size":81},{"file_id":"small","width":1,"height":1}]`)+`}`)
	want := postgres.Arrival{
		Account: testBot, ProviderID: "9", Chat: "5000000001", Address: "5000000001", SentAt: time.Unix(1788000000, 0), Album: "77",
		Pace:        postgres.Pace{Every: time.Second, Burst: 3},
		Attachments: []harness.Attachment{{Kind: harness.AttachmentImage, ProviderID: "big", MimeType: "image/jpeg", Bytes: 81}},
		Message: harness.Message{Channel: harness.ChannelTelegram, ChannelUserID: "5000000001", Text: "look", Metadata: map[string]any{
			"messageId": "7", "chatId": "5000000001", "updateId": "9", "type": "photo", "profileName": "Ada Test", "mediaId": "big", "mimeType": "image/jpeg",
			"albumId": "77", "replyTo": "3", "quote": "bef", "forwarded": true, "timestamp": "1788000000",
		}},
	}
	if diff := cmp.Diff([]postgres.Arrival{want}, in.Arrivals); diff != "" {
		t.Error(diff)
	}
}

// Where a message was said is where its answer goes.
func TestAddresses(t *testing.T) {
	for body, want := range map[string]string{
		`"message":` + said(ada, private, `"text":"a","message_thread_id":5,"is_topic_message":true`):                                                                "5000000001;topic=5",
		`"message":` + said(ada, private, `"text":"a","message_thread_id":1,"is_topic_message":true`):                                                                "5000000001",
		`"message":` + said(ada, private, `"text":"a","message_thread_id":5`):                                                                                        "5000000001",
		`"business_message":` + said(ada, private, `"text":"a","business_connection_id":"B;C=1%"`):                                                                   "5000000001;business=B%3BC=1%25",
		`"guest_message":` + said(ada, group, `"text":"a","guest_query_id":"Q1"`):                                                                                    "-1001234500001;guest=Q1",
		`"message":` + said(ada, `"chat":{"id":-1009,"type":"supergroup","is_direct_messages":true},"direct_messages_topic":{"topic_id":44},"text":"a"`):             "-1009;direct=44",
		`"channel_post":` + said(`"chat":{"id":-1008,"type":"channel"},"text":"/ask","entities":[{"type":"bot_command","offset":0,"length":4}]`):                     "-1008",
		`"callback_query":{"id":"c",` + ada + `,"data":"x","message":{"message_id":2,"date":0,` + group + `,"message_thread_id":8,"is_topic_message":true}}`:         "-1001234500001;topic=8",
		`"callback_query":{"id":"c",` + ada + `,"data":"x","message":{"message_id":2,"date":0,"business_connection_id":"BC","chat":{"id":6,"type":"private"}}}`:      "6;business=BC",
		`"message":` + said(`"from":{"id":136817688,"is_bot":true},"sender_chat":{"id":-1005,"type":"channel","title":"News"}`, private, `"text":"as a channel"`):    "5000000001",
		`"message":` + said(`"from":{"id":777000,"is_bot":false},"sender_chat":{"id":-1005,"type":"channel"},"is_automatic_forward":true`, private, `"text":"auto"`): "5000000001",
	} {
		in := parseOne(t, testAccount(), `{"update_id":1,`+body+`}`)
		if len(in.Arrivals) != 1 || in.Arrivals[0].Chat != want || in.Arrivals[0].Address != want {
			t.Errorf("%s: %+v %+v, want %s", body, in.Arrivals, in.Notices, want)
			continue
		}
		to, err := parseAddress(want)
		if err != nil || to.String() != want {
			t.Errorf("%s is read as %+v, %v", want, to, err)
		}
	}
	for _, wrong := range []string{"", "0", "x", "1;topic", "1;topic=", "1;topic=x", "1;other=2", "1;guest=%zz", ";topic=1", "99999999999999999999"} {
		if _, err := parseAddress(wrong); err == nil {
			t.Errorf("%q is taken for an address", wrong)
		}
	}
}

// Whatever starts no turn is recorded as what it is.
func TestNotices(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want postgres.Notice
	}{
		"edit": {`"edited_message":` + said(ada, private, `"text":"new"`), postgres.Notice{
			Kind: harness.NoticeEdit, Chat: "5000000001", ChannelUserID: "5000000001", Ref: "7",
			Data: map[string]any{"type": "text", "text": "new"},
		}},
		"edit in a group": {`"edited_message":` + said(ada, group, `"text":"new"`), postgres.Notice{
			Kind: harness.NoticeEdit, Chat: "-1001234500001", ChannelUserID: "5000000001", Ref: "7",
			Data: map[string]any{"type": "text"},
		}},
		"reaction": {
			`"message_reaction":{` + group + `,"message_id":3,"user":{"id":5},"new_reaction":[{"type":"emoji","emoji":"👍"},{"type":"custom_emoji","custom_emoji_id":"88"}]}`,
			postgres.Notice{Kind: harness.NoticeReaction, Chat: "-1001234500001", ChannelUserID: "5", Ref: "3", Data: map[string]any{"type": "message_reaction", "reactions": []string{"👍", "88"}}},
		},
		"deleted": {
			`"deleted_business_messages":{"business_connection_id":"BC",` + private + `,"message_ids":[4,"x",5]}`,
			postgres.Notice{Kind: harness.NoticeRevoke, Chat: "5000000001;business=BC", Ref: "4", Data: map[string]any{"type": "deleted_business_messages", "messageIds": []string{"4", "5"}}},
		},
		"business connection": {
			`"business_connection":{"id":"BC","user":{"id":5},"is_enabled":true}`,
			postgres.Notice{Kind: harness.NoticeService, ChannelUserID: "5", Data: map[string]any{"type": "business_connection", "businessConnectionId": "BC", "enabled": true}},
		},
		"owner of the business": {
			`"business_message":` + said(`"from":{"id":9}`, private, `"text":"mine","business_connection_id":"BC"`),
			postgres.Notice{Kind: harness.NoticeEcho, Chat: "5000000001;business=BC", ChannelUserID: "9", Ref: "7", Data: map[string]any{"type": "text"}},
		},
		"owner of the channel": {
			`"message":` + said(`"from":{"id":9}`, `"chat":{"id":-1009,"is_direct_messages":true},"direct_messages_topic":{"topic_id":4,"user":{"id":5}},"text":"ours"`),
			postgres.Notice{Kind: harness.NoticeEcho, Chat: "-1009;direct=4", ChannelUserID: "9", Ref: "7", Data: map[string]any{"type": "text"}},
		},
		"ourselves": {
			`"message":` + said(`"from":{"id":7000000001,"is_bot":true}`, group, `"text":"me"`),
			postgres.Notice{Kind: harness.NoticeEcho, Chat: "-1001234500001", ChannelUserID: "7000000001", Ref: "7", Data: map[string]any{"type": "text"}},
		},
		"another bot": {
			`"message":` + said(`"from":{"id":8,"is_bot":true}`, private, `"text":"beep"`),
			postgres.Notice{Kind: harness.NoticeService, Chat: "5000000001", ChannelUserID: "8", Ref: "7", Data: map[string]any{"type": "text"}},
		},
		"joined": {
			`"my_chat_member":{` + group + `,` + ada + `,"new_chat_member":{"status":"member"}}`,
			postgres.Notice{Kind: harness.NoticeService, Chat: "-1001234500001", ChannelUserID: "5000000001", Data: map[string]any{"type": "my_chat_member", "status": "member"}},
		},
		"boost":            {`"chat_boost":{` + group + `}`, postgres.Notice{Kind: harness.NoticeService, Chat: "-1001234500001", Data: map[string]any{"type": "chat_boost"}}},
		"inline query":     {`"inline_query":{"id":"1",` + ada + `}`, postgres.Notice{Kind: harness.NoticeUnsupported, ChannelUserID: "5000000001", Data: map[string]any{"type": "inline_query"}}},
		"of the future":    {`"telepathy":{"thought":1}`, postgres.Notice{Kind: harness.NoticeUnsupported, Data: map[string]any{"type": "telepathy"}}},
		"unknown content":  {`"message":` + said(ada, private, `"hologram":{}`), postgres.Notice{Kind: harness.NoticeUnsupported, Chat: "5000000001", ChannelUserID: "5000000001", Ref: "7", Data: map[string]any{"type": "hologram"}}},
		"service":          {`"message":` + said(ada, group, `"pinned_message":{}`), postgres.Notice{Kind: harness.NoticeService, Chat: "-1001234500001", ChannelUserID: "5000000001", Ref: "7", Data: map[string]any{"type": "pinned_message"}}},
		"empty":            {`"message":` + said(ada, private), postgres.Notice{Kind: harness.NoticeEmpty, Chat: "5000000001", ChannelUserID: "5000000001", Ref: "7", Data: map[string]any{"type": "empty"}}},
		"blank":            {`"message":` + said(ada, private, `"text":" \u0000\n"`), postgres.Notice{Kind: harness.NoticeEmpty, Chat: "5000000001", ChannelUserID: "5000000001", Ref: "7", Data: map[string]any{"type": "text"}}},
		"nobody":           {`"message":` + said(private, `"text":"x"`), postgres.Notice{Kind: harness.NoticeMalformed, Chat: "5000000001", Ref: "7", Data: map[string]any{"type": "text"}}},
		"no chat":          {`"message":` + said(ada, `"text":"x"`), postgres.Notice{Kind: harness.NoticeMalformed, Data: map[string]any{"type": "message"}}},
		"rounded id":       {`"message":{"message_id":1e3,` + private + `}`, postgres.Notice{Kind: harness.NoticeMalformed, Data: map[string]any{"type": "message"}}},
		"no object":        {`"message":[1]`, postgres.Notice{Kind: harness.NoticeMalformed, Data: map[string]any{"type": "message"}}},
		"nothing":          {`"message":null`, postgres.Notice{Kind: harness.NoticeMalformed, Data: map[string]any{}}},
		"no guest query":   {`"guest_message":` + said(ada, group, `"text":"x"`), postgres.Notice{Kind: harness.NoticeMalformed, Data: map[string]any{"type": "guest_message"}}},
		"callback of game": {`"callback_query":{"id":"c",` + ada + `,"game_short_name":"g"}`, postgres.Notice{Kind: harness.NoticeUnsupported, ChannelUserID: "5000000001", Data: map[string]any{"type": "callback_query", "callbackQueryId": "c"}}},
	} {
		in := parseOne(t, testAccount(), `{"update_id":12,`+c.body+`}`)
		c.want.Account, c.want.ProviderID = testBot, "12"
		if diff := cmp.Diff(postgres.Inbound{Notices: []postgres.Notice{c.want}}, in); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A blocked chat takes no more replies, and a group that moved keeps its
// conversation, whichever of the two chats says so.
func TestChatsChange(t *testing.T) {
	in := parseOne(t, testAccount(), `{"update_id":1,"my_chat_member":{`+private+`,`+ada+`,"new_chat_member":{"status":"kicked"}}}`)
	if diff := cmp.Diff([]postgres.Block{{Account: testBot, Chat: "5000000001", Reason: "the person has blocked the bot"}}, in.Blocks); diff != "" {
		t.Error(diff)
	}
	want := []postgres.Rename{{Account: testBot, ProviderID: "migrate:-400:-100400", From: []string{"-400"}, To: []string{"-100400"}}}
	for _, body := range []string{
		`{"update_id":1,"message":` + said(ada, `"chat":{"id":-400,"type":"group"},"migrate_to_chat_id":-100400`) + `}`,
		`{"update_id":2,"message":` + said(ada, `"chat":{"id":-100400,"type":"supergroup"},"migrate_from_chat_id":-400`) + `}`,
	} {
		in := parseOne(t, testAccount(), body)
		if diff := cmp.Diff(want, in.Renames); diff != "" || len(in.Notices) != 1 || in.Notices[0].Kind != harness.NoticeIdentity {
			t.Error(diff, in.Notices)
		}
	}
}

func TestGroupRules(t *testing.T) {
	reply := func(more string) string {
		return `"text":"thanks","reply_to_message":{"message_id":1,"from":{"id":7000000001,"is_bot":true}` + more + `}`
	}
	command := func(text string) string {
		return fmt.Sprintf(`"text":%q,"entities":[{"type":"bot_command","offset":0,"length":%d}]`, text, len(strings.Fields(text)[0]))
	}
	for name, c := range map[string]struct {
		part                string
		mention, all, never bool // taken under that policy
	}{
		"said to nobody":      {`"text":"hello"`, false, true, false},
		"mention":             {`"text":"@Example_Helper_Bot hi","entities":[{"type":"mention","offset":0,"length":19}]`, true, true, false},
		"mention in caption":  {`"caption":"@example_helper_bot","caption_entities":[{"type":"mention","offset":0,"length":19}],"photo":[{"file_id":"P"}]`, true, true, false},
		"mention of another":  {`"text":"@someone_else_bot_ hi","entities":[{"type":"mention","offset":0,"length":18}]`, false, true, false},
		"mention by id":       {`"text":"Helper hi","entities":[{"type":"text_mention","offset":0,"length":6,"user":{"id":7000000001}}]`, true, true, false},
		"mention of other id": {`"text":"Ada hi","entities":[{"type":"text_mention","offset":0,"length":3,"user":{"id":5}}]`, false, true, false},
		"NUL before mention":  {`"text":"\u0000@example_helper_bot","entities":[{"type":"mention","offset":1,"length":19}]`, true, true, false},
		"command":             {command("/status now"), true, true, false},
		"command to us":       {command("/status@EXAMPLE_helper_bot now"), true, true, false},
		"command to other":    {command("/status@other_bot now"), false, false, false},
		"path in a text":      {`"text":"see /etc","entities":[{"type":"bot_command","offset":4,"length":4}]`, false, true, false},
		"reply to us":         {reply(""), true, true, false},
		"said in our topic":   {reply(`,"forum_topic_created":{"name":"x"}`), false, true, false},
		"rich mention":        {`"rich_message":{"blocks":[{"type":"paragraph","text":["hey ","@example_helper_bot",", hi"]}]}`, true, true, false},
		"rich":                {`"rich_message":{"blocks":[{"type":"paragraph","text":"hey @example_helper_bot2"}]}`, false, true, false},
	} {
		for policy, want := range map[harness.GroupPolicy]bool{"": c.mention, harness.GroupsMention: c.mention, harness.GroupsAll: c.all, harness.GroupsNone: c.never} {
			account := testAccount()
			account.Spec.Groups = policy
			in := parseOne(t, account, `{"update_id":1,"message":`+said(ada, group, c.part)+`}`)
			if got := len(in.Arrivals) == 1; got != want {
				t.Errorf("%s under %q: taken %v", name, policy, got)
			}
			if !want && (len(in.Notices) != 1 || in.Notices[0].Kind != harness.NoticeNotAddressed || in.Notices[0].Data["text"] != nil) {
				t.Errorf("%s under %q: %+v", name, policy, in.Notices)
			}
		}
	}
}

// Under groups: none not even a pressed button or a guest's question counts.
func TestGroupsNone(t *testing.T) {
	account := testAccount()
	for _, body := range []string{
		`{"update_id":1,"callback_query":{"id":"c",` + ada + `,"data":"x","message":{"message_id":2,` + group + `}}}`,
		`{"update_id":1,"guest_message":` + said(ada, group, `"text":"x","guest_query_id":"Q"`) + `}`,
	} {
		for policy, want := range map[harness.GroupPolicy]int{harness.GroupsMention: 1, harness.GroupsNone: 0} {
			account.Spec.Groups = policy
			if in := parseOne(t, account, body); len(in.Arrivals) != want || len(in.Notices) != 1-want {
				t.Errorf("%s under %s: %+v", body, policy, in)
			}
		}
	}
}

func TestPairing(t *testing.T) {
	account := testAccount()
	account.Spec.Senders.Policy = harness.SendersPairing
	account.Keys[channel.RolePairingCode] = []harness.Secret{"new-code-123", "old-code-123"}
	for text, want := range map[string]bool{
		"new-code-123": true, " old-code-123 ": true, "/start new-code-123": true, "/start@Example_Helper_Bot new-code-123": true,
		"/start": false, "new-code-12": false, "": false, "/begin new-code-123": false, "my code is new-code-123": false,
	} {
		in := parseOne(t, account, fmt.Sprintf(`{"update_id":1,"message":%s}`, said(ada, private, fmt.Sprintf(`"text":%q`, text))))
		paired := len(in.Arrivals) == 1 && in.Arrivals[0].Paired
		if paired != want {
			t.Errorf("%q pairs: %v", text, paired)
		}
		if paired && (in.Arrivals[0].Message.Text != "Hello! I have just been paired with you." || in.Arrivals[0].Message.Metadata[postgres.StandIn] != true) {
			t.Errorf("%q becomes %+v", text, in.Arrivals[0].Message)
		}
	}
	account.Spec.Senders.Policy = harness.SendersOpen
	if in := parseOne(t, account, `{"update_id":1,"message":`+said(ada, private, `"text":"new-code-123"`)+`}`); in.Arrivals[0].Paired {
		t.Error("paired without the policy")
	}
}

func TestCallbackShowsItsButton(t *testing.T) {
	in := parseOne(t, testAccount(), `{"update_id":1,"callback_query":{"id":"77",`+ada+`,"data":"ok:6","message":{"message_id":2,"date":1,`+group+`,"text":"Really?",
		"reply_markup":{"inline_keyboard":[[{"text":"No","callback_data":"no"},{"text":"Yes, do it","callback_data":"ok:6"}]]}}}}`)
	if len(in.Arrivals) != 1 || in.Arrivals[0].Message.Text != "Yes, do it [ok:6]" || in.Arrivals[0].Message.Metadata["quote"] != "Really?" {
		t.Errorf("%+v", in)
	}
}

// An update without an id has what names it otherwise, the same for a repeat.
func TestUpdateWithoutID(t *testing.T) {
	for body, want := range map[string]string{
		`{"message":` + said(ada, private, `"text":"x"`) + `}`:                                             "message:5000000001/7",
		`{"callback_query":{"id":"77",` + ada + `,"data":"d","message":{"message_id":2,` + private + `}}}`: "callback:77",
	} {
		if in := parseOne(t, testAccount(), body); len(in.Arrivals) != 1 || in.Arrivals[0].ProviderID != want {
			t.Errorf("%+v", in)
		}
	}
	for _, body := range []string{`{}`, `[]`, `null`, `7`, `{"update_id":"x","message":{}}`, `{"update_id":1.0,"poll":{}}`} {
		one, two := parseOne(t, testAccount(), body), parseOne(t, testAccount(), body)
		if diff := cmp.Diff(one, two); diff != "" || len(one.Notices) != 1 || !strings.HasPrefix(one.Notices[0].ProviderID, "sha256:") {
			t.Errorf("%s: %+v %s", body, one, diff)
		}
	}
}

func TestVerify(t *testing.T) {
	two := testAccount()
	two.Keys[channel.RoleWebhookSecret] = []harness.Secret{"new-secret", "old-secret"}
	unset := testAccount()
	unset.Keys[channel.RoleWebhookSecret] = []harness.Secret{""}
	none := testAccount()
	delete(none.Keys, channel.RoleWebhookSecret)
	for name, c := range map[string]struct {
		account *channel.Account
		bot     string
		secret  []string
		want    int
	}{
		"right":            {testAccount(), testBot, []string{testSecret}, 200},
		"name in capitals": {testAccount(), "Example_Helper_BOT", []string{testSecret}, 200},
		"newest":           {two, testBot, []string{"new-secret"}, 200},
		"while rotated":    {two, testBot, []string{"old-secret"}, 200},
		"both":             {two, testBot, []string{"new-secret,old-secret"}, 401},
		"wrong":            {testAccount(), testBot, []string{testSecret + "2"}, 401},
		"part":             {testAccount(), testBot, []string{testSecret[:5]}, 401},
		"missing":          {testAccount(), testBot, nil, 401},
		"empty":            {testAccount(), testBot, []string{""}, 401},
		"unset, empty":     {unset, testBot, []string{""}, 401},
		"none, empty":      {none, testBot, []string{""}, 401},
		"none":             {none, testBot, []string{testSecret}, 401},
		"unknown bot":      {testAccount(), "other_bot", []string{testSecret}, 401},
	} {
		if _, status := deliver(c.account, c.bot, http.Header{secretHeader: c.secret}, []byte(`{"update_id":1}`)); status != c.want {
			t.Errorf("%s: %d, want %d", name, status, c.want)
		}
	}
}

// corpus is the bodies of all cases.
func corpus(t testing.TB) [][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/cases/tg-*.json")
	if err != nil {
		t.Fatal(err)
	}
	var bodies [][]byte
	for _, path := range paths {
		if strings.HasSuffix(path, ".expect.json") || strings.HasSuffix(path, ".request.json") {
			continue
		}
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// storable reports what of in the database would refuse.
func storable(in postgres.Inbound) error {
	for _, a := range in.Arrivals {
		if err := sound(a); err != nil {
			return err
		}
	}
	for _, n := range in.Notices {
		text := fmt.Sprint(n)
		if n.ProviderID == "" || n.Kind == "" || text != harness.CleanText(text) {
			return fmt.Errorf("a notice cannot be stored: %q", text)
		}
	}
	return nil
}
