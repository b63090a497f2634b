//go:build system

package system_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

// draftScript is a model that takes its time to write, once with a command between.
const draftScript = `rules:
  - match: {of: user, prefix: "tell"}
    respond:
      pace: 300ms
      text: "It was a dark and stormy night and the rain fell in torrents except at times when it was checked by a gust of wind."
  - match: {of: result, regexp: "drafted-7"}
    respond:
      pace: 300ms
      text: "The command has printed what it was to print and that was the number seven and nothing else at all."
  - match: {of: user, prefix: "look"}
    respond:
      pace: 300ms
      text: "I shall have a look at what there is before I say anything about it, please wait."
      calls:
        - name: executeShell
          arguments: {command: "echo drafted-$((3+4))"}
`

// TestAnswersGrowOnTelegram has a person see answers while they are written: as one
// message, that becomes the answer. On WhatsApp nothing is seen before it.
func TestAnswersGrowOnTelegram(t *testing.T) {
	script, err := fake.ParseScript([]byte(draftScript))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, plan{people: &crowd{streams: true}, script: script})
	for _, p := range w.people.phones() {
		chat := p.join("Grace")
		said := 0
		for _, test := range []struct{ text, final string }{
			{"tell me a story", "It was a dark and stormy night and the rain fell in torrents except at times when it was checked by a gust of wind."},
			{"look for it", "The command has printed what it was to print and that was the number seven and nothing else at all."},
		} {
			p.say(chat, test.text)
			var seen []string
			var last person.Line
			w.await(90*time.Second, p.channel()+": "+test.text, func() (bool, string) {
				all := answers(p.lines(chat))
				if len(all) <= said {
					return false, "nothing is said"
				}
				if last = all[said]; !slices.Contains(seen, last.Text) {
					seen = append(seen, last.Text)
				}
				return last.Text == test.final, last.Text
			})
			said++
			t.Logf("%s saw %q", p.channel(), seen)
			drafts := seen[:len(seen)-1]
			if p.channel() != "TELEGRAM" {
				if len(drafts) > 0 || last.Edited {
					t.Errorf("%s has drafts: %q", p.channel(), drafts)
				}
				continue
			}
			if len(drafts) < 2 || !last.Edited {
				t.Errorf("%s saw %d drafts", p.channel(), len(drafts))
			}
			for _, draft := range drafts {
				if !strings.HasSuffix(draft, " …") {
					t.Errorf("a draft is %q", draft)
				}
			}
		}
		if all := answers(p.lines(chat)); len(all) != said {
			t.Errorf("%s has %d answers to %d questions", p.channel(), len(all), said)
		}
	}
	if left := w.awaitRest(2 * time.Minute); left != "" {
		t.Errorf("the system did not come to rest: %s", left)
	}
	var drafts int
	w.must(w.db.QueryRow(t.Context(), `SELECT count(*) FROM drafts`).Scan(&drafts))
	if drafts != 0 {
		t.Errorf("%d drafts are left", drafts)
	}
	w.stop()
	w.assertNothingRemains()
}
