//go:build browser

package browser_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

var (
	flagHome = flag.String("home", "", "state folder of a system that runs already; empty: one is started")
	flagStay = flag.Duration("stay", 20*time.Second, "how long a page is watched that must not grow")
	flagLive = flag.Int("live", 20, "sessions that go on meanwhile")
	flagMany = flag.Int("sessions", 10_000, "sessions of the list that must be there within a second")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := func() (int, error) {
		var err error
		if dev, err = startSystem(*flagHome); err != nil {
			return 1, err
		}
		chromium, err = startBrowser()
		code := 1
		if err == nil {
			code = m.Run()
			chromium.stop()
		}
		return code, dev.end(code != 0, err)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		code = 1
	}
	os.Exit(code)
}
