//go:build e2e

package e2e_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// settings are what a person or a CI job may set.
type settings struct {
	ingress  string // base URL at which the cluster's ingress listens; empty: the Services' own URLs
	prefix   string // of the namespaces
	reuse    bool   // the prefix is deployed already
	redeploy bool   // and brought to this checkout
	keep     bool   // nothing is removed at the end
	postgres string
	python   string
	standard string // the image of a sandbox that asks for none
	overlay  string
	public   string // HOST:PORT of a listener outside the cluster's own ranges; empty: not probed

	restartKubelet   string // commands of the shell; empty: not done
	restartAPIServer string
}

func readSettings(getenv func(string) string) settings {
	s := settings{
		ingress:  strings.TrimSuffix(getenv("E2E_INGRESS_URL"), "/"),
		prefix:   getenv("E2E_REUSE"),
		keep:     getenv("E2E_KEEP") != "",
		postgres: cmp.Or(getenv("E2E_POSTGRES_IMAGE"), "postgres:17"),
		python:   cmp.Or(getenv("E2E_PYTHON_IMAGE"), "python:3.13-slim"),
		standard: cmp.Or(getenv("E2E_DEFAULT_IMAGE"), "debian:stable-slim"),
		overlay:  cmp.Or(getenv("E2E_OVERLAY"), "config/overlays/ephemeral"),
		public:   getenv("E2E_PUBLIC_ADDRESS"),
		redeploy: getenv("E2E_REDEPLOY") != "",

		restartKubelet:   getenv("E2E_RESTART_KUBELET"),
		restartAPIServer: getenv("E2E_RESTART_APISERVER"),
	}
	s.reuse = s.prefix != ""
	if s.reuse {
		s.keep = true // whoever deployed it removes it
		return s
	}
	const letters = "abcdefghijkmnpqrstuvwxyz23456789"
	word := make([]byte, 4)
	for i := range word {
		word[i] = letters[rand.IntN(len(letters))]
	}
	s.prefix = "e2e-" + string(word) + "-"
	return s
}

// under is the deployed system, made by TestMain before any test runs.
var under *system

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil { // these tests mostly wait
		panic(err)
	}
	os.Exit(run(m, readSettings(os.Getenv)))
}

// run deploys, tests, prints the figures and removes what was made, also when
// something fails or a person interrupts.
func run(m *testing.M, s settings) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := connect(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	sys := newSystem(s, c)
	remove := sync.OnceValue(func() error {
		stop() // a second Ctrl-C ends the program at once
		return sys.remove()
	})
	// m.Run knows no context, so an interrupt removes and leaves from here.
	interrupted := context.AfterFunc(ctx, func() {
		fmt.Fprintln(os.Stderr, "e2e: interrupted; removing what was made (again: leave it)")
		if err := remove(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
		}
		os.Exit(130)
	})
	code := 1
	if err := sys.deploy(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			select {} // the interrupt's own way out is on
		}
		fmt.Fprintln(os.Stderr, "e2e: deploy:", err)
		sys.tellTrouble(os.Stderr)
	} else {
		under = sys
		code = m.Run()
		if code != 0 {
			sys.tellTrouble(os.Stderr)
		}
	}
	sys.figures.print(os.Stdout)
	if !interrupted() {
		select {}
	}
	if err := remove(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: remove:", err)
		return max(code, 1)
	}
	return code
}
