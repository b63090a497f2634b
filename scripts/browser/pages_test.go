//go:build browser

package browser_test

import (
	"net/url"
	"testing"
)

// aPage is a page of the product. Every test of pages goes by these rows.
type aPage struct {
	name   string
	url    func(t *testing.T) string // makes what the page shows, if need be
	ready  string                    // a selector of what is there once the page is
	then   func(b *tab)              // what is done before it is looked at; nil: nothing
	signed bool                      // for who has signed in to the console
}

// pages are all pages there are.
func pages(t *testing.T) []aPage {
	return append(append(tourPages(), phonePages()...), consolePages(t)...)
}

// TestPages looks at each page in each view: nothing goes wrong in it, nothing is
// wider than it is, and people who see badly or not at all can use it.
func TestPages(t *testing.T) {
	chatOnWhatsApp(t)
	chatOnTelegram(t)
	for _, p := range pages(t) {
		t.Run(p.name, func(t *testing.T) {
			at := p.url(t)
			for _, v := range views {
				t.Run(v.String(), func(t *testing.T) {
					b := newTab(t, v)
					if p.signed {
						b.signIn()
					}
					b.open(at, p.ready)
					if p.then != nil {
						p.then(b)
					}
					b.until(oneStep, "document.readyState === 'complete' && document.getAnimations().every((a) => a.playState !== 'running')")
					b.screen(p.name + "-" + v.String())
					if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > int(v.width) {
						t.Errorf("the page is %d pixels wide, of %d", wide, v.width)
					}
					if seen := eval[[]string](b, "[...document.querySelectorAll('[hidden]')].filter((e) => getComputedStyle(e).display !== 'none').map((e) => e.outerHTML.slice(0, 100))"); len(seen) > 0 {
						t.Errorf("what is hidden is seen: %q", seen)
					}
					b.axe()
				})
			}
		})
	}
}

func fixed(at string) func(*testing.T) string { return func(*testing.T) string { return at } }

func tourPages() []aPage {
	return []aPage{{name: "tour", url: fixed(dev.Tour), ready: "#steps li"}}
}

func phonePages() []aPage {
	whatsapp, telegram := dev.Fakes.WhatsApp+"/phone/", dev.Fakes.Telegram+"/phone/?account="+askBot
	opened := func(what string) func(b *tab) {
		return func(b *tab) {
			b.click("[data-opens=" + what + "]")
			b.until(oneStep, "document.getElementById('"+what+"').open")
		}
	}
	return []aPage{
		{name: "phone-whatsapp-chat", url: func(t *testing.T) string { chatOnWhatsApp(t); return whatsapp + "#" + ada }, ready: "#lines li"},
		{name: "phone-whatsapp-list", url: fixed(whatsapp), ready: "#list a"},
		{name: "phone-whatsapp-group", url: func(t *testing.T) string { return whatsapp + "#" + url.PathEscape(groupOnWhatsApp(t)) }, ready: "#lines li"},
		{name: "phone-whatsapp-attach", url: fixed(whatsapp + "#" + ada), ready: "#lines li", then: func(b *tab) { b.click("#attach summary") }},
		{name: "phone-whatsapp-person", url: fixed(whatsapp), ready: "#list a", then: opened("person")},
		{name: "phone-whatsapp-new-group", url: fixed(whatsapp), ready: "#list a", then: opened("group")},
		{name: "phone-whatsapp-tools", url: fixed(whatsapp), ready: "#list a", then: opened("tools")},
		{name: "phone-telegram-chat", url: func(t *testing.T) string { chatOnTelegram(t); return telegram + "#" + adaChat }, ready: "#lines li"},
		{name: "phone-telegram-list", url: fixed(telegram), ready: "#list a"},
		{name: "phone-telegram-tools", url: fixed(telegram), ready: "#list a", then: opened("tools")},
	}
}
