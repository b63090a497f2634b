//go:build browser

package browser_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// The tour, start to end, by clicking: a signed message, a sandboxed answer, a
// decision, and its log. No step is done before what it asks for has happened.
func TestTour(t *testing.T) {
	for _, v := range []view{{360, 740, true}, {1440, 900, false}} {
		t.Run(v.String(), func(t *testing.T) {
			settle(t)
			guide, hand := newTab(t, v), newTab(t, v)
			guide.open(dev.Tour, "#steps li")
			guide.click("form button")
			guide.until(oneStep, "document.getElementById('state').textContent === '0 of 5 done'")
			guide.screen("tour-0-" + v.String())
			done := func(step string) string {
				return "document.getElementById('" + step + "').classList.contains('done')"
			}
			href := func(step string, i int) string {
				return eval[string](guide, "document.querySelectorAll('#"+step+" .links a')["+string(rune('0'+i))+"].href")
			}

			hand.open(href("write", 0), "#say button.send")
			hand.until(oneStep, "document.getElementById('text').value === 'run: uname -a'")
			hand.click("button.send")
			guide.until(answerTime, done("write"))
			guide.until(answerTime, done("run"))
			guide.screen("tour-2-" + v.String())

			hand.open(href("ask", 0), "#say button.send")
			hand.until(oneStep, "document.getElementById('text').value === 'run: date'")
			hand.write("#text", kb.Enter)
			guide.until(answerTime, done("ask"))
			if eval[bool](guide, done("decide")) {
				t.Error("the decision is done before somebody decided")
			}
			choices := "[...document.querySelectorAll('#lines > li .choices')].at(-1)?.querySelectorAll('button')"
			hand.until(answerTime, choices+"?.length > 0")
			eval[bool](hand, "("+choices+"[0].click(), true)")
			guide.until(answerTime, done("decide"))
			if eval[bool](guide, done("log")) {
				t.Error("the log is found before somebody looked")
			}

			hand.signIn()
			hand.open(href("log", 0), "main")
			guide.until(answerTime, done("log"))
			guide.until(oneStep, "document.getElementById('state').textContent === 'All done' && !document.getElementById('end').hidden")
			guide.screen("tour-5-" + v.String())
			if text := eval[string](guide, "document.getElementById('decide').innerText"); !strings.Contains(text, "APPROVED") {
				t.Errorf("what was decided is not told: %s", text)
			}
		})
	}
}
