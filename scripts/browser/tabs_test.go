//go:build browser

package browser_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// A browser has six connections to the console. More tabs than that are there and
// live: one that nobody looks at gives its stream back, and has what it missed once
// somebody does.
func TestManyTabs(t *testing.T) {
	settle(t)
	tabs := make([]*tab, 8)
	for i := range tabs {
		tabs[i] = newTab(t, views[2], chromedp.WithNewWindow(false))
		tabs[i].signIn()
		tabs[i].open(dev.URL+"/console/", inside)
	}
	first, last := tabs[0], tabs[len(tabs)-1]
	for i, b := range tabs {
		if hidden := eval[bool](b, "document.hidden"); hidden != (b != last) {
			t.Fatalf("tab %d: hidden is %t", i, hidden)
		}
	}
	dev.call(t, http.MethodPost, "/api/v1/sessions", object{"agent": asker, "text": "run: echo asked beside eight tabs"}, nil)
	const shown = `document.querySelector('#needs a[href*="/approvals/"]') !== null`
	last.until(answerTime, shown)
	if eval[bool](first, shown) {
		t.Error("a tab that nobody looks at holds a stream")
	}
	first.do(chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		_, err := cdp.Call(ctx, to, page.BringToFront, cdp.Empty{})
		return err
	}))
	first.until(oneStep, shown)
	settle(t)
	first.until(oneStep, "!("+shown+")") // it is live again
}
