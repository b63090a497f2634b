//go:build browser

package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
)

// press is a button of a form that was clicked.
type press struct{ Method, Action, Class, Label string }

// hand works with the console by clicking, and keeps what it has clicked.
type hand struct {
	*tab
	*stage
	done *[]press
}

// click clicks the first that fits: the one that is there once a part that has just been
// renewed is.
func (h *hand) click(css string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, oneStep)
	defer cancel()
	for {
		err := chromedp.Do(ctx, chromedp.Click(chromedp.CSS(css), chromedp.NodeVisible))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			h.failed(fmt.Errorf("%s: %w", css, err))
		}
	}
}

// pressed keeps that the button of a form is clicked.
func (h *hand) pressed(button string) {
	h.t.Helper()
	h.do(chromedp.WaitReady(chromedp.CSS(button)))
	*h.done = append(*h.done, eval[press](h.tab, `((b) => ({Method: b.form.getAttribute('method'), Action: b.form.getAttribute('action') ?? '', Class: b.form.className, Label: b.textContent.trim()}))(document.querySelector('`+button+`'))`))
}

// press clicks the button of a form, and waits for the page to which that leads and
// what it says was done.
func (h *hand) press(button, said string) {
	h.t.Helper()
	h.pressed(button)
	h.leads(func() { h.click(button) })
	if strings.HasSuffix((*h.done)[len(*h.done)-1].Action, "/sign-out") {
		signedIn = ""
	}
	if text := eval[string](h.tab, "document.querySelector('.said')?.innerText ?? ''"); !strings.HasPrefix(text, said) {
		h.failed(fmt.Errorf("%s: the page says %q, want %q", button, text, said))
	}
}

// leads does what leads to another page.
func (h *hand) leads(do func()) {
	h.t.Helper()
	eval[bool](h.tab, "window.before = true")
	do()
	h.until(oneStep, "!window.before && document.readyState === 'complete'")
}

// follows clicks the link to an address in which part is.
func (h *hand) follows(part string) {
	h.t.Helper()
	h.leads(func() { h.click(`main a[href*="` + part + `"]`) })
}

// rewrite puts text in place of what a field has.
func (h *hand) rewrite(field, text string) {
	h.t.Helper()
	h.do(chromedp.WaitVisible(chromedp.CSS(field)))
	eval[bool](h.tab, "(document.querySelector('"+field+"').select(), true)")
	h.write(field, text)
}

// alter replaces one text of a field by another.
func (h *hand) alter(field, old, text string) {
	h.t.Helper()
	h.do(chromedp.WaitVisible(chromedp.CSS(field)))
	was := eval[string](h.tab, "document.querySelector('"+field+"').value")
	if !strings.Contains(was, old) {
		h.t.Fatalf("%s has no %q: %s", field, old, was)
	}
	h.rewrite(field, strings.Replace(was, old, text, 1))
}

// say writes a text and sends it.
func (h *hand) say(field, text, button, said string) {
	h.t.Helper()
	h.write(field, text)
	h.press(button, said)
}

// send sends a message that is asked about, and waits for the question on the page.
func (h *hand) send(text string) {
	h.t.Helper()
	h.say("#text", text, `form[action$="/send"] button`, "The message was sent.")
	h.asked()
}

// asked waits for the approval that the session waits for, until the page shows it by
// itself.
func (h *hand) asked() {
	h.t.Helper()
	await(h.t, answerTime, "an approval is asked for", func() bool {
		var page struct{ Items []struct{ ID string } }
		if err := json.Unmarshal([]byte(h.api("/approvals?status=PENDING&session={session}")), &page); err != nil {
			h.t.Fatal(err)
		}
		if len(page.Items) > 0 {
			h.approval = page.Items[0].ID
		}
		return len(page.Items) == 1
	})
	h.until(answerTime, `document.querySelector('.ask form[action*="`+h.approval+`"]') && document.querySelector('.facts .state').innerText === 'awaiting approval' && !document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling')`)
}

// api is what the API answers at path, without blanks.
func (h *hand) api(path string) string {
	h.t.Helper()
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, dev.URL+"/api/v1"+h.at(path), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+dev.token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var compact bytes.Buffer
	if err == nil {
		err = json.Compact(&compact, text)
	}
	if err != nil || response.StatusCode != http.StatusOK {
		h.t.Fatalf("%s: %d, %v: %.300s", path, response.StatusCode, err, text)
	}
	return compact.String()
}

// proves waits until the API says all of texts at path.
func (h *hand) proves(path string, texts ...string) {
	h.t.Helper()
	last := ""
	for end := time.Now().Add(answerTime); ; time.Sleep(200 * time.Millisecond) {
		last = h.api(path)
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(last, h.at(text)) }) {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("%s does not say %q: %.2000s", path, texts, last)
		}
	}
}

// gone fails unless the API has nothing at path.
func (h *hand) gone(path string) {
	h.t.Helper()
	if status := dev.call(h.t, http.MethodGet, "/api/v1"+h.at(path), nil, nil); status != http.StatusNotFound {
		h.t.Errorf("%s: %d, want 404", path, status)
	}
}

// refused takes the one fault of a page that was answered with status.
func (h *hand) refused(status int) {
	h.t.Helper()
	var all []string
	await(h.t, oneStep, "the browser says what was refused", func() bool { all = append(all, h.told()...); return len(all) > 0 })
	if len(all) != 1 || !strings.Contains(all[0], fmt.Sprintf("status of %d", status)) {
		h.t.Errorf("the page: %q, want one of %d", all, status)
	}
}
