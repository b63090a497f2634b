//go:build browser

package browser_test

import (
	"net/url"
	"testing"
)

// aPage is a page of the product. Every test of pages goes by these rows.
type aPage struct {
	name  string
	url   func(t *testing.T) string // makes what the page shows, if need be
	ready string                    // a selector of what is there once the page is
	then  func(b *tab)              // what is done before it is looked at; nil: nothing
	who   string                    // signed in to the console as this role; empty: nobody
}

const (
	ada = "15550001111" // on WhatsApp
	eve = "5000000001"  // on Telegram
)

// pages are all pages.
func pages() []aPage {
	return append(append(tourPages(), phonePages()...), consolePages()...)
}

// TestPages looks at each page in each view: nothing goes wrong in it, nothing is
// wider than it is, and people who see badly or not at all can use it.
func TestPages(t *testing.T) {
	for _, p := range pages() {
		t.Run(p.name, func(t *testing.T) {
			at := p.url(t)
			for _, v := range views {
				t.Run(v.String(), func(t *testing.T) {
					b := newTab(t, v)
					if p.who != "" {
						b.signIn(p.who)
					}
					b.open(at, p.ready)
					if p.then != nil {
						p.then(b)
					}
					b.screen(p.name + "-" + v.String())
					if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > int(v.width) {
						t.Errorf("the page is %d pixels wide, of %d", wide, v.width)
					}
					b.axe()
				})
			}
		})
	}
}

func phonePages() []aPage {
	whatsapp, telegram := dev.Fakes.WhatsApp+"/phone/", dev.Fakes.Telegram+"/phone/"
	fixed := func(at string) func(*testing.T) string { return func(*testing.T) string { return at } }
	opened := func(what string) func(b *tab) {
		return func(b *tab) {
			if eval[bool](b, "getComputedStyle(document.getElementById('chats')).display === 'none'") {
				b.click("#back")
			}
			b.click("[data-opens=" + what + "]")
			b.until(oneStep, "document.getElementById('"+what+"').open")
		}
	}
	return []aPage{
		{name: "phone-whatsapp-list", url: fixed(whatsapp), ready: "#list a"},
		{name: "phone-whatsapp-chat", url: func(t *testing.T) string { chatOnWhatsApp(t); return whatsapp + "#" + ada }, ready: "#lines li"},
		{name: "phone-whatsapp-group", url: func(t *testing.T) string { return whatsapp + "#" + url.PathEscape(groupOnWhatsApp(t)) }, ready: "#lines li"},
		{name: "phone-whatsapp-person", url: fixed(whatsapp), ready: "#list a", then: opened("person")},
		{name: "phone-whatsapp-new-group", url: fixed(whatsapp), ready: "#list a", then: opened("group")},
		{name: "phone-whatsapp-tools", url: fixed(whatsapp), ready: "#list a", then: opened("tools")},
		{name: "phone-telegram-list", url: fixed(telegram), ready: "#list a"},
		{name: "phone-telegram-chat", url: func(t *testing.T) string { chatOnTelegram(t); return telegram + "#" + eve }, ready: "#lines li"},
		{name: "phone-telegram-tools", url: fixed(telegram), ready: "#list a", then: opened("tools")},
	}
}

// consolePages are filled in where there is a console.
func consolePages() []aPage { return nil }

func tourPages() []aPage { return nil }

func (b *tab) signIn(string) {}
func (b *tab) axe()          {}

func chatOnWhatsApp(t *testing.T)         {}
func chatOnTelegram(t *testing.T)         {}
func groupOnWhatsApp(t *testing.T) string { return "" }
