//go:build browser

package browser_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"tuluat.ai/harness/scripts/internal/checkout"
)

// chromium is the browser that all tests use.
var chromium *browser

type browser struct {
	ctx     context.Context
	stop    func()
	screens string
}

// noChromium says what to do about it.
var errNoChromium = errors.New("there is no Chromium on this machine: `scripts/setup.sh browser` installs it, or set CHROMIUM to its program")

func startBrowser() (*browser, error) {
	program := os.Getenv("CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); program == "" && err == nil {
			program = found
		}
	}
	if program == "" {
		return nil, errNoChromium
	}
	root, err := checkout.Root()
	if err != nil {
		return nil, err
	}
	b := &browser{screens: filepath.Join(root, "build", "screens")}
	if err := os.MkdirAll(b.screens, 0o755); err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.Flag("enable-precise-memory-info", true), chromedp.Flag("js-flags", "--expose-gc"))
	if os.Geteuid() == 0 { // Chromium's own sandbox refuses root
		options = append(options, chromedp.NoSandbox)
	}
	alive, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(alive)
	b.ctx, b.stop = ctx, func() { cancel(); end() }
	if err := chromedp.Do(ctx); err != nil {
		b.stop()
		return nil, fmt.Errorf("%s does not start: %w", program, err)
	}
	return b, nil
}

// view is how a page is looked at.
type view struct {
	width, height int64
	dark          bool
}

// views are those every page must do well in.
var views = []view{{360, 740, false}, {360, 740, true}, {1440, 900, false}, {1440, 900, true}}

func (v view) String() string {
	theme := "light"
	if v.dark {
		theme = "dark"
	}
	return fmt.Sprintf("%d-%s", v.width, theme)
}

// tab is one tab. What goes wrong in it is a fault of its test: an error on the
// console, an exception, a breach of the page's own policy, a dialog.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string
}

const (
	tabLife = 5 * time.Minute
	oneStep = 30 * time.Second // of a tab
)

// newTab opens one in a window of its own, unless options say otherwise.
func newTab(t *testing.T, v view, options ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(chromium.ctx, options...)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	life, end := context.WithTimeout(ctx, tabLife+*flagStay)
	b := &tab{t: t, ctx: life}
	t.Cleanup(func() {
		end()
		cancel()
		for _, fault := range b.told() {
			t.Errorf("the page: %s", fault)
		}
	})
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		_, err := cdp.Call(ctx, to, cdplog.Enable, cdp.Empty{})
		return err
	}), look(v))
	return b
}

// look sets theme and size.
func look(v view) chromedp.Action[chromedp.Void] {
	theme := "light"
	if v.dark {
		theme = "dark"
	}
	var more []chromedp.EmulateViewportOption
	if v.width < 600 {
		more = append(more, chromedp.EmulateMobile, chromedp.EmulateTouch)
	}
	return chromedp.Steps(chromedp.EmulateViewport(v.width, v.height, more...), chromedp.Func(func(ctx context.Context, to *chromedp.Target) error {
		_, err := cdp.Call(ctx, to, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
		return err
	}))
}

func (b *tab) hear(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			fault = "console." + string(e.Type)
			for _, a := range e.Args {
				fault += fmt.Sprintf(" %s%s", a.Value, a.Description)
			}
		}
	case *runtime.EventExceptionThrown:
		fault = "an exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			fault += " " + e.ExceptionDetails.Exception.Description
		}
	case *cdplog.EventEntryAdded: // what the browser says itself: policies breached, files not found
		if e.Entry.Level == cdplog.EntryLevelError {
			fault = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *page.EventJavascriptDialogOpening:
		fault = "a dialog: " + e.Message
		go func() { // or the tab hangs
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}()
	}
	if fault != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.faults = append(b.faults, fault)
	}
}

// told returns the faults so far and forgets them.
func (b *tab) told() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.faults
	b.faults = nil
	return all
}

// do runs actions, all within one step's time.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, oneStep)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.failed(err)
	}
}

func (b *tab) failed(err error) {
	b.t.Helper()
	b.screen("failed-" + strings.ReplaceAll(b.t.Name(), "/", "-"))
	ctx, cancel := context.WithTimeout(b.ctx, oneStep)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 2000)`)) // what there is helps
	b.t.Fatalf("%v\n%s", err, text)
}

// open goes to url and waits until ready is there.
func (b *tab) open(url, ready string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitVisible(chromedp.CSS(ready)))
}

// click clicks the first that fits.
func (b *tab) click(css string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(css), chromedp.NodeVisible))
}

// write puts text where somebody writes.
func (b *tab) write(css, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(css), text, chromedp.NodeVisible))
}

// eval returns what a JavaScript expression gives.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*oneStep)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.failed(fmt.Errorf("%.200s: %w", expression, err))
	}
	return value
}

// until waits until a JavaScript expression is true, whatever page is there.
func (b *tab) until(within time.Duration, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	for {
		yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && yes {
			return
		}
		select {
		case <-ctx.Done():
			b.failed(fmt.Errorf("after %s not: %s: %w", within, expression, errors.Join(err, ctx.Err())))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// screen keeps what is seen, under a name.
func (b *tab) screen(name string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, oneStep)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(chromium.screens, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}
