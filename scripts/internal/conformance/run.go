package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Options say what to run against what.
type Options struct {
	Root        string // of the checkout, whose functions are built where there is no Target
	DatabaseURL string // the server for a scratch database, empty: one is started; with a Target: the functions' database

	Target          string // base URL of functions that run already
	EventsURL       string // with a Target: where message.reply events are posted
	ProviderAddress string // with a Target: where the functions look for the providers

	LogFiles []string // with a Target: what the functions log, at level DEBUG

	Say func(string) // tells a person how far it is; may be nil

	slack time.Duration // tests: how many times slower the machine may be, as it compiles and tests beside this; 0: not
	known time.Duration // tests: how long functions may go on with old routes; 0: routesKnown
}

// awaitRoutes returns when running functions know the routes that are stored.
func (o Options) awaitRoutes(ctx context.Context) error {
	return wait(ctx, cmp.Or(o.known, routesKnown))
}

func (o Options) say(text string) {
	if o.Say != nil {
		o.Say(text)
	}
}

// The results of a case.
const (
	Passed  = "ok"
	Differs = "differs"
	NotRun  = "not run"
)

// Result is what one case came to.
type Result struct {
	Case    string   `json:"case"`
	Result  string   `json:"result"`
	Details []string `json:"details,omitempty"` // what differs, or why it was not run
	Mutants int      `json:"mutants,omitempty"`

	Observed *Observed `json:"-"`
}

// Run runs the cases one after the other and compares each. With mutate every
// expectation is changed, once for each thing it says: a case then passes if one
// of its changed expectations is met, and a right system passes none.
func (w *World) Run(ctx context.Context, cases []Case, mutate bool) ([]Result, error) {
	var results []Result
	for i := range cases {
		c := &cases[i]
		if why := w.cannot(c); why != "" {
			results = append(results, Result{Case: c.Name, Result: NotRun, Details: []string{why}})
			continue
		}
		o, err := w.observed(ctx, c)
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
		if err != nil {
			r := Result{Case: c.Name, Result: Differs, Details: []string{err.Error()}}
			if mutate {
				r.Result = NotRun // nothing was compared
			}
			if o != nil {
				r.Details = append(r.Details, o.Faults...)
			}
			results = append(results, r)
			continue
		}
		results = append(results, judge(c, o, mutate))
	}
	return results, nil
}

// judge compares what was observed with the case, or with its mutants.
func judge(c *Case, o *Observed, mutate bool) Result {
	r := Result{Case: c.Name, Result: Passed, Observed: o}
	if !mutate {
		if r.Details = Compare(c, c.Expect, o); len(r.Details) > 0 {
			r.Result = Differs
		}
		return r
	}
	r.Result = Differs
	for _, m := range Mutants(c.Expect) {
		r.Mutants++
		if met(c, m.Want, o) {
			r.Result = Passed
			r.Details = append(r.Details, "not told apart: "+m.What)
		}
	}
	if r.Mutants == 0 {
		r.Result, r.Details = Passed, []string{"it expects nothing"}
	}
	if !met(c, c.Expect, o) {
		r.Details = append(r.Details, "differs unchanged too")
	}
	return r
}

// met reports whether one outcome of want fits.
func met(c *Case, want Outcome, o *Observed) bool {
	return len(differences(c, want, o)) == 0 ||
		slices.ContainsFunc(want.AlsoOK, func(also Outcome) bool { return len(differences(c, also, o)) == 0 })
}

// cannot says why a case cannot be run here.
func (w *World) cannot(c *Case) string {
	switch {
	case w.options.Target == "":
		return ""
	case (c.Kind() == kindOut || c.Request.Mode != "") && w.provider == nil:
		return "needs the scripted provider: --provider-addr"
	case c.Kind() == kindOut && w.options.EventsURL == "":
		return "needs a place for events: --events-url"
	case c.Expect.AlertOperator != nil && len(w.logs) == 0:
		return "needs the functions' logs: --log"
	case !slices.Equal(w.numbersOf(c), w.numbers):
		return "needs other numbers"
	}
	return ""
}

func (w *World) numbersOf(c *Case) []string {
	if len(c.Request.ConfiguredNumbers) > 0 {
		return c.Request.ConfiguredNumbers
	}
	return []string{firstNumber}
}

// observed runs one case on an empty database.
func (w *World) observed(ctx context.Context, c *Case) (*Observed, error) {
	if err := w.reset(ctx); err != nil {
		return nil, err
	}
	if numbers := w.numbersOf(c); !slices.Equal(numbers, w.numbers) {
		w.numbers = numbers
		if err := w.routes(ctx); err != nil {
			return nil, err
		}
		if err := w.options.awaitRoutes(ctx); err != nil {
			return nil, err
		}
	}
	marks := make([]int, len(w.logs))
	for i, log := range w.logs {
		marks[i] = log.text.len()
	}
	o := &Observed{}
	err := w.act(ctx, c, o)
	for i, log := range w.logs { // a poller's has come meanwhile
		mark := 0
		if i < len(marks) {
			mark = marks[i]
		}
		readLog(log, mark, o)
	}
	o.Watched = len(w.logs) > 0
	for _, a := range o.Answers {
		if secret := secretIn(a.Body); secret != "" {
			o.Faults = append(o.Faults, "an answer holds the secret "+secret)
		}
	}
	return o, err
}

func (w *World) act(ctx context.Context, c *Case, o *Observed) error {
	switch {
	case c.Kind() == kindOut:
		return w.send(ctx, c, o)
	case c.Request.Mode == modeGetUpdates:
		if err := w.poll(ctx, c, o); err != nil {
			return err
		}
	default:
		if err := w.receive(ctx, c, o); err != nil {
			return err
		}
	}
	return w.observe(ctx, o)
}

// readLog finds what must not be in a function's log, and its ERROR lines.
func readLog(p functionLog, mark int, o *Observed) {
	text := p.text.since(mark)
	if secret := secretIn(text); secret != "" {
		o.Faults = append(o.Faults, p.name+" logged the secret "+secret)
	}
	if strings.Contains(text, "panic") || strings.Contains(text, "fatal error: ") {
		o.Faults = append(o.Faults, p.name+" panicked")
	}
	if p.ended() {
		o.Faults = append(o.Faults, p.name+" has ended")
	}
	for line := range strings.Lines(text) {
		var entry struct {
			Level   string `json:"level"`
			Message string `json:"msg"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Level == "ERROR" {
			o.Errors = append(o.Errors, entry.Message)
		}
	}
}

// secretIn names the secret that text holds.
func secretIn(text string) string {
	for _, s := range secrets {
		if strings.Contains(text, s.value) {
			return fmt.Sprintf("%s/%s", s.ref.Name, s.ref.Key)
		}
	}
	return ""
}

// Channels runs the cases of folder whose names match the pattern, all if it is
// empty, in a world that it makes and removes.
func Channels(ctx context.Context, o Options, folder, pattern string, mutate bool) (report Report, err error) {
	cases, err := Load(folder)
	if err != nil {
		return report, err
	}
	if pattern != "" {
		cases = slices.DeleteFunc(cases, func(c Case) bool {
			match, _ := path.Match(pattern, c.Name) // a bad pattern matches nothing, which is told below
			return !match
		})
	}
	if len(cases) == 0 {
		return report, fmt.Errorf("no case matches %q", pattern)
	}
	w, err := NewWorld(ctx, o, cases)
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil {
		return report, err
	}
	o.say(fmt.Sprintf("running %d cases", len(cases)))
	results, err := w.Run(ctx, cases, mutate)
	return NewReport(results, mutate), err
}
