//go:build browser

package browser_test

import (
	"encoding/base64"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// The people that the system has from its start.
const (
	ada     = "15550001111" // on WhatsApp
	ben     = "15550002222"
	adaID   = 5_000_000_001 // on Telegram
	adaChat = "5000000001"
	coder   = "python-coder"
	asker   = "careful-shell"
	askBot  = "careful_shell_bot"
)

const answerTime = 90 * time.Second // of an agent, on a busy machine

// line is one of a chat, as the fakes tell it.
type line struct {
	ID, From, Text, Kind, Ticks string
	Seq                         int64
	Choices                     []struct{ ID, Title string }
}

// says lets somebody say something over a fake's control API, and returns where.
func says(t testing.TB, fake string, say any) line {
	t.Helper()
	var lines []line
	play(t, fake, "say", say, &lines)
	if len(lines) == 0 {
		t.Fatal("the fake has taken nothing")
	}
	return lines[len(lines)-1]
}

// answer waits for what our side says in a chat after a line.
func answer(t testing.TB, fake, account, chat string, after line, fits func(line) bool) line {
	t.Helper()
	var found line
	await(t, answerTime, "an answer to "+after.Text[:min(len(after.Text), 60)], func() bool {
		var page struct{ Lines []line }
		ask(t, "GET", fake+"/_fake/chats/"+url.PathEscape(chat)+"?account="+account, "", nil, &page)
		for _, l := range page.Lines {
			if l.From == "" && l.Seq > after.Seq && (fits == nil || fits(l)) {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

type object = map[string]any

// The chats that pages show, each made once.
var (
	whatsAppOnce, telegramOnce, groupOnce sync.Once
	group                                 string // on WhatsApp
)

// chatOnWhatsApp is one with a bit of everything: words, a file, an image, a
// place, a command and what it printed.
func chatOnWhatsApp(t *testing.T) {
	whatsAppOnce.Do(func() {
		fake := dev.Fakes.WhatsApp
		pixel, _ := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
		says(t, fake, object{"from": ada, "text": "Here is a file", "file": object{"name": "apples.txt", "mimeType": "text/plain", "data": []byte("name,apples\n")}})
		says(t, fake, object{"from": ada, "file": object{"name": "dot.png", "mimeType": "image/png", "data": pixel}})
		says(t, fake, object{"from": ada, "location": object{"latitude": 48.8584, "longitude": 2.2945}})
		said := says(t, fake, object{"from": ada, "text": "run: printf 'one\\ntwo\\n'; ls /"})
		answer(t, fake, "", ada, said, func(l line) bool { return strings.Contains(l.Text, "two") })
		said = says(t, fake, object{"from": ada, "text": "choices: Tea | Coffee | A longer choice here"})
		answer(t, fake, "", ada, said, nil)
	})
}

// chatOnTelegram is one in which an approval waits.
func chatOnTelegram(t *testing.T) {
	telegramOnce.Do(func() {
		said := says(t, dev.Fakes.Telegram, object{"bot": askBot, "from": adaID, "text": "run: echo asked"})
		answer(t, dev.Fakes.Telegram, askBot, adaChat, said, func(l line) bool { return len(l.Choices) > 0 })
	})
}

// groupOnWhatsApp returns the transcript's name of a group in which two people and
// an agent talk.
func groupOnWhatsApp(t *testing.T) string {
	groupOnce.Do(func() {
		var groups []struct{ ID string }
		ask(t, "GET", dev.Fakes.WhatsApp+"/_fake/groups", "", nil, &groups)
		if len(groups) == 0 {
			t.Fatal("there is no group")
		}
		group = "group:" + groups[0].ID
		says(t, dev.Fakes.WhatsApp, object{"from": ada, "group": groups[0].ID, "text": "Who is there?"})
		said := says(t, dev.Fakes.WhatsApp, object{"from": ben, "group": groups[0].ID, "text": "@15550009999 hello"})
		answer(t, dev.Fakes.WhatsApp, "", group, said, nil)
	})
	return group
}

// settle cancels every session that waits for a decision, which only its approvers
// may take, so that what is written next begins anew, and returns once nothing goes on.
func settle(t testing.TB) {
	t.Helper()
	await(t, answerTime, "no approval waits and no session goes on", func() bool {
		var page struct {
			Items []struct{ ID, Session string }
		}
		dev.call(t, "GET", "/api/v1/approvals?status=PENDING", nil, &page)
		for _, a := range page.Items {
			dev.call(t, "POST", "/api/v1/sessions/"+a.Session+"/cancel", nil, nil)
		}
		busy := len(page.Items) > 0
		for _, state := range []string{"PENDING", "RUNNING", "AWAITING_APPROVAL", "AWAITING_EXECUTION"} {
			page.Items = nil
			dev.call(t, "GET", "/api/v1/sessions?agent="+asker+"&status="+state, nil, &page)
			busy = busy || len(page.Items) > 0
		}
		return !busy
	})
}

// fill puts what the system has into a path, as the rows of the console name it.
func fill(t testing.TB, path string) string {
	t.Helper()
	newest := func(list string) string {
		var page struct{ Items []struct{ ID string } }
		dev.call(t, "GET", "/api/v1/"+list+"?limit=1", nil, &page)
		if len(page.Items) == 0 {
			t.Fatalf("there are no %s", list)
		}
		return page.Items[0].ID
	}
	path = strings.NewReplacer("{agent}", coder, "{workflow}", "release-check").Replace(path)
	for name, list := range map[string]string{"{session}": "sessions", "{approval}": "approvals", "{sandbox}": "sandboxes"} {
		if strings.Contains(path, name) {
			path = strings.ReplaceAll(path, name, newest(list))
		}
	}
	return path
}
