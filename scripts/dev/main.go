// Command dev runs the whole system on this machine: `make dev`.
//
// It is the front: it checks the machine, starts PostgreSQL, builds everything
// with progress to see, and then runs dev/platform, which does the rest. It
// imports next to nothing, so that it is compiled and talking within seconds on
// a machine that has never built this project; what takes minutes to compile is
// in the platform.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	open := len(os.Args) == 2 && (os.Args[1] == "-open" || os.Args[1] == "--open")
	if len(os.Args) > 1 && !open {
		os.Exit(answer(os.Args[1:], os.Stdout, os.Stderr))
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if err := run(signals, browser(open)); err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

const help = `Run the whole system on this machine: make dev

Ctrl-C stops it; once more stops it at once. It has one flag, and goes by the
variables below:

  -open             shows the tour in a browser once all is ready: make dev ARGS=-open

  BROWSER           program that -open starts; one that is set is started without it too
  TULUAT_PORT       where it listens on 127.0.0.1 (default: ` + defaultPort + `)
  TULUAT_HOME       folder of its state and secrets (default: .tuluat in the checkout)
  TULUAT_AGENTS     folder of the agents' YAML (default: config/samples)

  WHATSAPP_API_URL  real APIs in place of the ones played here:
  TELEGRAM_API_URL  https://graph.facebook.com, https://api.telegram.org

  OPENAI_API_KEY, OPENAI_BASE_URL        a real model in place of the deterministic
  ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL  stand-in; with a base URL of OpenAI's kind
                                         MODEL_NAME must say which
  MODEL_NAME        which of its models
  MODEL_PROVIDER    openai or anthropic, where both have a key
`

// answer is what is said to arguments: there are none but -open and the question for help.
func answer(args []string, stdout, stderr io.Writer) (code int) {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "--help" || args[0] == "help") {
		fmt.Fprint(stdout, help)
		return 0
	}
	fmt.Fprintf(stderr, "dev: %q means nothing here: there is one flag, -open, and there are variables; see make dev ARGS=--help\n", args)
	return 2
}

// browser is the program that shows the tour; empty: none was asked for.
func browser(open bool) string {
	if program := os.Getenv("BROWSER"); program != "" || !open {
		return program
	}
	return "xdg-open"
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "dev: "+format+"\n", args...) }
