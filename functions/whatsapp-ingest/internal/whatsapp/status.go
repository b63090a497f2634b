package whatsapp

import (
	"encoding/json"
	"strconv"
	"strings"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// states are the provider's words for what became of a reply. Others (deleted,
// warning) say nothing about its way to the person.
var states = map[string]harness.ReplyState{
	"sent": harness.ReplySent, "delivered": harness.ReplyDelivered, "read": harness.ReplyRead, "played": harness.ReplyRead, "failed": harness.ReplyFailed,
}

// readStatus reads the provider's word on something we sent. Why a message
// failed is told this once and cannot be asked again: it is kept whatever else
// is wrong.
func (p *parser) readStatus(item value) {
	id, word := "", line(item.get("status").text(), maxWord)
	if v := item.get("id"); v.kind() == '"' {
		id = identifier(v, maxID)
	}
	switch {
	case id == "":
		p.malformed(item, "a status without a usable id")
		return
	case p.account == nil:
		p.unrouted(id+"/"+word, map[string]any{"status": word})
		return
	}
	state, known := states[word]
	opaque := item.get("biz_opaque_callback_data").text()
	participant := party(item.get("recipient_participant_id"))
	if participant == "" {
		participant = party(item.get("recipient_participant_user_id"))
	}
	status := postgres.Status{Account: p.name, ProviderID: id, Reply: replyID(opaque), State: state}
	data := map[string]any{"status": word, "wamid": id}
	if opaque != "" {
		data["opaque"] = cut(opaque, maxLine)
	}
	var codes []any
	for fault := range item.get("errors").items {
		if len(codes) == 0 {
			for name, v := range problem(fault) {
				data[name] = v
			}
			status.Code = code(fault.get("code"))
			status.Reason = reasonOf(fault)
			status.Template = status.Code == codeWindowClosed
		}
		if len(codes) < 10 {
			codes = append(codes, json.Number(strconv.Itoa(code(fault.get("code")))))
		}
	}
	if len(codes) > 1 {
		data["codes"] = codes
	}
	if state == harness.ReplyFailed || !known {
		recipient := party(item.get("recipient_id"))
		if recipient == "" {
			recipient = party(item.get("recipient_user_id"))
		}
		n := postgres.Notice{ProviderID: id + "/" + word, Kind: harness.NoticeDelivery, Chat: recipient, Ref: id, Data: data}
		if participant != "" {
			n.ProviderID, n.Chat, n.ChannelUserID = n.ProviderID+"/"+participant, groupPrefix+recipient, participant
		}
		p.notice(n)
	}
	// That one member of a group cannot get it is no failure of the message.
	if known && (state != harness.ReplyFailed || participant == "") {
		p.out.Statuses = append(p.out.Statuses, status)
	}
}

// replyID is our own id if the opaque data holds one.
func replyID(opaque string) harness.ReplyID {
	if strings.HasPrefix(opaque, "rpl_") && len(opaque) <= 64 && digitsAndLetters(opaque[4:]) {
		return harness.ReplyID(opaque)
	}
	return ""
}

func digitsAndLetters(s string) bool {
	return strings.Trim(strings.ToLower(s), "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// reasonOf is an error of the provider in words for people.
func reasonOf(fault value) string {
	title, details := line(fault.get("title").text(), maxLine), line(fault.get("error_data", "details").text(), maxLine)
	switch {
	case details == "" || details == title:
		return title
	case title == "":
		return details
	}
	return title + ": " + details
}
