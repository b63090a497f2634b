package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/devstate"
	"tuluat.ai/harness/scripts/tuluat/internal/probe"
	"tuluat.ai/harness/scripts/tuluat/internal/telegram"
	"tuluat.ai/harness/shared/harness"
)

// check is one thing that was looked at.
type check struct {
	Agent   harness.AgentName `json:"agent"`
	Channel harness.Channel   `json:"channel,omitempty"`
	Account string            `json:"account,omitempty"`
	Check   string            `json:"check"`
	OK      bool              `json:"ok"`
	Warns   bool              `json:"warns,omitempty"` // it is OK and asks for a look
	Problem string            `json:"problem,omitempty"`
	Fix     string            `json:"fix,omitempty"`
}

// doctor looks at every channel of every agent.
type doctor struct {
	sys                      System
	state                    *devstate.State
	public                   string // where providers reach the system
	whatsAppAPI, telegramAPI string
	whatsAppVersion          string
	deep                     bool
	timeout                  time.Duration
	probe                    *probe.Client
	checks                   []check
	now                      check // agent, channel and account of the checks that follow
}

// unwellError says that checks have failed.
type unwellError struct{ failed, all int }

func (e *unwellError) Error() string { return fmt.Sprintf("%d of %d checks failed", e.failed, e.all) }

func newDoctor(sys System) *cobra.Command {
	d := &doctor{sys: sys, probe: probe.New()}
	var base, output string
	cmd := &cobra.Command{
		Use:   "doctor [AGENT...]",
		Short: "Check the system and every channel end to end, and say how to mend it",
		Long: `Check the system through its API: does the sweep come through, are there dead
letters, does anything leak, how do its channels do. Then check every channel of the
agents that are known here, or only those named: is the entry there, is a signed request taken, is a forged one refused, does the provider accept the
credential, does it send updates here. No probe starts a turn; --deep sends one
real message over each channel behind which a stand-in is, and waits for its answer.`,
		Example: "  tuluat doctor\n  tuluat doctor python-coder --deep\n  tuluat doctor --public-url https://agents.example.com",
		PreRunE: func(*cobra.Command, []string) error { return checkOutput(output) },
	}
	cmd.Flags().StringVar(&base, "url", "", "where the system listens (default: the one that runs here)")
	cmd.Flags().StringVar(&d.public, "public-url", "", "base URL at which providers reach the system (default: --url)")
	cmd.Flags().StringVar(&d.whatsAppAPI, "whatsapp-api", "", "base URL of the Graph API (default: the running system's, else WHATSAPP_API_URL, else https://graph.facebook.com)")
	cmd.Flags().StringVar(&d.telegramAPI, "telegram-api", "", "base URL of the Bot API (default: the running system's, else TELEGRAM_API_URL, else "+telegram.DefaultURL+")")
	cmd.Flags().BoolVar(&d.deep, "deep", false, "send one message over each channel behind which a stand-in is")
	cmd.Flags().DurationVar(&d.timeout, "timeout", 60*time.Second, "with --deep: how long to wait for an answer")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.AddCommand(newDoctorLeaks(sys))
	cmd.Args = cobra.ArbitraryArgs // agents, although there is a subcommand
	cmd.RunE = running(func(cmd *cobra.Command, args []string) (err error) {
		if len(args) == 0 {
			if err := d.system(cmd.Context()); err != nil {
				return err
			}
		}
		d.state, err = (&target{sys: sys, url: base}).find()
		if len(d.checks) > 0 && (errors.Is(err, devstate.ErrNone) || err == nil && len(d.state.Everyone()) == 0) {
			return d.conclude(output) // its API has said what there is to say
		}
		if err != nil {
			return err
		}
		d.state.URL = strings.TrimSuffix(cmp.Or(base, d.state.URL), "/")
		d.public = strings.TrimSuffix(cmp.Or(d.public, d.state.URL), "/")
		d.whatsAppAPI = cmp.Or(d.whatsAppAPI, d.state.APIs.WhatsApp, d.state.Fakes.WhatsApp, sys.Getenv("WHATSAPP_API_URL"), "https://graph.facebook.com")
		d.telegramAPI = cmp.Or(d.telegramAPI, d.state.APIs.Telegram, d.state.Fakes.Telegram, sys.Getenv("TELEGRAM_API_URL"), telegram.DefaultURL)
		d.whatsAppVersion = cmp.Or(sys.Getenv("WHATSAPP_API_VERSION"), "v25.0")
		if err := d.run(cmd.Context(), args); err != nil {
			return err
		}
		return d.conclude(output)
	})
	return cmd
}

// conclude prints what was found; the error says whether something failed.
func (d *doctor) conclude(output string) error {
	if err := d.print(output); err != nil {
		return err
	}
	failed := 0
	for _, c := range d.checks {
		if !c.OK {
			failed++
		}
	}
	if failed > 0 {
		return &unwellError{failed, len(d.checks)}
	}
	return nil
}

func (d *doctor) run(ctx context.Context, agents []string) error {
	if len(agents) == 0 {
		agents = d.state.Everyone()
	}
	if len(agents) == 0 {
		return harness.Errorf(harness.NotFound, "no agent with a channel is known here: write one into the agents folder")
	}
	for _, agent := range agents {
		hook, hooked := d.state.Webhooks[agent]
		if !hooked && len(d.state.Channels[agent]) == 0 {
			return harness.Errorf(harness.NotFound, "there is no agent %q here that can be talked to; known: %s", agent, strings.Join(d.state.Everyone(), ", "))
		}
		d.now = check{Agent: harness.AgentName(agent)}
		if !d.add("entry answers", d.probe.Reach(ctx, d.state.URL), "nothing answers at "+d.state.URL+": start the system with `make dev`, or give --url") {
			continue // all else would fail for the same reason
		}
		if hooked {
			d.now = check{Agent: harness.AgentName(agent), Channel: harness.ChannelWebhook, Account: hook.Hook}
			d.webhook(ctx, agent)
		}
		for _, c := range d.state.Channels[agent] {
			d.now = check{Agent: harness.AgentName(agent), Channel: c.Type, Account: c.Account}
			switch c.Type {
			case harness.ChannelWhatsApp:
				d.whatsApp(ctx, c)
			case harness.ChannelTelegram:
				d.telegram(ctx, c)
			}
			if d.deep && d.state.Fakes.Of(c.Type) != "" {
				d.converse(ctx, c)
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// add notes a check; a nil problem is a good one.
func (d *doctor) add(what string, problem error, fix string) bool {
	c := d.now
	c.Check, c.OK = what, problem == nil
	if problem != nil {
		c.Problem, c.Fix = problem.Error(), fix
	}
	d.checks = append(d.checks, c)
	return c.OK
}

// secret reads a secret that a check needs; without it, the check fails.
func (d *doctor) secret(what string, c devstate.Channel, role devstate.Role, variable string) (harness.Secret, bool) {
	secret, err := d.state.Secret(c, role)
	if err == nil && secret == "" {
		text, _, _ := strings.Cut(d.sys.Getenv(variable), ",")
		secret = harness.Secret(strings.TrimSpace(text))
	}
	if err == nil && secret != "" {
		return secret, true
	}
	name := strings.ToLower(strings.ReplaceAll(string(role), "_", " "))
	if err == nil {
		err = fmt.Errorf("the %s is not known", name)
	}
	fix := "set " + variable + ", or name a SecretRef in the agent's channel"
	if file := c.SecretFiles[role]; file != "" {
		fix = "put the " + name + " into " + file
	}
	return "", d.add(what, err, fix)
}

func (d *doctor) print(output string) error {
	if output == "json" {
		return json.NewEncoder(d.sys.Stdout).Encode(d.checks)
	}
	w := tabwriter.NewWriter(d.sys.Stdout, 0, 0, 2, ' ', 0)
	for _, c := range d.checks {
		mark := "✓"
		switch {
		case !c.OK:
			mark = "✗"
		case c.Warns:
			mark = "!"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", mark, visible(string(c.Agent)), strings.ToLower(string(c.Channel)), visible(c.Account), c.Check)
		if !c.OK || c.Warns {
			fmt.Fprintf(w, "\t%s\n\tfix: %s\n", flatten(c.Problem), flatten(c.Fix))
		}
	}
	return w.Flush()
}

// flatten keeps text in its cell.
func flatten(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(visible(text))
}

// expect judges the status of a probe.
func expect(status int, err error, allowed ...int) error {
	if err != nil {
		return err
	}
	for _, a := range allowed {
		if status == a {
			return nil
		}
	}
	return fmt.Errorf("answered %d", status)
}
