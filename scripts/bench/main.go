// Command bench measures one machine's figures, each beside its baseline in the
// same run, pairs in turn, and prints a table: how many requests webhook-ingest,
// whatsapp-ingest and telegram-ingest take beside a bare handler and beside Node
// servers of the libraries people use; what a message costs from POST to callback
// with an instant model, alone and at 1,000 sessions at once, and how many SQL round
// trips that makes; sandboxes beside bubblewrap alone; an idle hour beside the same
// functions always on; turns beside more and more history, agents and sandboxes;
// and how long each function takes from start to ready.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/internal/figure"
	"tuluat.ai/harness/scripts/internal/localpg"
)

type options struct {
	seconds  time.Duration // of one load run
	pairs    int           // runs of each side, in turn
	messages int           // of the turn measurement
	starts   int           // per function
	posts    int           // of 1,000 updates each
	peers    int           // processes of each Node server
	only     string        // one section; empty: all
	json     string        // file for the figures; empty: none
	boxes    int           // sandboxes, one after the other
	ticks    int           // of the sweep, of each side
	quiet    int           // messages that find no process
	window   time.Duration // that a process is kept behind its last request
	still    time.Duration // that the always-on layout is watched
	growth   int           // messages of history, at most
	profile  string        // folder for profiles of functions in the turns; empty: none
}

func main() {
	var o options
	flag.DurationVar(&o.seconds, "for", 5*time.Second, "length of one load run")
	flag.IntVar(&o.pairs, "pairs", 5, "runs of each side, in turn")
	flag.IntVar(&o.messages, "messages", 200, "messages of the turn measurement")
	flag.IntVar(&o.starts, "starts", 21, "starts per function")
	flag.IntVar(&o.posts, "posts", 20, "POSTs of 1,000 updates")
	flag.IntVar(&o.peers, "peer-processes", runtime.NumCPU(), "processes of each Node server")
	flag.StringVar(&o.only, "only", "", "one section: starts, ingest, whatsapp-ingest, large, turns, sandboxes, idle or growth")
	flag.StringVar(&o.json, "json", "", "write the figures to this file too")
	flag.IntVar(&o.boxes, "boxes", 15, "sandboxes that are started one after the other")
	flag.IntVar(&o.ticks, "ticks", 15, "ticks of the sweep when nothing is open, of each side")
	flag.IntVar(&o.quiet, "quiet", 5, "messages that each find no process")
	flag.DurationVar(&o.window, "window", 20*time.Second, "how long a process is kept behind its last request, as the Services' window says")
	flag.DurationVar(&o.still, "still", 30*time.Second, "how long the functions are watched that are always on")
	flag.IntVar(&o.growth, "growth", 100_000, "messages of history beside which turns are measured, from 1,000 on, ten times as many at a time")
	flag.StringVar(&o.profile, "profile", "", "keep CPU profiles of the functions during the turns in this folder, and flame graphs of them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "tuluat-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	say("building")
	bin := filepath.Join(dir, "bin")
	tags := "local"
	if o.profile != "" {
		if o.profile, err = filepath.Abs(o.profile); err != nil {
			return err
		}
		if err := os.MkdirAll(o.profile, 0o755); err != nil {
			return err
		}
		tags += ",profile"
	}
	if err := build(ctx, bin, tags); err != nil {
		return err
	}
	say("starting Postgres (fsync on)")
	pg, err := localpg.Start(ctx, localpg.Options{Dir: filepath.Join(dir, "postgres"), Log: filepath.Join(dir, "postgres.log")})
	if err != nil {
		return err
	}
	defer func() {
		if err := pg.Stop(); err != nil {
			say("Postgres: %v", err)
		}
	}()
	var figures []figure.Figure
	known := false
	for _, section := range sections {
		if o.only != "" && o.only != section.name {
			continue
		}
		known = true
		more, err := section.measure(ctx, o, bin, pg)
		if err != nil {
			return err
		}
		figures = append(figures, more...)
	}
	if !known {
		return fmt.Errorf("there is no section %q", o.only)
	}
	figure.Print(os.Stdout, figures)
	return figure.Write(o.json, figures)
}

var sections = []struct {
	name    string
	measure func(context.Context, options, string, *localpg.Server) ([]figure.Figure, error)
}{{"starts", starts}, {"ingest", ingest}, {"whatsapp-ingest", channels}, {"large", large}, {"turns", turns}, {"sandboxes", sandboxes}, {"idle", idle}, {"growth", growth}}

var functions = []string{"agent-status", "agent-step", "dead-letter", "management-api", "reaper-cron", "sandbox-exec", "telegram-ingest", "temporal-bridge", "webhook-ingest", "whatsapp-ingest"}

func build(ctx context.Context, bin, tags string) error {
	args := []string{"build", "-tags", tags, "-o", bin + "/", "./functions/sandbox-exec/runner", "./scripts/bench/baseline"}
	for _, f := range functions {
		args = append(args, "./functions/"+f)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }
