//go:build browser

package browser_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// said is an expression: whether a bubble of one side has text in it. side is
// mine or theirs.
func said(side, text string) string {
	selector := "#lines > li.mine"
	if side == "theirs" {
		selector = "#lines > li:not(.mine):not(.day)"
	}
	return fmt.Sprintf("[...document.querySelectorAll(%q)].some((l) => l.innerText.includes(%q))", selector, text)
}

// Somebody writes, sends things and takes them back, by hand; the agent answers,
// and what becomes of each message can be seen.
func TestPhoneByHand(t *testing.T) {
	for _, v := range []view{{360, 740, false}, {1440, 900, true}} {
		t.Run(v.String(), func(t *testing.T) {
			b := newTab(t, v)
			mark := v.String()
			b.open(dev.Fakes.WhatsApp+"/phone/", "#list a")
			b.click("#list a[data-chat='" + ben + "']")
			b.write("#text", "run: printf '%s-%s' heard "+mark+kb.Enter)
			b.until(answerTime, said("theirs", "heard-"+mark))
			b.until(oneStep, said("mine", "✓✓ read"))
			b.until(oneStep, "document.getElementById('text').value === ''")

			for _, thing := range []struct{ sends, shows string }{
				{"image", "[...document.querySelectorAll('#lines img.sent')].at(-1)?.naturalWidth === 240"},
				{"text", "document.querySelector('#lines a[download=\"apples.txt\"]')"},
				{"voice", said("mine", "Voice note")},
				{"location", said("mine", "A place: 48.8584, 2.2945")},
			} {
				b.click("#attach summary")
				b.click("[data-sends=" + thing.sends + "]")
				b.until(oneStep, thing.shows)
			}

			b.write("#text", "one thing "+mark+kb.Enter)
			b.until(oneStep, said("mine", "one thing "+mark))
			last := "#lines > li.mine:last-of-type "
			eval[bool](b, "(document.getElementById('text').blur(), true)")
			b.until(answerTime, said("theirs", "one thing "+mark))
			eval[bool](b, fmt.Sprintf("([...document.querySelectorAll('#lines > li.mine')].find((l) => l.innerText.includes(%q)).id = 'this-one', true)", "one thing "+mark))
			last = "#this-one "
			b.click(last + ".more summary")
			eval[bool](b, "([...document.querySelectorAll('#this-one .more button')].find((e) => e.textContent === 'Take back').click(), true)")
			b.until(oneStep, said("mine", "This message was taken back."))
			b.screen("phone-by-hand-" + mark)
		})
	}
}

// The buttons of an agent's question are tapped on the phone, and decide.
func TestPhoneDecides(t *testing.T) {
	settle(t)
	b := newTab(t, views[0])
	b.open(dev.Fakes.Telegram+"/phone/?"+url.Values{"account": {askBot}, "text": {"run: echo agreed"}}.Encode()+"#"+adaChat, "#say button.send")
	b.until(oneStep, "document.getElementById('text').value === 'run: echo agreed'")
	b.click("button.send")
	choices := "[...document.querySelectorAll('#lines > li')].filter((l) => l.innerText.includes('echo agreed')).at(-1)?.querySelectorAll('.choices button')"
	b.until(answerTime, choices+"?.length > 0")
	b.screen("phone-asks")
	eval[bool](b, "("+choices+"[0].click(), true)")
	b.until(answerTime, "[...document.querySelectorAll('#lines > li:not(.mine)')].at(-1).innerText.includes('agreed') && !"+choices+"?.length")
	b.screen("phone-decided")
}

// People of a group write, one mentions the agent, and only then it answers.
func TestPhoneGroup(t *testing.T) {
	b := newTab(t, views[2])
	b.open(dev.Fakes.WhatsApp+"/phone/#"+url.PathEscape(groupOnWhatsApp(t)), "#lines li")
	b.do(chromedp.SetValue(chromedp.CSS("#as"), ben))
	b.click("#mention")
	b.write("#text", "run: echo to all of you"+kb.Enter)
	b.until(answerTime, said("theirs", "to all of you"))
	b.until(oneStep, "[...document.querySelectorAll('#lines > li.mine')].at(-1).innerText.startsWith('Ben')")
}

// A fault happens once, and is no longer there; a jump of the clock closes the
// window, and a message opens it.
func TestPhoneFaultsAndClock(t *testing.T) {
	b := newTab(t, views[2])
	b.open(dev.Fakes.WhatsApp+"/phone/#"+ben, "#say button.send")
	b.click("[data-opens=tools]")
	b.do(chromedp.SetValue(chromedp.CSS("#fault [name=what]"), "0")) // the webhook is not called
	b.click("#fault button")
	b.until(oneStep, "document.getElementById('faults').children.length === 1 && document.getElementById('waiting').textContent === ' (1)'")
	b.click("#tools > .row button")
	b.write("#text", "lost for ever"+kb.Enter)
	b.until(oneStep, "document.getElementById('waiting').textContent === ''")
	b.until(oneStep, said("mine", "lost for ever"))
	if !eval[bool](b, "[...document.querySelectorAll('#lines > li.mine')].find((l) => l.innerText.includes('lost for ever')).innerText.includes('✓ sent')") {
		t.Error("a message nobody was told of has another tick than sent")
	}
	b.click("[data-opens=tools]")
	b.click("[data-jump='25h']")
	b.click("#tools > .row button")
	b.until(oneStep, "document.getElementById('under').textContent.includes('24 hours are over')")
	b.screen("phone-window-closed")
	b.write("#text", "run: echo back again"+kb.Enter)
	b.until(answerTime, said("theirs", "back again"))
	b.until(oneStep, "document.getElementById('under').textContent.includes('may be answered for')")
}
