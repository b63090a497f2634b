package whatsapp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// change wraps the inside of a value in a whole body.
func change(value string) []byte {
	return []byte(`{"object":"whatsapp_business_account","entry":[{"id":"200000000000001","time":1,"changes":[{"field":"messages","value":{
		"metadata":{"display_phone_number":"15550009999","phone_number_id":"` + ourID + `"},` + value + `}}]}]}`)
}

// said is a message of Ada's with fields.
func said(fields string) []byte {
	return change(`"messages":[{"from":"15550001111","from_user_id":"US.1","id":"wamid.1","timestamp":"1788000000",` + fields + `}]`)
}

func parsed(t *testing.T, body []byte, change func(*channel.Account)) postgres.Inbound {
	t.Helper()
	in, err := adapter(nil).Parse(body, channel.Proof{Accounts: number1(change)})
	if err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if problem := sound(in, nil); problem != "" {
		t.Fatal(problem)
	}
	return in
}

func TestTurns(t *testing.T) {
	for name, tt := range map[string]struct {
		fields  string
		text    string
		standIn bool
		data    map[string]any
		files   []harness.Attachment
	}{
		"video": {
			`"type":"video","video":{"id":"4","mime_type":"video/mp4","url":"https://lookaside.example.com/secret"}`, "[video]", true,
			map[string]any{"mediaId": "4", "mimeType": "video/mp4"},
			[]harness.Attachment{{Kind: harness.AttachmentVideo, ProviderID: "4", MimeType: "video/mp4"}},
		},
		"voice": {
			`"type":"audio","audio":{"id":"4","voice":true,"mime_type":"audio/ogg; codecs=opus"}`, "[voice message]", true,
			map[string]any{"mimeType": "audio/ogg; codecs=opus"},
			[]harness.Attachment{{Kind: harness.AttachmentAudio, ProviderID: "4", MimeType: "audio/ogg; codecs=opus"}},
		},
		"audio":                  {`"type":"audio","audio":{"id":"4"}`, "[audio]", true, nil, []harness.Attachment{{Kind: harness.AttachmentAudio, ProviderID: "4"}}},
		"sticker":                {`"type":"sticker","sticker":{"id":"4","animated":true}`, "[sticker]", true, nil, []harness.Attachment{{Kind: harness.AttachmentSticker, ProviderID: "4"}}},
		"document with caption":  {`"type":"document","document":{"id":"4","caption":"read","filename":"a\nb.pdf"}`, "read", false, map[string]any{"fileName": "a b.pdf"}, []harness.Attachment{{Kind: harness.AttachmentDocument, ProviderID: "4", FileName: "a b.pdf"}}},
		"caption without file":   {`"type":"image","image":{"caption":"see"}`, "see", false, map[string]any{"mediaId": nil}, nil},
		"location with name":     {`"type":"location","location":{"latitude":52.5200066,"longitude":-13.405,"name":"Gate","address":"Pariser\nPlatz","url":"https://x"}`, "[location: 52.5200066, -13.405, Gate, Pariser Platz]", true, nil, nil},
		"contacts":               {`"type":"contacts","contacts":[{"name":{"formatted_name":"Bo"},"phones":[{"phone":"+1 555","wa_id":"1555"}]},{"phones":[{"wa_id":"1666"}]},{}]`, "[contact: Bo, +1 555]\n[contact: 1666]\n[contact: no name, no number]", true, nil, nil},
		"list reply":             {`"type":"interactive","interactive":{"type":"list_reply","list_reply":{"id":"r:1","title":"Small","description":"30 cm"}}`, "Small", false, map[string]any{"selectionId": "r:1"}, nil},
		"button without title":   {`"type":"interactive","interactive":{"type":"button_reply","button_reply":{"id":"yes"}}`, "yes", true, nil, nil},
		"form":                   {`"type":"interactive","interactive":{"type":"nfm_reply","nfm_reply":{"body":"Sent","response_json":"{\"flow_token\":\"t\",\"b\":[\"x\",\"y\"],\"a\":12345678901234567890}"}}`, "[form]\na: 12345678901234567890\nb: x, y", true, map[string]any{"flow": map[string]any{"a": json.Number("12345678901234567890"), "b": []any{"x", "y"}}}, nil},
		"form that is no JSON":   {`"type":"interactive","interactive":{"type":"nfm_reply","nfm_reply":{"body":"Sent","response_json":"{broken"}}`, "{broken", false, nil, nil},
		"order with words":       {`"type":"order","order":{"text":"please","product_items":[{"product_retailer_id":"A","quantity":2,"item_price":7.5,"currency":"EUR"}]}`, "please\n\n[order]\n2 × A at 7.5 EUR", false, nil, nil},
		"forwarded":              {`"type":"text","text":{"body":"hi"},"context":{"forwarded":true}`, "hi", false, map[string]any{"forwarded": true, "replyTo": nil}, nil},
		"referral":               {`"type":"text","text":{"body":"hi"},"referral":{"headline":"H","image_url":"https://x","source_id":3}`, "hi", false, map[string]any{"referral": map[string]any{"headline": "H", "source_id": "3"}}, nil},
		"escaped keys":           {`"\u0074ype":"text","text":{"b\u006fdy":"hi"},"Text":{"body":"forged"}`, "hi", false, nil, nil},
		"payload without a text": {`"type":"button","button":{"payload":"P"}`, "P", true, map[string]any{"payload": "P"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := parsed(t, said(tt.fields), nil)
			if len(in.Arrivals) != 1 || len(in.Notices) != 0 {
				t.Fatalf("%+v", in)
			}
			a := in.Arrivals[0]
			if a.Message.Text != tt.text || (a.Message.Metadata[postgres.StandIn] == true) != tt.standIn {
				t.Errorf("%q %v", a.Message.Text, a.Message.Metadata)
			}
			for key, want := range tt.data {
				if diff := cmp.Diff(want, a.Message.Metadata[key]); diff != "" {
					t.Error(key, diff)
				}
			}
			if diff := cmp.Diff(tt.files, a.Attachments); diff != "" {
				t.Error(diff)
			}
			if text := fmt.Sprint(in); strings.Contains(text, "lookaside") {
				t.Error("the address of a file is kept: " + text)
			}
		})
	}
}

func TestArrival(t *testing.T) {
	in := parsed(t, change(`"contacts":[{"wa_id":"15550001111","user_id":"US.1","profile":{"name":"Ada"}}],"messages":[{"from":"15550001111","id":"wamid.1","timestamp":"1788000000","type":"text","text":{"body":"hi"}}]`), nil)
	want := postgres.Arrival{
		Account: ourID, ProviderID: "wamid.1", Chat: "15550001111", Address: "15550001111", OtherID: "US.1", Aliases: []string{"US.1", "15550001111"}, Lasting: "US.1",
		SentAt: time.Unix(1788000000, 0).UTC(), Pace: postgres.Pace{Every: 6 * time.Second, Burst: 45},
		Message: harness.Message{Channel: harness.ChannelWhatsApp, ChannelUserID: "15550001111", Text: "hi", Metadata: map[string]any{
			"messageId": "wamid.1", "type": "text", "phoneNumberId": ourID, "userId": "US.1", "profileName": "Ada", "timestamp": "1788000000",
		}},
	}
	if diff := cmp.Diff([]postgres.Arrival{want}, in.Arrivals); diff != "" {
		t.Error(diff)
	}
	hidden := parsed(t, change(`"contacts":[{"user_id":"US.1"}],"messages":[{"from_user_id":"US.1","id":"wamid.2","timestamp":"99999999999","type":"text","text":{"body":"hi"}}]`), nil).Arrivals[0]
	if hidden.Chat != "US.1" || hidden.Address != "US.1" || hidden.OtherID != "" || !cmp.Equal(hidden.Aliases, []string{"US.1"}) || !hidden.SentAt.IsZero() {
		t.Errorf("%+v", hidden)
	}
	long := parsed(t, said(`"type":"text","text":{"body":"`+strings.Repeat("ü", 40_000)+`"}`), nil).Arrivals[0]
	if len(long.Message.Text) != maxText || long.Message.Metadata["truncated"] != true {
		t.Errorf("%d bytes, %v", len(long.Message.Text), long.Message.Metadata["truncated"])
	}
	form, _ := json.Marshal(map[string]string{"x": strings.Repeat("<", 20_000)})
	quoted, _ := json.Marshal(string(form))
	large := parsed(t, said(`"type":"interactive","interactive":{"type":"nfm_reply","nfm_reply":{"response_json":`+string(quoted)+`}}`), nil).Arrivals[0]
	if large.Message.Metadata["flow"] != nil || !strings.Contains(large.Message.Text, "x: <<<") {
		t.Error("a large form must stay in the text and leave the metadata")
	}
}

func TestNotices(t *testing.T) {
	type notice struct {
		Kind            harness.NoticeKind
		ID, Chat, Ref   string
		DataKey, DataIs string
	}
	for name, tt := range map[string]struct {
		body []byte
		want notice
	}{
		"reaction":         {said(`"type":"reaction","reaction":{"message_id":"wamid.0","emoji":"\ud83d\udc4d"}`), notice{harness.NoticeReaction, "wamid.1", "15550001111", "wamid.0", "emoji", "👍"}},
		"reaction removed": {said(`"type":"reaction","reaction":{"message_id":"wamid.0"}`), notice{harness.NoticeReaction, "wamid.1", "15550001111", "wamid.0", "removed", "true"}},
		"edit":             {said(`"type":"edit","edit":{"original_message_id":"wamid.0","message":{"type":"image","image":{"caption":"new"}}}`), notice{harness.NoticeEdit, "wamid.1", "15550001111", "wamid.0", "text", "new"}},
		"revoke":           {said(`"type":"revoke","revoke":{"original_message_id":"wamid.0"}`), notice{harness.NoticeRevoke, "wamid.1", "15550001111", "wamid.0", "", ""}},
		"unsupported":      {said(`"type":"unsupported","errors":[{"code":131051,"title":"T"}],"unsupported":{"type":"poll_creation"}`), notice{harness.NoticeUnsupported, "wamid.1", "15550001111", "", "code", "131051"}},
		"unsupported edit": {said(`"type":"unsupported","unsupported":{"type":"edit"}`), notice{harness.NoticeEdit, "wamid.1", "15550001111", "", "unsupported", "edit"}},
		"welcome":          {said(`"type":"request_welcome"`), notice{harness.NoticeService, "wamid.1", "15550001111", "", "type", "request_welcome"}},
		"ephemeral":        {said(`"type":"ephemeral"`), notice{harness.NoticeUnsupported, "wamid.1", "15550001111", "", "type", "ephemeral"}},
		"no type":          {said(`"text":{"body":"x"}`), notice{harness.NoticeUnsupported, "wamid.1", "15550001111", "", "type", ""}},
		"call permission":  {said(`"type":"interactive","interactive":{"type":"call_permission_reply"}`), notice{harness.NoticeUnsupported, "wamid.1", "15550001111", "", "interactive", "call_permission_reply"}},
		"no interactive":   {said(`"type":"interactive"`), notice{harness.NoticeEmpty, "wamid.1", "15550001111", "", "", ""}},
		"empty text":       {said(`"type":"text","text":{"body":" \u200b\n"}`), notice{harness.NoticeEmpty, "wamid.1", "15550001111", "", "", ""}},
		"wrong text":       {said(`"type":"text","text":{"body":5}`), notice{harness.NoticeMalformed, "wamid.1", "15550001111", "", "", ""}},
		"our own":          {change(`"messages":[{"from":"15550009999","id":"wamid.1","type":"text","text":{"body":"x"}}]`), notice{harness.NoticeEcho, "wamid.1", "15550009999", "", "", ""}},
		"no sender":        {change(`"messages":[{"id":"wamid.1","type":"text","text":{"body":"x"}}]`), notice{harness.NoticeMalformed, "wamid.1", "", "", "", ""}},
		"control in id":    {change(`"messages":[{"from":"1","id":"wamid\n1","type":"text","text":{"body":"x"}}]`), notice{harness.NoticeMalformed, "sha256:", "", "", "", ""}},
		"long id":          {change(`"messages":[{"from":"1","id":"` + strings.Repeat("x", 513) + `","type":"text","text":{"body":"x"}}]`), notice{harness.NoticeMalformed, "sha256:", "", "", "", ""}},
		"NUL in id":        {change(`"messages":[{"from":"1","id":"a\u0000b","type":"text","text":{"body":"x"}}]`), notice{harness.NoticeMalformed, "sha256:", "", "", "", ""}},
		"number as id":     {change(`"messages":[{"from":"1","id":7,"type":"text","text":{"body":"x"}}]`), notice{harness.NoticeMalformed, "sha256:", "", "", "", ""}},
		"null":             {change(`"messages":[null]`), notice{harness.NoticeMalformed, "sha256:", "", "", "", ""}},
		"nameless group":   {said(`"type":"text","text":{"body":"@bot x"},"group_id":"a b"`), notice{harness.NoticeMalformed, "wamid.1", "group:?", "", "", ""}},
		"errors only":      {change(`"errors":[{"code":130429,"title":"Rate","href":"https://x/y"}]`), notice{harness.NoticeService, "sha256:", "", "", "code", "130429"}},
		"failed": {
			change(`"statuses":[{"id":"wamid.O","status":"failed","recipient_id":"1555","biz_opaque_callback_data":"rpl_01","errors":[{"code":131026,"error_data":{"details":"d"}}]}]`),
			notice{harness.NoticeDelivery, "wamid.O/failed", "1555", "wamid.O", "opaque", "rpl_01"},
		},
		"other status":            {change(`"statuses":[{"id":"wamid.O","status":"warning"}]`), notice{harness.NoticeDelivery, "wamid.O/warning", "", "wamid.O", "status", "warning"}},
		"identity":                {said(`"type":"system","system":{"type":"customer_identity_changed","body":"x"}`), notice{harness.NoticeIdentity, "wamid.1", "15550001111", "", "system", "customer_identity_changed"}},
		"other system":            {said(`"type":"system","system":{"type":"group_made"}`), notice{harness.NoticeService, "wamid.1", "15550001111", "", "system", "group_made"}},
		"other body":              {[]byte(`{"object":"page"}`), notice{harness.NoticeMalformed, "sha256:", "", "", "", ""}},
		"scalar body":             {[]byte(`7`), notice{harness.NoticeMalformed, "sha256:", "", "", "", ""}},
		"messages without number": {[]byte(`{"object":"whatsapp_business_account","entry":[{"id":"2","changes":[{"field":"messages","value":{}}]}]}`), notice{harness.NoticeMalformed, "sha256:", "", "", "", ""}},
		"other field": {
			[]byte(`{"object":"whatsapp_business_account","entry":[{"id":"2","changes":[{"field":"account_update","value":{"event":"BAN","ban_info":{"state":"DISABLED","url":"https://x"},"access_token":"hidden","note":"see https://x"}}]}]}`),
			notice{harness.NoticeService, "sha256:", "", "", "ban_info.state", "DISABLED"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := parsed(t, tt.body, nil)
			if len(in.Arrivals) != 0 || len(in.Notices) != 1 {
				t.Fatalf("%+v", in)
			}
			n := in.Notices[0]
			got := notice{n.Kind, n.ProviderID, n.Chat, n.Ref, tt.want.DataKey, ""}
			if strings.HasPrefix(n.ProviderID, "sha256:") {
				got.ID = "sha256:"
			}
			if tt.want.DataKey != "" {
				got.DataIs = fmt.Sprint(n.Data[tt.want.DataKey])
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if text := fmt.Sprint(n.Data); strings.Contains(text, "https:") || strings.Contains(text, "hidden") {
				t.Error("kept what must not be kept: " + text)
			}
		})
	}
}

func TestStatuses(t *testing.T) {
	in := parsed(t, change(`"statuses":[
		{"id":"wamid.A","status":"sent","biz_opaque_callback_data":"rpl_0abc"},{"id":"wamid.B","status":"played"},{"id":"wamid.C","status":"read","biz_opaque_callback_data":"else"},
		{"id":"wamid.D","status":"failed","errors":[{"code":131047,"title":"T","error_data":{"details":"D"}}]},
		{"id":"wamid.E","status":"failed","recipient_type":"group","recipient_id":"G","recipient_participant_id":"1555","errors":[{"code":131026}]},
		{"id":"wamid.F","status":"delivered","recipient_type":"group","recipient_participant_id":"1555"}]`), nil)
	want := []postgres.Status{
		{Account: ourID, ProviderID: "wamid.A", Reply: "rpl_0abc", State: harness.ReplySent},
		{Account: ourID, ProviderID: "wamid.B", State: harness.ReplyRead},
		{Account: ourID, ProviderID: "wamid.C", State: harness.ReplyRead},
		{Account: ourID, ProviderID: "wamid.D", State: harness.ReplyFailed, Code: 131047, Reason: "T: D", Template: true},
		{Account: ourID, ProviderID: "wamid.F", State: harness.ReplyDelivered},
	}
	if diff := cmp.Diff(want, in.Statuses); diff != "" {
		t.Error(diff)
	}
	if len(in.Notices) != 2 || in.Notices[1].Chat != "group:G" || in.Notices[1].ChannelUserID != "1555" {
		t.Errorf("%+v", in.Notices)
	}
}

func TestRenames(t *testing.T) {
	for name, tt := range map[string]struct {
		system   string
		from, to []string
	}{
		"number":   {`"type":"user_changed_number","wa_id":"15550005555","user_id":"US.29","previous_user_id":"US.0"`, []string{"US.0", "15550001111", "US.1"}, []string{"15550005555", "US.29"}},
		"older":    {`"type":"customer_changed_number","new_wa_id":"15550005555"`, []string{"15550001111", "US.1"}, []string{"15550005555"}},
		"id":       {`"type":"user_changed_user_id","user_id":"US.29","previous_user_id":"US.1"`, []string{"US.1"}, []string{"US.29"}},
		"no ids":   {`"type":"user_changed_number"`, nil, nil},
		"the same": {`"type":"user_changed_user_id","user_id":"US.1"`, nil, nil},
	} {
		in := parsed(t, said(`"type":"system","system":{`+tt.system+`}`), nil)
		var want []postgres.Rename
		if tt.to != nil {
			want = []postgres.Rename{{Account: ourID, ProviderID: "wamid.1", From: tt.from, To: tt.to}}
			if last := tt.to[len(tt.to)-1]; strings.HasPrefix(last, "US.") {
				want[0].Lasting = last
			}
		}
		if diff := cmp.Diff(want, in.Renames); diff != "" || len(in.Notices) != 1 || in.Notices[0].Kind != harness.NoticeIdentity {
			t.Errorf("%s: %s %+v", name, diff, in.Notices)
		}
	}
}

func TestUnrouted(t *testing.T) {
	body := change(`"contacts":[],"messages":[{"from":"1","id":"wamid.1","type":"text","text":{"body":"private words"}}],"statuses":[{"id":"wamid.O","status":"failed"}],"errors":[{"code":1}]`)
	in, err := adapter(nil).Parse(body, channel.Proof{})
	if err != nil || len(in.Arrivals)+len(in.Statuses) != 0 || len(in.Notices) != 3 {
		t.Fatalf("%+v %v", in, err)
	}
	for _, n := range in.Notices {
		if n.Kind != harness.NoticeUnrouted || n.Account != ourID || strings.Contains(fmt.Sprint(n), "private") {
			t.Errorf("%+v", n)
		}
	}
	forged := []byte(`{"object":"whatsapp_business_account","entry":[{"id":"` + ourID + `","changes":[{"field":"account_update","value":{}}]}]}`)
	if in, _ := adapter(nil).Parse(forged, channel.Proof{}); in.Notices[0].Account == ourID {
		t.Error("an entry may not speak for a number by having its id")
	}
}

func TestGroups(t *testing.T) {
	in := func(text, extra string, policy harness.GroupPolicy) postgres.Inbound {
		return parsed(t, said(`"type":"text","text":{"body":"`+text+`"},"group_id":"G1"`+extra), func(a *channel.Account) {
			a.Spec.Groups = policy
			a.Spec.Senders.Policy, a.Keys[channel.RolePairingCode] = harness.SendersPairing, []harness.Secret{"@bot code"}
		})
	}
	for text, want := range map[string]bool{
		"@bot hi": true, "hey @BOT, hi": true, "@helper: hi": true, "@15550009999 hi": true, "@+15550009999": true, "mail me@bottle": false, "@bots": false,
		"bot hi": false, "@1555000999": false, "@155500099990": false, "@": false, "@@bot": true, "@bot code": true,
	} {
		if got := in(text, "", harness.GroupsMention); (len(got.Arrivals) == 1) != want || len(got.Arrivals)+len(got.Notices) != 1 {
			t.Errorf("%q: %+v", text, got)
		}
	}
	if got := in("hi", `,"context":{"from":"15550009999","id":"wamid.O"}`, ""); len(got.Arrivals) != 1 {
		t.Errorf("a reply to us: %+v", got)
	}
	if got := in("hi", `,"context":{"from":"15550002222","id":"wamid.O"}`, ""); len(got.Arrivals) != 0 {
		t.Errorf("a reply to another: %+v", got)
	}
	if got := in("secret talk", "", ""); len(got.Notices) != 1 || got.Notices[0].Kind != harness.NoticeNotAddressed || strings.Contains(fmt.Sprint(got), "secret talk") {
		t.Errorf("%+v", got)
	}
	if got := in("@bot hi", "", harness.GroupsNone); len(got.Arrivals) != 0 {
		t.Errorf("%+v", got)
	}
	all := in("@bot code", "", harness.GroupsAll).Arrivals
	if len(all) != 1 || all[0].Chat != "group:G1" || all[0].Address != "group:G1" || all[0].Message.ChannelUserID != "15550001111" || all[0].Pace != (postgres.Pace{}) || all[0].Paired || all[0].Message.Metadata["groupId"] != "G1" {
		t.Errorf("%+v", all)
	}
}

func TestPairing(t *testing.T) {
	pairing := func(a *channel.Account) {
		a.Spec.Senders.Policy, a.Keys[channel.RolePairingCode] = harness.SendersPairing, []harness.Secret{"open sesame", ""}
	}
	a := parsed(t, said(`"type":"text","text":{"body":" open sesame\n"}`), pairing).Arrivals[0]
	if !a.Paired || a.Message.Text != "Hello! I have just been paired with you." || a.Message.Metadata[postgres.StandIn] != true {
		t.Errorf("%+v", a)
	}
	for _, text := range []string{"open", "open sesame!", "Open sesame"} {
		if a := parsed(t, said(`"type":"text","text":{"body":"`+text+`"}`), pairing).Arrivals[0]; a.Paired || a.Message.Text != text {
			t.Errorf("%+v", a)
		}
	}
	open := func(a *channel.Account) { a.Keys[channel.RolePairingCode] = []harness.Secret{"open sesame"} }
	if a := parsed(t, said(`"type":"text","text":{"body":"open sesame"}`), open).Arrivals[0]; a.Paired {
		t.Error("paired without the policy")
	}
}
