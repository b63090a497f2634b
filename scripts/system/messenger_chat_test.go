//go:build system

package system_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

// chatScript is what the model says where it does more than run what it is told.
const chatScript = `rules:
  - match: {of: user, prefix: "which"}
    respond:
      calls:
        - name: offerChoices
          arguments: {text: "Which **colour**?", choices: [{title: Red}, {title: Green, description: like grass}]}
  - match: {of: result, regexp: "formatted-7"}
    respond:
      text: |
        It **worked**. The ` + "`code`" + ` printed:

        ` + "```" + `
        a < b && formatted-7
        ` + "```" + `
`

// picture is a small one that no other has the bytes of.
func picture(t *testing.T, shade uint8) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 8, 8))
	for i := range 8 {
		img.Set(i, i, color.RGBA{shade, 255 - shade, 7, 255})
	}
	var out bytes.Buffer
	if err := png.Encode(&out, img); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// talker is one person at one provider, who waits for every answer.
type talker struct {
	phone
	w     *world
	chat  string
	shown int // answers looked at
}

// hears returns the next n answers.
func (c *talker) hears(what string, n int) []person.Line {
	c.w.t.Helper()
	began := time.Now()
	var all []person.Line
	c.w.await(90*time.Second, c.channel()+": "+what, func() (bool, string) {
		all = answers(c.lines(c.chat))
		return len(all) >= c.shown+n, fmt.Sprintf("%d of %d answers", len(all)-c.shown, n)
	})
	heard := all[c.shown:]
	c.shown = len(all)
	for _, l := range heard {
		text := strings.Join(strings.Fields(l.Text), " ")
		c.w.t.Logf("%s %s after %s: %s %q", c.channel(), what, time.Since(began).Round(10*time.Millisecond), l.Kind, text[:min(len(text), 140)])
	}
	if len(heard) != n {
		c.w.t.Errorf("%s %s: %d answers, want %d", c.channel(), what, len(heard), n)
	}
	return heard
}

// asks says text and returns the one answer.
func (c *talker) asks(what, text string) person.Line {
	c.w.t.Helper()
	c.say(c.chat, text)
	return c.hears(what, 1)[0]
}

func (c *talker) wants(what, text string, words ...string) {
	c.w.t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			c.w.t.Errorf("%s %s: %q is not in %q", c.channel(), what, word, text)
		}
	}
}

// TestChatOverBothMessengers has a person do over each messenger what people do:
// every kind of thing goes in and comes out.
func TestChatOverBothMessengers(t *testing.T) {
	script, err := fake.ParseScript([]byte(chatScript))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, plan{people: &crowd{}, script: script})
	for _, p := range w.people.phones() {
		w.converse(&talker{phone: p, w: w, chat: p.join("Grace")})
	}
	if left := w.awaitRest(2 * time.Minute); left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	w.stop()
	w.assertNothingRemains()
	if crashes := sum(w.cluster.Counts().Crashes); crashes != 0 {
		t.Errorf("%d processes ended by themselves", crashes)
	}
}

func (w *world) converse(c *talker) {
	w.t.Helper()
	c.wants("a text", c.asks("a text", "good morning, agent").Text, "good morning, agent")

	answer := c.asks("a command", "run: echo formatted-$((3+4))")
	c.wants("a command", answer.Text, "a < b && formatted-7", "worked")
	source := answer.Source
	if c.channel() == "TELEGRAM" {
		c.wants("a formatted answer", source, "<b>worked</b>", "<code>code</code>", "a &lt; b &amp;&amp; formatted-7")
	} else {
		c.wants("a formatted answer", answer.Text+source, "*worked*", "`code`", "```")
	}

	photo := picture(w.t, 40)
	c.shows("run: sha256sum in/* | cut -c1-64; exit", photo)
	c.wants("a photo with a caption", c.hears("a photo with a caption", 1)[0].Text, digestOf(photo))

	table := "name,year\nAda,1815\n"
	c.say(c.chat, `run: mkdir -p out; printf 'name,year\nAda,1815\n' > out/people.csv; echo written`)
	w.assertDocument(c, c.hears("a file from /workspace/out", 2), "people.csv", table)

	offered := c.asks("choices", "which colour do you like?")
	if len(offered.Choices) != 2 || offered.Choices[0].Title != "Red" || offered.Choices[1].Title != "Green" {
		w.t.Errorf("%s choices: %+v are offered", c.channel(), offered.Choices)
	} else {
		c.press("Green")
		c.wants("a button", c.hears("a button", 1)[0].Text, "Green")
	}

	album := [][]byte{picture(w.t, 80), picture(w.t, 120), picture(w.t, 160)}
	if c.channel() == "TELEGRAM" { // WhatsApp has none: its people's pictures come one by one
		before := w.turns(c)
		c.shows("run: cat in/* | wc -c; sha256sum in/* | cut -c1-64; exit", album...)
		text := c.hears("an album", 1)[0].Text
		for _, picture := range album {
			c.wants("an album", text, digestOf(picture))
		}
		if n := w.turns(c) - before; n != 1 {
			w.t.Errorf("an album of %d pictures is %d turns", len(album), n)
		}
	}

	sessions := w.sessions(c)
	c.asks("/new", "/new")
	c.wants("a new conversation", c.asks("a new conversation", "history").Text, "This is the first thing you said to me")
	if after := w.sessions(c); after != sessions+1 {
		w.t.Errorf("%s /new: %d conversations after %d", c.channel(), after, sessions)
	}
}

// shows sends pictures with a caption.
func (c *talker) shows(caption string, pictures ...[]byte) {
	c.w.t.Helper()
	if p, ok := c.phone.(whatsappPhone); ok {
		_, err := p.whatsapp.Say(graph.Say{From: c.chat, Text: caption, File: &graph.Upload{MimeType: "image/png", Data: pictures[0]}})
		c.w.must(err)
		return
	}
	var files []botapi.Upload
	for _, data := range pictures {
		files = append(files, botapi.Upload{Kind: "photo", MimeType: "image/png", Data: data})
	}
	_, err := c.phone.(telegramPhone).telegram.Say(botapi.Say{From: telegramID(c.chat), Text: caption, Files: files})
	c.w.must(err)
}

func (c *talker) press(choice string) {
	c.w.t.Helper()
	var err error
	if p, ok := c.phone.(whatsappPhone); ok {
		_, err = p.whatsapp.Say(graph.Say{From: c.chat, Press: choice})
	} else {
		_, err = c.phone.(telegramPhone).telegram.Say(botapi.Say{From: telegramID(c.chat), Press: choice})
	}
	c.w.must(err)
}

// assertDocument: of the lines one is the file, with its name and its bytes.
func (w *world) assertDocument(c *talker, lines []person.Line, name, want string) {
	w.t.Helper()
	for _, l := range lines {
		if l.File == nil {
			continue
		}
		var data []byte
		var ok bool
		if p, isWhatsApp := c.phone.(whatsappPhone); isWhatsApp {
			_, data, ok = p.whatsapp.File(l.File.ID)
		} else {
			_, data, ok = c.phone.(telegramPhone).telegram.File(l.File.ID)
		}
		if l.Kind != "document" || l.File.Name != name || !ok || string(data) != want {
			w.t.Errorf("%s: the file came as %s %q with %q", c.channel(), l.Kind, l.File.Name, data)
		}
		return
	}
	w.t.Errorf("%s: no file came with %d answers", c.channel(), len(lines))
}

func (w *world) turns(c *talker) int {
	w.t.Helper()
	return w.number("SELECT count(*)::int FROM messages JOIN sessions s USING (session_id) WHERE direction = 'INBOUND' AND s.channel = $1", c.channel())
}

func (w *world) sessions(c *talker) int {
	w.t.Helper()
	return w.number("SELECT count(*)::int FROM sessions WHERE channel = $1", c.channel())
}

func (w *world) number(sql string, args ...any) (n int) {
	w.t.Helper()
	w.must(w.db.QueryRow(w.t.Context(), sql, args...).Scan(&n))
	return n
}
