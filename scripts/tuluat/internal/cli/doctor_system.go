package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

const (
	sweepOld      = 5 * time.Minute // a pass is begun each minute
	comparisonOld = 3 * time.Hour   // the bucket is compared about once an hour
)

// system looks at what the management API says of the whole. Where none is known
// there is nothing to ask.
func (d *doctor) system(ctx context.Context) error {
	m := &manager{sys: d.sys}
	if err := m.connect(); err != nil {
		if harness.KindOf(err) == harness.NotFound { // no API is known
			fmt.Fprintln(d.sys.Stderr, "The system itself is not checked: "+flatten(err.Error()))
			return nil
		}
		return err
	}
	defer m.client.Close()
	d.now = check{}
	if _, err := m.client.WhoAmI(ctx); !d.add("the API answers", err, apiFix(err, m.login.URL)) {
		return ctx.Err()
	}
	for _, look := range []func(context.Context, *api.Client){d.versions, d.sweep, d.deadLetters, d.leaks, d.retention, d.accounts} {
		look(ctx, m.client)
	}
	return ctx.Err()
}

func apiFix(err error, url string) string {
	if p, ok := errors.AsType[*api.Problem](err); ok && p.Status == http.StatusUnauthorized {
		return "`tuluat login " + url + "` with a token that it knows"
	}
	return "is " + url + " reachable from here, and management-api Ready?"
}

// warn notes what is no failure and asks for a look; a nil problem is a good check.
func (d *doctor) warn(what string, problem error, fix string) {
	c := d.now
	c.Check, c.OK, c.Warns = what, true, problem != nil
	if problem != nil {
		c.Problem, c.Fix = problem.Error(), fix
	}
	d.checks = append(d.checks, c)
}

// asked reports whether the API said it; else the check cannot be made.
func (d *doctor) asked(what string, err error) bool {
	if err == nil {
		return true
	}
	if p, ok := errors.AsType[*api.Problem](err); ok && p.Status == http.StatusForbidden {
		d.warn(what, errors.New("this caller may not look"), "ask as somebody with the role tuluat-viewer")
		return false
	}
	return d.add(what, err, "see the log of management-api; is it of the version of this command line?")
}

func (d *doctor) versions(ctx context.Context, client *api.Client) {
	const what = "the API is of this command line's version"
	text, err := client.Version(ctx)
	if !d.asked(what, err) {
		return
	}
	var said struct {
		API string `json:"api"`
	}
	if err = json.Unmarshal(text, &said); err == nil && said.API != "v1" {
		err = fmt.Errorf("it is %q, and this command line speaks v1", said.API)
	}
	d.add(what, err, "use the tuluat that came with the system")
}

func (d *doctor) sweep(ctx context.Context, client *api.Client) {
	const what = "the sweep comes through"
	item, err := client.Sweep(ctx)
	if !d.asked(what, err) {
		return
	}
	const fix = "is the PingSource `reaper` there and Ready, and what does the log of reaper-cron say?"
	age := item.View.AgeSeconds
	switch {
	case age == nil:
		err = errors.New("there was no whole pass yet")
	case *age > sweepOld.Seconds():
		err = fmt.Errorf("the last whole pass was %s ago", seconds(*age))
	}
	d.add(what, err, fix)
	for _, i := range item.View.Items {
		if i.Reason != "" {
			d.warn("the sweep does "+i.Name, errors.New(i.Reason), "it is tried again each minute; the log of reaper-cron has the cause")
		}
	}
}

func seconds(n float64) time.Duration { return time.Duration(n) * time.Second }

func (d *doctor) deadLetters(ctx context.Context, client *api.Client) {
	const what, most = "no event is given up", 50
	l, err := client.DeadLetters(ctx, api.DeadLetterFilter{States: []string{"OPEN"}}, most)
	if !d.asked(what, err) {
		return
	}
	if n := len(l.Items); n > 0 {
		number := strconv.Itoa(n)
		if l.More {
			number += " or more"
		}
		err = fmt.Errorf("%s dead letters are open", number)
	}
	d.warn(what, err, "`tuluat deadletter list` has the cause of each: mend it, then `tuluat deadletter replay ID`")
}

func (d *doctor) leaks(ctx context.Context, client *api.Client) {
	const what = "nothing leaks, and nothing is lost"
	l, err := client.Leaks(ctx)
	if !d.asked(what, err) {
		return
	}
	var bad, old []string
	for _, item := range l.Items {
		v := item.View
		if v.Leaked > 0 {
			bad = append(bad, fmt.Sprintf("%d %s leaked", v.Leaked, v.Kind))
		}
		if v.Lost > 0 {
			bad = append(bad, fmt.Sprintf("%d %s lost", v.Lost, v.Kind))
		}
		if stale(v) {
			old = append(old, string(v.Kind))
		}
	}
	if len(bad) > 0 {
		err = errors.New(strings.Join(bad, ", "))
	}
	d.add(what, err, "`tuluat doctor leaks` names some of them, and says why they are left")
	if len(old) > 0 {
		d.warn("what leaks is known", fmt.Errorf("the last comparison of %s is older than %s", strings.Join(old, ", "), comparisonOld), "the log of reaper-cron says why it does not come to its end")
	}
}

func stale(v view.Leaks) bool {
	return v.ComparedAt != nil && time.Since(*v.ComparedAt) > comparisonOld
}

// retention warns when agents say how long logs are kept and nothing can be archived.
func (d *doctor) retention(ctx context.Context, client *api.Client) {
	const what = "logs can be archived"
	l, err := client.Leaks(ctx)
	if err != nil {
		return // said already
	}
	without := false
	for _, item := range l.Items {
		without = without || item.View.Kind == harness.ObjectArchive && item.View.ComparedAt == nil && item.View.Reason != ""
	}
	if !without {
		return
	}
	agents, err := client.Objects(ctx, api.Agents, nil, 0)
	if !d.asked(what, err) {
		return
	}
	var wanting []string
	for _, a := range agents.Items {
		var spec struct {
			Logs *struct{} `json:"logs"`
		}
		if json.Unmarshal(a.View.Spec, &spec) == nil && spec.Logs != nil {
			wanting = append(wanting, a.View.Metadata.Name)
		}
	}
	if len(wanting) > 0 {
		err = fmt.Errorf("no bucket is configured, and agents say how long their logs are kept: %s. Nothing is archived or dropped", strings.Join(wanting, ", "))
	}
	d.warn(what, err, "make the Secret `object-store` (S3_BUCKET and its keys), or take spec.logs out of the agents")
}

// accounts are our sides of channels as the system knows them.
func (d *doctor) accounts(ctx context.Context, client *api.Client) {
	l, err := client.Channels(ctx, 0)
	if !d.asked("channels do well", err) {
		return
	}
	for _, item := range l.Items {
		v := item.View
		d.now = check{Agent: v.Agent, Channel: v.Channel, Account: v.Account}
		var missing []string
		for _, s := range v.Secrets {
			if s.State != "AVAILABLE" {
				missing = append(missing, fmt.Sprintf("%s/%s is %s", s.Name, s.Key, s.State))
			}
		}
		var problem error
		if len(missing) > 0 {
			problem = errors.New(strings.Join(missing, ", "))
		}
		d.add("its Secrets are there", problem, "make the Secret in the agents' namespace, labelled tuluat.ai/agent-access for the agent")
		if problem = nil; v.Failed+v.Unknown > 0 {
			problem = fmt.Errorf("in 24 hours %d replies could not be sent, and of %d nobody knows", v.Failed, v.Unknown)
		}
		d.warn("its replies arrive", problem, "`tuluat session list --channel "+strings.ToLower(string(v.Channel))+"`, and the parts of its messages say why")
	}
	d.now = check{}
}

func newDoctorLeaks(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{
		Use: "leaks", Short: "Say what exists without an owner, and what is gone that should be there", Args: cobra.NoArgs,
		Long: "Say what the last comparison of rows with what exists outside of them came to, by\nkind. It ends with 1 when something is leaked or lost. The sweep removes what has no\nowner by itself: what is left here it could not remove, and the lines below say why.",
	}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		l, err := m.client.Leaks(ctx)
		if err != nil {
			return err
		}
		number := func(n func(view.Leaks) int64) func(view.Leaks) string {
			return func(v view.Leaks) string {
				if v.ComparedAt == nil {
					return "-"
				}
				return strconv.FormatInt(n(v), 10)
			}
		}
		err = printList(sys, f, "kinds", l, []column[view.Leaks]{
			{"KIND", func(v view.Leaks) string { return string(v.Kind) }},
			{"KNOWN", number(func(v view.Leaks) int64 { return v.Known })},
			{"FOUND", number(func(v view.Leaks) int64 { return v.There })},
			{"LEAKED", number(func(v view.Leaks) int64 { return v.Leaked })},
			{"LOST", number(func(v view.Leaks) int64 { return v.Lost })},
			{"OLDEST", func(v view.Leaks) string { return whenever(v.OldestAt) }},
			{"COMPARED", func(v view.Leaks) string { return whenever(v.ComparedAt) }},
		})
		if err != nil {
			return err
		}
		bad := int64(0)
		for _, item := range l.Items {
			v := item.View
			bad += v.Leaked + v.Lost
			if f == asTable {
				tellLeaks(sys, v)
			}
			if stale(v) {
				fmt.Fprintf(sys.Stderr, "%s: the last comparison is older than %s; what the table says of it may not hold any more.\n", visible(string(v.Kind)), comparisonOld)
			}
		}
		if bad > 0 {
			return fmt.Errorf("%d things are leaked or lost", bad)
		}
		return nil
	})
	return cmd
}

func tellLeaks(sys System, v view.Leaks) {
	if v.Reason != "" {
		fmt.Fprintf(sys.Stdout, "%s: %s\n", visible(string(v.Kind)), flatten(v.Reason))
	}
	for _, name := range v.Examples {
		fmt.Fprintf(sys.Stdout, "%s: as %s\n", visible(string(v.Kind)), flatten(name))
	}
}

// recordWebhook records where updates of a bot are sent to, if there is a management
// API that lets us. A failure is told and stops nothing; where no system is known,
// there is none to record it.
func recordWebhook(ctx context.Context, sys System, account, url string) {
	m := &manager{sys: sys}
	err := m.connect()
	if err == nil {
		defer m.client.Close()
		err = m.client.RecordWebhook(ctx, harness.ChannelTelegram, account, url)
	}
	if err != nil && harness.KindOf(err) != harness.NotFound {
		fmt.Fprintln(sys.Stderr, "The system has no record of it (`tuluat doctor leaks` would not find it when no agent has the bot any more): "+flatten(err.Error()))
	}
}
