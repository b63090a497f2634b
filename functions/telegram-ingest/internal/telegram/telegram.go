// Package telegram is the TELEGRAM channel: updates of bots in, by webhook or
// long poll, and messages out. What it knows of the Bot API is from
// core.telegram.org/bots/api up to version 10.3.
package telegram

import (
	"context"
	"net/url"
	"strconv"
	"strings"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
)

// Path is where Telegram delivers the updates of a bot; the platform routes it
// to the public side.
const Path = "/api/v1/channels/telegram/webhook/"

// Accounts knows the bots of this deployment.
type Accounts interface {
	// All returns the bots by name. An error says that they are not known now.
	All(ctx context.Context) (map[string]*channel.Account, error)
}

// botID is the numeric id of an account's bot, the part of its token before the
// colon; 0 while the token is not known.
func botID(a *channel.Account) int64 {
	id, _, found := strings.Cut(a.Key(channel.RoleBotToken).Reveal(), ":")
	if !found {
		return 0
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return n
}

// generalTopic is the topic that every forum has. Its messages carry no thread
// id, and Telegram knows no thread of this id when sent to.
const generalTopic = 1

// address is where a chat's replies go, and the name of its conversation: one
// of a chat, a topic of it, a direct messages topic of a channel, a business
// account's chat, or one guest query.
type address struct {
	chat     int64
	topic    int64
	direct   int64
	business string
	guest    string
}

// String returns CHATID[;topic=N][;direct=N][;business=ID][;guest=ID], nothing
// where there is no chat.
func (a address) String() string {
	if a.chat == 0 {
		return ""
	}
	text := strconv.FormatInt(a.chat, 10)
	if a.topic != 0 {
		text += ";topic=" + strconv.FormatInt(a.topic, 10)
	}
	if a.direct != 0 {
		text += ";direct=" + strconv.FormatInt(a.direct, 10)
	}
	if a.business != "" {
		text += ";business=" + url.PathEscape(a.business)
	}
	if a.guest != "" {
		text += ";guest=" + url.PathEscape(a.guest)
	}
	return text
}

func parseAddress(text string) (address, error) {
	var a address
	wrong := harness.Errorf(harness.Invalid, "the reply's address is not one of Telegram's")
	chat, rest, _ := strings.Cut(text, ";")
	var err error
	if a.chat, err = strconv.ParseInt(chat, 10, 64); err != nil || a.chat == 0 {
		return a, wrong
	}
	for rest != "" {
		var field string
		field, rest, _ = strings.Cut(rest, ";")
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "topic":
			a.topic, err = strconv.ParseInt(value, 10, 64)
		case "direct":
			a.direct, err = strconv.ParseInt(value, 10, 64)
		case "business":
			a.business, err = url.PathUnescape(value)
		case "guest":
			a.guest, err = url.PathUnescape(value)
		default:
			err = wrong
		}
		if err != nil || value == "" {
			return a, wrong
		}
	}
	return a, nil
}

// group reports whether several people read the chat: their ids are negative.
func (a address) group() bool { return a.chat < 0 }
